// AES-256-GCM by a library that has the CPU's widest instructions for it, where there is one: Intel's multi-buffer
// library, 16 GB/s where libsodium has 2. It is loaded when first asked for, because its 12 MB are for those who
// encrypt. Constant; any thread.
#pragma once

#include "base/aes_gcm.h"

namespace tutti {

// Each as in AesGcm; `key` has AesGcm::kPreparedBytes as this library has them, aligned to 64.
struct WideAes {
  void (*take_key)(const uint8_t* key, uint8_t* as_it_has_it);
  void (*seal)(const uint8_t* key, const uint8_t* text, size_t bytes, const AesGcm::Clear& clear, const uint8_t* nonce,
               uint8_t* sealed);
  // Writes the text, and the proof that `sealed` should have.
  void (*open)(const uint8_t* key, const uint8_t* sealed, size_t bytes, const AesGcm::Clear& clear,
               const uint8_t* nonce, uint8_t* text, uint8_t* proof);
};

// Null: this build did not know it, it is not installed, or there is no memory for it.
const WideAes* wide_aes();

}  // namespace tutti
