// Memory.
#include <sys/mman.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "api/handle.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// What was given out, to recognise what comes back. Never destroyed: other threads may outlive main.
struct Blocks {
  std::mutex mutex;
  std::map<void*, size_t> bytes;
};
Blocks& blocks() {
  static auto* b = new Blocks;
  return *b;
}

Result<void> allocate(void** ptr, size_t bytes) {
  if (ptr == nullptr) return invalid_argument("ptr is NULL");
  *ptr = nullptr;
  if (bytes == 0) return {};
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return system_error(format("%zu bytes of memory", bytes), errno);
  madvise(block, bytes, MADV_HUGEPAGE);  // a hint: without huge pages it is ordinary memory
  const std::lock_guard lock(blocks().mutex);
  blocks().bytes[block] = bytes;
  *ptr = block;
  return {};
}

Result<void> release(void* ptr) {
  if (ptr == nullptr) return {};
  const std::lock_guard lock(blocks().mutex);
  const auto block = blocks().bytes.find(ptr);
  if (block == blocks().bytes.end())
    return invalid_argument(format("ptr=%p is not from tuttiMemAlloc, or was freed before", ptr));
  munmap(ptr, block->second);
  blocks().bytes.erase(block);
  return {};
}

}  // namespace

extern "C" {

tuttiResult_t tuttiMemAlloc(void** ptr, size_t size) {
  return guarded([&] { return allocate(ptr, size); });
}

tuttiResult_t tuttiMemFree(void* ptr) {
  return guarded([&] { return release(ptr); });
}

}  // extern "C"
