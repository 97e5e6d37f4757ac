// What the planner chooses, and how trials settle.
#include "catch.h"
#include "plan/planner.h"
#include "plan/trial.h"

using namespace tutti;

namespace {

Call call_of(Collective collective, uint64_t count, DataType dtype, RedOp op = RedOp::kSum) {
  Call call;
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.op = op;
  return call;
}

}  // namespace

TEST_CASE("planner: small floats are summed in one place, whatever is forced") {
  for (const Algo forced : kAlgos) {
    const Planner planner(0, flat_layout(4), forced, false);
    for (const uint64_t count : {uint64_t{1}, uint64_t{100000}}) {
      const Algo algo = planner.choose(call_of(Collective::kAllReduce, count, DataType::kBfloat16));
      CHECK((algo == Algo::kDirect || algo == Algo::kOneShot));
      CHECK(planner.choose(call_of(Collective::kAllReduce, count, DataType::kBfloat16, RedOp::kMax)) == forced);
      CHECK(planner.choose(call_of(Collective::kAllReduce, count, DataType::kFloat32)) == forced);
      CHECK(planner.choose(call_of(Collective::kAllGather, count, DataType::kBfloat16)) == forced);
    }
    CHECK(Planner(0, flat_layout(2), forced, false).choose(call_of(Collective::kReduce, 7, DataType::kFloat16)) ==
          forced);
  }
}

TEST_CASE("planner: deterministic groups sum in one place, of every type and size") {
  const Planner planner(1, flat_layout(3), Algo::kRing, true);
  for (int type = 0; type < kDataTypes; type++)
    for (const uint64_t count : {uint64_t{0}, uint64_t{3}, uint64_t{1} << 30}) {
      const Algo algo = planner.choose(call_of(Collective::kReduceScatter, count, static_cast<DataType>(type)));
      CHECK((algo == Algo::kDirect || algo == Algo::kOneShot));
    }
  CHECK(planner.choose(call_of(Collective::kBroadcast, 1, DataType::kInt8)) == Algo::kRing);
}

TEST_CASE("planner: names of algorithms, and what it says of others") {
  for (const Algo algo : kAlgos) CHECK(parse_algo(algo_name(algo)).value() == algo);
  CHECK(parse_algo("").value() == Algo::kAuto);
  const auto wrong = parse_algo("star");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message.find("'star'") != std::string::npos);
  CHECK(wrong.error().message.find("halving") != std::string::npos);
}

TEST_CASE("trial: each size settles on its faster way and looks again") {
  Trial trial;
  int64_t slow_way = 0;
  const auto run = [&](uint64_t bytes) {
    const int way = trial.choose(bytes);
    trial.record(bytes, way, way == slow_way ? 200 : 100);
    return way;
  };
  int tried[2] = {};
  for (int i = 0; i < 12; i++) tried[run(1000)]++;
  CHECK(tried[0] == 6);
  CHECK(tried[1] == 6);
  for (int i = 0; i < 100; i++) REQUIRE(run(1000) == 1);
  CHECK(trial.choose(1 << 20) == 0);  // another size begins with its own tries
  // The machine changes its mind; after the period so does the trial.
  slow_way = 1;
  for (int i = 0; i < 1000; i++) run(1000);
  for (int i = 0; i < 100; i++) REQUIRE(run(1000) == 0);
}
