// Memory and streams.
#include <sys/mman.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <set>

#include "api/handle.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// What was given out, to recognise what comes back. Never destroyed: other threads may outlive main.
struct Given {
  std::mutex mutex;
  std::map<void*, size_t> blocks;
  std::set<tuttiStream_t> streams;
};
Given& given() {
  static auto* g = new Given;
  return *g;
}

Result<void> allocate(void** ptr, size_t bytes) {
  if (ptr == nullptr) return invalid_argument("ptr is NULL");
  *ptr = nullptr;
  if (bytes == 0) return {};
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return system_error(format("%zu bytes of memory", bytes), errno);
  madvise(block, bytes, MADV_HUGEPAGE);  // a hint: without huge pages it is ordinary memory
  const std::lock_guard lock(given().mutex);
  given().blocks[block] = bytes;
  *ptr = block;
  return {};
}

Result<void> release(void* ptr) {
  if (ptr == nullptr) return {};
  const std::lock_guard lock(given().mutex);
  const auto block = given().blocks.find(ptr);
  if (block == given().blocks.end())
    return invalid_argument(format("ptr=%p is not from tuttiMemAlloc, or was freed before", ptr));
  munmap(ptr, block->second);
  given().blocks.erase(block);
  return {};
}

Error not_a_stream(tuttiStream_t handle) {
  return invalid_argument(handle == nullptr ? std::string("stream is NULL")
                                            : format("stream=%p is not a live stream", static_cast<void*>(handle)));
}

Result<void> with_stream(tuttiStream_t handle, Result<void> (Stream::*call)()) {
  Stream* stream = find_stream(handle);
  return stream == nullptr ? Result<void>(not_a_stream(handle)) : (stream->*call)();
}

Result<void> destroy_stream(tuttiStream_t handle) {
  {
    const std::lock_guard lock(given().mutex);
    if (given().streams.erase(handle) == 0) return not_a_stream(handle);
  }
  auto result = handle->impl->synchronize();
  delete handle;
  return result;
}

}  // namespace

Stream* tutti::api::find_stream(tuttiStream_t handle) {
  const std::lock_guard lock(given().mutex);
  return given().streams.contains(handle) ? handle->impl.get() : nullptr;
}

extern "C" {

tuttiResult_t tuttiMemAlloc(void** ptr, size_t size) {
  return guarded([&] { return allocate(ptr, size); });
}

tuttiResult_t tuttiMemFree(void* ptr) {
  return guarded([&] { return release(ptr); });
}

tuttiResult_t tuttiStreamCreate(tuttiStream_t* stream) {
  return guarded([&]() -> Result<void> {
    if (stream == nullptr) return invalid_argument("stream is NULL");
    *stream = nullptr;
    TUTTI_TRY_ASSIGN(auto impl, Stream::create());
    auto handle = std::make_unique<tuttiStream>();
    handle->impl = std::move(impl);
    const std::lock_guard lock(given().mutex);
    given().streams.insert(handle.get());
    *stream = handle.release();
    return {};
  });
}

tuttiResult_t tuttiStreamSynchronize(tuttiStream_t stream) {
  return guarded([&] { return with_stream(stream, &Stream::synchronize); });
}

tuttiResult_t tuttiStreamQuery(tuttiStream_t stream) {
  return guarded([&] { return with_stream(stream, &Stream::query); });
}

tuttiResult_t tuttiStreamDestroy(tuttiStream_t stream) {
  return guarded([&] { return destroy_stream(stream); });
}

}  // extern "C"
