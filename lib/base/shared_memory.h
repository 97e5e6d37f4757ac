// Memory of this process that stays where it is: what tuttiMemAlloc gave out and what users have registered. Most of it
// other processes can map, because a descriptor stands for it. Memory of devices, too, that network devices may know by
// its dmabuf. One table for the process; any thread. A block that was removed stays valid for those who hold it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

struct SharedBlock {
  uint64_t id = 0;  // never used again
  uintptr_t begin = 0, end = 0;
  Fd fd;                   // none: private memory, or no descriptor of it is open
  uint64_t offset = 0;     // of `begin` in the file behind fd
  bool is_device = false;  // fd is a dmabuf

  bool contains(const void* data, size_t bytes) const {
    const auto at = reinterpret_cast<uintptr_t>(data);
    return at >= begin && at < end && bytes <= end - at;
  }
};

// Zeroed memory that others can map. Who has it mapped cannot be killed by somebody who makes it shorter.
Result<Fd> sealed_memory(const char* name, size_t bytes);
// Whether others may map these bytes of a file: what lies beyond its last page kills whoever touches it. A device has
// none.
bool has_pages(const Fd& file, uint64_t offset, uint64_t bytes);

class SharedMemory {
 public:
  // Zeroed memory behind a memfd of its own, in the table until free().
  static Result<void*> allocate(size_t bytes);
  // False if `memory` was not allocated here. The pages return at once, even if peers still map them; but not from a
  // child, which shares them with who has allocated them.
  static bool free(void* memory);

  // Enters the user's memory; others can map it if it is a MAP_SHARED mapping of a memfd or file that is open, and ends
  // no later than that does. kInvalidArgument if it is no memory, or more than one shared mapping.
  static Result<std::shared_ptr<const SharedBlock>> add(void* memory, size_t bytes);
  // Enters memory of a device, for which a dmabuf stands.
  static std::shared_ptr<const SharedBlock> add_device(void* memory, size_t bytes, Fd dmabuf, uint64_t offset);
  static bool remove(uint64_t id);

  // The block that has all of these bytes and that others can map, or null.
  static std::shared_ptr<const SharedBlock> find(const void* data, size_t bytes);
  // The same, also of private memory and of devices'.
  static std::shared_ptr<const SharedBlock> find_registered(const void* data, size_t bytes);
  // A new descriptor of a block in device memory; else none.
  static Fd dmabuf(uint64_t id, uint64_t* offset);
  static bool is_live(uint64_t id);
  // Changes whenever a block is removed.
  static uint64_t removals();
};

}  // namespace tutti
