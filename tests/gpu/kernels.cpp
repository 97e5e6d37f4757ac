// The copying and reducing kernels on the GPU: compared with their CPU twins bit by bit, and how fast they move data
// compared with the device's own copies. gpu_kernels [--quick]: the last line on stdout is JSON. Exit status: 0 good, 1
// wrong data, 3 a call failed, 77 there is no GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../cuda/twins.h"
#include "base/result.h"
#include "cuda/port.h"
#include "kernels/cuda/jobs.h"
#include "kernels/cuda/launch.h"

using namespace tutti;
using namespace tutti::cuda;

namespace {

constexpr int kMostSources = 8;
constexpr int kTurns = 7, kCopiesInTurn = 10;

int g_multiprocessors = 1;

void require(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  exit(3);
}

char* device_memory(size_t bytes) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, bytes), format("cudaMalloc of %zu bytes", bytes).c_str());
  return static_cast<char*>(memory);
}

void launch(JobList& list, cudaStream_t stream) {
  const void* kernel = list.only_bytes ? copy_kernel() : reduce_kernel(list.dtype);
  void* arguments[] = {&list};
  require(cudaLaunchKernel(kernel, dim3(tiles_of(list)), dim3(kJobThreads), arguments, 0, stream), "cudaLaunchKernel");
}

void launch(const SpanCall& call, cudaStream_t stream) {
  DeviceInfo device;
  device.multiprocessors = g_multiprocessors;
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(tiles_of(call), device.most_span_blocks()));
  void* arguments[] = {const_cast<SpanCall*>(&call)};
  require(cudaLaunchKernel(span_kernel(call), dim3(blocks), dim3(kGradientThreads), arguments, 0, stream),
          "cudaLaunchKernel");
}

JobList job_list(DataType dtype, RedOp op, size_t elems, uint32_t divisor, const std::vector<char*>& src, char* dst) {
  JobList list{};
  list.dtype = dtype;
  list.op = op;
  std::vector<const void*> from(src.begin(), src.end());
  void* to[] = {dst};
  list.add(elems, divisor, from.data(), static_cast<int>(from.size()), to, 1);
  finish_list(list, g_multiprocessors);
  return list;
}

// ---- correctness ---------------------------------------------------------------------------------------------------

struct FloatBits {
  int exponent, mantissa;
};

// Floats near one, any bits for integers.
void fill(std::vector<char>& bytes, DataType dtype, std::mt19937_64& random) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = random();
    memcpy(bytes.data() + i, &word, sizeof word);
  }
  const FloatBits bits = dtype == DataType::kFloat16      ? FloatBits{5, 10}
                         : dtype == DataType::kFloat32    ? FloatBits{8, 23}
                         : dtype == DataType::kFloat64    ? FloatBits{11, 52}
                         : dtype == DataType::kBfloat16   ? FloatBits{8, 7}
                         : dtype == DataType::kFloat8e4m3 ? FloatBits{4, 3}
                         : dtype == DataType::kFloat8e5m2 ? FloatBits{5, 2}
                                                          : FloatBits{0, 0};
  if (bits.exponent == 0) return;
  const size_t elem_bytes = dtype_bytes(dtype);
  for (size_t i = 0; i + elem_bytes <= bytes.size(); i += elem_bytes) {
    uint64_t value = 0;
    memcpy(&value, bytes.data() + i, elem_bytes);
    const uint64_t exponent = (uint64_t{1} << (bits.exponent - 1)) - 2 + random() % 3;
    const uint64_t mask = ((uint64_t{1} << bits.exponent) - 1) << bits.mantissa;
    value = (value & ~mask) | exponent << bits.mantissa;
    memcpy(bytes.data() + i, &value, elem_bytes);
  }
}

class Check {
 public:
  explicit Check(size_t most_bytes) : most_bytes_(most_bytes), output_(device_memory(most_bytes)) {
    for (int i = 0; i < kMostSources; i++) inputs_.push_back(device_memory(most_bytes));
  }

  // All types, operators and numbers of sources, and some shapes.
  void run() {
    for (int t = 0; t < kDataTypes; t++)
      for (const RedOp op : {RedOp::kSum, RedOp::kProd, RedOp::kMax, RedOp::kMin})
        for (const int n_src : {1, 2, 3, kMostSources})
          for (const size_t elems : {size_t{1}, size_t{1000}, most_bytes_ / 8 - 3})
            one(static_cast<DataType>(t), op, n_src, elems);
  }
  long long compared() const { return compared_; }
  long long wrong() const { return wrong_; }

 private:
  void one(DataType dtype, RedOp op, int n_src, size_t elems) {
    const size_t bytes = elems * dtype_bytes(dtype);
    const uint32_t divisor = op == RedOp::kSum && random_() % 2 ? 3 : 0;
    const size_t shift = random_() % 3 * dtype_bytes(dtype);  // of the first source, which then has no aligned packs
    std::vector<std::vector<char>> host(static_cast<size_t>(n_src), std::vector<char>((bytes + 7) / 8 * 8 + 8));
    std::vector<char> expected(bytes), got(bytes);
    std::vector<char*> on_host, on_device;
    for (size_t s = 0; s < host.size(); s++) {
      fill(host[s], dtype, random_);
      on_host.push_back(host[s].data());
      on_device.push_back(inputs_[s] + (s == 0 ? shift : 0));
      require(cudaMemcpy(on_device.back(), host[s].data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    JobList device_list = job_list(dtype, op, elems, divisor, on_device, output_);
    launch(device_list, nullptr);
    run_jobs_on_host(job_list(dtype, op, elems, divisor, on_host, expected.data()));
    require(cudaMemcpy(got.data(), output_, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy of the result");
    compared_++;
    if (memcmp(got.data(), expected.data(), bytes) == 0) return;
    wrong_++;
    fprintf(stderr, "wrong: %s %s of %d sources, %zu elements, divisor %u, shift %zu\n", dtype_name(dtype),
            red_op_name(op), n_src, elems, divisor, shift);
  }

  const size_t most_bytes_;
  char* output_;
  std::vector<char*> inputs_;
  std::mt19937_64 random_{1};
  long long compared_ = 0, wrong_ = 0;
};

// ---- speed ---------------------------------------------------------------------------------------------------------

// Bytes per second that `work`, which moves `bytes`, reads and writes: the median of several turns.
template <class Work>
double rate(double bytes, Work&& work) {
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin), "cudaEventCreate");
  require(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> seconds;
  for (int turn = -1; turn < kTurns; turn++) {
    require(cudaEventRecord(begin, nullptr), "cudaEventRecord");
    for (int i = 0; i < kCopiesInTurn; i++) work();
    require(cudaEventRecord(end, nullptr), "cudaEventRecord");
    require(cudaEventSynchronize(end), "cudaEventSynchronize");
    float ms = 0;
    require(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (turn >= 0) seconds.push_back(ms / 1e3 / kCopiesInTurn);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kTurns / 2, seconds.end());
  return bytes / seconds[kTurns / 2];
}

std::string row(const char* type, int n_src, size_t bytes, double got, double copy_rate) {
  return format(", {\"type\": \"%s\", \"sources\": %d, \"bytes\": %zu, \"gb_s\": %.1f, \"of_copy\": %.4f}", type, n_src,
                bytes, got / 1e9, got / copy_rate);
}

// JSON objects, each preceded by a comma and a space.
std::string measure(size_t bytes, double copy_rate, const std::vector<char*>& buffers) {
  std::string rows;
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16, DataType::kInt8, DataType::kFloat8e4m3})
    for (const int n_src : {1, 2, kMostSources}) {
      const std::vector<char*> src(buffers.begin(), buffers.begin() + n_src);
      JobList list = job_list(dtype, RedOp::kSum, bytes / dtype_bytes(dtype), 0, src, buffers[kMostSources]);
      const double got = rate(static_cast<double>(bytes) * (n_src + 1), [&] { launch(list, nullptr); });
      rows += row(dtype_name(dtype), n_src, bytes, got, copy_rate);
    }
  SpanCall call;  // floats to bfloat16
  call.small = DataType::kBfloat16;
  call.items[call.n_items++] = {buffers[0], buffers[1], bytes / sizeof(float)};
  const double got = rate(1.5 * static_cast<double>(bytes), [&] { launch(call, nullptr); });
  return rows + row("float to bfloat16", 1, bytes, got, copy_rate);
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    printf("skipped: there is no GPU: %s\n", cudaGetErrorString(found));
    return 77;
  }
  require(cudaDeviceGetAttribute(&g_multiprocessors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  Check check(quick ? 64 << 10 : 1 << 20);
  check.run();
  std::string rows;
  double copy_rate = 0;
  if (!quick) {
    const size_t bytes = 256 << 20;
    std::vector<char*> buffers;
    for (int i = 0; i <= kMostSources; i++) {
      buffers.push_back(device_memory(bytes));
      require(cudaMemset(buffers.back(), 0, bytes), "cudaMemset");
    }
    copy_rate = rate(2.0 * static_cast<double>(bytes), [&] {
      require(cudaMemcpyAsync(buffers[1], buffers[0], bytes, cudaMemcpyDeviceToDevice, nullptr), "cudaMemcpyAsync");
    });
    rows = measure(bytes, copy_rate, buffers).substr(2);
  }
  printf("{\"compared\": %lld, \"wrong\": %lld, \"copy_gb_s\": %.1f, \"rows\": [%s]}\n", check.compared(),
         check.wrong(), copy_rate / 1e9, rows.c_str());
  return check.wrong() > 0;
}
