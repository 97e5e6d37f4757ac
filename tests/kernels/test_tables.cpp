// Every table against the scalar reference: all types, operators, numbers of sources and destinations, at odd lengths
// and alignments, with and without streaming, in place, with guards around every destination.
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "kernels/kernels.h"
#include "sanitized.h"

using namespace tutti;

namespace {

constexpr size_t kGuardBytes = 80;
constexpr uint8_t kGuard = 0xa5;
constexpr size_t kLengths[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 257, 515, 1031};

// `bytes` at a given distance from a cache line, guarded on both sides. The allocation ends with the guard, so that a
// sanitizer sees accesses beyond it.
class Block {
 public:
  Block(size_t bytes, size_t misalign) : bytes_(bytes) {
    memory_.assign(kGuardBytes + 64 + misalign + bytes + kGuardBytes, kGuard);
    const auto base = reinterpret_cast<uintptr_t>(memory_.data()) + kGuardBytes;
    offset_ = kGuardBytes + (64 - base % 64) % 64 + misalign;
  }
  uint8_t* data() { return memory_.data() + offset_; }
  bool guards_intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + bytes_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  size_t bytes_, offset_;
  std::vector<uint8_t> memory_;
};

// Exact size, at the end of an allocation, so that a sanitizer sees reads beyond it.
class Source {
 public:
  Source(const std::vector<uint8_t>& content, size_t misalign)
      : misalign_(misalign), memory_(new uint8_t[misalign + content.size()]) {
    if (!content.empty()) std::memcpy(data(), content.data(), content.size());
  }
  uint8_t* data() { return memory_.get() + misalign_; }

 private:
  size_t misalign_;
  std::unique_ptr<uint8_t[]> memory_;
};

// Random bits, with many small and many special values among them.
std::vector<uint8_t> random_bytes_for(DataType type, size_t elems, std::mt19937_64& random) {
  std::vector<uint8_t> out(elems * dtype_bytes(type));
  for (size_t i = 0; i < elems; ++i) {
    const uint64_t bits = random();
    uint8_t* const element = out.data() + i * dtype_bytes(type);
    switch (random() % 8) {
      case 0:  // 0, or -0, which as a signed integer is the smallest number
        std::memset(element, 0, dtype_bytes(type));
        element[dtype_bytes(type) - 1] = bits & 1 ? 0x80 : 0;
        break;
      case 1:  // near the floats' infinities: upper byte 0x7f or 0xff, the next one random
        std::memset(element, bits & 2 ? 0 : 0xff, dtype_bytes(type));
        element[dtype_bytes(type) - 1] = bits & 1 ? 0x7f : 0xff;
        if (dtype_bytes(type) > 1) element[dtype_bytes(type) - 2] = static_cast<uint8_t>(bits >> 8);
        break;
      case 2: {
        const float value = static_cast<float>(static_cast<int>(bits % 2001) - 1000) / 8;
        const double wide = value;
        if (type == DataType::kFloat32) std::memcpy(element, &value, sizeof value);
        if (type == DataType::kFloat64) std::memcpy(element, &wide, sizeof wide);
        break;
      }
      default: std::memcpy(element, &bits, dtype_bytes(type));
    }
  }
  return out;
}

struct Shape {
  DataType type;
  RedOp op;
  int n_src;
  size_t elems;
  uint32_t divisor;

  size_t bytes() const { return elems * dtype_bytes(type); }
  std::string to_string() const {
    return std::string(dtype_name(type)) + " " + red_op_name(op) + " n_src=" + std::to_string(n_src) +
           " elems=" + std::to_string(elems) + " divisor=" + std::to_string(divisor);
  }
};

// Bit by bit, except NaNs that are sums or products of floats or doubles: which of two is kept, and whether it is made
// quiet, is up to the compiler.
template <class F>
bool same_floats(const uint8_t* a, const uint8_t* b, size_t elems) {
  for (size_t i = 0; i < elems; ++i) {
    F x, y;
    std::memcpy(&x, a + i * sizeof x, sizeof x);
    std::memcpy(&y, b + i * sizeof y, sizeof y);
    if (std::memcmp(&x, &y, sizeof x) != 0 && (x == x || y == y)) return false;
  }
  return true;
}

bool same(const Shape& shape, const uint8_t* a, const uint8_t* b) {
  const bool is_exact = shape.op == RedOp::kMin || shape.op == RedOp::kMax;
  if (!is_exact && shape.type == DataType::kFloat32) return same_floats<float>(a, b, shape.elems);
  if (!is_exact && shape.type == DataType::kFloat64) return same_floats<double>(a, b, shape.elems);
  return shape.bytes() == 0 || std::memcmp(a, b, shape.bytes()) == 0;
}

ReduceKernel kernel_of(const KernelTable& table, const Shape& shape) {
  return table.reduce[static_cast<int>(shape.op)][static_cast<int>(shape.type)];
}

ReduceArgs args_of(const Shape& shape, int n_dst, int n_stream) {
  ReduceArgs args{};
  args.n_src = shape.n_src;
  args.n_dst = n_dst;
  args.elems = shape.elems;
  args.divisor = shape.divisor;
  args.n_stream = n_stream;
  return args;
}

using Contents = std::vector<std::vector<uint8_t>>;

std::vector<uint8_t> reference(const Shape& shape, const Contents& contents) {
  std::vector<uint8_t> out(shape.bytes());
  ReduceArgs args = args_of(shape, 1, 0);
  std::vector<const void*> src;
  for (const auto& source : contents) src.push_back(source.data());
  args.src = src.data();
  args.dst[0] = out.data();
  kernel_of(*all_kernel_tables().front(), shape)(args);
  return out;
}

// Separate sources and destinations, each with its own alignment derived from `misalign`.
bool right_apart(const KernelTable& table, const Shape& shape, const Contents& contents, const uint8_t* expected,
                 int n_dst, int n_stream, size_t misalign) {
  std::vector<Source> sources;
  ReduceArgs args = args_of(shape, n_dst, n_stream);
  for (size_t s = 0; s < contents.size(); ++s) sources.emplace_back(contents[s], misalign * (s + 1) % 16);
  std::vector<const void*> src;
  for (Source& source : sources) src.push_back(source.data());
  args.src = src.data();
  std::vector<Block> destinations;
  for (size_t d = 0; d < kMaxDestinations; ++d) {
    destinations.emplace_back(shape.bytes(), d == 0 || misalign == 0 ? misalign : misalign / 2 + 3 * d);
    args.dst[d] = destinations[d].data();
  }
  kernel_of(table, shape)(args);
  bool right = true;
  for (int d = 0; d < kMaxDestinations; ++d) {
    Block& block = destinations[static_cast<size_t>(d)];
    right = right && block.guards_intact();
    if (d < n_dst) right = right && same(shape, block.data(), expected);
    for (size_t i = 0; d >= n_dst && i < shape.bytes(); ++i) right = right && block.data()[i] == kGuard;
  }
  for (size_t s = 0; s < contents.size(); ++s) {
    right = right && (contents[s].empty() || std::memcmp(sources[s].data(), contents[s].data(), shape.bytes()) == 0);
  }
  return right;
}

// Destination 0 is the first source, destination 1 the last one.
bool right_in_place(const KernelTable& table, const Shape& shape, const Contents& contents, const uint8_t* expected,
                    int n_stream, size_t misalign) {
  std::vector<Block> blocks;
  std::vector<const void*> src;
  ReduceArgs args = args_of(shape, shape.n_src > 1 ? 2 : 1, n_stream);
  for (size_t s = 0; s < contents.size(); ++s) blocks.emplace_back(shape.bytes(), misalign * (s + 1) % 64);
  for (size_t s = 0; s < contents.size(); ++s) {
    if (shape.bytes()) std::memcpy(blocks[s].data(), contents[s].data(), shape.bytes());
    src.push_back(blocks[s].data());
  }
  args.src = src.data();
  args.dst[0] = blocks.front().data();
  args.dst[1] = blocks.back().data();
  kernel_of(table, shape)(args);
  bool right = same(shape, blocks.front().data(), expected) && same(shape, blocks.back().data(), expected);
  for (const Block& block : blocks) right = right && block.guards_intact();
  return right;
}

int wrong_runs(const KernelTable& table, const Shape& shape, const Contents& contents, const uint8_t* expected) {
  int wrong = 0;
  for (const int n_stream : {0, 1, 2, kMaxDestinations}) {
    for (const size_t misalign : {size_t{0}, dtype_bytes(shape.type), size_t{5}}) {
      for (const int n_dst : {1, 2, kMaxDestinations})
        wrong += !right_apart(table, shape, contents, expected, n_dst, n_stream, misalign);
      wrong += !right_in_place(table, shape, contents, expected, n_stream, misalign);
    }
  }
  return wrong;
}

void check_type(DataType type) {
  std::mt19937_64 random(static_cast<uint64_t>(type) + 1);
  // Adjacent operators differ in no address.
  const int step = kSanitized ? 2 : 1;
  for (int op = static_cast<int>(type) % step; op < kRedOps; op += step) {
    for (const int n_src : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
      for (const size_t elems : kLengths) {
        const Shape shape{type, static_cast<RedOp>(op), n_src, elems, static_cast<uint32_t>(random() % 9)};
        Contents contents;
        for (int s = 0; s < n_src; ++s) contents.push_back(random_bytes_for(type, elems, random));
        const std::vector<uint8_t> expected = reference(shape, contents);
        for (const KernelTable* table : all_kernel_tables()) {
          INFO(table->isa << ": " << shape.to_string());
          CHECK(wrong_runs(*table, shape, contents, expected.data()) == 0);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("tables agree with the reference") {
  for (int type = 0; type < kDataTypes; ++type) check_type(static_cast<DataType>(type));
}

TEST_CASE("every pair of small floats, added and multiplied") {
  // All 65536 pairs of 8-bit codes, and all 16-bit codes with a few others: covers every encoding path.
  for (const DataType type : {DataType::kFloat8e4m3, DataType::kFloat8e5m2, DataType::kFloat16, DataType::kBfloat16}) {
    const size_t width = dtype_bytes(type);
    for (const RedOp op : {RedOp::kSum, RedOp::kProd, RedOp::kMin, RedOp::kMax, RedOp::kAvg}) {
      const Shape shape{type, op, 2, 65536, 3};
      for (const uint64_t salt : {0x0000u, 0x3555u, 0x8001u, 0x7bffu, 0x33ffu, 0x0400u}) {
        Contents contents(2, std::vector<uint8_t>(shape.bytes()));
        for (uint64_t i = 0; i < shape.elems; ++i) {
          const uint64_t other = width == 1 ? i >> 8 : i ^ salt;
          std::memcpy(contents[0].data() + i * width, &i, width);
          std::memcpy(contents[1].data() + i * width, &other, width);
        }
        const std::vector<uint8_t> expected = reference(shape, contents);
        for (const KernelTable* table : all_kernel_tables()) {
          INFO(table->isa << ": " << shape.to_string());
          CHECK(right_apart(*table, shape, contents, expected.data(), 1, false, 0));
        }
        if (width == 1 || kSanitized) break;
      }
    }
  }
}

TEST_CASE("copies, also to two places and in place") {
  std::mt19937_64 random(3);
  int wrong = 0;
  for (const size_t bytes : {0, 1, 2, 7, 63, 64, 65, 255, 1023, 1024, 1025, 4097, 70001}) {
    const std::vector<uint8_t> content = random_bytes_for(DataType::kUint8, bytes, random);
    const auto equal = [&](uint8_t* got) { return bytes == 0 || std::memcmp(got, content.data(), bytes) == 0; };
    for (const KernelTable* table : all_kernel_tables()) {
      for (int variant = 0; variant < 36; ++variant) {
        const int n_stream = variant % 3;
        const bool in_place = variant / 3 % 2, two = variant / 6 % 2;
        const size_t misalign = static_cast<size_t>(variant / 12) * 3;
        Block from(bytes, misalign), first(bytes, 2 * misalign), second(bytes, n_stream == 2 ? misalign : misalign + 1);
        if (bytes) std::memcpy(from.data(), content.data(), bytes);
        Block& target = in_place ? from : first;
        const void* const src[] = {from.data()};
        const ReduceArgs args{src, {target.data(), second.data()}, 1, two ? 2 : 1, bytes, 0, n_stream};
        table->reduce[static_cast<int>(RedOp::kSum)][static_cast<int>(DataType::kUint8)](args);
        wrong += !equal(from.data()) || !equal(target.data()) || (two && !equal(second.data()));
        wrong += !from.guards_intact() || !first.guards_intact() || !second.guards_intact();
      }
    }
  }
  CHECK(wrong == 0);
}
