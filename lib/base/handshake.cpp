#include "base/handshake.h"

#include <sodium.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace tutti {
namespace {

constexpr const char* kOtherSecret = "the other side does not know this group's secret";

constexpr char kMagic[6] = {'T', 'U', 'T', 'T', 'I', 0};
constexpr uint8_t kVersion = 9;
constexpr std::array<uint8_t, 32> kRefusal{};  // in place of the server's proof

// The other kinds stay within a host, or are not used with encryption.
bool is_encrypted(const Key& key, HelloKind kind) {
  return key.encrypts && (kind == HelloKind::kBootstrap || kind == HelloKind::kControl || kind == HelloKind::kTcp);
}

Hello empty_hello() {
  Hello hello{};
  memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.version = kVersion;
  return hello;
}

std::string other_version(int theirs) {
  return format(
      "the other side speaks version %d of Tutti's wire protocol, this side %d: run the same version of Tutti on every "
      "rank",
      theirs, kVersion);
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
  Hello& hello = h.said_.hello;
  hello = empty_hello();
  if (is_encrypted(key, kind)) {
    hello.ciphers = ciphers_here();
    h.said_.cipher = Cipher::kChaCha20;  // until the server chooses
    h.said_.client_public = h.make_ephemeral();
  }
  hello.kind = kind;
  hello.from_rank = from_rank;
  hello.to_rank = to_rank;
  memcpy(hello.args, args.data(), sizeof hello.args);
  random_bytes(hello.nonce, sizeof hello.nonce);
  hello.door = door;
  h.queue(&hello, sizeof hello);
  h.next_ = {sizeof h.said_.server_nonce + (is_encrypted(key, kind) ? sizeof(Cipher) + sizeof(Secret) : 0),
             &Handshake::take_challenge};
  return h;
}

Handshake Handshake::server(const Key& key, HelloKind kind, int my_rank) {
  return {key, kind, my_rank};
}

Moved Handshake::send_queued(int fd) {
  size_t sent = 0;
  const Moved moved = send_rest(fd, nullptr, out_.data(), out_.size(), &sent);
  out_.erase(0, sent);
  return moved;
}

Handshake::Status Handshake::advance(int fd) {
  while (why_.empty()) {
    const char* doing = "sending the handshake";
    Moved moved = send_queued(fd);
    if (moved == Moved::kAll) {
      if (next_.take == nullptr) return Status::kDone;
      doing = "receiving the handshake";
      moved = recv_rest(fd, nullptr, in_, next_.bytes, &in_got_);
    }
    if (moved == Moved::kSome) return Status::kPending;
    if (moved == Moved::kAll) {
      in_got_ = 0;
      (this->*next_.take)(in_);
    } else {
      fail(
          errno == 0 ? "the other side closed the connection during the handshake" : system_error(doing, errno).message,
          Failure::kCut);
    }
  }
  send_queued(fd);  // the refusal of a wrong proof, best effort: the connection ends here
  return Status::kFailed;
}

void Handshake::take_hello(const uint8_t* message) {
  Hello& hello = said_.hello;
  memcpy(&hello, message, sizeof hello);
  if (memcmp(hello.magic, kMagic, sizeof kMagic) != 0) return fail("the other side does not speak Tutti's protocol");
  if (hello.version != kVersion) {
    const Hello mine = empty_hello();  // in place of the challenge, so that the client learns it, too
    queue(&mine, sizeof mine);
    return fail_misfit(other_version(hello.version));
  }
  if (hello.kind != expected_kind_ || hello.to_rank != my_rank_)
    return fail(format("a connection of kind %u for rank %d reached rank %d", static_cast<unsigned>(hello.kind),
                       hello.to_rank, my_rank_));
  // The root accepts either: the ranks compare it among themselves.
  const bool is_asked = hello.ciphers != 0;
  if (is_asked != is_encrypted(key_, hello.kind) && hello.kind != HelloKind::kBootstrap)
    return fail_misfit(
        format("the other side %s, this side %s: set TUTTI_ENCRYPT (or the configuration's encrypt) to "
               "the same value on all ranks",
               is_asked ? "encrypts" : "does not encrypt", is_asked ? "does not" : "does"));
  random_bytes(said_.server_nonce, sizeof said_.server_nonce);
  queue(said_.server_nonce, sizeof said_.server_nonce);
  if (is_asked) {
    said_.cipher = (hello.ciphers & ciphers_here() & static_cast<uint8_t>(Cipher::kAes256)) != 0 ? Cipher::kAes256
                                                                                                 : Cipher::kChaCha20;
    said_.server_public = make_ephemeral();
    queue(&said_.cipher, sizeof said_.cipher);
    queue(said_.server_public.data(), said_.server_public.size());
  }
  next_ = {sizeof(Transcript::Mac) + (is_asked ? sizeof(Secret) : 0), &Handshake::take_proof};
}

void Handshake::take_challenge(const uint8_t* message) {
  const uint8_t version = message[offsetof(Hello, version)];
  if (memcmp(message, kMagic, sizeof kMagic) == 0 && version != kVersion) return fail_misfit(other_version(version));
  memcpy(said_.server_nonce, message, sizeof said_.server_nonce);
  if (said_.encrypts()) {
    message += sizeof said_.server_nonce;
    memcpy(&said_.cipher, message, sizeof said_.cipher);
    memcpy(said_.server_public.data(), message + sizeof said_.cipher, said_.server_public.size());
    const bool is_offered = said_.cipher == Cipher::kChaCha20 || said_.cipher == Cipher::kAes256;
    if (!is_offered || (said_.hello.ciphers & static_cast<uint8_t>(said_.cipher)) == 0)
      return fail("the other side chose a cipher that it was not offered");
    queue(said_.client_public.data(), said_.client_public.size());
  }
  const Transcript::Mac proof = said_.mac(key_, "client");
  queue(proof.data(), proof.size());
  next_ = {sizeof(Transcript::Mac), &Handshake::take_acceptance};
}

void Handshake::take_proof(const uint8_t* message) {
  if (said_.encrypts()) {
    memcpy(said_.client_public.data(), message, said_.client_public.size());
    message += said_.client_public.size();
  }
  const Transcript::Mac expected = said_.mac(key_, "client");
  if (sodium_memcmp(message, expected.data(), expected.size()) != 0) {
    queue(kRefusal.data(), kRefusal.size());
    return fail_misfit(kOtherSecret);
  }
  conclude(false);
  if (!why_.empty()) return;
  const Transcript::Mac proof = said_.mac(key_, "server");
  queue(proof.data(), proof.size());
}

void Handshake::take_acceptance(const uint8_t* message) {
  const Transcript::Mac expected = said_.mac(key_, "server");
  if (memcmp(message, kRefusal.data(), kRefusal.size()) == 0)
    return fail_misfit(std::string(kOtherSecret) + ": it rejected this side's");
  if (sodium_memcmp(message, expected.data(), expected.size()) != 0) return fail_misfit(kOtherSecret);
  conclude(true);
}

// A key pair for this connection alone; returns the public half, for the other side.
Secret Handshake::make_ephemeral() {
  Secret its_public;
  static_assert(sizeof(Secret) == crypto_scalarmult_SCALARBYTES && sizeof(Secret) == crypto_scalarmult_BYTES);
  random_bytes(ephemeral_.data(), ephemeral_.size());
  crypto_scalarmult_base(its_public.data(), ephemeral_.data());
  return its_public;
}

// The other side has proved itself. With encryption, derives a key for each direction.
void Handshake::conclude(bool is_client) {
  next_ = {};
  if (!said_.encrypts()) return;
  std::array<Secret, 2> keys;
  Secret shared;
  const Secret& theirs = is_client ? said_.server_public : said_.client_public;
  if (crypto_scalarmult(shared.data(), ephemeral_.data(), theirs.data()) != 0)
    return fail("the other side sent an invalid public key");
  std::string all = "tutti record keys" + said_.bytes();
  all.append(reinterpret_cast<const char*>(shared.data()), shared.size());
  crypto_generichash(keys[0].data(), sizeof keys, reinterpret_cast<const uint8_t*>(all.data()), all.size(), key_.data(),
                     key_.size());
  channel_ = std::make_unique<SecureChannel>(said_.cipher, keys[is_client ? 0 : 1], keys[is_client ? 1 : 0]);
  sodium_memzero(ephemeral_.data(), ephemeral_.size());
  sodium_memzero(shared.data(), shared.size());
  sodium_memzero(all.data(), all.size());
  sodium_memzero(keys.data(), sizeof keys);
}

std::string Transcript::bytes() const {
  std::string said(reinterpret_cast<const char*>(&hello), sizeof hello);
  said.append(reinterpret_cast<const char*>(server_nonce), sizeof server_nonce);
  if (!encrypts()) return said;
  said += static_cast<char>(cipher);
  for (const Secret* key : {&server_public, &client_public})
    said.append(reinterpret_cast<const char*>(key->data()), key->size());
  return said;
}

Transcript::Mac Transcript::mac(const Key& key, const char* role) const {
  const std::string message = bytes().append(role, 6);  // "server" or "client", against reflection
  Mac result;
  static_assert(sizeof result == crypto_auth_BYTES && std::tuple_size_v<Key::array> == crypto_auth_KEYBYTES);
  crypto_auth(result.data(), reinterpret_cast<const uint8_t*>(message.data()), message.size(), key.data());
  return result;
}

}  // namespace tutti
