#include "base/aes_gcm.h"

#include <sodium.h>

#include <cstring>

#if __has_include(<intel-ipsec-mb.h>)
#include <dlfcn.h>
#include <intel-ipsec-mb.h>

#include "base/at_fork.h"
#include "base/result.h"
#endif

namespace tutti {
namespace {

using State = crypto_aead_aes256gcm_state;

const State* as_state(const uint8_t* key) {
  return reinterpret_cast<const State*>(key);
}

#if __has_include(<intel-ipsec-mb.h>)
IMB_MGR* load_wide() {
  void* const library = dlopen(format("libIPSec_MB.so.%d", IMB_VERSION_NUM >> 16).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto allocate = reinterpret_cast<decltype(&alloc_mb_mgr)>(dlsym(library, "alloc_mb_mgr"));
  const auto choose = reinterpret_cast<decltype(&init_mb_mgr_auto)>(dlsym(library, "init_mb_mgr_auto"));
  IMB_MGR* const manager = allocate != nullptr && choose != nullptr ? allocate(0) : nullptr;
  if (manager != nullptr) choose(manager, nullptr);
  return manager;
}

MadeOnce<IMB_MGR*> g_wide;

// Functions for this CPU of Intel's multi-buffer library, which uses the widest AES instructions: 16 GB/s where
// libsodium does 2. Loaded on first use, so that only those who encrypt pay for its 12 MB. Null: it is not installed,
// or there is no memory for it.
IMB_MGR* wide() {
  return g_wide.get(load_wide);
}

void take_wide_key(const uint8_t* key, uint8_t* prepared) {
  static_assert(AesGcm::kPreparedBytes >= sizeof(gcm_key_data) && alignof(gcm_key_data) <= 64);
  IMB_AES256_GCM_PRE(wide(), key, reinterpret_cast<gcm_key_data*>(prepared));
}

void seal_wide(const uint8_t* key, const uint8_t* text, size_t bytes, const AesGcm::Clear& clear, const uint8_t* nonce,
               uint8_t* sealed) {
  gcm_context_data context;
  IMB_AES256_GCM_ENC(wide(), reinterpret_cast<const gcm_key_data*>(key), &context, sealed, text, bytes, nonce, clear.at,
                     clear.bytes, sealed + bytes, AesGcm::kProofBytes);
}

// Writes the text, and the proof that `sealed` should have.
void open_wide(const uint8_t* key, const uint8_t* sealed, size_t bytes, const AesGcm::Clear& clear,
               const uint8_t* nonce, uint8_t* text, uint8_t* proof) {
  gcm_context_data context;
  IMB_AES256_GCM_DEC(wide(), reinterpret_cast<const gcm_key_data*>(key), &context, text, sealed, bytes, nonce, clear.at,
                     clear.bytes, proof, AesGcm::kProofBytes);
}
#else
constexpr const void* wide() {
  return nullptr;
}
void take_wide_key(const uint8_t*, uint8_t*) {}
void seal_wide(const uint8_t*, const uint8_t*, size_t, const AesGcm::Clear&, const uint8_t*, uint8_t*) {}
void open_wide(const uint8_t*, const uint8_t*, size_t, const AesGcm::Clear&, const uint8_t*, uint8_t*, uint8_t*) {}
#endif

}  // namespace

bool AesGcm::is_supported() {
  return sodium_init() >= 0 && crypto_aead_aes256gcm_is_available() != 0;
}

AesGcm::~AesGcm() {
  sodium_memzero(key_, sizeof key_);
}

void AesGcm::take_key(const uint8_t* key) {
  static_assert(sizeof key_ >= sizeof(State));
  static_assert(kProofBytes == crypto_aead_aes256gcm_ABYTES);
  if (wide() != nullptr) return take_wide_key(key, key_);
  crypto_aead_aes256gcm_beforenm(reinterpret_cast<State*>(key_), key);
}

void AesGcm::seal(const uint8_t* text, size_t bytes, const Clear& clear, const uint8_t* nonce, uint8_t* sealed) const {
  if (wide() != nullptr) return seal_wide(key_, text, bytes, clear, nonce, sealed);
  crypto_aead_aes256gcm_encrypt_afternm(sealed, nullptr, text, bytes, clear.at, clear.bytes, nullptr, nonce,
                                        as_state(key_));
}

// The wide code decrypts while it computes the proof, so a text whose proof is wrong is erased.
bool AesGcm::open(const uint8_t* sealed, size_t bytes, const Clear& clear, const uint8_t* nonce, uint8_t* text) const {
  if (wide() == nullptr)
    return crypto_aead_aes256gcm_decrypt_afternm(text, nullptr, nullptr, sealed, bytes + kProofBytes, clear.at,
                                                 clear.bytes, nonce, as_state(key_)) == 0;
  uint8_t given[kProofBytes], proof[kProofBytes]{};
  memcpy(given, sealed + bytes, sizeof given);
  open_wide(key_, sealed, bytes, clear, nonce, text, proof);
  if (sodium_memcmp(proof, given, sizeof proof) == 0) return true;
  memset(text, 0, bytes);
  return false;
}

}  // namespace tutti
