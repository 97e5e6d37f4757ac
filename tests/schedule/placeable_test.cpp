// Which messages the sender may write directly to their destination, and that nobody may still need what was there.
#include "catch.h"
#include "schedule/schedule.h"

using namespace tutti;

namespace {

std::string verdict(const std::vector<Schedule>& schedules, bool in_place) {
  CheckOptions options;
  options.in_place = in_place;
  const auto checked = check(schedules, options);
  return checked ? "" : checked.error().message;
}

bool equal(const Placeable& a, const Placeable& b) {
  return a.step == b.step && a.from == b.from && a.ahead == b.ahead;
}

}  // namespace

TEST_CASE("placeable: the sums of a two-shot all-reduce, each told when the one before has come") {
  // Twice: sends its part, adds up what it receives, sends the sum and receives the other sum.
  const Slice in{Buffer::kInput, 0}, out{Buffer::kOutput, 0};
  std::vector<Step> steps;
  for (int time = 0; time < 2; time++)
    steps.insert(steps.end(), {{.send = 1, .local = in},
                               {.recv = kEveryone, .send = 1, .local = in, .store = out, .completes = true},
                               {.recv = 1, .store = out}});
  const auto found = placeable_messages(steps);
  REQUIRE(found.size() == 2);
  CHECK(equal(found[0], {2, 0, 1}));
  CHECK(equal(found[1], {5, 3, 1}));
}

TEST_CASE("placeable: messages from everyone count for each, and senders are told apart") {
  const Slice in{Buffer::kInput, 0}, out{Buffer::kOutput, 0};
  const std::vector<Step> steps = {{.recv = kEveryone, .local = in, .store = out},
                                   {.recv = 1, .store = out},
                                   {.recv = 2, .local = in, .store = out},
                                   {.recv = 2, .store = out},
                                   {.recv = 2, .store = out},
                                   {.recv = 1, .store = {Buffer::kScratch, 0}}};
  const auto found = placeable_messages(steps);
  REQUIRE(found.size() == 3);
  CHECK(equal(found[0], {1, 0, 1}));
  CHECK(equal(found[1], {3, 0, 2}));
  CHECK(equal(found[2], {4, 4, 0}));
}

TEST_CASE("placeable: what is read in place after its sum could have come is refused") {
  const Slice in{Buffer::kInput, 0}, out{Buffer::kOutput, 0};
  const Step give{.send = 1, .local = in}, look{.local = in, .store = {Buffer::kScratch, 0}},
      take{.recv = 1, .store = out};
  Schedule asks{.rank = 0, .n_ranks = 2, .n_chunks = 1, .n_scratch = 1}, adds{.rank = 1, .n_ranks = 2, .n_chunks = 1};
  adds.lanes.push_back({0, {{.recv = 0, .send = 0, .local = in, .store = out, .completes = true}}});
  asks.lanes.push_back({0, {look, give, take}});
  CHECK(verdict({asks, adds}, true) == "");
  asks.lanes[0].steps = {give, look, take};
  CHECK(verdict({asks, adds}, false) == "");
  CHECK(verdict({asks, adds}, true).find("may overwrite what this rank still uses") != std::string::npos);
}

// Rank 1 reads data that rank 0 exposes. Rank 2 sends the sum there, and must first know that rank 1 has finished.
TEST_CASE("placeable: what others may still be reading is not written over") {
  const Slice in{Buffer::kInput, 0}, out{Buffer::kOutput, 0}, kept{Buffer::kScratch, 0};
  const Step take{.recv = 2, .store = out};
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 3; rank++) schedules.push_back({.rank = rank, .n_ranks = 3, .n_chunks = 1, .n_scratch = 1});
  schedules[0].lanes.push_back(
      {0, {{.send = 1, .local = in}, {.send = 2, .local = in}, {.recv = 1, .store = kept}, take}});
  schedules[2].lanes.push_back({0,
                                {{.recv = 0, .local = in, .store = kept},
                                 {.recv = 1, .send = 0, .local = kept, .store = out, .completes = true},
                                 {.send = 1, .local = out}}});
  const Step look{.recv = 0, .store = kept}, give{.send = 2, .local = in}, answer{.send = 0, .local = kept};
  schedules[1].lanes.push_back({0, {look, give, answer, take}});
  CHECK(verdict(schedules, true) == "");
  schedules[1].lanes[0].steps = {give, look, answer, take};
  CHECK(verdict(schedules, false) == "");
  CHECK(verdict(schedules, true).find("may overwrite what rank 1 may still be reading") != std::string::npos);
}
