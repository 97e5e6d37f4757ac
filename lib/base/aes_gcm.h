// AES-256-GCM with nonces of 12 bytes and a tag of 16 bytes (the proof) after the ciphertext: by Intel's multi-buffer
// library if it is installed, else by libsodium.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

class AesGcm {
 public:
  static constexpr size_t kKeyBytes = 32, kNonceBytes = 12, kProofBytes = 16;
  // Upper bound of a library's expanded key: libsodium 512, libipsec-mb 528 in version 1.3, 1264 in 2.0.
  static constexpr size_t kPreparedBytes = 2048;
  // Additional data: authenticated, but not encrypted.
  struct Clear {
    const uint8_t* at;
    size_t bytes;
  };

  static bool is_supported();  // by the CPU
  ~AesGcm();                   // erases the key
  void take_key(const uint8_t* key);
  // `text` and `sealed` may be the same memory.
  void seal(const uint8_t* text, size_t bytes, const Clear& clear, const uint8_t* nonce, uint8_t* sealed) const;
  // False if `sealed` is not authentic; then `text` holds none of it.
  bool open(const uint8_t* sealed, size_t bytes, const Clear& clear, const uint8_t* nonce, uint8_t* text) const;

 private:
  alignas(64) uint8_t key_[kPreparedBytes];  // expanded, in the library's form
};

}  // namespace tutti
