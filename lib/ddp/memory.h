// Memory of a device.
#pragma once

#include <utility>

#include "device.h"

namespace tutti::ddp {

class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory() {
    if (at_ != nullptr) device_->free(at_);
  }

  // Zeroed. What was held before is freed.
  Status allocate(Device& device, size_t bytes) {
    *this = Memory();
    device_ = &device;
    Status allocated = bytes == 0 ? Status() : device.allocate(&at_, bytes);
    if (allocated) bytes_ = bytes;
    return allocated;
  }
  // At least so many bytes, with any content.
  Status reserve(Device& device, size_t bytes) { return bytes <= bytes_ ? Status() : allocate(device, bytes); }

  char* data() const { return static_cast<char*>(at_); }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* at_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tutti::ddp
