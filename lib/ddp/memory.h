// Owned memory of a device.
#pragma once

#include <memory>

#include "device.h"

namespace tutti::ddp {

class Memory {
 public:
  // The new memory is zeroed; any held before is freed.
  Status allocate(Device& device, size_t bytes) {
    at_.reset();
    void* at = nullptr;
    Status allocated = bytes == 0 ? Status() : device.allocate(&at, bytes);
    at_ = std::unique_ptr<char, Free>(static_cast<char*>(at), {&device, bytes});
    return allocated;
  }
  // Ensures at least n bytes, with any content.
  Status reserve(Device& device, size_t n) { return n <= bytes() ? Status() : allocate(device, n); }

  char* data() const { return at_.get(); }
  size_t bytes() const { return at_ ? at_.get_deleter().bytes : 0; }

 private:
  struct Free {
    Device* device;
    size_t bytes;
    void operator()(char* at) const { device->free(at); }
  };
  std::unique_ptr<char, Free> at_;
};

}  // namespace tutti::ddp
