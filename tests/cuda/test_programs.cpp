// The GPU's interpreter of schedules, block by block as threads: schedules that the checker has proved give right sums
// over links of few and small slots, launch after launch.
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "catch.h"
#include "cuda/programs.h"
#include "fake.h"
#include "plan/planner.h"
#include "schedule/schedule.h"

using namespace tutti;
using tutti_test::FakePort;

namespace {

struct Case {
  Collective collective;
  Goal goal;
  Algo algo;
};

const Case kCases[] = {
    {Collective::kAllReduce, Goal::kAllReduce, Algo::kRing},
    {Collective::kAllReduce, Goal::kAllReduce, Algo::kTree},
    {Collective::kAllReduce, Goal::kAllReduce, Algo::kDirect},
    {Collective::kAllReduce, Goal::kAllReduce, Algo::kOneShot},
    {Collective::kAllReduce, Goal::kAllReduce, Algo::kHalving},
    {Collective::kReduce, Goal::kReduce, Algo::kRing},
    {Collective::kReduce, Goal::kReduce, Algo::kTree},
    {Collective::kBroadcast, Goal::kBroadcast, Algo::kRing},
    {Collective::kBroadcast, Goal::kBroadcast, Algo::kTree},
    {Collective::kAllGather, Goal::kAllGather, Algo::kRing},
    {Collective::kAllGather, Goal::kAllGather, Algo::kTree},
    {Collective::kReduceScatter, Goal::kReduceScatter, Algo::kRing},
    {Collective::kReduceScatter, Goal::kReduceScatter, Algo::kTree},
};

std::vector<Schedule> schedules_of(const Case& c, int n, int root) {
  std::vector<Schedule> schedules;
  for (int r = 0; r < n; r++)
    schedules.push_back(Planner(r, flat_layout(n), c.algo, false).schedule(c.collective, {c.algo, 2}, root));
  return schedules;
}

uint32_t input_of(int rank, size_t i) {
  return static_cast<uint32_t>(i * 2654435761u) ^ static_cast<uint32_t>(rank * 40503);
}

// What element i of the output of `rank` has to be; `count` elements to a block.
uint32_t expected(const Case& c, int n, int root, int rank, size_t i, size_t count) {
  if (c.collective == Collective::kBroadcast) return input_of(root, i);
  if (c.collective == Collective::kAllGather) return input_of(static_cast<int>(i / count), i % count);
  const size_t at = c.collective == Collective::kReduceScatter ? static_cast<size_t>(rank) * count + i : i;
  uint32_t sum = 0;
  for (int r = 0; r < n; r++) sum += input_of(r, at);
  return sum;
}

struct Buffers {
  std::vector<std::vector<uint32_t>> in, out;
};

Buffers buffers_of(const Case& c, int n, size_t count) {
  const auto ranks = static_cast<size_t>(n);
  Buffers b;
  for (size_t r = 0; r < ranks; r++) {
    b.in.emplace_back(c.collective == Collective::kReduceScatter ? count * ranks : count);
    for (size_t i = 0; i < b.in[r].size(); i++) b.in[r][i] = input_of(static_cast<int>(r), i);
    b.out.emplace_back(c.collective == Collective::kAllGather ? count * ranks : count, 0xdeadbeef);
  }
  return b;
}

size_t wrong(const Case& c, int n, int root, const Buffers& b, size_t count) {
  size_t found = 0;
  for (size_t r = 0; r < b.out.size(); r++) {
    const int rank = static_cast<int>(r);
    if (c.collective == Collective::kReduce && rank != root) continue;
    for (size_t i = 0; i < b.out[r].size(); i++) found += b.out[r][i] != expected(c, n, root, rank, i, count);
  }
  return found;
}

// `spread`: every rank has a device, and a launch, of its own.
void run_case(FakePort& port, const Case& c, int n, bool spread, const cuda::LoadedPrograms::Shape& shape) {
  const int root = n / 2;
  INFO(traits(c.collective).name << " " << algo_name(c.algo) << ", " << n << " ranks, stripes " << shape.n_stripes
                                 << ", slots of " << shape.slot_bytes);
  const auto schedules = schedules_of(c, n, root);
  CheckOptions options;
  options.goal = c.goal;
  options.root = root;
  options.slots = shape.n_slots;
  const auto checked = check(schedules, options);
  INFO((checked ? "" : checked.error().message));
  REQUIRE(checked);
  std::vector<int> devices(schedules.size());
  if (spread) std::iota(devices.begin(), devices.end(), 0);
  auto loaded = cuda::LoadedPrograms::load(port, schedules, devices, shape);
  REQUIRE(loaded);
  std::vector<cuda::StreamRef> streams;
  for (int i = 0; i < (spread ? n : 1); i++) streams.push_back(port.create_stream().value());
  for (const size_t count : {size_t{1}, size_t{37}, size_t{1000}, size_t{5003}}) {
    Buffers b = buffers_of(c, n, count);
    for (size_t launch = 0; launch < streams.size(); launch++) {
      cuda::ProgramCall call = spread ? loaded.value()->call_of(static_cast<int>(launch)) : loaded.value()->call();
      call.block_elems = count;
      call.dtype = DataType::kUint32;
      for (size_t r = 0; r < call.n_ranks; r++) {
        call.inputs[r] = b.in[launch + r].data();
        call.outputs[r] = b.out[launch + r].data();
      }
      REQUIRE(port.run(call, streams[launch]));
    }
    for (const auto stream : streams) REQUIRE(port.synchronize(stream));
    REQUIRE(wrong(c, n, root, b, count) == 0);
  }
  for (const auto stream : streams) port.destroy_stream(stream);
}

}  // namespace

TEST_CASE("the GPU's interpreter runs every schedule, over large and small slots, in stripes") {
  FakePort port(8);
  for (const Case& c : kCases)
    for (const int n : {2, 3, 5, 8})
      for (const bool spread : {false, true}) {
        run_case(port, c, n, spread, {1, 2, 64 << 10});
        if (n < 8) run_case(port, c, n, spread, {3, 2, 256});
      }
}

TEST_CASE("blocks that do not fit on the GPU at once are refused with the remedy") {
  FakePort port(1);
  cuda::Programs programs(port, std::vector<int>(8), 4);
  Operation operation;
  operation.collective = Collective::kAllReduce;
  operation.dtype = DataType::kInt32;
  operation.count = 100;
  REQUIRE(cuda::Programs::takes(operation, Algo::kRing));
  const auto refused = programs.find(operation, Algo::kRing);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kInvalidUsage);
  CHECK(refused.error().message.find("16 blocks at once") != std::string::npos);
  CHECK(refused.error().message.find("room for 8") != std::string::npos);
  operation.dtype = DataType::kBfloat16;  // is to be rounded once
  CHECK(!cuda::Programs::takes(operation, Algo::kRing));
}

TEST_CASE("an aborted launch ends though a message never comes") {
  FakePort port(1);
  const Case c{Collective::kAllReduce, Goal::kAllReduce, Algo::kRing};
  auto loaded = cuda::LoadedPrograms::load(port, schedules_of(c, 2, 0), std::vector<int>(2), {1, 2, 1024});
  REQUIRE(loaded);
  Buffers b = buffers_of(c, 2, 100);
  cuda::ProgramCall call = loaded.value()->call();
  call.block_elems = 100;
  call.dtype = DataType::kUint32;
  for (size_t r = 0; r < 2; r++) {
    call.inputs[r] = b.in[r].data();
    call.outputs[r] = b.out[r].data();
  }
  call.n_ranks = 1;  // the other one has no blocks
  uint32_t abort = 0;
  call.abort = &abort;
  const auto stream = port.create_stream().value();
  REQUIRE(port.run(call, stream));
  __atomic_store_n(&abort, 1, __ATOMIC_RELEASE);
  REQUIRE(port.synchronize(stream));
  CHECK(wrong(c, 2, 0, b, 100) > 0);
  port.destroy_stream(stream);
}
