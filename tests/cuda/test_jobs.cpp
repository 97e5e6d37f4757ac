// The copying and reducing kernels on the CPU, compared with the scalar reference bit by bit.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "catch.h"
#include "fake.h"
#include "kernels/cuda/jobs.h"
#include "kernels/kernels.h"

using namespace tutti;

namespace {

constexpr uint8_t kGuard = 0xa5;

struct Shape {
  DataType dtype = DataType::kFloat32;
  RedOp op = RedOp::kSum;
  int n_src = 2, n_dst = 1;
  size_t elems = 0;
  uint32_t divisor = 0;
  size_t misalign = 0;
  bool apart = false;  // buffers are misaligned differently relative to 16 bytes

  size_t bytes() const { return elems * dtype_bytes(dtype); }
  std::string text() const {
    return std::string(dtype_name(dtype)) + " " + red_op_name(op) + " n_src=" + std::to_string(n_src) +
           " n_dst=" + std::to_string(n_dst) + " elems=" + std::to_string(elems) +
           " divisor=" + std::to_string(divisor) + " misalign=" + std::to_string(misalign) + (apart ? " apart" : "");
  }
};

// Buffers of equal length, each `misalign` bytes past a multiple of 64 (and, with `apart`, one more element than the
// previous one), with guards around them.
class Buffers {
 public:
  Buffers(const Shape& shape, int n) : shape_(shape) {
    for (int i = 0; i < n; i++) memory_.emplace_back(shape.bytes() + 512, kGuard);
  }
  uint8_t* operator[](int i) {
    auto& memory = memory_[static_cast<size_t>(i)];
    const uintptr_t base = (reinterpret_cast<uintptr_t>(memory.data()) + 127) / 64 * 64;
    const size_t more = shape_.apart ? static_cast<size_t>(i) * dtype_bytes(shape_.dtype) % 16 : 0;
    return memory.data() + (base - reinterpret_cast<uintptr_t>(memory.data())) + shape_.misalign + more;
  }
  bool guards_intact() {
    for (int i = 0; i < static_cast<int>(memory_.size()); i++) {
      const auto& memory = memory_[static_cast<size_t>(i)];
      const uint8_t *begin = (*this)[i], *end = begin + shape_.bytes();
      for (const uint8_t* p = memory.data(); p < memory.data() + memory.size(); p++)
        if ((p < begin || p >= end) && *p != kGuard) return false;
    }
    return true;
  }

 private:
  Shape shape_;
  std::vector<std::vector<uint8_t>> memory_;
};

void fill(Buffers& buffers, const Shape& shape, int n, uint32_t seed) {
  std::mt19937 random(seed);
  for (int b = 0; b < n; b++)
    for (size_t i = 0; i < shape.bytes(); i++) buffers[b][i] = static_cast<uint8_t>(random() >> 7);
}

template <class F>
bool same_floats(const uint8_t* a, const uint8_t* b, size_t elems) {
  for (size_t i = 0; i < elems; i++) {
    F x, y;
    memcpy(&x, a + i * sizeof x, sizeof x);
    memcpy(&y, b + i * sizeof y, sizeof y);
    if (memcmp(&x, &y, sizeof x) != 0 && (x == x || y == y)) return false;  // the compiler chooses the NaN
  }
  return true;
}

bool same(const Shape& shape, const uint8_t* a, const uint8_t* b) {
  if (shape.dtype == DataType::kFloat32) return same_floats<float>(a, b, shape.elems);
  if (shape.dtype == DataType::kFloat64) return same_floats<double>(a, b, shape.elems);
  return shape.bytes() == 0 || memcmp(a, b, shape.bytes()) == 0;
}

std::vector<uint8_t> reference(const Shape& shape, const std::vector<const void*>& src) {
  std::vector<uint8_t> out(shape.bytes() + 1);
  ReduceArgs args;
  args.src = src.data();
  args.n_src = shape.n_src;
  args.dst[0] = out.data();
  args.n_dst = 1;
  args.elems = shape.elems;
  args.divisor = shape.divisor;
  all_kernel_tables()[0]->reduce[static_cast<int>(shape.op)][static_cast<int>(shape.dtype)](args);
  return out;
}

// Nothing is launched if there are no blocks.
void run(const cuda::JobList& list) {
  if (cuda::tiles_of(list) > 0) tutti_test::kernels().run(list);
}

// One job over random data, with large or small tiles, out of place or into the sources.
void check(const Shape& shape, bool in_place, uint32_t seed) {
  constexpr int kMany = 4096;  // multiprocessors
  const int multiprocessors = seed % 2 == 0 ? kMany : 0;
  INFO(shape.text() << " multiprocessors=" << multiprocessors << (in_place ? " in place" : ""));
  const int n = shape.n_src + shape.n_dst;
  Buffers buffers(shape, n);
  fill(buffers, shape, shape.n_src, seed);
  std::vector<const void*> src;
  std::vector<void*> dst;
  for (int s = 0; s < shape.n_src; s++) src.push_back(buffers[s]);
  for (int d = 0; d < shape.n_dst; d++) dst.push_back(buffers[in_place ? d % shape.n_src : shape.n_src + d]);
  const auto expected = reference(shape, src);
  cuda::JobList list;
  list.dtype = shape.dtype;
  list.op = shape.op;
  REQUIRE(list.add(shape.elems, shape.divisor, src.data(), shape.n_src, dst.data(), shape.n_dst));
  cuda::finish_list(list, multiprocessors);
  REQUIRE(list.only_bytes == (shape.n_src == 1 && shape.divisor == 0));
  run(list);
  for (void* d : dst) REQUIRE(same(shape, static_cast<uint8_t*>(d), expected.data()));
  if (!in_place) {
    for (int i = shape.n_src; shape.elems == 0 && i < n; i++) REQUIRE(*buffers[i] == kGuard);
  }
  REQUIRE(buffers.guards_intact());
}

constexpr size_t kLengths[] = {0, 1, 3, 15, 16, 17, 129, 1031, 5003, 20011};

}  // namespace

TEST_CASE("the GPU's reductions have the scalar reference's bits") {
  uint32_t seed = 1;
  const int step = kSanitized ? 3 : 1;  // adjacent operators differ only in what they compute
  for (int type = 0; type < kDataTypes; type++)
    for (int op = type % step; op < kRedOps; op += step)
      for (const size_t elems : kLengths) {
        const auto dtype = static_cast<DataType>(type);
        Shape shape{dtype, static_cast<RedOp>(op), 2 + static_cast<int>(seed % 7), 1 + static_cast<int>(seed % 3),
                    elems};
        if (shape.op == RedOp::kAvg) shape.divisor = static_cast<uint32_t>(shape.n_src);
        check(shape, false, seed);
        shape.misalign = dtype_bytes(dtype) * (seed % 16);
        check(shape, seed % 2 == 0, seed);
        shape.misalign = seed % 16;
        shape.apart = true;
        check(shape, seed % 2 == 1, seed);
        seed++;
      }
}

TEST_CASE("copies keep all bits, and go to many places") {
  uint32_t seed = 99;
  for (const DataType dtype : {DataType::kUint8, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64})
    for (const size_t elems : kLengths)
      for (const size_t misalign : {size_t{0}, size_t{1}, size_t{8}}) {
        Shape shape{dtype, RedOp::kSum, 1, 8, elems, 0, misalign};
        check(shape, false, seed++);
        shape.apart = true;
        check(shape, false, seed++);
      }
}

TEST_CASE("copies between any two places, by packs, words or bytes") {
  for (const size_t elems : {size_t{0}, size_t{1}, size_t{7}, size_t{100}, size_t{70'001}})
    for (size_t from = 0; from < 8; from++)
      for (size_t to = 0; to < 8; to++) {
        std::vector<uint8_t> in(elems + 64), out(elems + 64, kGuard);
        for (size_t i = 0; i < in.size(); i++) in[i] = static_cast<uint8_t>(i * 7 + from);
        const void* src[] = {in.data() + from};
        void* dst[] = {out.data() + to, out.data() + to};  // places with the same alignment
        cuda::JobList list;
        REQUIRE(list.add(elems, 0, src, 1, dst, 2));
        cuda::finish_list(list, 0);
        run(list);
        REQUIRE(std::equal(out.begin() + static_cast<ptrdiff_t>(to), out.begin() + static_cast<ptrdiff_t>(to + elems),
                           in.begin() + static_cast<ptrdiff_t>(from)));
        REQUIRE(std::count(out.begin(), out.begin() + static_cast<ptrdiff_t>(to), kGuard) ==
                static_cast<ptrdiff_t>(to));
        REQUIRE(std::all_of(out.begin() + static_cast<ptrdiff_t>(to + elems), out.end(),
                            [](uint8_t byte) { return byte == kGuard; }));
      }
}

TEST_CASE("small operations employ more blocks, large ones have large tiles") {
  cuda::JobList list;
  list.dtype = DataType::kFloat32;
  const void* src[] = {&list, &list};  // never run
  void* dst[] = {&list};
  REQUIRE(list.add((64 << 10) / 4, 0, src, 2, dst, 1));
  cuda::finish_list(list, 1);
  CHECK(cuda::tiles_of(list) == 4);
  cuda::finish_list(list, 132);
  CHECK(cuda::tiles_of(list) == 16);
  list.jobs[0].elems = 100 << 20;
  cuda::finish_list(list, 132);
  CHECK(cuda::tiles_of(list) == (400u << 20) / (16u << 10));
}

TEST_CASE("several jobs of one launch, of unequal sizes") {
  std::vector<std::vector<int32_t>> in(7), out(7);
  cuda::JobList list;
  list.dtype = DataType::kInt32;
  for (size_t j = 0; j < in.size(); j++) {
    in[j].resize(j * 3001 + (j == 3 ? 0 : 1));
    for (size_t i = 0; i < in[j].size(); i++) in[j][i] = static_cast<int32_t>(i * 7 + j);
    out[j].assign(in[j].size(), -1);
    const void* src[] = {in[j].data(), in[j].data()};
    void* dst[] = {out[j].data()};
    REQUIRE(list.add(in[j].size(), 0, src, 2, dst, 1));
  }
  for (const int multiprocessors : {0, 4096}) {  // large tiles, and small ones
    cuda::finish_list(list, multiprocessors);
    REQUIRE(cuda::tiles_of(list) >= 7);
    for (auto& o : out) std::fill(o.begin(), o.end(), -1);
    run(list);
    for (size_t j = 0; j < in.size(); j++)
      for (size_t i = 0; i < in[j].size(); i++) REQUIRE(out[j][i] == 2 * in[j][i]);
  }
}

TEST_CASE("each source counts times its own factor, rounded before it is added up") {
  std::vector<float> a(1000), b(1000), out(1000);
  for (size_t i = 0; i < a.size(); i++) a[i] = static_cast<float>(i) * 0.37f, b[i] = static_cast<float>(i) * -1.91f;
  const float factor_a = 0.3f;
  const std::vector<float> factor_b(1, 1.7f);
  cuda::JobList list;
  list.dtype = DataType::kFloat32;
  list.scaled = true;
  memcpy(&list.scales[0].bits, &factor_a, sizeof factor_a);
  list.scales[1].at = factor_b.data();
  const void* src[] = {a.data(), b.data()};
  void* dst[] = {out.data()};
  REQUIRE(list.add(a.size(), 0, src, 2, dst, 1));
  cuda::finish_list(list, 0);
  REQUIRE(!list.only_bytes);
  run(list);
  for (size_t i = 0; i < a.size(); i++) REQUIRE(out[i] == a[i] * factor_a + b[i] * factor_b[0]);
}

TEST_CASE("a list that is full says so") {
  cuda::JobList list;
  const void* src[cuda::kMaxPlaces] = {};
  void* dst[cuda::kMaxPlaces] = {};
  int added = 0;
  while (list.add(1, 0, src, 1, dst, 1)) added++;
  REQUIRE(added == cuda::kMaxJobs);
  cuda::JobList wide;
  for (added = 0; wide.add(1, 0, src, cuda::kMaxPlaces, dst, cuda::kMaxPlaces);) added++;
  REQUIRE(added == cuda::kMaxPointers / (2 * cuda::kMaxPlaces));
}
