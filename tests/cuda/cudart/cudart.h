// libcudart.so.13, made up: what programs that were built for CUDA, unmodified, call of its runtime and driver, on
// devices of host memory (../fake.h). The PTX of their kernels runs in the interpreter (../ptx/code.h), so a program
// has to be compiled for a virtual architecture, uncompressed; that of the library's own kernels lies beside this
// library. What is not here is not there for the linker either.
//
// TUTTI_TEST_GPUS says how many devices there are (2).
//
// Threading: as CUDA's: any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "../fake.h"

namespace tutti_test::cudart {

// A capture that is under way.
struct Capture {
  std::thread::id by;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};

struct Allocated {
  size_t bytes = 0;
  int device = -1;  // the host's memory
  bool is_mapped = false;
};

// All that there is. Never destroyed: threads may outlive main.
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
bool& has_context();  // this thread: not before it has called something that needs one

cudaStream_t own(cudaStream_t stream);  // the two names that the default one has
// What CUDA forbids during a capture, unless the thread stands apart: it spoils that.
cudaError_t unsafe();
// As the driver does before it frees memory, or loads a kernel.
void wait_for_device();
// The allocation that this lies in; false if none.
bool find(const void* memory, const void** begin, Allocated* found);
cudaError_t remember(cudaError_t code);  // for cudaGetLastError
template <class T>
cudaError_t outcome_of(const tutti::Result<T>& result) {
  return result ? cudaSuccess : remember(static_cast<cudaError_t>(last_refusal()));
}

}  // namespace tutti_test::cudart
