// Memory of this process that other processes can map, because a descriptor stands for it: what tuttiMemAlloc gave out
// and what users have registered. One table for the process; any thread. A block that was removed stays valid for those
// who hold it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

struct SharedBlock {
  uint64_t id = 0;  // never used again
  uintptr_t begin = 0, end = 0;
  Fd fd;
  uint64_t offset = 0;  // of `begin` in the file behind fd

  bool contains(const void* data, size_t bytes) const {
    const auto at = reinterpret_cast<uintptr_t>(data);
    return at >= begin && at < end && bytes <= end - at;
  }
};

class SharedMemory {
 public:
  // Zeroed memory behind a memfd of its own, in the table until free().
  static Result<void*> allocate(size_t bytes);
  // False if `memory` was not allocated here. The pages return at once, even if peers still map them.
  static bool free(void* memory);

  // Enters the user's MAP_SHARED mapping of a memfd or file. 0 if it is private memory; kInvalidArgument if it is
  // neither.
  static Result<uint64_t> add(void* memory, size_t bytes);
  static bool remove(uint64_t id);

  // The block that has all of these bytes, or null.
  static std::shared_ptr<const SharedBlock> find(const void* data, size_t bytes);
  static bool is_live(uint64_t id);
  // Changes whenever a block is removed.
  static uint64_t removals();
};

}  // namespace tutti
