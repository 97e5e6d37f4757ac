#include "base/wide_aes.h"

#include <dlfcn.h>
#include <intel-ipsec-mb.h>

#include "base/result.h"

namespace tutti {
namespace {

// The functions for this CPU.
IMB_MGR* load() {
  void* const library = dlopen(format("libIPSec_MB.so.%d", IMB_VERSION_NUM >> 16).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto allocate = reinterpret_cast<decltype(&alloc_mb_mgr)>(dlsym(library, "alloc_mb_mgr"));
  const auto choose = reinterpret_cast<decltype(&init_mb_mgr_auto)>(dlsym(library, "init_mb_mgr_auto"));
  IMB_MGR* const manager = allocate != nullptr && choose != nullptr ? allocate(0) : nullptr;
  if (manager != nullptr) choose(manager, nullptr);
  return manager;
}

IMB_MGR* functions() {
  static IMB_MGR* const chosen = load();
  return chosen;
}

const gcm_key_data* as_key(const uint8_t* key) {
  return reinterpret_cast<const gcm_key_data*>(key);
}

constexpr WideAes kIpsec = {
    .take_key =
        [](const uint8_t* key, uint8_t* as_it_has_it) {
          static_assert(AesGcm::kPreparedBytes >= sizeof(gcm_key_data) && alignof(gcm_key_data) <= 64);
          IMB_AES256_GCM_PRE(functions(), key, reinterpret_cast<gcm_key_data*>(as_it_has_it));
        },
    .seal =
        [](const uint8_t* key, const uint8_t* text, size_t bytes, const AesGcm::Clear& clear, const uint8_t* nonce,
           uint8_t* sealed) {
          gcm_context_data context;
          IMB_AES256_GCM_ENC(functions(), as_key(key), &context, sealed, text, bytes, nonce, clear.at, clear.bytes,
                             sealed + bytes, AesGcm::kProofBytes);
        },
    .open =
        [](const uint8_t* key, const uint8_t* sealed, size_t bytes, const AesGcm::Clear& clear, const uint8_t* nonce,
           uint8_t* text, uint8_t* proof) {
          gcm_context_data context;
          IMB_AES256_GCM_DEC(functions(), as_key(key), &context, text, sealed, bytes, nonce, clear.at, clear.bytes,
                             proof, AesGcm::kProofBytes);
        }};

}  // namespace

const WideAes* wide_aes() {
  return functions() != nullptr ? &kIpsec : nullptr;
}

}  // namespace tutti
