// libnccl.so.2 where there are GPUs, over a made-up CUDA runtime and driver (cudart/cudart.h).
#include <cuda_runtime_api.h>
#include <tutti/tutti.h>

#include <vector>

#include "catch.h"
#include "nccl/abi.h"

extern "C" int (*const leads_to)(unsigned);  // in libcuda.so.1

namespace {

constexpr int kGpus = 2;  // TUTTI_TEST_GPUS
constexpr ncclDataType_t kFloat = 7;
constexpr ncclRedOp_t kSum = 0;

cudaPointerAttributes attributes_of(const void* memory) {
  cudaPointerAttributes attributes{};
  REQUIRE(cudaPointerGetAttributes(&attributes, memory) == cudaSuccess);
  return attributes;
}

}  // namespace

// The linker only keeps libraries of which something is used.
TEST_CASE("libnccl: it finds the driver by its name, and the library that finds this runtime") {
  CHECK(leads_to(0) == 0);
  int version = 0;
  CHECK(tuttiGetVersion(&version) == tuttiSuccess);
}

TEST_CASE("libnccl: memory is on the calling thread's device") {
  for (int device = 0; device < kGpus; device++) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    void* memory = nullptr;
    REQUIRE(ncclMemAlloc(&memory, 4096) == 0);
    CHECK(attributes_of(memory).type == cudaMemoryTypeDevice);
    CHECK(attributes_of(memory).device == device);
    CHECK(ncclMemFree(memory) == 0);
    CHECK(attributes_of(memory).type == cudaMemoryTypeUnregistered);
  }
  void* none = &none;
  CHECK(ncclMemAlloc(&none, 0) == 0);
  CHECK(none == nullptr);
  CHECK(ncclMemFree(nullptr) == 0);
}

TEST_CASE("libnccl: one process's ranks are on the first devices, and add up what is there") {
  for (int n = 1; n <= kGpus; n++) {
    CAPTURE(n);
    const auto size = static_cast<size_t>(n);
    std::vector<ncclComm_t> comms(size);
    REQUIRE(ncclCommInitAll(comms.data(), n, nullptr) == 0);
    std::vector<float*> numbers(size);
    for (int rank = 0; rank < n; rank++) {
      const auto r = static_cast<size_t>(rank);
      int device = -1;
      CHECK(ncclCommCuDevice(comms[r], &device) == 0);
      CHECK(device == rank);
      REQUIRE(cudaSetDevice(rank) == cudaSuccess);
      REQUIRE(ncclMemAlloc(reinterpret_cast<void**>(&numbers[r]), sizeof(float)) == 0);
      const auto mine = static_cast<float>(rank + 1);
      REQUIRE(cudaMemcpy(numbers[r], &mine, sizeof mine, cudaMemcpyHostToDevice) == cudaSuccess);
    }
    REQUIRE(ncclGroupStart() == 0);
    for (size_t r = 0; r < size; r++)
      CHECK(ncclAllReduce(numbers[r], numbers[r], 1, kFloat, kSum, comms[r], nullptr) == 0);
    CHECK(ncclGroupEnd() == 0);
    for (int rank = 0; rank < n; rank++) {
      const auto r = static_cast<size_t>(rank);
      float sum = 0;
      REQUIRE(cudaSetDevice(rank) == cudaSuccess);
      REQUIRE(cudaMemcpy(&sum, numbers[r], sizeof sum, cudaMemcpyDeviceToHost) == cudaSuccess);
      CHECK(sum == static_cast<float>(n * (n + 1) / 2));
      CHECK(ncclMemFree(numbers[r]) == 0);
      CHECK(ncclCommDestroy(comms[r]) == 0);
    }
  }
}
