#include "device.h"

#include <dlfcn.h>

#include <cstdint>
#include <type_traits>

namespace tutti::perf::device {
namespace {

constexpr unsigned kNonBlockingStream = 1;

struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*error_name)(int, const char**) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*device_name)(char*, int, int) = nullptr;
  int (*retain_context)(void**, int) = nullptr;
  int (*set_context)(void*) = nullptr;
  int (*allocate)(uint64_t*, size_t) = nullptr;
  int (*release)(uint64_t) = nullptr;
  int (*copy)(uint64_t, uint64_t, size_t, void*) = nullptr;
  int (*clear)(uint64_t, unsigned char, size_t, void*) = nullptr;
  int (*create_stream)(void**, unsigned) = nullptr;
  int (*synchronize)(void*) = nullptr;
  int (*destroy_stream)(void*) = nullptr;
  int (*begin_capture)(void*, int) = nullptr;
  int (*end_capture)(void*, void**) = nullptr;
  int (*instantiate)(void**, void*, unsigned long long) = nullptr;
  int (*launch_graph)(void*, void*) = nullptr;
  int (*destroy_graph)(void*) = nullptr;
  int (*destroy_executable)(void*) = nullptr;
  std::string missing;  // why there is no driver

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      missing = text("there is no CUDA driver here (%s)", dlerror());
      return;
    }
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) missing = text("the CUDA driver has no %s: it is too old", symbol);
    };
    find(init, "cuInit");
    find(error_name, "cuGetErrorName");
    find(device_count, "cuDeviceGetCount");
    find(device_get, "cuDeviceGet");
    find(device_name, "cuDeviceGetName");
    find(retain_context, "cuDevicePrimaryCtxRetain");
    find(set_context, "cuCtxSetCurrent");
    find(allocate, "cuMemAlloc_v2");
    find(release, "cuMemFree_v2");
    find(copy, "cuMemcpyAsync");
    find(clear, "cuMemsetD8Async");
    find(create_stream, "cuStreamCreate");
    find(synchronize, "cuStreamSynchronize");
    find(destroy_stream, "cuStreamDestroy_v2");
    find(begin_capture, "cuStreamBeginCapture_v2");
    find(end_capture, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch_graph, "cuGraphLaunch");
    find(destroy_graph, "cuGraphDestroy");
    find(destroy_executable, "cuGraphExecDestroy");
    if (missing.empty() && init(0) != 0) missing = text("the CUDA driver does not start: cuInit: error %d", init(0));
  }
};

// Loaded after the fork: a driver that was started before is useless in a child.
const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

Status check(int result, const char* call) {
  if (result == 0) return {};
  const char* name = nullptr;
  driver().error_name(result, &name);
  return Error{text("%s: %s (%d)", call, name == nullptr ? "unknown error" : name, result)};
}

uint64_t address(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory);
}

// One for each thread, for copies.
Status own_stream(void** stream) {
  thread_local void* t_stream = nullptr;
  if (t_stream == nullptr) {
    if (Status s = check(driver().create_stream(&t_stream, kNonBlockingStream), "cuStreamCreate"); !s) return s;
  }
  *stream = t_stream;
  return {};
}

}  // namespace

Status count(int* devices) {
  if (!driver().missing.empty()) return Error{"--device cuda: " + driver().missing};
  if (Status s = check(driver().device_count(devices), "cuDeviceGetCount"); !s) return s;
  if (*devices == 0) return Error{"--device cuda: there is no CUDA device here; is CUDA_VISIBLE_DEVICES set?"};
  return {};
}

Status enter(int number) {
  int devices = 0, handle = 0;
  void* context = nullptr;
  if (Status s = count(&devices); !s) return s;
  if (number >= devices) return Error{text("--device cuda:%d: there are %d CUDA devices here", number, devices)};
  if (Status s = check(driver().device_get(&handle, number), "cuDeviceGet"); !s) return s;
  if (Status s = check(driver().retain_context(&context, handle), "cuDevicePrimaryCtxRetain"); !s) return s;
  return check(driver().set_context(context), "cuCtxSetCurrent");
}

std::string name(int number) {
  char buffer[64] = "";
  int handle = 0;
  if (driver().device_get(&handle, number) != 0 || driver().device_name(buffer, sizeof buffer, handle) != 0) return "";
  return buffer;
}

Status allocate(size_t bytes, void** memory) {
  uint64_t at = 0;
  const Status s = check(driver().allocate(&at, bytes), "cuMemAlloc");
  *memory = reinterpret_cast<void*>(at);
  if (s) return {};
  return Error{text("no device memory for a buffer of %zu bytes (%s): %s; make the largest size (-e) smaller", bytes,
                    human_bytes(static_cast<double>(bytes)).c_str(), s.error().message.c_str())};
}

void release(void* memory) {
  if (memory != nullptr) driver().release(address(memory));  // if it fails the process's end frees it
}

Status copy(void* to, const void* from, size_t bytes) {
  void* stream = nullptr;
  if (Status s = own_stream(&stream); !s) return s;
  if (Status s = check(driver().copy(address(to), address(from), bytes, stream), "cuMemcpyAsync"); !s) return s;
  return check(driver().synchronize(stream), "cuStreamSynchronize after a copy");
}

Status clear(void* memory, size_t bytes) {
  void* stream = nullptr;
  if (bytes == 0) return {};
  if (Status s = own_stream(&stream); !s) return s;
  if (Status s = check(driver().clear(address(memory), 0, bytes, stream), "cuMemsetD8Async"); !s) return s;
  return check(driver().synchronize(stream), "cuStreamSynchronize after clearing");
}

Status create_stream(tuttiStream_t* stream) {
  void* made = nullptr;
  if (Status s = check(driver().create_stream(&made, kNonBlockingStream), "cuStreamCreate"); !s) return s;
  *stream = static_cast<tuttiStream_t>(made);
  return {};
}

Status synchronize(tuttiStream_t stream) {
  return check(driver().synchronize(stream), "cuStreamSynchronize");
}

void destroy(tuttiStream_t stream) {
  driver().destroy_stream(stream);
}

Graph::~Graph() {
  if (is_capturing_) static_cast<void>(end());  // else the stream could not be used any more
  if (executable_ != nullptr) driver().destroy_executable(executable_);
}

Status Graph::begin(tuttiStream_t stream) {
  constexpr int kThreadLocal = 1;
  stream_ = stream;
  Status s = check(driver().begin_capture(stream, kThreadLocal), "cuStreamBeginCapture");
  is_capturing_ = static_cast<bool>(s);
  return s;
}

Status Graph::end() {
  void* graph = nullptr;
  is_capturing_ = false;
  if (Status s = check(driver().end_capture(stream_, &graph), "cuStreamEndCapture"); !s) return s;
  const int result = driver().instantiate(&executable_, graph, 0);
  driver().destroy_graph(graph);
  return check(result, "cuGraphInstantiateWithFlags");
}

Status Graph::launch() const {
  return check(driver().launch_graph(executable_, stream_), "cuGraphLaunch");
}

}  // namespace tutti::perf::device
