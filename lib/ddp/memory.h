// Memory of tuttiMemAlloc: other processes of the host read it where it lies.
#pragma once

#include <utility>

#include "status.h"

namespace tutti::ddp {

class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept : at_(std::exchange(other.at_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory() {
    if (at_ != nullptr) static_cast<void>(tuttiMemFree(at_));
  }

  // Zeroed. What was held before is freed.
  Status allocate(size_t bytes) {
    *this = Memory();
    Status allocated = library(tuttiMemAlloc(&at_, bytes));
    if (allocated) bytes_ = bytes;
    return allocated;
  }
  // At least so many bytes, with any content.
  Status reserve(size_t bytes) { return bytes <= bytes_ ? Status() : allocate(bytes); }

  char* data() const { return static_cast<char*>(at_); }
  size_t bytes() const { return bytes_; }

 private:
  void* at_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tutti::ddp
