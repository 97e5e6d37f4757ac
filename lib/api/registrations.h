// The buffers that a program has registered with a communicator. Any thread. The destructor takes the rest back.
#pragma once

#include <map>
#include <mutex>

#include "base/result.h"

namespace tutti::api {

class Registrations {
 public:
  ~Registrations();

  // Returns the handle, never null.
  Result<void*> add(void* memory, size_t bytes);
  // The same for GPU memory; `window` is its number on the device, or 0.
  void* accept(size_t bytes, uint64_t window);
  // Returns the registration's window, or 0.
  Result<uint64_t> remove(void* handle);
  size_t bytes() const;

 private:
  struct Registration {
    uint64_t block = 0;  // its id in SharedMemory's table; 0: not in it
    uint64_t window = 0;
    size_t bytes = 0;
  };
  mutable std::mutex mutex_;
  uintptr_t last_ = 0;
  std::map<uintptr_t, Registration> made_;  // by handle
};

}  // namespace tutti::api
