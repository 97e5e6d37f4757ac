// The GPU's interpreter of schedules, with blocks as threads: schedules that the checker has proved give right sums
// over links of few and small slots, launch after launch.
#include <cstring>
#include <memory>
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

struct ProgramCase {
  Collective collective;
  Goal goal;
  Algo algo;
};

const ProgramCase kCases[] = {
    {Collective::kAllReduce, Goal::kAllReduce, Algo::kRing},
    {Collective::kAllReduce, Goal::kAllReduce, Algo::kTree},
    {Collective::kAllReduce, Goal::kAllReduce, Algo::kDirect},
    {Collective::kAllReduce, Goal::kAllReduce, algo_named("oneshot")},
    {Collective::kAllReduce, Goal::kAllReduce, algo_named("circulant")},
    {Collective::kAllReduce, Goal::kAllReduce, algo_named("doubling")},
    {Collective::kAllReduce, Goal::kAllReduce, algo_named("linear")},
    {Collective::kReduce, Goal::kReduce, Algo::kRing},
    {Collective::kReduce, Goal::kReduce, Algo::kTree},
    {Collective::kBroadcast, Goal::kBroadcast, Algo::kRing},
    {Collective::kBroadcast, Goal::kBroadcast, Algo::kTree},
    {Collective::kAllGather, Goal::kAllGather, Algo::kRing},
    {Collective::kAllGather, Goal::kAllGather, Algo::kTree},
    {Collective::kReduceScatter, Goal::kReduceScatter, Algo::kRing},
    {Collective::kReduceScatter, Goal::kReduceScatter, Algo::kTree},
};

std::vector<Schedule> schedules_of(const ProgramCase& c, int n, int root) {
  std::vector<Schedule> schedules;
  for (int r = 0; r < n; r++)
    schedules.push_back(Planner(r, flat_layout(n), c.algo, false).schedule(c.collective, c.algo, root, 2));
  return schedules;
}

uint32_t input_of(int rank, size_t i) {
  return static_cast<uint32_t>(i * 2654435761u) ^ static_cast<uint32_t>(rank * 40503);
}

// The right value of element i of `rank`'s output; blocks have `count` elements.
uint32_t expected(const ProgramCase& c, int n, int root, int rank, size_t i, size_t count) {
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

Buffers buffers_of(const ProgramCase& c, int n, size_t count) {
  const auto ranks = static_cast<size_t>(n);
  Buffers b;
  for (size_t r = 0; r < ranks; r++) {
    b.in.emplace_back(c.collective == Collective::kReduceScatter ? count * ranks : count);
    for (size_t i = 0; i < b.in[r].size(); i++) b.in[r][i] = input_of(static_cast<int>(r), i);
    b.out.emplace_back(c.collective == Collective::kAllGather ? count * ranks : count, 0xdeadbeef);
  }
  return b;
}

size_t wrong(const ProgramCase& c, int n, int root, const Buffers& b, size_t count) {
  size_t found = 0;
  for (size_t r = 0; r < b.out.size(); r++) {
    const int rank = static_cast<int>(r);
    if (c.collective == Collective::kReduce && rank != root) continue;
    for (size_t i = 0; i < b.out[r].size(); i++) found += b.out[r][i] != expected(c, n, root, rank, i, count);
  }
  return found;
}

void check_schedules(const ProgramCase& c, const cuda::Schedules& schedules, int root,
                     const cuda::ProgramShape& shape) {
  CheckOptions options;
  options.goal = c.goal;
  options.root = root;
  options.slots = shape.n_slots;
  const auto checked = check(schedules, options);
  INFO((checked ? "" : checked.error().message));
  REQUIRE(checked);
}

// Launches each call on its own stream, for as many ranks as it contains, and checks the outputs.
void run_calls(FakePort& port, const ProgramCase& c, int n, const std::vector<cuda::ProgramCall>& calls) {
  for (const size_t count : {size_t{1}, size_t{37}, size_t{1000}, size_t{5003}}) {
    Buffers b = buffers_of(c, n, count);
    std::vector<cuda::StreamRef> streams;
    size_t rank = 0;
    for (cuda::ProgramCall call : calls) {
      call.block_elems = count;
      call.dtype = DataType::kUint32;
      for (size_t r = 0; r < call.n_ranks; r++, rank++) {
        call.inputs[r] = b.in[rank].data();
        call.outputs[r] = b.out[rank].data();
      }
      streams.push_back(port.create_stream().value());
      REQUIRE(port.run(call, streams.back()));
    }
    for (const auto stream : streams) REQUIRE(port.synchronize(stream));
    for (const auto stream : streams) port.destroy_stream(stream);
    REQUIRE(wrong(c, n, n / 2, b, count) == 0);
  }
}

void run_shared(FakePort& port, const ProgramCase& c, int n, const cuda::ProgramShape& shape) {
  INFO(traits(c.collective).name << " " << algo_name(c.algo) << ", " << n << " ranks, stripes " << shape.n_stripes
                                 << ", slots of " << shape.slot_bytes);
  const auto schedules = schedules_of(c, n, n / 2);
  check_schedules(c, schedules, n / 2, shape);
  const auto loaded = cuda::SpreadPrograms::together(port, schedules, shape);
  REQUIRE(loaded);
  run_calls(port, c, n, {loaded.value()->call()});
}

// Every rank has its own launch, and all kinds follow each other on the same links.
void run_spread(FakePort& port, int n, const cuda::ProgramShape& shape) {
  INFO(n << " ranks, stripes " << shape.n_stripes << ", slots of " << shape.slot_bytes);
  std::vector<cuda::Schedules> kinds;
  for (const ProgramCase& c : kCases) kinds.push_back(schedules_of(c, n, n / 2));
  std::vector<std::unique_ptr<cuda::SpreadPrograms>> programs;
  std::vector<void*> memory;
  for (int r = 0; r < n; r++) {
    programs.push_back(std::make_unique<cuda::SpreadPrograms>(port, kinds, shape));
    memory.push_back(port.allocate(programs.back()->bytes(r)).value());
  }
  for (int r = 0; r < n; r++) REQUIRE(programs[static_cast<size_t>(r)]->load(r, memory));
  for (int turn = 0; turn < 2; turn++)
    for (size_t kind = 0; kind < kinds.size(); kind++) {
      std::vector<cuda::ProgramCall> calls;
      for (const auto& p : programs) calls.push_back(p->call(kind));
      run_calls(port, kCases[kind], n, calls);
    }
  for (void* m : memory) port.free(m);
}

}  // namespace

TEST_CASE("the GPU's interpreter runs every schedule, over large and small slots, in stripes") {
  FakePort port(8);
  for (const ProgramCase& c : kCases)
    for (const int n : {2, 3, 5, 8}) {
      if (n > 3 && tutti_test::is_slow()) continue;
      run_shared(port, c, n, {1, 2, 64 << 10});
      if (n < 8) run_shared(port, c, n, {3, 2, 256});
    }
}

TEST_CASE("ranks with a GPU each run all kinds of operations over the same links") {
  FakePort port(8);
  for (const int n : {2, 3, 5, 8}) {
    if (n > 3 && tutti_test::is_slow()) continue;
    run_spread(port, n, {1, 2, 64 << 10});
    if (n < 8) run_spread(port, n, {3, 2, 256});
  }
}

TEST_CASE("blocks that do not fit on the GPU at once are refused with the remedy") {
  FakePort port(1);
  cuda::SharedPrograms programs(port, 8, 4);
  Operation operation;
  operation.collective = Collective::kAllReduce;
  operation.dtype = DataType::kInt32;
  operation.count = 100;
  REQUIRE(cuda::interprets(operation, Algo::kRing));
  const auto refused = programs.find(operation, Algo::kRing);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kInvalidUsage);
  CHECK(refused.error().message.find("16 blocks at once") != std::string::npos);
  CHECK(refused.error().message.find("room for 8") != std::string::npos);
  operation.dtype = DataType::kBfloat16;  // must be rounded once
  CHECK(!cuda::interprets(operation, Algo::kRing));
}

TEST_CASE("an aborted launch ends though a message never comes") {
  FakePort port(1);
  const ProgramCase c{Collective::kAllReduce, Goal::kAllReduce, Algo::kRing};
  auto loaded = cuda::SpreadPrograms::together(port, schedules_of(c, 2, 0), {1, 2, 1024});
  REQUIRE(loaded);
  Buffers b = buffers_of(c, 2, 100);
  cuda::ProgramCall call = loaded.value()->call();
  call.block_elems = 100;
  call.dtype = DataType::kUint32;
  for (size_t r = 0; r < 2; r++) {
    call.inputs[r] = b.in[r].data();
    call.outputs[r] = b.out[r].data();
  }
  call.n_ranks = 1;  // rank 1 has no blocks
  const auto abort = std::make_unique<uint32_t>();
  call.abort = abort.get();
  const auto stream = port.create_stream().value();
  REQUIRE(port.run(call, stream));
  __atomic_store_n(abort.get(), 1, __ATOMIC_RELEASE);
  REQUIRE(port.synchronize(stream));
  CHECK(wrong(c, 2, 0, b, 100) > 0);
  port.destroy_stream(stream);
}
