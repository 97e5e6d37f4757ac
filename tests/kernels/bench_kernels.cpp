// How fast the kernels are: GB/s of output (one destination's bytes) by instruction set, type, shape, size and kind of
// store. All variants of a size run alternately, and the median of each is printed, so that a slow moment of the
// machine hits all of them equally.
//
//   bench_kernels [rounds] [largest size in MiB]      default 15 64
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kernels/kernels.h"

using namespace tutti;

namespace {

struct Buffers {
  explicit Buffers(size_t bytes) {
    for (char*& buffer : all) {
      buffer = static_cast<char*>(std::aligned_alloc(4096, bytes));
      if (!buffer) std::abort();
      std::memset(buffer, 0, bytes);
    }
  }
  ~Buffers() {
    for (char* buffer : all) std::free(buffer);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  static constexpr int kSources = 8;
  char* all[kSources + kMaxDestinations];
};

struct Variant {
  const KernelTable* table;
  DataType type;
  RedOp op;
  int n_src, n_dst;  // n_src 1: copy
  bool stream;
  std::vector<double> gb_per_s;

  void run(const Buffers& buffers, size_t bytes) const {
    char* const* const dst = buffers.all + Buffers::kSources;
    ReduceArgs args{};
    const void* src[Buffers::kSources];
    std::copy_n(buffers.all, Buffers::kSources, src);
    args.src = src;
    std::copy_n(dst, kMaxDestinations, args.dst);
    args.n_src = n_src;
    args.n_dst = n_dst;
    args.elems = bytes / dtype_bytes(type);
    args.divisor = n_src == 1 ? 0 : 3;
    args.n_stream = stream ? n_dst : 0;
    table->reduce[static_cast<int>(op)][static_cast<int>(type)](args);
  }

  void measure(const Buffers& buffers, size_t bytes) {
    // Small sizes are repeated, so that reading the clock does not matter.
    const int repeats = static_cast<int>(std::max<size_t>(1, (size_t{2} << 20) / bytes));
    const int64_t start = now_ns();
    for (int i = 0; i < repeats; ++i) run(buffers, bytes);
    const double ns = static_cast<double>(std::max<int64_t>(1, now_ns() - start));
    gb_per_s.push_back(static_cast<double>(bytes) * repeats / ns);
  }

  double median() {
    std::sort(gb_per_s.begin(), gb_per_s.end());
    return gb_per_s[gb_per_s.size() / 2];
  }
};

std::vector<Variant> variants() {
  struct Shape {
    RedOp op;
    int n_src, n_dst;
  };
  constexpr Shape kShapes[] = {
      {RedOp::kSum, 2, 1}, {RedOp::kSum, 2, 2}, {RedOp::kSum, 8, 1}, {RedOp::kAvg, 2, 1}, {RedOp::kMax, 2, 1}};
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16, DataType::kFloat8e4m3,
                                 DataType::kInt32};
  std::vector<Variant> out;
  for (const KernelTable* table : all_kernel_tables()) {
    for (const bool stream : {false, true}) {
      for (const DataType type : kTypes) {
        for (const Shape& shape : kShapes) out.push_back({table, type, shape.op, shape.n_src, shape.n_dst, stream, {}});
      }
      for (const int n_dst : {1, 2}) out.push_back({table, DataType::kUint8, RedOp::kSum, 1, n_dst, stream, {}});
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  const size_t largest_mib = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 64;
  std::vector<size_t> sizes = {256, 4 << 10, 32 << 10, 1 << 20};
  if (largest_mib > 1) sizes.push_back(largest_mib << 20);
  const Buffers buffers(sizes.back());
  std::printf("%-8s %-9s %-5s %-6s %-6s", "isa", "type", "op", "shape", "store");
  for (const size_t bytes : sizes) std::printf(" %9zu", bytes);
  std::printf("   GB/s of output\n");
  std::vector<std::vector<double>> columns;
  for (const size_t bytes : sizes) {
    std::vector<Variant> all = variants();
    for (int round = -1; round < rounds; ++round) {
      for (Variant& variant : all) {
        variant.measure(buffers, bytes);
        if (round < 0) variant.gb_per_s.clear();
      }
    }
    std::vector<double>& column = columns.emplace_back();
    for (Variant& variant : all) column.push_back(variant.median());
  }
  const std::vector<Variant> all = variants();
  for (size_t v = 0; v < all.size(); ++v) {
    const std::string shape = std::to_string(all[v].n_src) + "->" + std::to_string(all[v].n_dst);
    std::printf("%-8s %-9s %-5s %-6s %-6s", all[v].table->isa, dtype_name(all[v].type),
                all[v].n_src == 1 ? "copy" : red_op_name(all[v].op), shape.c_str(), all[v].stream ? "stream" : "plain");
    for (const auto& column : columns) std::printf(" %9.2f", column[v]);
    std::printf("\n");
  }
}
