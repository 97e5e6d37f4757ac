// A buffer with guard bytes on both sides, so that a write outside it is detected. A buffer in device memory has a twin
// on the host, on which all functions below work.
#pragma once

#include <cstddef>

#include "status.h"

namespace tutti::perf {

enum class Memory { kHost, kTutti, kDevice };

class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Zeroed memory on a 64-byte boundary.
  Status allocate(size_t bytes, Memory memory);

  char* data() const { return data_; }
  // The address that operations work on.
  char* operand() const { return device_ == nullptr ? data_ : device_ + (data_ - base_); }
  // The whole memory, including guards.
  void* memory() const { return device_ == nullptr ? base_ : device_; }
  size_t memory_bytes() const { return bytes_; }
  // Copies what the host has written to the device, or back: the first `used_bytes` and the guards around them.
  Status upload(size_t used_bytes) const;
  Status download(size_t used_bytes) const;
  // Zeroes the first `used_bytes` of the memory that operations work on.
  Status clear(size_t used_bytes) const;
  // Makes data() begin this many bytes after the boundary; `bytes` of allocate() must have room for it.
  void move(size_t shift_bytes);
  // Fills the first `used_bytes` with a pattern that no result has by chance, and the guards around them.
  void poison(size_t used_bytes);
  // Guard bytes that have changed since poison(used_bytes).
  size_t count_overwritten(size_t used_bytes) const;
  // Bytes of [begin, end) that have changed since then.
  size_t count_changed(size_t begin, size_t end) const;

  static size_t bytes_needed(size_t bytes);

 private:
  char* base_ = nullptr;
  size_t bytes_ = 0;
  char* data_ = nullptr;
  char* device_ = nullptr;  // twin of base_
  bool tutti_memory_ = false;
};

}  // namespace tutti::perf
