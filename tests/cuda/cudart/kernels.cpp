// Kernels: registration and launch.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "../ptx/launch.h"
#include "cudart.h"

namespace tutti_test::cudart {
namespace {

// What nvcc embeds in a program: this header, then entries of PTX or machine code.
struct FatBinary {
  int magic, version;
  const char* data;
  void* name;
};
struct FatHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct FatEntry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes;
};
constexpr uint32_t kFatMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;

// The kernels of one source file of a program. The text is parsed when one of them is launched.
struct KernelFile {
  std::string text;
  std::unique_ptr<ptx::Module> module;
};

struct Function {
  KernelFile* code = nullptr;
  std::string name;
  const ptx::Kernel* kernel = nullptr;
  std::set<int> devices;  // those that have loaded it
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Function> functions;  // by host function
  std::unique_ptr<ptx::Module> tutti;                   // the library's kernels, which are compressed in it
};
void print_counts();
Registry& registry() {
  static auto* const all = [] {
    if (getenv("TUTTI_TEST_PTX_COUNTS") != nullptr) atexit(print_counts);
    return new Registry;
  }();
  return *all;
}

std::string ptx_of(const FatBinary& binary) {
  FatHeader header;
  memcpy(&header, binary.data, sizeof header);
  if (header.magic != kFatMagic) return "";
  const char *at = binary.data + header.header_bytes, *const end = at + header.bytes;
  while (at < end) {
    FatEntry entry;
    memcpy(&entry, at, sizeof entry);
    if (entry.kind == kPtx && entry.compressed_bytes == 0) return {at + entry.header_bytes, entry.bytes};
    at += entry.header_bytes + entry.bytes;
  }
  return "";
}

// How many lines of the launched kernels ran, of all their lines.
void print_counts() {
  size_t n = 0, lines = 0, lines_run = 0;
  for (const auto& [host_function, function] : registry().functions) {
    if (function.kernel == nullptr || function.kernel->lines_run() == 0) continue;
    n++;
    lines += function.kernel->code.size();
    lines_run += function.kernel->lines_run();
  }
  fprintf(stderr, "PTX: kernels run %zu, lines run %zu of %zu\n", n, lines_run, lines);
}

[[noreturn]] void stop(const std::string& why) {
  fprintf(stderr, "the made-up CUDA runtime: %s\n", why.c_str());
  abort();
}

const ptx::Kernel* find_in(const ptx::Module& module, const std::string& name) {
  for (const auto& kernel : module.kernels)
    if (kernel->name == name) return kernel.get();
  return nullptr;
}

// As in ../../beside.h, but relative to this library, wherever the program is.
std::string beside_this_library(const std::string& name) {
  Dl_info found{};
  dladdr(reinterpret_cast<const void*>(&beside_this_library), &found);
  return std::filesystem::canonical(found.dli_fname).parent_path() / name;
}

const ptx::Kernel& kernel_of(const void* host_function) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.functions.find(host_function);
  if (found == all.functions.end()) stop("a kernel that was not registered is launched");
  Function& function = found->second;
  if (function.kernel != nullptr) return *function.kernel;
  KernelFile& code = *function.code;
  if (code.module == nullptr) {
    code.module = std::make_unique<ptx::Module>();
    if (!code.text.empty()) code.module->add_text(code.text.c_str());  // without the zero padding
  }
  function.kernel = find_in(*code.module, function.name);
  if (function.kernel == nullptr && all.tutti == nullptr) {
    all.tutti = std::make_unique<ptx::Module>();
    for (const char* name : {"gradients", "jobs", "lines", "program"})
      all.tutti->add_file(beside_this_library(std::string(name) + ".ptx"));
  }
  if (function.kernel == nullptr) function.kernel = find_in(*all.tutti, function.name);
  if (function.kernel == nullptr)
    stop("there is no PTX of " + function.name + ": compile for compute_90 alone, with -no-compress");
  if (!function.kernel->problem.empty()) stop(function.name + ": " + function.kernel->problem);
  return *function.kernel;
}

// Lazily, as CUDA does, which waits for the device.
void load(const void* host_function) {
  Registry& all = registry();
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.functions.find(host_function);
    if (found == all.functions.end() || !found->second.devices.insert(this_device()).second) return;
  }
  wait_for_device();
}

constexpr unsigned kMultiprocessors = 132, kMostThreads = 2048;  // as on an H100

// As many as the kernel's registers allow, as far as its launch bounds tell.
unsigned blocks_at_once(const ptx::Kernel& kernel, unsigned n_threads) {
  return kMultiprocessors * std::clamp(kernel.least_blocks, 1u, kMostThreads / n_threads);
}

std::vector<char> arguments_of(const ptx::Kernel& kernel, void** arguments) {
  std::vector<char> bytes(kernel.parameter_bytes);
  for (size_t i = 0; i < kernel.parameters.size(); i++)
    memcpy(bytes.data() + kernel.parameters[i].at, arguments[i], kernel.parameters[i].bytes);
  return bytes;
}

void run(const ptx::Kernel& kernel, const std::vector<char>& arguments, unsigned n_blocks, unsigned n_threads) {
  ptx::Grid grid(&kernel, arguments.data(), arguments.size(), n_blocks, n_threads);
  {
    const std::lock_guard lock(world().mutex);
    for (const auto& [begin, allocated] : world().memory) {
      grid.readable.add(begin, allocated.bytes);
      grid.writable.add(begin, allocated.bytes);
    }
  }
  constexpr unsigned kOnDevice = 264;  // kernels that wait for other blocks or ranks are never larger
  const std::string fault = ptx::run(&grid, n_blocks <= kOnDevice);
  if (!fault.empty()) stop("a kernel failed: " + fault);
}

cudaError_t launch(const void* function, dim3 blocks, dim3 threads, void** arguments, size_t shared, cudaStream_t in) {
  if (blocks.x == 0 || threads.x == 0 || threads.x > 1024) return remember(cudaErrorInvalidConfiguration);
  const ptx::Kernel& kernel = kernel_of(function);
  load(function);
  if (blocks.y * blocks.z * threads.y * threads.z != 1 || shared != 0)
    stop(kernel.name + ": only grids of one dimension are made up, without shared memory of their own");
  return outcome_of(world().port->enqueue(own(in), [&kernel, bytes = arguments_of(kernel, arguments), blocks, threads] {
    run(kernel, bytes, blocks.x, threads.x);
  }));
}

struct Configuration {
  dim3 blocks, threads;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> t_configurations;

}  // namespace
}  // namespace tutti_test::cudart

using namespace tutti_test::cudart;

extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
  auto* const code = new KernelFile;
  code->text = ptx_of(*static_cast<const FatBinary*>(binary));
  return reinterpret_cast<void**>(code);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}  // its kernels may still run

void __cudaRegisterFunction(void** code, const char* host_function, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  const std::lock_guard lock(registry().mutex);
  registry().functions[host_function] = {reinterpret_cast<KernelFile*>(code), name, nullptr};
}

unsigned __cudaPushCallConfiguration(dim3 blocks, dim3 threads, size_t shared, cudaStream_t stream) {
  t_configurations.push_back({blocks, threads, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* blocks, dim3* threads, size_t* shared, void* stream) {
  const Configuration last = t_configurations.back();
  t_configurations.pop_back();
  *blocks = last.blocks;
  *threads = last.threads;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 blocks, dim3 threads, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return launch(kernel, blocks, threads, arguments, shared, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 blocks, dim3 threads, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return launch(function, blocks, threads, arguments, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 blocks, dim3 threads, void** arguments,
                                        size_t shared, cudaStream_t stream) {
  if (blocks.x > blocks_at_once(kernel_of(function), threads.x)) return remember(cudaErrorCooperativeLaunchTooLarge);
  return launch(function, blocks, threads, arguments, shared, stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  *attributes = {};
  load(function);
  attributes->maxThreadsPerBlock = static_cast<int>(kernel_of(function).most_threads);
  return cudaSuccess;
}
}
