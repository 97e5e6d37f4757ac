// All-reduces whose ranks are alike: they are recognised, and their short proof finds what the full one finds.
#include "schedule/alike.h"
#include "collectives.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

using Random = std::mt19937;

std::string said(const Result<void>& result) {
  return result ? "" : result.error().message;
}

struct AlikeCase {
  const char* name;
  int n;
  std::vector<Schedule> schedules;
  CheckOptions options;
};

std::vector<Schedule> all_hierarchical(int n, int ranks_per_host, uint32_t lanes) {
  const std::vector<int> order = natural_order(n);
  const Hosts hosts = hosts_of(order, [&](size_t) { return static_cast<size_t>(ranks_per_host); });
  return for_all_ranks(n, [&](int rank) {
    return schedule_of("hierarchical", Goal::kAllReduce, {order, hosts, {}, {}, rank, 0, lanes});
  });
}

std::vector<AlikeCase> alike_cases() {
  std::vector<AlikeCase> cases;
  for (const int n : {2, 3, 4, 7, 8, 12}) {
    for (const uint32_t lanes : {1u, 2u, 3u})
      cases.push_back({"ring", n, all_ring_all_reduce(natural_order(n), lanes), {}});
    cases.push_back({"circulant", n, all_of("circulant", Goal::kAllReduce, natural_order(n)), {}});
  }
  for (const int n : {2, 6, 12, 16})
    for (const int here : {1, 2})
      for (const uint32_t lanes : {1u, 2u}) cases.push_back({"hierarchical", n, all_hierarchical(n, here, lanes), {}});
  cases.push_back({"hierarchical", 12, all_hierarchical(12, 4, 1), {}});
  cases.push_back({"hierarchical", 6, all_hierarchical(6, 3, 1), {}});
  return cases;
}

// Damages one of the first ranks, and all ranks that are like it in the same way.
bool damage(std::vector<Schedule>& schedules, Random& random) {
  const int n = static_cast<int>(schedules.size());
  const Symmetry moves(schedules[0].alike, n);
  const auto below = [&](size_t bound) { return static_cast<uint32_t>(random() % bound); };
  const int rank = static_cast<int>(below(static_cast<size_t>(moves.period())));
  std::vector<Lane>& lanes = schedules[static_cast<size_t>(rank)].lanes;
  const size_t l = below(lanes.size());
  std::vector<Step> steps(lanes[l].steps.begin(), lanes[l].steps.end());
  const size_t at = below(steps.size());
  Step& step = steps[at];
  const Step before = step;
  const auto chunk = below(schedules[0].n_chunks);
  switch (below(9)) {
    case 0: steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(at)); break;
    case 1:
      if (step.recv < 0 && step.send < 0) return false;
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at), before);
      break;
    case 2: std::swap(step, steps[below(steps.size())]); break;
    case 3: step.recv = static_cast<int>(below(static_cast<size_t>(n) + 1)) - 1; break;
    case 4: step.send = static_cast<int>(below(static_cast<size_t>(n) + 1)) - 1; break;
    case 5: step.completes = !step.completes; break;
    case 6: step.local.buffer = static_cast<Buffer>(below(3)); break;
    case 7: step.store.buffer = static_cast<Buffer>(below(3)); break;
    case 8:
      step.chunk = chunk;
      for (Slice* slice : {&step.before, &step.local, &step.store})
        if (slice->buffer != Buffer::kNone) slice->chunk = chunk;
      break;
  }
  if (steps.size() == lanes[l].steps.size() && std::equal(steps.begin(), steps.end(), lanes[l].steps.begin()))
    return false;
  for (uint32_t k = 0; k < moves.count(); k++) {
    Steps& moved = schedules[static_cast<size_t>(moves.move(rank, k))].lanes[l].steps;
    moved = {};
    for (const Step& one : steps) moved.push_back(moves.move(one, k));
  }
  return true;
}

}  // namespace

TEST_CASE("alike: all that are, by both proofs, and with a slot too few by neither") {
  for (const AlikeCase& a : alike_cases()) {
    INFO(a.name << " n=" << a.n << " lanes=" << a.schedules[0].lanes.size());
    REQUIRE(are_alike(a.schedules));
    for (const uint32_t rounds : {1u, 3u})
      for (const bool in_place : {false, true}) {
        CheckOptions options = a.options;
        options.rounds = rounds, options.in_place = in_place;
        CHECK(said(checker::check_alike(a.schedules, options)) == "");
        CHECK(said(checker::check_each(a.schedules, options)) == "");
      }
    CheckOptions fewer = a.options;
    if (--fewer.slots == 0) continue;
    CHECK(said(checker::check_alike(a.schedules, fewer)).empty() ==
          said(checker::check_each(a.schedules, fewer)).empty());
  }
}

TEST_CASE("alike: what the whole proof refuses, this one refuses too") {
  Random random(11);
  int refused = 0;
  const int kWanted = kSanitized ? 200 : 2000;
  const std::vector<AlikeCase> cases = alike_cases();
  while (refused < kWanted) {
    const AlikeCase& chosen = cases[random() % cases.size()];
    std::vector<Schedule> schedules = chosen.schedules;
    CheckOptions options = chosen.options;
    options.in_place = random() % 2 == 0;
    options.rounds = 1 + random() % 2;
    if (!damage(schedules, random)) continue;
    const std::string whole = said(checker::check_each(schedules, options));
    if (whole.empty()) continue;
    refused++;
    if (!are_alike(schedules)) continue;  // else check() proves all ranks
    INFO(chosen.name << " n=" << chosen.n << ": " << whole);
    REQUIRE(said(checker::check_alike(schedules, options)) != "");
  }
}

TEST_CASE("alike: one rank that is not like the others is seen") {
  Random random(12);
  const std::vector<AlikeCase> cases = alike_cases();
  for (int i = 0; i < 500; i++) {
    const AlikeCase& chosen = cases[random() % cases.size()];
    if (chosen.schedules[0].alike.period == chosen.n) continue;  // no two ranks are alike
    std::vector<Schedule> schedules = chosen.schedules;
    Schedule& changed = schedules[random() % schedules.size()];
    Lane& lane = changed.lanes[random() % changed.lanes.size()];
    std::vector<Step> steps(lane.steps.begin(), lane.steps.end());
    Step& step = steps[random() % steps.size()];
    switch (random() % 6) {
      case 0: step.completes = !step.completes; break;
      case 1: step.chunk++; break;
      case 2: step.send = step.send < 0 ? 0 : step.send + 1; break;
      case 3: lane.channel++; break;
      case 4: step.recv = step.recv < 0 ? 0 : step.recv + 1; break;
      case 5: step.store.buffer = step.store.buffer == Buffer::kNone ? Buffer::kOutput : Buffer::kNone; break;
    }
    lane.steps = Steps(std::span<const Step>(steps));
    REQUIRE_FALSE(are_alike(schedules));
  }
  CHECK_FALSE(are_alike(all_ring_all_reduce(shuffled_order(8, 1), 1)));
  CHECK_FALSE(are_alike(all_of("tree", Goal::kAllReduce, natural_order(8))));
  std::vector<Schedule> one_chunk_more = all_ring_all_reduce(natural_order(8), 1);
  for (Schedule& schedule : one_chunk_more) schedule.n_chunks++;
  CHECK_FALSE(are_alike(one_chunk_more));
}

TEST_CASE("alike: of many ranks one that is damaged is found, whoever it is") {
  const int n = kSanitized ? 512 : 600;
  std::vector<Schedule> schedules = all_ring_all_reduce(natural_order(n), 1);
  CHECK(verdict(schedules, {.in_place = true}) == "");
  CHECK(has(verdict(schedules, {.slots = 1}), "deadlock with 1 slots"));
  std::vector<Step> steps(schedules[77].lanes[0].steps.begin(), schedules[77].lanes[0].steps.end());
  steps[5].local.buffer = Buffer::kOutput;
  schedules[77].lanes[0].steps = Steps(std::span<const Step>(steps));
  CHECK(has(verdict(schedules, {}), "rank 77 lane 0 round 0 step 5"));
}
