#include "base/aes_gcm.h"

#include <sodium.h>

#include <cstring>

#include "base/wide_aes.h"

namespace tutti {
namespace {

using State = crypto_aead_aes256gcm_state;

const State* as_state(const uint8_t* key) {
  return reinterpret_cast<const State*>(key);
}

}  // namespace

bool AesGcm::is_here() {
  return sodium_init() >= 0 && crypto_aead_aes256gcm_is_available() != 0;
}

AesGcm::~AesGcm() {
  sodium_memzero(key_, sizeof key_);
}

void AesGcm::take_key(const uint8_t* key) {
  static_assert(sizeof key_ >= sizeof(State));
  static_assert(kProofBytes == crypto_aead_aes256gcm_ABYTES);
  if (const WideAes* const wide = wide_aes()) return wide->take_key(key, key_);
  crypto_aead_aes256gcm_beforenm(reinterpret_cast<State*>(key_), key);
}

void AesGcm::seal(const uint8_t* text, size_t bytes, const Clear& clear, const uint8_t* nonce, uint8_t* sealed) const {
  if (const WideAes* const wide = wide_aes()) return wide->seal(key_, text, bytes, clear, nonce, sealed);
  crypto_aead_aes256gcm_encrypt_afternm(sealed, nullptr, text, bytes, clear.at, clear.bytes, nullptr, nonce,
                                        as_state(key_));
}

// The wide one decrypts while it works out the proof.
bool AesGcm::open(const uint8_t* sealed, size_t bytes, const Clear& clear, const uint8_t* nonce, uint8_t* text) const {
  const WideAes* const wide = wide_aes();
  if (wide == nullptr)
    return crypto_aead_aes256gcm_decrypt_afternm(text, nullptr, nullptr, sealed, bytes + kProofBytes, clear.at,
                                                 clear.bytes, nonce, as_state(key_)) == 0;
  uint8_t given[kProofBytes], proof[kProofBytes];
  memcpy(given, sealed + bytes, sizeof given);
  wide->open(key_, sealed, bytes, clear, nonce, text, proof);
  if (sodium_memcmp(proof, given, sizeof proof) == 0) return true;
  memset(text, 0, bytes);
  return false;
}

}  // namespace tutti
