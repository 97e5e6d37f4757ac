// The checker's verdict on wrong schedules that were written by hand, one for every rule that it enforces.
#include "schedule/clock.h"
#include "testing.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

using Lanes = std::vector<std::vector<Step>>;

Slice in(uint32_t chunk) {
  return {Buffer::kInput, chunk};
}
Slice out(uint32_t chunk) {
  return {Buffer::kOutput, chunk};
}
Slice scratch(uint32_t chunk) {
  return {Buffer::kScratch, chunk};
}

// `ranks` has the lanes of each rank; all lanes use channel 0.
std::vector<Schedule> schedules_of(const std::vector<Lanes>& ranks, uint32_t n_chunks = 1, uint32_t n_scratch = 0) {
  return for_all_ranks(static_cast<int>(ranks.size()), [&](int rank) {
    Schedule schedule{.rank = rank, .n_ranks = static_cast<int>(ranks.size()), .n_chunks = n_chunks};
    schedule.n_scratch = n_scratch;
    for (const auto& steps : ranks[static_cast<size_t>(rank)])
      schedule.lanes.push_back({0, Steps(std::span<const Step>(steps))});
    return schedule;
  });
}

std::string said(const std::vector<Lanes>& ranks, const CheckOptions& options = {}) {
  return verdict(schedules_of(ranks), options);
}

const Step kCopy{.local = in(0), .store = out(0), .completes = true};  // a single rank needs nothing else

// Two ranks: 0 sends its part to 1, which adds it up and sends the sum back.
const Step kGive{.send = 1, .local = in(0)};
const Step kTake{.recv = 1, .store = out(0)};
const Step kSum{.recv = 0, .send = 0, .local = in(0), .store = out(0), .completes = true};

const Step kTakeFrom0{.recv = 0, .store = out(0)};

const CheckOptions kBroadcast{.goal = Goal::kBroadcast};

}  // namespace

TEST_CASE("check: right by hand") {
  CHECK(said({{{kCopy}}}) == "");
  CHECK(said({{{kGive, kTake}}, {{kSum}}}) == "");
  CHECK(said({{{kGive}, {kTake}}, {{kSum}}}) == "");  // give and take on separate lanes
  CHECK(said({{{kGive}, {kTake}}, {{kSum}}}, {.slots = 1, .rounds = 3, .in_place = true}) == "");
}

TEST_CASE("check: the set of schedules itself") {
  CHECK(has(verdict({}, {}), "no schedules"));
  CHECK(has(said({{{kCopy}}}, {.slots = 0}), "at least one slot"));
  CHECK(has(said({{{kCopy}}}, {.rounds = 0}), "one round"));
  CHECK(has(said({{{kCopy}}}, {.goal = Goal::kBroadcast, .root = 1}), "root 1 is not one of 1 ranks"));
  std::vector<Schedule> schedules = schedules_of({{{kGive, kTake}}, {{kSum}}});
  SECTION("rank") {
    schedules[1].rank = 0;
  }
  SECTION("number of ranks") {
    schedules[1].n_ranks = 3;
  }
  SECTION("number of chunks") {
    schedules[1].n_chunks = 2;
  }
  CHECK(has(verdict(schedules, {}), "rank 1: schedule 1 is for rank"));
}

TEST_CASE("check: a set without chunks, or with too many to count") {
  CHECK(has(verdict(schedules_of({{{kCopy}}}, 0), {}), "rank 0: schedule 0 is for rank 0 of 1 with 0 chunks"));
  CHECK(has(verdict(schedules_of({{{kCopy}}}, UINT32_MAX), {.rounds = UINT32_MAX}), "too many chunks in all rounds"));
}

TEST_CASE("check: peers and links") {
  CHECK(has(said({{{kGive, {.recv = 2, .store = out(0)}}}, {{kSum}}}),
            "rank 0 lane 0 round 0 step 1 (recv 2 -> out[0]): 2 is not a peer"));
  CHECK(has(said({{{{.send = 0, .local = in(0)}}}}), "0 is not a peer of this rank"));
  CHECK(has(said({{{kGive}, {kGive}, {kTake}}, {{kSum}}}),
            "rank 0 lane 1 round 0 step 0 (in[0], send 1): lane 0 already sends to rank 1 on channel 0"));
  CHECK(has(said({{{kGive}, {kTake}, {kTake}}, {{kSum}}}), "lane 1 already receives from rank 1 on channel 0"));
  CHECK(has(said({{{kGive, kTake}, {}}, {{kSum, {.send = 0, .local = out(0)}}}}),
            "rank 1 lane 0 round 0 step 1: rank 0 never receives what it sends on channel 0"));
}

TEST_CASE("check: steps that do nothing") {
  CHECK(has(said({{{kCopy, {.store = out(0)}}}}), "rank 0 lane 0 round 0 step 1 ( -> out[0]): it has no value"));
  CHECK(has(said({{{kCopy, {.local = out(0)}}}}), "its value goes nowhere"));
}

TEST_CASE("check: slices") {
  CHECK(has(said({{{{.local = in(1), .store = out(0)}}}}), "in[1] is outside its buffer"));
  CHECK(has(said({{{{.local = in(0), .store = out(1), .completes = true}}}}), "out[1] is outside its buffer"));
  CHECK(has(said({{{{.local = scratch(0), .store = out(0)}}}}), "scratch[0] is outside its buffer"));
  CHECK(has(said({{{{.local = {static_cast<Buffer>(4), 0}, .store = out(0)}}}}), "outside its buffer"));
  CHECK(has(said({{{{.local = out(0), .store = out(0)}}}}), "out[0] is read before anything was stored"));
  CHECK(has(said({{{{.local = out(0), .store = out(0)}}}}, {.in_place = true}), "out[0] is read before"));
  CHECK(has(said({{{{.local = in(0), .store = in(0), .completes = true}}}}), "stores to the input"));
  const std::vector<Lanes> twice = {{{kGive, kTake, {.send = 1, .local = in(0)}}},
                                    {{kSum, {.recv = 0, .store = out(0)}}}};
  CHECK(has(said(twice, {.in_place = true}), "rank 0 lane 0 round 0 step 2 (in[0], send 1): in[0] is read after it"));
}

TEST_CASE("check: scratch belongs to a rank and survives rounds") {
  const Step keep{.local = in(0), .store = scratch(0), .completes = true};
  const Step use{.local = scratch(0), .store = out(0)};
  CHECK(verdict(schedules_of({{{keep, use}}}, 1, 1), {.rounds = 3}) == "");
  CHECK(has(verdict(schedules_of({{{use, keep}}}, 1, 1), {}), "scratch[0] is read before anything was stored"));
  std::vector<Schedule> schedules = schedules_of({{{kGive, kTake}}, {{kSum}}}, 1, 1);
  Step to_scratch = kTake;
  to_scratch.store = scratch(0);
  schedules[0].lanes[0].steps = {kGive, to_scratch};
  schedules[0].n_scratch = 0;
  CHECK(has(verdict(schedules, {}), "rank 0 lane 0 round 0 step 1 (recv 1 -> scratch[0]): scratch[0] is outside"));
}

TEST_CASE("check: chunks keep their identity") {
  const Step give1{.send = 1, .chunk = 1, .local = in(1)}, take1{.recv = 1, .chunk = 1, .store = out(1)};
  const Step sum1{.recv = 0, .send = 0, .chunk = 1, .local = in(1), .store = out(1), .completes = true};
  CHECK(verdict(schedules_of({{{kGive, give1, kTake, take1}}, {{kSum, sum1}}}, 2), {}) == "");
  CHECK(has(verdict(schedules_of({{{give1, kGive, kTake, take1}}, {{kSum, sum1}}}, 2), {}), "the message is chunk 1"));
  CHECK(has(verdict(schedules_of({{{kGive, give1, take1, kTake}}, {{kSum, sum1}}}, 2), {}), "the message is chunk 0"));
  Step wrong_store = take1, wrong_local = give1, wrong_name = give1, no_name = give1;
  wrong_store.store = out(0), wrong_local.local = in(0), wrong_name.chunk = 0, no_name.chunk = 2;
  const auto changed = [&](const Step& give, const Step& take) {
    return verdict(schedules_of({{{kGive, give, kTake, take}}, {{kSum, sum1}}}, 2), {});
  };
  CHECK(has(changed(give1, wrong_store), "the value is chunk 1 (through all rounds), not 0"));
  CHECK(has(changed(wrong_local, take1), "in[0] is chunk 0 (through all rounds), not 1"));
  CHECK(has(changed(wrong_name, take1), "in[1] is chunk 1 (through all rounds), not 0"));
  CHECK(has(changed(no_name, take1), "there is no chunk 2"));
}

TEST_CASE("check: every contribution exactly once") {
  CHECK(has(said({{{kGive}}, {{kSum}}}), "rank 0 never receives"));
  const Step plain{.recv = 0, .send = 0, .store = out(0)};
  CHECK(has(said({{{kGive, kTake}}, {{plain}}}), "at the end out[0] of round 0 has only rank 0's contribution"));
  const Step add_again{.recv = 1, .local = in(0), .store = out(0)};
  CHECK(has(said({{{kGive, add_again}}, {{kSum}}}),
            "rank 0: at the end out[0] of round 0 has rank 0's contribution twice"));
  CHECK(has(said({{{kGive}}, {{{.recv = 0, .local = in(0), .store = out(0), .completes = true}}}}),
            "rank 0: at the end out[0] of round 0 was never stored"));
  const std::vector<Lanes> lacking = {{{{.local = in(0), .store = out(0)}}},
                                      {{{.send = 2, .local = in(0)}, {.recv = 2, .store = out(0)}}},
                                      {{{.recv = 1, .send = 1, .local = in(0), .store = out(0)}}}};
  CHECK(has(said(lacking), "rank 0: at the end out[0] of round 0 has only rank 0's"));
  const std::vector<Lanes> two_of_three = {{{{.recv = 1, .store = out(0)}}},
                                           {{{.recv = 2, .send = 0, .local = in(0), .store = out(0)}}},
                                           {{{.send = 1, .local = in(0)}}}};
  CHECK(has(said(two_of_three), "rank 0: at the end out[0] of round 0 lacks rank 0's contribution"));
}

TEST_CASE("check: completes is where the sum is complete and nowhere else") {
  Step give = kGive, take = kTake, sum = kSum;
  SECTION("missing") {
    sum.completes = false;
    CHECK(has(said({{{give, take}}, {{sum}}}),
              "rank 1 lane 0 round 0 step 0 (recv 0 + in[0] -> out[0], send 0): "
              "completes the sum without saying so"));
  }
  SECTION("too early") {
    give.completes = true;
    CHECK(has(said({{{give, take}}, {{sum}}}), "says complete, but the sum is not"));
  }
  SECTION("again") {
    take.completes = true;
    CHECK(has(said({{{give, take}}, {{sum}}}), "says complete, but another step did so before"));
  }
  SECTION("two ranks reduce the same") {
    const Step sum0{.recv = 1, .before = in(0), .store = out(0), .completes = true};  // the same order as rank 1: 0 + 1
    const Step sum1{.recv = 0, .local = in(0), .store = out(0), .completes = true};
    const Step give0{.send = 1, .local = in(0)}, give1{.send = 0, .local = in(0)};
    CHECK(said({{{give0, sum0}}, {{give1, sum1}}}) == "");
    Step forgotten = sum0;
    forgotten.completes = false;
    CHECK(has(said({{{give0, forgotten}}, {{give1, sum1}}}), "completes the sum without saying so"));
    Step other_way = sum0;
    std::swap(other_way.before, other_way.local);
    CHECK(has(said({{{give0, other_way}}, {{give1, sum1}}}),
              "rank 1: at the end out[0] of round 0 was added up in another order than on other ranks"));
    CHECK(said({{{give0, sum0}}, {{give1, sum1}}}, {.rank_order = true}) == "");
  }
}

TEST_CASE("check: broadcasts") {
  const Step root{.send = 1, .local = in(0), .store = out(0)}, other{.recv = 0, .store = out(0)};
  CHECK(said({{{root}}, {{other}}}, kBroadcast) == "");
  CHECK(said({{{root}}, {{other}}}, {.goal = Goal::kBroadcast, .rounds = 2, .in_place = true}) == "");
  CHECK(has(said({{{root}}, {{other}}}, {.goal = Goal::kBroadcast, .root = 1}), "in[0] is outside its buffer"));
  Step completing = other, reducing = other;
  completing.completes = true;
  reducing.local = in(0);
  CHECK(has(said({{{root}}, {{completing}}}, kBroadcast), "rank 1 lane 0 round 0 step 0"));
  CHECK(has(said({{{root}}, {{reducing}}}, kBroadcast), "in[0] is outside its buffer"));
  const Step again{.send = 1, .local = in(0)};
  CHECK(has(said({{{root, again}}, {{other, {.recv = 0, .local = out(0), .store = out(0)}}}}, kBroadcast),
            "this collective reduces nothing"));
}

TEST_CASE("check: what is exposed stays as it is until a message says that it was read") {
  const Step give{.send = 1, .local = in(0)}, sum{.recv = 1, .before = in(0), .store = out(0), .completes = true};
  const Step give_back{.send = 0, .local = in(0)},
      other_sum{.recv = 0, .local = in(0), .store = out(0), .completes = true};
  auto schedules = schedules_of({{{give, sum}}, {{give_back, other_sum}}});
  CHECK(verdict(schedules, {}) == "");  // out of place nothing is overwritten
  const std::string said = verdict(schedules, {.in_place = true});
  CHECK(has(said, "it overwrites what rank"));
  for (Schedule& schedule : schedules) schedule.may_expose = false;
  CHECK(verdict(schedules, {.in_place = true}) == "");

  // Rank 1 answers with the sum, so it has read the exposed data.
  const Step answer{.recv = 0, .send = 0, .local = in(0), .store = out(0), .completes = true};
  const Step take{.recv = 1, .store = out(0)};
  CHECK(verdict(schedules_of({{{give, take}}, {{answer}}}), {.in_place = true}) == "");
}

TEST_CASE("check: a step that receives from everyone") {
  const auto give = [](int to) { return Step{.send = to, .local = in(0)}; };
  const Step sum{.recv = kEveryone, .local = in(0), .store = out(0), .completes = true};
  const std::vector<Lanes> right = {{{give(1), give(2), sum}}, {{give(2), give(0), sum}}, {{give(0), give(1), sum}}};
  CHECK(said(right, {.rank_order = true}) == "");
  std::vector<Lanes> lacking = right;
  lacking[2][0].erase(lacking[2][0].begin());
  CHECK(has(said(lacking),
            "rank 0 lane 0 round 0 step 2 (recv all + in[0] -> out[0] (complete)) waits for messages of all"));
  std::vector<Lanes> two_of_its_own = right;
  two_of_its_own[1][0].back().before = in(0);
  CHECK(has(said(two_of_its_own), "it has two values of its own"));
  std::vector<Lanes> without_its_own = right;
  without_its_own[1][0].back().local = {};
  CHECK(has(said(without_its_own), "says complete, but the sum is not"));
}

TEST_CASE("check: a step adds two values at most") {
  const Step three{.recv = 0, .before = in(0), .local = in(0), .store = out(0)};
  CHECK(has(said({{{kGive}}, {{three}}}),
            "rank 1 lane 0 round 0 step 0 (in[0] + recv 0 + in[0] -> out[0]): "
            "it does not add two values"));
  CHECK(has(said({{{{.before = in(0), .store = out(0)}}}}), "it has no value"));
  CHECK(has(said({{{kGive}}, {{{.recv = 0, .before = in(1), .store = out(0)}}}}), "in[1] is outside its buffer"));
}

TEST_CASE("check: the order of ranks, if asked for") {
  const Step other_way{.recv = 0, .send = 0, .before = in(0), .store = out(0), .completes = true};
  CHECK(said({{{kGive, kTake}}, {{kSum}}}, {.rank_order = true}) == "");
  CHECK(said({{{kGive, kTake}}, {{other_way}}}) == "");
  CHECK(has(said({{{kGive, kTake}}, {{other_way}}}, {.rank_order = true}),
            "rank 0: at the end out[0] of round 0 was not added up in the order of ranks"));
  // 0 + (1 + 2) is not (0 + 1) + 2.
  const std::vector<Lanes> bracketed = {{{{.recv = 1, .before = in(0), .store = out(0), .completes = true},
                                          {.send = 1, .local = out(0)},
                                          {.send = 2, .local = out(0)}}},
                                        {{{.recv = 2, .send = 0, .before = in(0)}, kTakeFrom0}},
                                        {{{.send = 1, .local = in(0)}, kTakeFrom0}}};
  CHECK(said(bracketed) == "");
  CHECK(has(said(bracketed, {.rank_order = true}), "not added up in the order of ranks"));
}

TEST_CASE("check: every rank's buffers have the blocks that its collective gives it") {
  const auto said_of = [](Goal goal, int rank, const Slice& slice) {
    std::vector<Lanes> ranks(2);
    ranks[static_cast<size_t>(rank)] = {{{.local = slice, .store = out(0)}}};
    return said(ranks, {.goal = goal});
  };
  CHECK(has(said_of(Goal::kAllReduce, 0, in(1)), "in[1] is outside its buffer"));
  CHECK(has(said_of(Goal::kAllReduce, 0, out(1)), "out[1] is outside its buffer"));
  CHECK_FALSE(has(said_of(Goal::kBroadcast, 0, in(0)), "outside"));
  CHECK(has(said_of(Goal::kBroadcast, 1, in(0)), "rank 1 lane 0 round 0 step 0 (in[0] -> out[0]): in[0] is outside"));
  CHECK_FALSE(has(said_of(Goal::kReduce, 0, out(0)), "outside"));
  CHECK(has(said_of(Goal::kReduce, 1, out(0)), "out[0] is outside its buffer"));
  CHECK(has(said_of(Goal::kAllGather, 0, in(1)), "in[1] is outside its buffer"));
  CHECK_FALSE(has(said_of(Goal::kAllGather, 0, out(1)), "outside"));
  CHECK(has(said_of(Goal::kAllGather, 0, out(2)), "out[2] is outside its buffer"));
  CHECK_FALSE(has(said_of(Goal::kReduceScatter, 0, in(1)), "outside"));
  CHECK(has(said_of(Goal::kReduceScatter, 0, in(2)), "in[2] is outside its buffer"));
  CHECK(has(said_of(Goal::kReduceScatter, 0, out(1)), "out[1] is outside its buffer"));
  CHECK_FALSE(has(said_of(Goal::kAllToAll, 1, in(1)), "outside"));
  CHECK(has(said_of(Goal::kAllToAll, 1, in(2)), "in[2] is outside its buffer"));
  CHECK(has(said_of(Goal::kAllToAll, 1, out(2)), "out[2] is outside its buffer"));
  CHECK(has(said_of(Goal::kGather, 0, out(2)), "out[2] is outside its buffer"));
  CHECK(has(said_of(Goal::kGather, 1, out(0)), "out[0] is outside its buffer"));
  CHECK(has(said_of(Goal::kScatter, 0, in(2)), "in[2] is outside its buffer"));
  CHECK(has(said_of(Goal::kScatter, 1, in(0)), "in[0] is outside its buffer"));
}

TEST_CASE("check: what is gathered in place lies where it belongs") {
  // Rank 1's input is out[1], so it must not receive rank 0's block there, and need not keep its own.
  const Step keep0{.send = 1, .chunk = 0, .local = in(0), .store = out(0)};
  const Step keep1{.send = 0, .chunk = 1, .local = in(0), .store = out(1)};
  const Step take1{.recv = 1, .chunk = 1, .store = out(1)};
  Step take0{.recv = 0, .chunk = 0, .store = out(0)};
  std::vector<Schedule> schedules = schedules_of({{{keep0, take1}}, {{keep1, take0}}});
  CHECK(verdict(schedules, {.goal = Goal::kAllGather}) == "");
  CHECK(verdict(schedules, {.goal = Goal::kAllGather, .rounds = 2, .in_place = true}) == "");
  schedules[1].lanes[0].steps = {take0, keep1};
  CHECK(verdict(schedules, {.goal = Goal::kAllGather, .in_place = true}) == "");
  take0.store = out(1);
  schedules[1].lanes[0].steps = {take0, keep1};
  CHECK(has(verdict(schedules, {.goal = Goal::kAllGather}), "the value is chunk 0 (through all rounds), not 1"));
  // Rank 0's part of the sum is overwritten, by the right value, before it has been sent to rank 1.
  const Step give{.send = 1, .chunk = 1, .local = in(1)},
      sum{.recv = 1, .chunk = 0, .local = in(0), .store = out(0), .completes = true};
  const Step give_back{.send = 0, .chunk = 0, .local = in(0)},
      sum1{.recv = 0, .chunk = 1, .local = in(1), .store = out(0), .completes = true};
  schedules = schedules_of({{{give, sum}}, {{give_back, sum1}}});
  const CheckOptions scattering{.goal = Goal::kReduceScatter, .in_place = true};
  CHECK(verdict(schedules, scattering) == "");
  schedules[1].lanes[0].steps = {sum1, give_back, {.chunk = 1, .local = in(1), .store = out(0)}};
  CHECK(has(verdict(schedules, scattering), "in[1] is read after it was overwritten in place"));
  for (Goal goal : {Goal::kAllToAll, Goal::kBarrier, Goal::kSendRecv}) {
    CHECK(has(verdict(schedules, {.goal = goal, .in_place = true}), "cannot run in place"));
  }
}

TEST_CASE("check: nobody leaves a barrier before all have entered it") {
  const auto said_barrier = [](const std::vector<Lanes>& ranks, uint32_t rounds = 1) {
    return said(ranks, {.goal = Goal::kBarrier, .rounds = rounds});
  };
  const Step tell0{.send = 0}, tell1{.send = 1}, tell2{.send = 2}, hear0{.recv = 0}, hear1{.recv = 1}, hear2{.recv = 2};
  CHECK(said_barrier({{{tell1, hear1}}, {{hear0, tell0}}}, 3) == "");
  CHECK(said_barrier({{{hear1, hear2, tell1, tell2}}, {{tell0, hear0}}, {{tell0, hear0}}}, 3) == "");
  CHECK(has(said_barrier({{{tell1}}, {{hear0}}}),
            "rank 0 leaves the barrier in round 0 without knowing that rank 1 has entered it"));
  // Rank 1 is released before rank 2 has come.
  CHECK(has(said_barrier({{{hear1, tell1, hear2, tell2}}, {{tell0, hear0}}, {{tell0, hear0}}}),
            "rank 1 leaves the barrier in round 0 without knowing that rank 2 has entered it"));
  CHECK(has(said_barrier({{{tell1, hear1}}, {{hear0, {.send = 0, .local = in(0)}}}}), "a barrier has no data"));
  CHECK(has(said_barrier({{{tell1, hear1}}, {{hear0, {.send = 0, .chunk = 1}}}}), "a barrier has no data"));
  CHECK(has(said_barrier({{{tell1}, {hear1}}, {{hear0, tell0}}}), "rank 0: a barrier is one lane"));
  CHECK(has(said_barrier({{{tell1, hear1}}, {{hear0, hear0}}}), "deadlock"));
}

TEST_CASE("check: lanes that share memory need messages to keep their order") {
  // Lane 1 may copy before or after lane 0 has stored.
  const Step keep{.local = in(0), .store = out(0), .completes = true}, again{.local = out(0), .store = out(0)};
  const std::string one_way = said({{{again}, {keep}}}), other_way = said({{{keep}, {again}}});
  CHECK(one_way != "");
  CHECK(other_way != "");
  // Whichever lane the checker tries first, one of the two only fails because of the order.
  CHECK((has(one_way, "out[0], in no certain order") || has(other_way, "out[0], in no certain order")));
  // The taking lane overwrites in place what the giving lane has read: the sum's way there and back orders the two.
  CHECK(said({{{kGive}, {kTake}}, {{kSum}}}, {.in_place = true}) == "");
  // Rank 1's sum does not wait for rank 0's second read, so nothing orders that before the overwriting.
  const std::vector<Lanes> loose = {{{kGive, {.local = in(0), .store = scratch(0)}}, {kTake}}, {{kSum}}};
  CHECK(verdict(schedules_of(loose, 1, 1), {}) == "");
  CHECK_FALSE(verdict(schedules_of(loose, 1, 1), {.in_place = true}) == "");
  // The same if nobody may read a rank's memory directly.
  std::vector<Schedule> unexposed = schedules_of({{{again}, {keep}}});
  unexposed[0].may_expose = false;
  const std::string unexposed_way = verdict(unexposed, {});
  unexposed = schedules_of({{{keep}, {again}}});
  unexposed[0].may_expose = false;
  CHECK((unexposed_way == one_way && verdict(unexposed, {}) == other_way));
}

TEST_CASE("check: a deadlock is drawn") {
  // Both ranks receive first.
  const std::vector<Lanes> stuck = {{{{.recv = 1, .store = out(0)}, {.send = 1, .local = in(0)}}},
                                    {{{.recv = 0, .store = out(0)}, {.send = 0, .local = in(0)}}}};
  CHECK(said(stuck) ==
        "deadlock with 2 slots:\n"
        "  rank 0 lane 0 round 0 step 0 (recv 1 -> out[0]) waits for a message from rank 1\n"
        "  rank 1 lane 0 round 0 step 0 (recv 0 -> out[0]) waits for a message from rank 0");
  // Rank 1 has finished and takes no more messages.
  CHECK(said({{{kGive, kGive, kGive}}, {{{.recv = 0, .local = in(0), .store = out(0), .completes = true}}, {}}},
             {.slots = 1}) ==
        "deadlock with 1 slots:\n"
        "  rank 0 lane 0 round 0 step 2 (in[0], send 1) waits for a free slot to rank 1\n"
        "  rank 1 lane 0 is done\n"
        "  rank 1 lane 1 is done");
}

TEST_CASE("check: the ring needs its second slot") {
  for (int n = 2; n <= (kSanitized ? 13 : 33); n++) {
    const auto schedules = all_ring_all_reduce(natural_order(n), 1);
    const std::string text = verdict(schedules, {.slots = 1});
    INFO("n=" << n << ": " << text);
    REQUIRE(has(text, "deadlock with 1 slots"));
    for (int rank = 0; rank < n; rank++)
      REQUIRE(has(text, "\n  rank " + std::to_string(rank) + " lane 0 round 0 step "));
    REQUIRE(verdict(schedules, {.slots = 2}) == "");
  }
}

// Clocks share the memory of their common parts.
TEST_CASE("check: what a clock of many lanes learns no other one does") {
  checker::Clock first(1000), second(1000);
  first.set(70, 1);
  second.learn(first);
  CHECK(second[70] == 1);
  second.set(70, 2);
  second.set(999, 3);
  CHECK(first[70] == 1);
  CHECK(first[999] == 0);
  first.learn(second);
  CHECK(first[70] == 2);
  CHECK(first[999] == 3);
  CHECK(first[6] == 0);
}
