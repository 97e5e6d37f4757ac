// AES-256-GCM, with nonces of 12 bytes and 16 bytes of proof behind what is sealed: by Intel's multi-buffer library if
// it is there, else by libsodium.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

class AesGcm {
 public:
  static constexpr size_t kKeyBytes = 32, kNonceBytes = 12, kProofBytes = 16;
  // A key as a library has it, at most: libsodium 512, libipsec-mb 528 in version 1.3, 1264 in 2.0.
  static constexpr size_t kPreparedBytes = 2048;
  // What is proved, but not encrypted.
  struct Clear {
    const uint8_t* at;
    size_t bytes;
  };

  static bool is_here();  // the CPU can
  ~AesGcm();              // forgets the key
  void take_key(const uint8_t* key);
  // The texts may be the same memory.
  void seal(const uint8_t* text, size_t bytes, const Clear& clear, const uint8_t* nonce, uint8_t* sealed) const;
  // False if that is not what was sealed; then `text` has nothing of it.
  bool open(const uint8_t* sealed, size_t bytes, const Clear& clear, const uint8_t* nonce, uint8_t* text) const;

 private:
  alignas(64) uint8_t key_[kPreparedBytes];  // as the library has it
};

}  // namespace tutti
