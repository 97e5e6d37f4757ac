// Mutual challenge-response on a fresh connection: both sides prove that they know the group's key (HMAC-SHA-512/256 of
// libsodium over both sides' nonces and the hello), without sending it. Non-blocking: advance() until it is done.
//
//   client                         server
//   Hello (with nonce)      --->
//                           <---   nonce
//   MAC(key, "client", ...) --->
//                           <---   MAC(key, "server", hello, nonce)
//
// With encryption, the challenge also brings a cipher and the server's ephemeral X25519 key, and the client's proof
// brings the client's; the proofs cover them. A SecureChannel's keys are derived from what both keys give, the group's
// key and the transcript. So a recorded connection stays unreadable even if the secret leaks later (forward secrecy).
//
// The client proves itself first: a stranger gets nothing from a listener that could be used to guess a weak secret. A
// wrong proof is answered with zeros, so that a connection closed for another reason is not taken for a wrong secret.
//
// Not thread-safe: one thread drives one handshake. The caller keeps ownership of the descriptor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/secure_channel.h"

namespace tutti {

struct Key : std::array<uint8_t, 32> {
  bool encrypts = false;  // whether the group's TCP connections are encrypted
};

// What a connection is for.
enum class HelloKind : uint32_t { kBootstrap = 1, kControl = 2, kShm = 3, kTcp = 4, kVerbs = 5, kNet = 6 };

// The first bytes on every connection. `kind` determines the meaning of `args`.
struct Hello {
  char magic[6];
  uint8_t ciphers;  // that the client offers, as ciphers_here(); 0: no encryption
  uint8_t version;  // of the whole wire protocol
  HelloKind kind;
  int32_t from_rank;
  int32_t to_rank;
  uint32_t args[5];
  uint8_t nonce[16];
  uint64_t door = 0;  // which door of the port (porter.h)
};
static_assert(sizeof(Hello) == 64);

// Derives the group's key from a secret of any length; the same secret gives the same key.
Key derive_key(const void* secret, size_t bytes);
void random_bytes(void* out, size_t bytes);

// How long an acceptor waits for the other side's proof, unless room is short. The network may lose packets: a sender
// whose SYN was lost too retransmits after 3, 9 and 21 s (RFC 6298, 5.7).
constexpr int64_t kHandshakePatienceNs = 30'000'000'000;

// What both sides have sent and chosen: their proofs and the keys derived from it cover all of it.
struct Transcript {
  using Mac = std::array<uint8_t, 32>;

  Hello hello{};
  // The server's answer.
  uint8_t server_nonce[16]{};
  Cipher cipher = Cipher::kNone;
  Secret client_public{}, server_public{};  // ephemeral X25519 keys

  bool encrypts() const { return cipher != Cipher::kNone; }
  std::string bytes() const;
  Mac mac(const Key& key, const char* role) const;
};

class Handshake {
 public:
  enum class Status { kPending, kDone, kFailed };

  static Handshake client(const Key& key, HelloKind kind, int from_rank, int to_rank,
                          const std::array<uint32_t, 5>& args = {}, uint64_t door = 0);
  static Handshake server(const Key& key, HelloKind kind, int my_rank);

  Status advance(int fd);
  // Is the handshake waiting to write? Else it waits to read.
  bool wants_write() const { return !out_.empty(); }
  // Has the other side done more than connect? True once its first message has arrived whole and is valid.
  bool heard() const { return next_.take != &Handshake::take_hello && next_.take != &Handshake::take_challenge; }
  // Once done: the channel for everything that follows; null if the connection is not encrypted.
  std::unique_ptr<SecureChannel> take_channel() { return std::move(channel_); }
  const Hello& hello() const { return said_.hello; }
  const std::string& why() const { return why_; }  // why it failed
  // It failed because the other side speaks the protocol, but with another secret, version or encryption setting.
  bool is_misfit() const { return failure_ == Failure::kMisfit; }
  // It failed because the connection was closed or broke.
  bool is_cut() const { return failure_ == Failure::kCut; }

 private:
  Handshake(const Key& key, HelloKind kind, int my_rank) : key_(key), expected_kind_(kind), my_rank_(my_rank) {}
  // The size of the next message and the function that takes it; null: the handshake is done.
  struct Turn {
    size_t bytes = 0;
    void (Handshake::*take)(const uint8_t* message) = nullptr;
  };
  void queue(const void* data, size_t bytes) { out_.append(static_cast<const char*>(data), bytes); }
  Moved send_queued(int fd);
  void take_hello(const uint8_t* message);
  void take_challenge(const uint8_t* message);
  void take_proof(const uint8_t* message);
  void take_acceptance(const uint8_t* message);
  Secret make_ephemeral();
  void conclude(bool is_client);
  enum class Failure : uint8_t { kOther, kCut, kMisfit };
  void fail(std::string why, Failure failure = Failure::kOther) {
    why_ = std::move(why);
    failure_ = failure;
  }
  void fail_misfit(std::string why) { fail(std::move(why), Failure::kMisfit); }

  Key key_;
  HelloKind expected_kind_;
  int my_rank_;
  Turn next_{sizeof(Hello), &Handshake::take_hello};
  Transcript said_;
  Secret ephemeral_{};  // private half of this side's ephemeral key
  std::string out_;     // not sent yet
  uint8_t in_[sizeof(Hello)];
  size_t in_got_ = 0;
  std::unique_ptr<SecureChannel> channel_;
  std::string why_;  // why it failed; empty: it has not
  Failure failure_ = Failure::kOther;
};

}  // namespace tutti
