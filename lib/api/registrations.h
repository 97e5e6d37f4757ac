// The buffers that a program has registered with a communicator. Any thread. What is left at the end is taken back.
#pragma once

#include <map>
#include <mutex>

#include "base/result.h"

namespace tutti::api {

class Registrations {
 public:
  ~Registrations();

  // A handle, never null.
  Result<void*> add(void* memory, size_t bytes);
  // The same for memory of a GPU; `window` is its number there, or 0.
  void* accept(size_t bytes, uint64_t window);
  // Its window.
  Result<uint64_t> remove(void* handle);
  size_t bytes() const;

 private:
  struct Registration {
    uint64_t block = 0;  // in the table of shared memory; 0: not there
    uint64_t window = 0;
    size_t bytes = 0;
  };
  mutable std::mutex mutex_;
  uintptr_t last_ = 0;
  std::map<uintptr_t, Registration> made_;  // by handle
};

}  // namespace tutti::api
