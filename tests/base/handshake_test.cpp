#include "base/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "base/fd.h"
#include "catch.h"

using namespace tutti;
using Status = Handshake::Status;

namespace {

struct Pair {
  Fd a, b;
  Pair() {
    int fds[2] = {-1, -1};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
};

Key key(const char* secret) {
  return derive_key(secret, strlen(secret));
}

void send_bytes(const Fd& fd, const void* data, size_t bytes) {
  REQUIRE(::send(fd.get(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

// A hello as a client sends it.
Hello genuine_hello(const Key& k, HelloKind kind, int from, int to) {
  Pair pair;
  Handshake client = Handshake::client(k, kind, from, to);
  REQUIRE(client.advance(pair.a.get()) == Status::kPending);
  Hello hello;
  REQUIRE(::recv(pair.b.get(), &hello, sizeof hello, 0) == sizeof hello);
  return hello;
}

// A client that has received a nonce and answered it with its proof.
Handshake client_after_proof(const Pair& pair) {
  Handshake client = Handshake::client(key("secret"), HelloKind::kTcp, 3, 5);
  const uint8_t nonce[16] = {};
  send_bytes(pair.b, nonce, sizeof nonce);
  REQUIRE(client.advance(pair.a.get()) == Status::kPending);
  return client;
}

// The server's error when a client sends these bytes.
std::string server_refusal(const void* data, size_t bytes) {
  Pair pair;
  Handshake server = Handshake::server(key("secret"), HelloKind::kTcp, 5);
  send_bytes(pair.a, data, bytes);
  REQUIRE(server.advance(pair.b.get()) == Status::kFailed);
  REQUIRE(server.advance(pair.b.get()) == Status::kFailed);  // a failure is final
  return server.why();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Drives both until neither moves.
void drive(Handshake& client, int client_fd, Handshake& server, int server_fd, Status* c, Status* s) {
  for (int i = 0; i < 10; i++) {
    *c = client.advance(client_fd);
    *s = server.advance(server_fd);
  }
}

}  // namespace

TEST_CASE("two that know the secret get to know each other") {
  Pair pair;
  Handshake client = Handshake::client(key("secret"), HelloKind::kTcp, 3, 5, {1, 2, 3, 4, 5});
  Handshake server = Handshake::server(key("secret"), HelloKind::kTcp, 5);
  Status c, s;
  drive(client, pair.a.get(), server, pair.b.get(), &c, &s);
  CHECK(c == Status::kDone);
  CHECK(s == Status::kDone);
  CHECK(server.hello().from_rank == 3);
  CHECK(server.hello().args[4] == 5);
  char byte;
  CHECK(::recv(pair.a.get(), &byte, 1, 0) < 0);  // no extra byte was sent, or was left unread
  CHECK(::recv(pair.b.get(), &byte, 1, 0) < 0);
}

TEST_CASE("what follows the handshake is left for its reader") {
  Pair pair;
  Handshake client = Handshake::client(key("secret"), HelloKind::kTcp, 3, 5);
  Handshake server = Handshake::server(key("secret"), HelloKind::kTcp, 5);
  REQUIRE(client.advance(pair.a.get()) == Status::kPending);
  REQUIRE(server.advance(pair.b.get()) == Status::kPending);
  REQUIRE(client.advance(pair.a.get()) == Status::kPending);
  send_bytes(pair.a, "data", 4);
  REQUIRE(server.advance(pair.b.get()) == Status::kDone);
  send_bytes(pair.b, "atad", 4);
  REQUIRE(client.advance(pair.a.get()) == Status::kDone);
  char data[5] = "";
  REQUIRE(::recv(pair.b.get(), data, 4, 0) == 4);
  CHECK(std::string(data) == "data");
  REQUIRE(::recv(pair.a.get(), data, 4, 0) == 4);
  CHECK(std::string(data) == "atad");
}

TEST_CASE("each direction of an encrypted connection has a key of its own") {
  Key secret = key("secret");
  secret.encrypts = true;
  Pair pair;
  Handshake client = Handshake::client(secret, HelloKind::kTcp, 3, 5);
  Handshake server = Handshake::server(secret, HelloKind::kTcp, 5);
  Status c, s;
  drive(client, pair.a.get(), server, pair.b.get(), &c, &s);
  REQUIRE((c == Status::kDone && s == Status::kDone));
  const auto by_client = client.take_channel(), by_server = server.take_channel();
  REQUIRE((by_client && by_server));
  REQUIRE(send_some(pair.a.get(), by_client.get(), "text", 4) == 4);
  REQUIRE(send_some(pair.b.get(), by_server.get(), "text", 4) == 4);
  char to_server[64], to_client[64];
  REQUIRE(::recv(pair.b.get(), to_server, sizeof to_server, 0) == 24);
  REQUIRE(::recv(pair.a.get(), to_client, sizeof to_client, 0) == 24);
  CHECK(memcmp(to_server, to_client, 24) != 0);  // else a side's own data could be replayed to it
}

TEST_CASE("who puts another key between two that encrypt is found out") {
  Key secret = key("secret");
  secret.encrypts = true;
  const auto carry = [](const Fd& from, const Fd& to, size_t changed) {
    uint8_t bytes[128];
    const ssize_t n = ::recv(from.get(), bytes, sizeof bytes, 0);
    REQUIRE(n > 32);
    if (changed > 0) bytes[changed] ^= 1;
    send_bytes(to, bytes, static_cast<size_t>(n));
  };
  for (const bool is_servers : {true, false}) {
    CAPTURE(is_servers);
    Pair client_side, server_side;
    Handshake client = Handshake::client(secret, HelloKind::kTcp, 3, 5);
    Handshake server = Handshake::server(secret, HelloKind::kTcp, 5);
    REQUIRE(client.advance(client_side.a.get()) == Status::kPending);
    carry(client_side.b, server_side.b, 0);
    REQUIRE(server.advance(server_side.a.get()) == Status::kPending);
    carry(server_side.b, client_side.b, is_servers ? 16 + 1 + 5 : 0);  // behind the nonce and the cipher
    REQUIRE(client.advance(client_side.a.get()) == Status::kPending);
    carry(client_side.b, server_side.b, is_servers ? 0 : 5);
    CHECK(server.advance(server_side.a.get()) == Status::kFailed);
    CHECK(has(server.why(), "does not know this group's secret"));
  }
}

TEST_CASE("all that goes between hosts is encrypted, and what stays within one is not") {
  Key secret = key("secret");
  secret.encrypts = true;
  for (const HelloKind kind : {HelloKind::kBootstrap, HelloKind::kControl, HelloKind::kTcp, HelloKind::kShm}) {
    CAPTURE(static_cast<int>(kind));
    Pair pair;
    Handshake client = Handshake::client(secret, kind, 3, 5), server = Handshake::server(secret, kind, 5);
    Status c, s;
    drive(client, pair.a.get(), server, pair.b.get(), &c, &s);
    REQUIRE((c == Status::kDone && s == Status::kDone));
    CHECK((client.take_channel() != nullptr) == (kind != HelloKind::kShm));
    CHECK((server.take_channel() != nullptr) == (kind != HelloKind::kShm));
  }
}

TEST_CASE("a handshake works one byte at a time") {
  Pair client_side, server_side;
  Handshake client = Handshake::client(key("secret"), HelloKind::kShm, 0, 1);
  Handshake server = Handshake::server(key("secret"), HelloKind::kShm, 1);
  const auto carry = [](const Fd& from, const Fd& to) {
    char byte;
    if (::recv(from.get(), &byte, 1, 0) == 1) send_bytes(to, &byte, 1);
  };
  Status c = Status::kPending, s = Status::kPending;
  int turns = 0;
  for (; turns < 1000 && (c == Status::kPending || s == Status::kPending); turns++) {
    c = client.advance(client_side.a.get());
    s = server.advance(server_side.a.get());
    carry(client_side.b, server_side.b);
    carry(server_side.b, client_side.b);
  }
  CHECK(c == Status::kDone);
  CHECK(s == Status::kDone);
  CHECK(turns > static_cast<int>(sizeof(Hello)));  // it really went byte by byte
}

TEST_CASE("a wrong secret fails on both sides, and both know why") {
  Pair pair;
  Handshake client = Handshake::client(key("secret"), HelloKind::kTcp, 3, 5);
  Handshake server = Handshake::server(key("other"), HelloKind::kTcp, 5);
  Status c, s;
  drive(client, pair.a.get(), server, pair.b.get(), &c, &s);
  CHECK(s == Status::kFailed);
  CHECK(has(server.why(), "does not know this group's secret"));
  CHECK(server.is_misfit());
  CHECK(c == Status::kFailed);
  CHECK(has(client.why(), "does not know this group's secret: it rejected this side's"));
  CHECK(client.is_misfit());
}

TEST_CASE("a server that hangs up instead of answering is not said to have another secret") {
  Pair pair;
  Handshake client = client_after_proof(pair);
  uint8_t said[128];  // unread data would reset the connection
  REQUIRE(::recv(pair.b.get(), said, sizeof said, 0) == sizeof(Hello) + 32);
  pair.b.reset();
  CHECK(client.advance(pair.a.get()) == Status::kFailed);
  CHECK(has(client.why(), "closed the connection during the handshake"));
  CHECK(!client.is_misfit());
}

// Otherwise a stranger could record what the server says and try secrets on it offline.
TEST_CASE("to who has not proved itself, a server says nothing that depends on the secret") {
  Pair pair;
  const Hello hello = genuine_hello(key("guess"), HelloKind::kTcp, 3, 5);
  Handshake server = Handshake::server(key("secret"), HelloKind::kTcp, 5);
  send_bytes(pair.a, &hello, sizeof hello);
  REQUIRE(server.advance(pair.b.get()) == Status::kPending);
  uint8_t said[64];
  CHECK(::recv(pair.a.get(), said, sizeof said, 0) == 16);  // a nonce
  const uint8_t proof[32] = {};
  send_bytes(pair.a, proof, sizeof proof);
  REQUIRE(server.advance(pair.b.get()) == Status::kFailed);
  CHECK(::recv(pair.a.get(), said, sizeof said, 0) == 32);
  CHECK(std::all_of(said, said + 32, [](uint8_t byte) { return byte == 0; }));
}

TEST_CASE("a client believes no wrong answer to its proof") {
  Pair pair;
  Handshake client = client_after_proof(pair);
  const uint8_t answer[32] = {1};
  send_bytes(pair.b, answer, sizeof answer);
  CHECK(client.advance(pair.a.get()) == Status::kFailed);
  CHECK(has(client.why(), "does not know this group's secret"));
}

TEST_CASE("a client that encrypts takes no cipher that it has not offered") {
  Key secret = key("secret");
  secret.encrypts = true;
  for (const uint8_t cipher : {uint8_t{0}, uint8_t{3}, uint8_t{16}}) {  // none, two at once, an unknown one
    Pair pair;
    Handshake client = Handshake::client(secret, HelloKind::kTcp, 3, 5);
    uint8_t challenge[16 + 1 + 32] = {};
    challenge[16] = cipher;
    send_bytes(pair.b, challenge, sizeof challenge);
    CHECK(client.advance(pair.a.get()) == Status::kFailed);
    CHECK(has(client.why(), "not offered"));
  }
}

TEST_CASE("a server chooses no cipher that the client has not offered") {
  Key secret = key("secret");
  secret.encrypts = true;
  Hello hello = genuine_hello(secret, HelloKind::kTcp, 3, 5);
  for (const uint8_t ciphers : {static_cast<uint8_t>(Cipher::kChaCha20), ciphers_here()}) {
    Pair pair;
    hello.ciphers = ciphers;
    Handshake server = Handshake::server(secret, HelloKind::kTcp, 5);
    send_bytes(pair.a, &hello, sizeof hello);
    REQUIRE(server.advance(pair.b.get()) == Status::kPending);
    uint8_t challenge[64];
    REQUIRE(::recv(pair.a.get(), challenge, sizeof challenge, 0) == 16 + 1 + 32);
    CHECK(challenge[16] == (ciphers > 1 ? 2 : 1));  // the best that both have
  }
}

TEST_CASE("a server believes no wrong proof") {
  Pair pair;
  const Hello hello = genuine_hello(key("other"), HelloKind::kTcp, 3, 5);
  Handshake server = Handshake::server(key("secret"), HelloKind::kTcp, 5);
  send_bytes(pair.a, &hello, sizeof hello);
  REQUIRE(server.advance(pair.b.get()) == Status::kPending);
  uint8_t proof[32];
  random_bytes(proof, sizeof proof);
  send_bytes(pair.a, proof, sizeof proof);
  CHECK(server.advance(pair.b.get()) == Status::kFailed);
  CHECK(has(server.why(), "does not know this group's secret"));
}

TEST_CASE("a client's own proof sent back to it does not deceive it") {
  Pair pair;
  Handshake client = client_after_proof(pair);
  uint8_t said[sizeof(Hello) + 32];
  REQUIRE(::recv(pair.b.get(), said, sizeof said, 0) == sizeof said);
  send_bytes(pair.b, said + sizeof(Hello), 32);
  CHECK(client.advance(pair.a.get()) == Status::kFailed);
}

TEST_CASE("a recorded proof does not open the door a second time") {
  Pair first, second;
  Handshake client = Handshake::client(key("secret"), HelloKind::kTcp, 3, 5);
  REQUIRE(client.advance(first.a.get()) == Status::kPending);
  uint8_t hello[sizeof(Hello)], proof[32];
  REQUIRE(::recv(first.b.get(), hello, sizeof hello, MSG_PEEK) == sizeof hello);
  Handshake server = Handshake::server(key("secret"), HelloKind::kTcp, 5);
  REQUIRE(server.advance(first.b.get()) == Status::kPending);
  REQUIRE(client.advance(first.a.get()) == Status::kPending);
  REQUIRE(::recv(first.b.get(), proof, sizeof proof, MSG_PEEK) == sizeof proof);
  REQUIRE(server.advance(first.b.get()) == Status::kDone);

  Handshake again = Handshake::server(key("secret"), HelloKind::kTcp, 5);
  send_bytes(second.a, hello, sizeof hello);
  send_bytes(second.a, proof, sizeof proof);
  CHECK(again.advance(second.b.get()) == Status::kFailed);
}

TEST_CASE("garbage, another version and a wrong door are refused with the reason") {
  const std::string garbage(sizeof(Hello), 'G');
  CHECK(has(server_refusal(garbage.data(), garbage.size()), "does not speak Tutti's protocol"));

  Hello hello = genuine_hello(key("secret"), HelloKind::kTcp, 3, 5);
  hello.version++;
  CHECK(has(server_refusal(&hello, sizeof hello), "run the same version of Tutti on every rank"));

  hello = genuine_hello(key("secret"), HelloKind::kTcp, 3, 6);
  CHECK(has(server_refusal(&hello, sizeof hello), "for rank 6 reached rank 5"));

  hello = genuine_hello(key("secret"), HelloKind::kShm, 3, 5);
  CHECK(has(server_refusal(&hello, sizeof hello), "kind 3"));
}

TEST_CASE("a client of another version is told both versions") {
  Pair pair, relayed;
  Key secret = key("secret");
  secret.encrypts = GENERATE(false, true);
  Handshake client = Handshake::client(secret, HelloKind::kTcp, 3, 5);
  Handshake server = Handshake::server(secret, HelloKind::kTcp, 5);
  REQUIRE(client.advance(pair.a.get()) == Status::kPending);
  Hello said;
  REQUIRE(::recv(pair.b.get(), &said, sizeof said, 0) == sizeof said);
  const int ours = said.version++;
  send_bytes(relayed.a, &said, sizeof said);
  CHECK(server.advance(relayed.b.get()) == Status::kFailed);
  REQUIRE(::recv(relayed.a.get(), &said, sizeof said, 0) == sizeof said);
  CHECK(said.version == ours);
  said.version++;  // as the server would say if it were the other one
  send_bytes(pair.b, &said, sizeof said);
  CHECK(client.advance(pair.a.get()) == Status::kFailed);
  CHECK(has(client.why(), "speaks version " + std::to_string(ours + 1) + " of Tutti's wire protocol, this side " +
                              std::to_string(ours)));
  CHECK(client.is_misfit());
}

TEST_CASE("random bytes never get in") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; round++) {
    Pair pair;
    const bool is_server = round % 2 == 0;
    Handshake side = is_server ? Handshake::server(key("secret"), HelloKind::kTcp, 5)
                               : Handshake::client(key("secret"), HelloKind::kTcp, 3, 5);
    // Half of the servers meet a genuine hello first.
    const Hello hello = genuine_hello(key("secret"), HelloKind::kTcp, 3, 5);
    if (round % 4 == 0) send_bytes(pair.a, &hello, sizeof hello);
    std::string bytes(200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    send_bytes(pair.a, bytes.data(), bytes.size());
    CHECK(side.advance(pair.b.get()) == Status::kFailed);
  }
}

TEST_CASE("half-open connections stay pending and fail when they close") {
  for (const bool is_server : {true, false})
    for (const size_t sent : {size_t{0}, size_t{1}, size_t{40}}) {
      Pair pair;
      Handshake side = is_server ? Handshake::server(key("secret"), HelloKind::kTcp, 5)
                                 : Handshake::client(key("secret"), HelloKind::kTcp, 3, 5);
      const Hello hello = genuine_hello(key("secret"), HelloKind::kTcp, 3, 5);
      send_bytes(pair.a, &hello, sent);
      CHECK(side.advance(pair.b.get()) == Status::kPending);
      CHECK(side.advance(pair.b.get()) == Status::kPending);
      CHECK(!side.wants_write());
      pair.a.reset();
      CHECK(side.advance(pair.b.get()) == Status::kFailed);
      CHECK(!side.why().empty());
    }
}

TEST_CASE("keys depend on the whole secret and on nothing else") {
  CHECK(key("secret") == key("secret"));
  CHECK(key("secret") != key("secret "));
  CHECK(key("") != key("secret"));
}
