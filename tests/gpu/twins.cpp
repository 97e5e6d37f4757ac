// The tests of the kernels (tests/cuda) with the kernels on the GPU: all 71 of them are compared with their CPU twins,
// bit by bit. They work on the program's own memory: all its allocations are in one block of host memory, which the GPU
// uses at the same address. Kernels cannot see a test's stack.
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "cuda/fake.h"

namespace tutti::cuda {
Port* runtime_port();
}

namespace {

using namespace tutti;
using namespace tutti::cuda;

void require(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  _Exit(3);
}

// Pieces whose sizes are powers of two, which are reused.
class Heap {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (memory_ == nullptr) begin();
    const size_t k = kind_of(bytes);
    if (Piece* const piece = free_[k]; piece != nullptr) {
      free_[k] = piece->next;
      return piece;
    }
    if (used_ + (size_t{1} << k) > kBytes) return nullptr;
    char* const made = memory_ + used_;
    used_ += size_t{1} << k;
    return made;
  }
  void give_back(void* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto* const piece = static_cast<Piece*>(memory);
    piece->next = free_[kind_of(bytes)];
    free_[kind_of(bytes)] = piece;
  }

 private:
  struct Piece {
    Piece* next;
  };
  static constexpr size_t kBytes = size_t{1} << 31, kLeastKind = 6;

  static size_t kind_of(size_t bytes) {
    size_t k = kLeastKind;
    while ((size_t{1} << k) < bytes) k++;
    return k;
  }
  void begin() {
    void* made = nullptr;
    require(cudaHostAlloc(&made, kBytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    memory_ = static_cast<char*>(made);
  }

  std::mutex mutex_;
  char* memory_ = nullptr;
  size_t used_ = 0;
  std::array<Piece*, 64> free_{};
};

Heap& heap() {
  alignas(Heap) static char room[sizeof(Heap)];
  static Heap* const made = new (room) Heap;
  return *made;
}

// In front of each piece: its size; 0: malloc's, for what CUDA itself allocates meanwhile.
constexpr size_t kHeadBytes = 64;
thread_local bool t_is_in_heap = false;

void* take(size_t bytes) {
  const bool own = !t_is_in_heap;
  t_is_in_heap = true;
  void* const at =
      own ? heap().take(bytes + kHeadBytes) : aligned_alloc(kHeadBytes, (bytes / kHeadBytes + 2) * kHeadBytes);
  if (own) t_is_in_heap = false;
  if (at == nullptr) {
    fprintf(stderr, "no memory is left for %zu bytes\n", bytes);
    _Exit(3);
  }
  *static_cast<size_t*>(at) = own ? bytes + kHeadBytes : 0;
  return static_cast<char*>(at) + kHeadBytes;
}

void give_back(void* memory) {
  if (memory == nullptr) return;
  char* const at = static_cast<char*>(memory) - kHeadBytes;
  if (const size_t bytes = *reinterpret_cast<size_t*>(at); bytes != 0)
    heap().give_back(at, bytes);
  else
    free(at);
}

// Runs kernels on the GPU, in the calling thread's stream, and waits for each.
class OnGpu final : public tutti_test::Kernels {
 public:
  OnGpu() {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    if (found != cudaSuccess || devices == 0) {
      printf("skipped: there is no GPU: %s\n", cudaGetErrorString(found));
      exit(77);
    }
    tutti_test::use_kernels(this);
  }
  bool are_interpreted() const override { return true; }
  // A multiprocessor holds at least one block (__launch_bounds__).
  bool hold(uint32_t n_blocks) const override {
    int multiprocessors = 0;
    require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
    return n_blocks <= static_cast<uint32_t>(multiprocessors);
  }
  void know(void* memory, size_t bytes) override {
    require(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister");
  }
  void forget(void* memory) override { require(cudaHostUnregister(memory), "cudaHostUnregister"); }
  void run(const JobList& list) override {
    finish([&](Port& port, StreamRef stream) { return port.run(list, stream); });
  }
  void run(const ProgramCall& call) override {
    finish([&](Port& port, StreamRef stream) { return port.run(call, stream); });
  }
  void run(const LineCall& call) override {
    finish([&](Port& port, StreamRef stream) { return port.run(call, stream); });
  }
  void run(const SpanCall& call, uint32_t n_blocks) override {
    finish([&](Port& port, StreamRef stream) { return port.run(call, n_blocks, stream); });
  }
  void run(const FactorCall& call, uint32_t n_blocks) override {
    finish([&](Port& port, StreamRef stream) { return port.run(call, n_blocks, stream); });
  }

 private:
  // As in the library, a failed kernel ends everything.
  static void check(const Result<void>& done) {
    if (done) return;
    fprintf(stderr, "%s\n", done.error().message.c_str());
    _Exit(3);
  }
  template <class Launch>
  static void finish(Launch&& launch) {
    Port& port = *runtime_port();
    (void)port.use(0);
    static const auto loaded = port.load_kernels();  // nothing may be loaded while one kernel waits for another one
    check(loaded);
    const auto stream = port.create_stream();  // so that kernels that wait for each other run concurrently
    check(stream ? Result<void>() : Result<void>(stream.error()));
    check(launch(port, stream.value()));
    check(port.synchronize(stream.value()));
    port.destroy_stream(stream.value());
  }
};

OnGpu g_on_gpu;

}  // namespace

void* operator new(size_t bytes) {
  return take(bytes);
}
void* operator new[](size_t bytes) {
  return take(bytes);
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete[](void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, size_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  give_back(memory);
}
