#include "base/handshake.h"

#include <sodium.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tutti {
namespace {

constexpr const char* kOtherSecret = "the other side does not know this group's secret";

constexpr char kMagic[6] = {'T', 'U', 'T', 'T', 'I', 0};
constexpr uint8_t kVersion = 6;
constexpr std::array<uint8_t, 32> kRefusal{};  // in place of the server's proof

// The others stay within a host, or are not used where connections are encrypted.
bool is_encrypted(const Key& key, HelloKind kind) {
  return key.encrypts && (kind == HelloKind::kBootstrap || kind == HelloKind::kControl || kind == HelloKind::kTcp);
}

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
  h.hello_.version = kVersion;
  if (is_encrypted(key, kind)) {
    h.hello_.ciphers = ciphers_here();
    h.cipher_ = Cipher::kChaCha20;  // or what the server says
    h.client_public_ = h.make_ephemeral();
  }
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
    const Turn next = turn();
    if (!flush(fd) || !fill(fd, next.bytes)) break;
    in_got_ = 0;
    if (!(this->*next.take)()) break;
  }
  if (failed_ && wants_write()) {  // the refusal of a wrong proof: one try, since the connection ends here
    (void)::send(fd, out_ + out_sent_, out_bytes_ - out_sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    out_sent_ = out_bytes_;
  }
  if (!failed_ && stage_ == Stage::kDone && !flush(fd) && !failed_) return Status::kPending;
  return failed_ ? Status::kFailed : stage_ == Stage::kDone ? Status::kDone : Status::kPending;
}

Handshake::Turn Handshake::turn() const {
  const size_t key_bytes = encrypts() ? sizeof(Secret) : 0;
  switch (stage_) {
    case Stage::kHello: return {sizeof(Hello), &Handshake::take_hello};
    case Stage::kChallenge:
      return {sizeof server_nonce_ + (encrypts() ? sizeof cipher_ : 0) + key_bytes, &Handshake::take_challenge};
    case Stage::kProof: return {sizeof(Mac) + key_bytes, &Handshake::take_proof};
    case Stage::kAccepted: return {sizeof(Mac), &Handshake::take_acceptance};
    case Stage::kDone: break;
  }
  return {};
}

bool Handshake::take_hello() {
  memcpy(&hello_, in_, sizeof hello_);
  if (memcmp(hello_.magic, kMagic, sizeof kMagic) != 0) return fail("the other side does not speak Tutti's protocol");
  if (hello_.version != kVersion)
    return fail_misfit(
        format("the other side speaks version %d of Tutti's wire protocol, this side %d: "
               "run the same version of Tutti on every rank",
               hello_.version, kVersion));
  if (hello_.kind != expected_kind_ || hello_.to_rank != my_rank_)
    return fail(format("a connection of kind %u for rank %d reached rank %d", static_cast<unsigned>(hello_.kind),
                       hello_.to_rank, my_rank_));
  // The root leaves it to ranks, which tell each other.
  const bool is_asked = hello_.ciphers != 0;
  if (is_asked != is_encrypted(key_, hello_.kind) && hello_.kind != HelloKind::kBootstrap)
    return fail_misfit(
        format("the other side %s, this side %s: set TUTTI_ENCRYPT (or the configuration's encrypt) to "
               "the same value on all ranks",
               is_asked ? "encrypts" : "does not encrypt", is_asked ? "does not" : "does"));
  random_bytes(server_nonce_, sizeof server_nonce_);
  queue(server_nonce_, sizeof server_nonce_);
  if (is_asked) {
    cipher_ = (hello_.ciphers & ciphers_here() & static_cast<uint8_t>(Cipher::kAes256)) != 0 ? Cipher::kAes256
                                                                                             : Cipher::kChaCha20;
    server_public_ = make_ephemeral();
    queue(&cipher_, sizeof cipher_);
    queue(server_public_.data(), server_public_.size());
  }
  stage_ = Stage::kProof;
  return true;
}

bool Handshake::take_challenge() {
  memcpy(server_nonce_, in_, sizeof server_nonce_);
  if (encrypts()) {
    memcpy(&cipher_, in_ + sizeof server_nonce_, sizeof cipher_);
    memcpy(server_public_.data(), in_ + sizeof server_nonce_ + sizeof cipher_, server_public_.size());
    const bool is_offered = cipher_ == Cipher::kChaCha20 || cipher_ == Cipher::kAes256;
    if (!is_offered || (hello_.ciphers & static_cast<uint8_t>(cipher_)) == 0)
      return fail("the other side chose a cipher that it was not offered");
    queue(client_public_.data(), client_public_.size());
  }
  const Mac proof = mac("client");
  queue(proof.data(), proof.size());
  stage_ = Stage::kAccepted;
  return true;
}

bool Handshake::take_proof() {
  const size_t proof_at = encrypts() ? client_public_.size() : 0;
  if (encrypts()) memcpy(client_public_.data(), in_, client_public_.size());
  const Mac expected = mac("client");
  if (sodium_memcmp(in_ + proof_at, expected.data(), expected.size()) != 0) {
    queue(kRefusal.data(), kRefusal.size());
    return fail_misfit(kOtherSecret);
  }
  if (encrypts() && !make_channel(false)) return false;
  const Mac proof = mac("server");
  queue(proof.data(), proof.size());
  stage_ = Stage::kDone;
  return true;
}

bool Handshake::take_acceptance() {
  const Mac expected = mac("server");
  if (memcmp(in_, kRefusal.data(), kRefusal.size()) == 0)
    return fail_misfit(std::string(kOtherSecret) + ": it refused this side's");
  if (sodium_memcmp(in_, expected.data(), expected.size()) != 0) return fail_misfit(kOtherSecret);
  if (encrypts() && !make_channel(true)) return false;
  stage_ = Stage::kDone;
  return true;
}

// For this connection alone; returns what the other side gets of it.
Secret Handshake::make_ephemeral() {
  Secret its_public;
  static_assert(sizeof(Secret) == crypto_scalarmult_SCALARBYTES && sizeof(Secret) == crypto_scalarmult_BYTES);
  random_bytes(ephemeral_.data(), ephemeral_.size());
  crypto_scalarmult_base(its_public.data(), ephemeral_.data());
  return its_public;
}

// All that both sides have said and chosen.
std::string Handshake::transcript() const {
  std::string said(reinterpret_cast<const char*>(&hello_), sizeof hello_);
  said.append(reinterpret_cast<const char*>(server_nonce_), sizeof server_nonce_);
  if (!encrypts()) return said;
  said += static_cast<char>(cipher_);
  for (const Secret* key : {&server_public_, &client_public_})
    said.append(reinterpret_cast<const char*>(key->data()), key->size());
  return said;
}

Handshake::Mac Handshake::mac(const char* role) const {
  const std::string message = transcript().append(role, 6);  // "server" or "client": no reflection
  Mac result;
  static_assert(sizeof result == crypto_auth_BYTES && std::tuple_size_v<Key::array> == crypto_auth_KEYBYTES);
  crypto_auth(result.data(), reinterpret_cast<const uint8_t*>(message.data()), message.size(), key_.data());
  return result;
}

// One key for each direction.
bool Handshake::make_channel(bool is_client) {
  std::array<Secret, 2> keys;
  Secret shared;
  const Secret& theirs = is_client ? server_public_ : client_public_;
  if (crypto_scalarmult(shared.data(), ephemeral_.data(), theirs.data()) != 0)
    return fail("the other side sent an invalid public key");
  std::string all = "tutti record keys" + transcript();
  all.append(reinterpret_cast<const char*>(shared.data()), shared.size());
  crypto_generichash(keys[0].data(), sizeof keys, reinterpret_cast<const uint8_t*>(all.data()), all.size(), key_.data(),
                     key_.size());
  channel_ = std::make_unique<SecureChannel>(cipher_, keys[is_client ? 0 : 1], keys[is_client ? 1 : 0]);
  sodium_memzero(ephemeral_.data(), ephemeral_.size());
  sodium_memzero(shared.data(), shared.size());
  sodium_memzero(all.data(), all.size());
  sodium_memzero(keys.data(), sizeof keys);
  return true;
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

template <class Some>
bool Handshake::move(size_t* done, size_t bytes, const char* what, Some some) {
  while (*done < bytes) {
    const ssize_t n = some(*done, bytes - *done);
    if (n > 0)
      *done += static_cast<size_t>(n);
    else if (n == 0)
      return fail("the other side closed the connection during the handshake");
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return false;
    else if (errno != EINTR)
      return fail(system_error(what, errno).message);
  }
  return true;
}

bool Handshake::flush(int fd) {
  return move(&out_sent_, out_bytes_, "sending the handshake",
              [&](size_t at, size_t left) { return ::send(fd, out_ + at, left, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

bool Handshake::fill(int fd, size_t bytes) {
  return move(&in_got_, bytes, "receiving the handshake",
              [&](size_t at, size_t left) { return ::recv(fd, in_ + at, left, MSG_DONTWAIT); });
}

}  // namespace tutti
