// Memory of this process at fixed addresses: what tuttiMemAlloc gave out and what users have registered. Other
// processes can map most of it, through a file descriptor. Also device memory, which network devices may reach through
// its dmabuf. One table for the process; any thread. A removed block stays valid for those who hold it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

struct SharedBlock {
  uint64_t id = 0;  // never reused
  uintptr_t begin = 0, end = 0;
  Fd fd;                   // none: private memory, or no descriptor of it is open
  uint64_t offset = 0;     // of `begin` in the file behind fd
  bool is_device = false;  // fd is a dmabuf

  bool contains(const void* data, size_t bytes) const {
    const auto at = reinterpret_cast<uintptr_t>(data);
    return at >= begin && at < end && bytes <= end - at;
  }
};

// Zeroed memory that others can map. Sealed: nobody can shrink it, which would kill those who have it mapped.
Result<Fd> sealed_memory(const char* name, size_t bytes);
// Whether others may map these bytes of a file: touching what lies beyond its last page kills a process. A device has
// no pages.
bool has_pages(const Fd& file, uint64_t offset, uint64_t bytes);

class SharedMemory {
 public:
  // Zeroed memory in its own memfd, in the table until free().
  static Result<void*> allocate(size_t bytes);
  // False if `memory` was not allocated here. Its pages are released at once, even if peers still map them; except in a
  // forked child, which shares them with the process that allocated them.
  static bool free(void* memory);

  // Enters the user's memory; others can map it if it is a MAP_SHARED mapping of an open memfd or file and does not
  // extend beyond its end. kInvalidArgument if it is not mapped, or is more than one shared mapping.
  static Result<std::shared_ptr<const SharedBlock>> add(void* memory, size_t bytes);
  // Enters device memory, exported as a dmabuf.
  static std::shared_ptr<const SharedBlock> add_device(void* memory, size_t bytes, Fd dmabuf, uint64_t offset);
  static bool remove(uint64_t id);

  // The block that contains all of these bytes and that others can map, or null.
  static std::shared_ptr<const SharedBlock> find(const void* data, size_t bytes);
  // The same, but also private and device memory.
  static std::shared_ptr<const SharedBlock> find_registered(const void* data, size_t bytes);
  // A new descriptor of a device block's dmabuf; none for other blocks.
  static Fd dmabuf(uint64_t id, uint64_t* offset);
  static bool is_live(uint64_t id);
  // Changes whenever a block is removed.
  static uint64_t removals();
};

}  // namespace tutti
