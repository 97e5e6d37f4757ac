#include "base/secure_channel.h"

#include <sodium.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "base/fd.h"
#include "base/handshake.h"
#include "catch.h"

using namespace tutti;

namespace {

// Two ends of a simulated connection: the bytes that one end sends are carried by `wire` to the other.
struct SecurePair {
  Fd a, a_wire, b, b_wire;
  SecureChannel from, to;

  explicit SecurePair(Cipher cipher, uint64_t renew_bytes = kRenewBytes)
      : from(cipher, {1}, {2}, renew_bytes), to(cipher, {2}, {1}, renew_bytes) {
    open(&a, &a_wire);
    open(&b, &b_wire);
  }
  static void open(Fd* one, Fd* other) {
    int fds[2] = {-1, -1};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    one->reset(fds[0]);
    other->reset(fds[1]);
  }
  // The bytes that go over the wire for this text.
  std::string sealed(const std::string& text) {
    REQUIRE(send_some(a.get(), &from, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    return taken(a_wire.get());
  }
  static std::string taken(int fd) {
    std::string bytes(100'000, '\0');
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }
  void bring(const std::string& bytes) {
    REQUIRE(::send(b_wire.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  // All text that comes, until nothing more does.
  std::string opened(size_t at_a_time = 100'000) {
    std::string all, some(at_a_time, '\0');
    ssize_t n;
    while ((n = to.recv(b.get(), some.data(), some.size())) > 0) all.append(some, 0, static_cast<size_t>(n));
    last_errno = n == 0 ? 0 : errno;
    return all;
  }
  int last_errno = 0;
};

std::string random_text(size_t bytes) {
  static std::mt19937 random(5);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

std::vector<Cipher> ciphers() {
  std::vector<Cipher> all = {Cipher::kChaCha20};
  if ((ciphers_here() & static_cast<uint8_t>(Cipher::kAes256)) != 0) all.push_back(Cipher::kAes256);
  return all;
}

}  // namespace

TEST_CASE("AES-GCM is the standard's, whichever library works it out") {
  if (!AesGcm::is_supported()) {
    WARN("skipped: no library has AES-GCM here");
    return;
  }
  const Secret key{7, 1, 2};
  const std::array<uint8_t, AesGcm::kNonceBytes> nonce{3};
  const std::array<uint8_t, 4> head{5, 6};
  AesGcm aes;
  aes.take_key(key.data());
  for (const size_t bytes : {1, 15, 16, 17, 48, 1000, 4096, 100'001}) {
    const std::string text = random_text(bytes);
    std::vector<uint8_t> sealed(bytes + AesGcm::kProofBytes), opened(bytes);
    aes.seal(reinterpret_cast<const uint8_t*>(text.data()), bytes, {head.data(), head.size()}, nonce.data(),
             sealed.data());
    REQUIRE(crypto_aead_aes256gcm_decrypt(opened.data(), nullptr, nullptr, sealed.data(), sealed.size(), head.data(),
                                          head.size(), nonce.data(), key.data()) == 0);
    CHECK(memcmp(opened.data(), text.data(), bytes) == 0);
    sealed[bytes / 2] ^= 1;
    CHECK_FALSE(aes.open(sealed.data(), bytes, {head.data(), head.size()}, nonce.data(), opened.data()));
    if (bytes > 16) CHECK(memcmp(opened.data(), text.data(), bytes / 2) != 0);  // unauthenticated text is not released
    sealed[bytes / 2] ^= 1;
    CHECK(aes.open(sealed.data(), bytes, {head.data(), head.size()}, nonce.data(), sealed.data()));
    CHECK(memcmp(sealed.data(), text.data(), bytes) == 0);
  }
}

TEST_CASE("a secure channel brings what was sent, however it is cut") {
  for (const Cipher cipher : ciphers()) {
    SecurePair pair(cipher, 10'000);  // small enough to change keys a few times
    std::string sent, got;
    for (const size_t bytes : {1, 7, 48, 5000, 32 << 10, 100, 20'000, 1}) {
      const std::string text = random_text(bytes), wire = pair.sealed(text);
      if (bytes > 1) CHECK(wire.find(text) == std::string::npos);
      CHECK(wire.size() == bytes + 20);
      for (size_t at = 0; at < wire.size();) {
        const size_t some = std::min<size_t>(1 + sent.size() % 777, wire.size() - at);
        pair.bring(wire.substr(at, some));
        at += some;
        got += pair.opened(1 + sent.size() % 999);
        CHECK(pair.last_errno == EAGAIN);
      }
      sent += text;
      CHECK(got == sent);
    }
    CHECK_FALSE(pair.to.has_rest());
  }
}

TEST_CASE("a secure channel sends parts, small and large, as one text after the other") {
  for (const Cipher cipher : ciphers()) {
    SecurePair pair(cipher);
    for (const size_t first :
         {size_t{0}, size_t{1}, size_t{48}, size_t{5000}, kMostTextBytes + 1, 4 * kMostTextBytes + 1})
      for (const size_t second :
           {size_t{0}, size_t{1}, size_t{975}, size_t{976}, size_t{5000}, 2 * kMostTextBytes, 4 * kMostTextBytes + 1}) {
        if (first + second == 0) continue;
        std::string all = random_text(first + second), got;
        for (size_t sent = 0; sent < all.size();) {
          const size_t ahead = std::max(sent, first);
          const ssize_t n = pair.from.send(
              pair.a.get(), {{all.data() + sent, ahead - sent}, {all.data() + ahead, all.size() - ahead}});
          REQUIRE(n > 0);
          sent += static_cast<size_t>(n);
          for (std::string wire; !(wire = SecurePair::taken(pair.a_wire.get())).empty();) {
            pair.bring(wire);
            got += pair.opened();
          }
        }
        CHECK(got == all);
      }
  }
}

TEST_CASE("a record that was changed, repeated, moved, left out or put in is refused for ever") {
  for (const Cipher cipher : ciphers()) {
    const auto check_refused = [&](const char* how, auto&& spoil) {
      CAPTURE(how);
      SecurePair pair(cipher);
      std::vector<std::string> records;
      for (int i = 0; i < 3; i++) records.push_back(pair.sealed("text number " + std::to_string(i)));
      spoil(records);
      for (const std::string& record : records) pair.bring(record);
      const std::string got = pair.opened();
      CHECK(std::string("text number 0text number 1text number 2").starts_with(got));
      CHECK(got.size() < 39);
      CHECK(pair.opened().empty());
      CHECK(pair.last_errno == EBADMSG);
    };
    SecurePair sizes(cipher);
    for (size_t at = 0; at < sizes.sealed("text number 0").size(); at++)
      check_refused("flipped", [&](auto& records) {
        // A length field that is too large is only found out once more bytes have come.
        records[1][at] = static_cast<char>(records[1][at] ^ 1);
        records[2] += std::string(70'000, 'x');
      });
    check_refused("repeated", [](auto& records) { records[1] = records[0]; });
    check_refused("moved", [](auto& records) { std::swap(records[1], records[2]); });
    check_refused("left out", [](auto& records) { records.erase(records.begin() + 1); });
    check_refused("put in", [](auto& records) { records.insert(records.begin() + 1, std::string(40, '\1')); });
    check_refused("of another key", [&](auto& records) {
      SecurePair other(cipher, 1);
      other.sealed("text number 0");
      records[1] = other.sealed("text number 1");
    });
  }
}

TEST_CASE("a record that was cut off is nothing that was received") {
  SecurePair pair(Cipher::kChaCha20);
  pair.bring(pair.sealed("whole"));
  const std::string last = pair.sealed("and cut off");
  pair.bring(last.substr(0, last.size() - 1));
  pair.b_wire.reset();
  CHECK(pair.opened() == "whole");
  CHECK(pair.last_errno == 0);
  CHECK(pair.to.has_rest());
}

TEST_CASE("keys are renewed on both sides, and the first one opens nothing afterwards") {
  for (const Cipher cipher : ciphers()) {
    SecurePair pair(cipher, 100), never(cipher);
    for (int i = 0; i < 50; i++) {
      const std::string text = random_text(60), wire = pair.sealed(text), other = never.sealed(text);
      CHECK((wire == other) == (i < 2));
      pair.bring(wire);
      CHECK(pair.opened() == text);
    }
  }
}

TEST_CASE("a secure channel whose kernel has no more room goes on where it stopped") {
  SecurePair pair(ciphers().back());
  const std::string text = random_text(3'000'000);
  std::string wire, got;
  size_t sent = 0, refusals = 0;
  while (sent < text.size()) {
    const ssize_t n = send_some(pair.a.get(), &pair.from, text.data() + sent, text.size() - sent);
    if (n > 0) {
      sent += static_cast<size_t>(n);
      continue;
    }
    REQUIRE(errno == EAGAIN);
    refusals++;
    pair.bring(SecurePair::taken(pair.a_wire.get()));
    got += pair.opened();
  }
  for (std::string rest; !(rest = SecurePair::taken(pair.a_wire.get())).empty();) {
    pair.bring(rest);
    wire += rest;
    got += pair.opened();
  }
  CHECK(refusals > 0);
  CHECK(got == text);
  constexpr size_t kMost = kMostTextBytes;
  CHECK(pair.from.wire_bytes() == text.size() + 20 * ((text.size() + kMost - 1) / kMost));
}
