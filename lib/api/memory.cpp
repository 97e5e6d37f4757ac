// Allocation and registration of memory.
#include "api/handle.h"
#include "base/shared_memory.h"

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

Result<void> register_buffer(tuttiComm_t comm, void* buff, size_t size, void** handle) {
  if (handle == nullptr) return invalid_argument("handle is NULL");
  *handle = nullptr;
  if (buff == nullptr) return invalid_argument("buff is NULL");
  if (size == 0) return invalid_argument("size=0: there is nothing to register");
  if (size > UINTPTR_MAX - reinterpret_cast<uintptr_t>(buff))
    return invalid_argument(format("size=%zu at buff=%p overflows", size, buff));
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  Registrations& registrations = use.member().registrations;
  if (use->device() != nullptr) {
    *handle = registrations.accept(size, use->device()->open_window(buff, size));
    return {};
  }
  TUTTI_TRY_ASSIGN(*handle, registrations.add(buff, size));
  return {};
}

Result<void> deregister_buffer(tuttiComm_t comm, void* handle) {
  if (handle == nullptr) return {};
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  TUTTI_TRY_ASSIGN(const uint64_t window, use.member().registrations.remove(handle));
  if (window != 0) use->device()->close_window(window);
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
