// All-reduces by lines, whose ranks are threads: compared with the scalar reference bit by bit, launch after launch in
// the same rooms, and with the interpreter of the schedules that they represent, which the checker has proved.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "catch.h"
#include "cuda/programs.h"
#include "fake.h"
#include "kernels/cuda/lines.h"
#include "kernels/kernels.h"
#include "sanitized.h"
#include "schedule/algorithms.h"

using namespace tutti;
using cuda::LineCall;

namespace {

struct LinesCase {
  DataType dtype = DataType::kFloat32;
  RedOp op = RedOp::kSum;
  uint32_t elems = 0;
  int hops = 1;
  bool in_place = false;
  size_t misalign = 0;
};

// Finite values of any type, small enough that products stay finite.
void fill(std::vector<char>& bytes, const LinesCase& c, std::mt19937& random) {
  for (char& byte : bytes) byte = static_cast<char>(random() % 128);
  const size_t size = dtype_bytes(c.dtype);
  const bool is_float = c.dtype == DataType::kFloat32 || c.dtype == DataType::kFloat64 || is_small_float(c.dtype);
  for (size_t i = 0; is_float && i + size <= bytes.size(); i += size) {
    char& top = bytes[i + size - 1];  // 0x3?: about 1, or 0.5 if the exponent is short
    top = static_cast<char>(0x30 + random() % 14);
  }
}

// The ranks of a group, and what their launches need.
class Group {
 public:
  explicit Group(int n) : n_(n), epochs_(static_cast<size_t>(n)) {
    for (int r = 0; r < n; r++) {
      rooms_.emplace_back(std::max(cuda::kOneHopRoomBytes, cuda::two_hop_room_bytes(static_cast<uint32_t>(n))) + 16);
      epochs_[static_cast<size_t>(r)].resize(cuda::kTwoHopBlocks);
    }
  }

  // Every rank's output.
  std::vector<std::vector<char>> run(const LinesCase& c, const std::vector<std::vector<char>>& inputs) {
    std::vector<std::vector<char>> in, out;
    for (const auto& input : inputs) {
      in.emplace_back(c.misalign, 'x').insert(in.back().end(), input.begin(), input.end());
      out.emplace_back(in.back().size() + 8, 'x');
    }
    std::vector<std::thread> threads;
    for (size_t r = 0; r < in.size(); r++)
      threads.emplace_back([&, r] {
        LineCall call = call_of(c, static_cast<int>(r));
        if (c.in_place) std::copy(in[r].begin(), in[r].end(), out[r].begin());
        call.input = (c.in_place ? out : in)[r].data() + c.misalign;
        call.output = out[r].data() + c.misalign;
        tutti_test::kernels().run(call);
      });
    for (auto& thread : threads) thread.join();
    for (auto& o : out) {
      REQUIRE(std::all_of(o.end() - 8, o.end(), [](char byte) { return byte == 'x'; }));
      o = {o.begin() + static_cast<ptrdiff_t>(c.misalign), o.end() - 8};
    }
    return out;
  }

  LineCall call_of(const LinesCase& c, int rank) {
    LineCall call{};
    for (size_t r = 0; r < rooms_.size(); r++) call.rooms[r] = aligned(rooms_[r]);
    call.epochs = epochs_[static_cast<size_t>(rank)].data();
    call.abort = abort_.get();
    call.elems = c.elems;
    call.divisor = c.op == RedOp::kAvg ? static_cast<uint32_t>(n_) : 0;
    call.rank = static_cast<int16_t>(rank);
    call.n_ranks = static_cast<int16_t>(n_);
    call.n_hops = static_cast<int16_t>(c.hops);
    call.dtype = c.dtype;
    call.op = c.op;
    return call;
  }

  uint32_t& abort() { return *abort_; }

 private:
  static char* aligned(std::vector<char>& room) {
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(room.data()) + 15) / 16 * 16);
  }

  const int n_;
  const std::unique_ptr<uint32_t> abort_ = std::make_unique<uint32_t>();
  std::vector<std::vector<char>> rooms_;
  std::vector<std::vector<uint32_t>> epochs_;
};

std::vector<char> reference(const LinesCase& c, const std::vector<std::vector<char>>& inputs) {
  std::vector<const void*> src;
  for (const auto& input : inputs) src.push_back(input.data());
  std::vector<char> out(inputs[0].size());
  ReduceArgs args;
  args.src = src.data();
  args.n_src = static_cast<int>(src.size());
  args.dst[0] = out.data();
  args.n_dst = 1;
  args.elems = c.elems;
  args.divisor = c.op == RedOp::kAvg ? static_cast<uint32_t>(src.size()) : 0;
  all_kernel_tables()[0]->reduce[static_cast<int>(c.op)][static_cast<int>(c.dtype)](args);
  return out;
}

std::vector<std::vector<char>> inputs_of(const LinesCase& c, int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<char>> inputs(static_cast<size_t>(n), std::vector<char>(c.elems * dtype_bytes(c.dtype)));
  for (auto& input : inputs) fill(input, c, random);
  return inputs;
}

void check_case(Group& group, int n, const LinesCase& c, uint32_t seed) {
  INFO(dtype_name(c.dtype) << " " << red_op_name(c.op) << ", " << c.elems << " elements, " << n << " ranks, " << c.hops
                           << " hops, misalign " << c.misalign << (c.in_place ? ", in place" : ""));
  // With one GPU per rank every launch fits (kLineMultiprocessors); on one GPU for all of them some do not.
  if (!tutti_test::kernels().hold(static_cast<uint32_t>(n) * cuda::line_blocks(group.call_of(c, 0)))) return;
  const auto inputs = inputs_of(c, n, seed);
  const auto expected = reference(c, inputs);
  for (const auto& output : group.run(c, inputs)) REQUIRE(output == expected);
}

uint32_t most_elems(DataType dtype, int hops) {
  return static_cast<uint32_t>((hops == 1 ? cuda::kOneHopBytesMost : cuda::kTwoHopBytesMost) / dtype_bytes(dtype));
}

}  // namespace

TEST_CASE("lines give the reference's bits for all types and operators") {
  uint32_t seed = 1;
  for (const int hops : {1, 2})
    for (int n = 2; n <= 8; n += 3) {
      Group group(n);
      for (int type = 0; type < kDataTypes; type++)
        for (int op = 0; op < kRedOps; op++) {
          if (static_cast<RedOp>(op) == RedOp::kPreMulSum) continue;
          LinesCase c{static_cast<DataType>(type), static_cast<RedOp>(op), 1 + seed * 37 % 1500, hops, seed % 2 == 0};
          c.misalign = seed % 3 * (seed % 5);
          check_case(group, n, c, seed++);
        }
    }
}

TEST_CASE("lines: sizes of every kind follow each other in the same rooms") {
  uint32_t seed = 1000;
  for (const int hops : {1, 2})
    for (int n = 2; n <= 8; n += tutti_test::is_slow() ? 5 : 1) {
      Group group(n);
      for (const DataType dtype : {DataType::kInt8, DataType::kFloat64}) {
        if (kSanitized && dtype == DataType::kInt8 && hops == 2) continue;
        const uint32_t most = most_elems(dtype, hops);
        for (const uint32_t elems : {1u, most, 3u, most / 2 + 1, 2u, most - 1, 515u, most})
          if (hops == 1 || n != 6) check_case(group, n, {dtype, RedOp::kMax, elems, hops, seed % 2 == 0}, seed++);
      }
    }
}

TEST_CASE("lines give the bits of the schedules that they stand for, which the checker has proved") {
  tutti_test::FakePort port(1);
  for (const int hops : {1, 2})
    for (const int n : {2, 3, 4}) {
      std::vector<Schedule> schedules;
      std::vector<int> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      const Method& method = algorithm_of(algo_named(hops == 1 ? "oneshot" : "direct"))->all_reduce;
      for (int r = 0; r < n; r++) schedules.push_back(method.build({order, {}, {}, {}, r}));
      CheckOptions options;
      options.slots = 2;
      options.rank_order = true;
      REQUIRE(check(schedules, options));
      auto loaded = cuda::SpreadPrograms::together(port, schedules, {1, 2, 64 << 10});
      REQUIRE(loaded);
      const LinesCase c{DataType::kFloat32, RedOp::kSum, 8000, hops};
      const auto inputs = inputs_of(c, n, static_cast<uint32_t>(n));
      auto interpreted = inputs;
      cuda::ProgramCall call = loaded.value()->call();
      call.block_elems = c.elems;
      call.dtype = c.dtype;
      for (size_t r = 0; r < inputs.size(); r++) {
        call.inputs[r] = inputs[r].data();
        call.outputs[r] = interpreted[r].data();
      }
      tutti_test::kernels().run(call);
      REQUIRE(Group(n).run(c, inputs) == interpreted);
    }
}

TEST_CASE("lines: an aborted launch ends though another rank never comes") {
  for (const int hops : {1, 2}) {
    Group group(2);
    const LinesCase c{DataType::kInt32, RedOp::kSum, 5000, hops};
    std::vector<int32_t> data(5000, 1);
    LineCall call = group.call_of(c, 0);
    call.input = call.output = data.data();
    std::thread rank([&] { tutti_test::kernels().run(call); });
    __atomic_store_n(&group.abort(), 1, __ATOMIC_RELEASE);
    rank.join();
    CHECK(data[4999] == 1);
  }
}
