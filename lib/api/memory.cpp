// Allocation and registration of memory.

#include "api/handle.h"
#include "base/log.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

Result<void> allocate(void** ptr, size_t bytes) {
  if (ptr == nullptr) return invalid_argument("ptr is NULL");
  *ptr = nullptr;
  if (bytes == 0) return {};
  TUTTI_TRY_ASSIGN(*ptr, SharedMemory::allocate(bytes));
  return {};
}

Result<void> release(void* ptr) {
  if (ptr == nullptr || SharedMemory::free(ptr)) return {};
  return invalid_argument(format("ptr=%p is not from tuttiMemAlloc, or was freed before", ptr));
}

// Enters the user's memory; returns the block's number.
Result<uint64_t> share(void* memory, size_t bytes) {
  TUTTI_TRY_ASSIGN(const auto block, SharedMemory::add(memory, bytes));
  if (!block->fd)
    log(LogLevel::kInfo,
        "registering %zu bytes at %p helps only network devices that read and write them: other processes cannot map "
        "private memory, or memory of a file that is no longer open; they can map memory from tuttiMemAlloc, or from "
        "mmap with MAP_SHARED of a memfd or file that stays open",
        bytes, memory);
  return block->id;
}

uintptr_t next_handle() {
  static std::atomic<uintptr_t> given{1 << 20};  // small numbers are no handles
  return ++given;
}

Result<void> register_buffer(tuttiComm_t comm, void* buff, size_t size, void** handle) {
  if (handle == nullptr) return invalid_argument("handle is NULL");
  *handle = nullptr;
  if (buff == nullptr) return invalid_argument("buff is NULL");
  if (size == 0) return invalid_argument("size=0: there is nothing to register");
  if (size > UINTPTR_MAX - reinterpret_cast<uintptr_t>(buff))
    return invalid_argument(format("size=%zu at buff=%p overflows", size, buff));
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  auto made = std::make_unique<Registration>();  // first, so that its block is given back whatever fails
  made->bytes = size;
  if (use->device() != nullptr) {
    made->window = use->device()->open_window(buff, size);
  } else {
    TUTTI_TRY_ASSIGN(made->block, share(buff, size));
  }
  *handle = reinterpret_cast<void*>(use.member().registrations.add(std::move(made), next_handle));
  return {};
}

Result<void> deregister_buffer(tuttiComm_t comm, void* handle) {
  if (handle == nullptr) return {};
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  const auto made = use.member().registrations.remove(reinterpret_cast<uintptr_t>(handle));
  if (!made) return invalid_argument(format("handle=%p is not a live registration of this communicator", handle));
  if ((*made)->window != 0) use->device()->close_window((*made)->window);
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

tuttiResult_t tuttiCommRegister(const tuttiComm_t comm, void* buff, size_t size, void** handle) {
  return guarded([&] { return register_buffer(comm, buff, size, handle); });
}

tuttiResult_t tuttiCommDeregister(const tuttiComm_t comm, void* handle) {
  return guarded([&] { return deregister_buffer(comm, handle); });
}

}  // extern "C"
