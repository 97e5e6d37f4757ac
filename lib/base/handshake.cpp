#include "base/handshake.h"

#include <sodium.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tutti {
namespace {

constexpr const char* kOtherSecret = "the other side does not know this group's secret";

// The last byte is the version of everything that goes over a wire.
constexpr char kMagic[8] = {'T', 'U', 'T', 'T', 'I', 0, 0, 3};

void sodium_ready() {
  [[maybe_unused]] static const int once = sodium_init();
}

}  // namespace

Key derive_key(const void* secret, size_t bytes) {
  sodium_ready();
  Key key;
  static constexpr uint8_t kContext[] = "tutti group key";
  crypto_generichash(key.data(), key.size(), static_cast<const uint8_t*>(secret), bytes, kContext, sizeof kContext);
  return key;
}

void random_bytes(void* out, size_t bytes) {
  sodium_ready();
  randombytes_buf(out, bytes);
}

Handshake Handshake::client(const Key& key, HelloKind kind, int from_rank, int to_rank,
                            const std::array<uint32_t, 5>& args, uint64_t door) {
  Handshake h(key, kind, from_rank);
  memcpy(h.hello_.magic, kMagic, sizeof kMagic);
  h.hello_.kind = kind;
  h.hello_.from_rank = from_rank;
  h.hello_.to_rank = to_rank;
  memcpy(h.hello_.args, args.data(), sizeof h.hello_.args);
  random_bytes(h.hello_.nonce, sizeof h.hello_.nonce);
  h.hello_.door = door;
  h.queue(&h.hello_, sizeof h.hello_);
  h.stage_ = Stage::kChallenge;
  return h;
}

Handshake Handshake::server(const Key& key, HelloKind kind, int my_rank) {
  return {key, kind, my_rank};
}

Handshake::Status Handshake::advance(int fd) {
  while (!failed_ && stage_ != Stage::kDone) {
    if (!flush(fd)) break;
    if (!fill(fd, expected_bytes())) break;
    in_got_ = 0;
    if (!step()) break;
  }
  if (!failed_ && stage_ == Stage::kDone && !flush(fd) && !failed_) return Status::kPending;
  return failed_ ? Status::kFailed : stage_ == Stage::kDone ? Status::kDone : Status::kPending;
}

size_t Handshake::expected_bytes() const {
  switch (stage_) {
    case Stage::kHello: return sizeof(Hello);
    case Stage::kChallenge: return sizeof server_nonce_;
    case Stage::kProof:
    case Stage::kAccepted: return sizeof(Mac);
    case Stage::kDone: break;
  }
  return 0;
}

bool Handshake::step() {
  switch (stage_) {
    case Stage::kHello: return take_hello();
    case Stage::kChallenge: return take_challenge();
    case Stage::kProof: return take_proof();
    case Stage::kAccepted: return take_acceptance();
    case Stage::kDone: break;
  }
  return true;
}

bool Handshake::take_hello() {
  memcpy(&hello_, in_, sizeof hello_);
  if (memcmp(hello_.magic, kMagic, 7) != 0) return fail("the other side does not speak Tutti's protocol");
  if (hello_.magic[7] != kMagic[7])
    return fail_misfit(
        format("the other side speaks version %d of Tutti's wire protocol, this side %d: "
               "run the same version of Tutti on every rank",
               hello_.magic[7], kMagic[7]));
  if (hello_.kind != expected_kind_ || hello_.to_rank != my_rank_)
    return fail(format("a connection of kind %u for rank %d reached rank %d", static_cast<unsigned>(hello_.kind),
                       hello_.to_rank, my_rank_));
  random_bytes(server_nonce_, sizeof server_nonce_);
  queue(server_nonce_, sizeof server_nonce_);
  stage_ = Stage::kProof;
  return true;
}

bool Handshake::take_challenge() {
  memcpy(server_nonce_, in_, sizeof server_nonce_);
  const Mac proof = mac("client");
  queue(proof.data(), proof.size());
  stage_ = Stage::kAccepted;
  return true;
}

bool Handshake::take_proof() {
  const Mac expected = mac("client");
  if (sodium_memcmp(in_, expected.data(), expected.size()) != 0) return fail_misfit(kOtherSecret);
  const Mac proof = mac("server");
  queue(proof.data(), proof.size());
  stage_ = Stage::kDone;
  return true;
}

bool Handshake::take_acceptance() {
  const Mac expected = mac("server");
  if (sodium_memcmp(in_, expected.data(), expected.size()) != 0) return fail_misfit(kOtherSecret);
  stage_ = Stage::kDone;
  return true;
}

Handshake::Mac Handshake::mac(const char* role) const {
  uint8_t message[sizeof(Hello) + sizeof server_nonce_ + 6];
  memcpy(message, &hello_, sizeof hello_);
  memcpy(message + sizeof hello_, server_nonce_, sizeof server_nonce_);
  memcpy(message + sizeof hello_ + sizeof server_nonce_, role, 6);  // "server" or "client": no reflection
  Mac result;
  static_assert(sizeof result == crypto_auth_BYTES && sizeof(Key) == crypto_auth_KEYBYTES);
  crypto_auth(result.data(), message, sizeof message, key_.data());
  return result;
}

void Handshake::queue(const void* data, size_t bytes) {
  if (out_sent_ == out_bytes_) out_sent_ = out_bytes_ = 0;
  memcpy(out_ + out_bytes_, data, bytes);
  out_bytes_ += bytes;
}

bool Handshake::fail(std::string why) {
  failed_ = true;
  why_ = std::move(why);
  return false;
}

bool Handshake::fail_misfit(std::string why) {
  is_misfit_ = true;
  return fail(std::move(why));
}

bool Handshake::flush(int fd) {
  while (out_sent_ < out_bytes_) {
    const ssize_t n = ::send(fd, out_ + out_sent_, out_bytes_ - out_sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      out_sent_ += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    } else {
      return fail(system_error("sending the handshake", errno).message);
    }
  }
  return true;
}

bool Handshake::fill(int fd, size_t bytes) {
  while (in_got_ < bytes) {
    const ssize_t n = ::recv(fd, in_ + in_got_, bytes - in_got_, MSG_DONTWAIT);
    if (n > 0) {
      in_got_ += static_cast<size_t>(n);
    } else if (n == 0) {
      if (stage_ == Stage::kAccepted) return fail_misfit(std::string(kOtherSecret) + ": it refused this side's");
      return fail("the other side closed the connection during the handshake");
    } else if (errno == EINTR) {
      continue;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else {
      return fail(system_error("receiving the handshake", errno).message);
    }
  }
  return true;
}

}  // namespace tutti
