// Steps given by formulas are the steps that they stand for.
#include "schedule/alike.h"
#include "testing.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

Step step_of(uint32_t chunk, int32_t send = 1) {
  return {.send = send, .chunk = chunk, .local = {Buffer::kInput, chunk}};
}

std::vector<uint32_t> chunks_of(const Steps& steps) {
  std::vector<uint32_t> chunks;
  for (const Step& step : steps) chunks.push_back(step.local.chunk);
  return chunks;
}

using Chunks = std::vector<uint32_t>;

}  // namespace

TEST_CASE("steps: chunks go round in their group") {
  Steps round, pairs;
  round.repeat({step_of(6)}, 6, {.stride = 3, .modulus = 4});
  CHECK(chunks_of(round) == Chunks{6, 5, 4, 7, 6, 5});
  pairs.repeat({step_of(1), step_of(4)}, 3, {.stride = 1, .modulus = 4});
  CHECK(chunks_of(pairs) == Chunks{1, 4, 2, 5, 3, 6});
  const Walk walk{.stride = 1, .modulus = 4};
  CHECK(walk.move(Step{.chunk = 1, .store = {Buffer::kScratch, 1}}, 2).store.chunk == 1);
}

TEST_CASE("steps: what is asked for one by one is what comes one after the other") {
  Steps steps = {step_of(9), step_of(8)};
  steps.repeat({step_of(0), step_of(1, 2)}, 3, {.stride = 2, .modulus = 8});
  steps.repeat({step_of(7)}, 1, {});
  steps.repeat({step_of(5)}, 0, {});
  steps.push_back(step_of(6));
  REQUIRE(steps.size() == 10);
  CHECK(chunks_of(steps) == Chunks{9, 8, 0, 1, 2, 3, 4, 5, 7, 6});
  std::vector<Step> listed;
  for (auto at = steps.begin(); at != steps.end(); ++at) {
    CHECK(at.index() == listed.size());
    CHECK(at == steps.at(at.index()));
    CHECK(steps.patterns()[at.pattern()].send == (*at).send);
    CHECK(steps[at.index()] == *at);
    listed.push_back(*at);
  }
  CHECK(steps.at(10) == steps.end());
  CHECK(steps.end().index() == 10);
  CHECK(steps.first_of(2).index() == 2);
  CHECK(steps.first_of(3).index() == 3);
  CHECK(steps.first_of(4).index() == 8);
  const Steps again{std::span<const Step>(listed)};
  CHECK(chunks_of(again) == chunks_of(steps));
  CHECK(Steps().begin() == Steps().end());
}

TEST_CASE("steps: a ring's take as much memory for 65,536 ranks as for 8") {
  for (const int n : {8, 1 << 16}) {
    const std::vector<int> order = natural_order(n);
    const Schedule schedule = schedule_of("ring", Goal::kAllReduce, {order, {}, {}, {}, n / 3, 0, 2});
    size_t bytes = sizeof schedule;
    for (const Lane& lane : schedule.lanes) {
      CHECK(lane.steps.size() == 2 * static_cast<size_t>(n) - 1);
      bytes += sizeof lane + lane.steps.patterns().size_bytes() + lane.steps.runs().size_bytes();
    }
    CHECK(bytes <= 1000);
  }
}
