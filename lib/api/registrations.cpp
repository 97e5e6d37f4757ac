#include "api/registrations.h"

#include "base/log.h"
#include "base/shared_memory.h"

namespace tutti::api {

Registrations::~Registrations() {
  for (const auto& [handle, made] : made_) SharedMemory::remove(made.block);
}

Result<void*> Registrations::add(void* memory, size_t bytes) {
  TUTTI_TRY_ASSIGN(const auto block, SharedMemory::add(memory, bytes));
  if (!block->fd)
    log(LogLevel::kInfo,
        "registering %zu bytes at %p helps only network devices that read and write them: other processes cannot map "
        "private memory, or memory of a file that is no longer open; they can map memory from tuttiMemAlloc, or from "
        "mmap with MAP_SHARED of a memfd or file that stays open",
        bytes, memory);
  const std::lock_guard lock(mutex_);
  made_[++last_] = {block->id, 0, bytes};
  return reinterpret_cast<void*>(last_);
}

void* Registrations::accept(size_t bytes, uint64_t window) {
  const std::lock_guard lock(mutex_);
  made_[++last_] = {0, window, bytes};
  return reinterpret_cast<void*>(last_);
}

Result<uint64_t> Registrations::remove(void* handle) {
  const std::lock_guard lock(mutex_);
  const auto found = made_.find(reinterpret_cast<uintptr_t>(handle));
  if (found == made_.end())
    return Error{Code::kInvalidArgument, format("handle=%p is not a live registration of this communicator", handle)};
  SharedMemory::remove(found->second.block);  // no effect if tuttiMemFree came first
  const uint64_t window = found->second.window;
  made_.erase(found);
  return window;
}

size_t Registrations::bytes() const {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [handle, made] : made_) bytes += made.bytes;
  return bytes;
}

}  // namespace tutti::api
