// A made-up libcudart.so.13: the functions of CUDA's runtime and driver that unmodified CUDA programs call, on devices
// of host memory (../fake.h). The PTX of their kernels runs in the interpreter (../ptx/code.h), so a program must be
// compiled for a virtual architecture, uncompressed; the PTX of the library's own kernels is a file beside this
// library. A function that is missing here is missing for the linker, too.
//
// TUTTI_TEST_GPUS says how many devices there are (2).
//
// Threading: any thread, as in CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "../fake.h"

namespace tutti_test::cudart {

// A capture in progress.
struct Capture {
  std::thread::id by;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};

struct Allocated {
  size_t bytes = 0;
  int device = -1;  // -1: host memory
  bool is_mapped = false;
};

// The whole state. Never destroyed, because threads may outlive main.
struct World {
  std::mutex mutex;
  int n_devices = 2;
  FakePort* port = nullptr;
  std::map<const void*, Allocated> memory;
  std::map<cudaStream_t, int> streams;  // their devices
  std::map<std::shared_ptr<FakeCapture>, Capture> captures;
};
World& world();
int& this_device();
bool& has_context();  // of this thread: false until it calls a function that needs one

cudaStream_t own(cudaStream_t stream);  // both names of the default stream become one
// What CUDA forbids during a capture unless the thread's mode is relaxed: it invalidates the capture.
cudaError_t unsafe();
// As the driver does before it frees memory or loads a kernel.
void wait_for_device();
// The allocation that contains this address; false if there is none.
bool find(const void* memory, const void** begin, Allocated* found);
cudaError_t remember(cudaError_t code);  // for cudaGetLastError
template <class T>
cudaError_t outcome_of(const tutti::Result<T>& result) {
  return result ? cudaSuccess : remember(static_cast<cudaError_t>(last_refusal()));
}

}  // namespace tutti_test::cudart
