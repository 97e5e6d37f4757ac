// Point-to-point schedules from random lists.
#include "schedule_text.h"
#include "testing.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

using Random = std::mt19937;

void shuffle(std::vector<int>& list, Random& random) {
  for (size_t i = list.size(); i > 1; i--) std::swap(list[i - 1], list[random() % i]);
}

// Each rank lists its sends and receives in any order: pairs are matched in the order of the lists.
std::vector<Transfers> random_transfers(int n, size_t n_messages, Random& random) {
  std::vector<Transfers> all(static_cast<size_t>(n));
  for (size_t i = 0; i < n_messages; i++) {
    const size_t from = random() % all.size(), to = random() % all.size();
    all[from].sends.push_back(static_cast<int>(to));
    all[to].receives.push_back(static_cast<int>(from));
  }
  for (Transfers& transfers : all) {
    shuffle(transfers.sends, random);
    shuffle(transfers.receives, random);
  }
  return all;
}

std::vector<Schedule> all_send_recv(const std::vector<Transfers>& transfers) {
  const int n = static_cast<int>(transfers.size());
  return for_all_ranks(n, [&](int rank) { return send_recv(n, rank, transfers[static_cast<size_t>(rank)]); });
}

}  // namespace

TEST_CASE("send and receive: lists drawn at random") {
  Random random(3);
  for (int i = 0; i < (kSanitized ? 200 : 3000); i++) {
    const int n = 1 + static_cast<int>(random() % 9);
    const auto transfers = random_transfers(n, random() % 60, random);
    const auto slots = static_cast<uint32_t>(1 + random() % 3);
    const auto rounds = static_cast<uint32_t>(1 + 2 * (random() % 2));
    INFO("n=" << n << " slots=" << slots << " rounds=" << rounds);
    const auto schedules = all_send_recv(transfers);
    REQUIRE(verdict(schedules, {.goal = Goal::kSendRecv, .slots = slots, .rounds = rounds, .transfers = transfers}) ==
            "");
  }
}

TEST_CASE("send and receive: a message that goes elsewhere than the lists say is found") {
  Random random(4);
  const int kWanted = kSanitized ? 100 : 1000;
  for (int done = 0; done < kWanted;) {
    const int n = 2 + static_cast<int>(random() % 6);
    const auto transfers = random_transfers(n, 20, random);
    std::vector<Transfers> other = transfers;
    Transfers& changed = other[random() % other.size()];
    if (changed.receives.size() < 2) continue;
    const size_t a = random() % changed.receives.size(), b = random() % changed.receives.size();
    if (changed.receives[a] == changed.receives[b]) continue;
    std::swap(changed.receives[a], changed.receives[b]);
    const auto schedules = all_send_recv(other);
    const CheckOptions options{.goal = Goal::kSendRecv, .transfers = transfers};
    const std::string said = verdict(schedules, options);
    INFO(said);
    REQUIRE(has(said, "rank "));
    done++;
  }
}

TEST_CASE("send and receive: one lane per peer and direction, the last one for itself") {
  const Schedule schedule = send_recv(3, 0, {.sends = {1, 2, 1, 0}, .receives = {2, 0}});
  CHECK(to_text(schedule) ==
        "rank 0 of 3: 1 chunks, 0 scratch, 4 lanes\n"
        "lane 0: channel 0, 2 steps\n"
        "lane 0 step 0: in[0], send 1\n"
        "lane 0 step 1: in[2], send 1\n"
        "lane 1: channel 0, 1 steps\n"
        "lane 1 step 0: in[1], send 2\n"
        "lane 2: channel 0, 1 steps\n"
        "lane 2 step 0: recv 2 -> out[0]\n"
        "lane 3: channel 0, 1 steps\n"
        "lane 3 step 0: in[3] -> out[1]\n");
  CHECK(schedule.lanes[2].steps[0].chunk == 4);  // the first block behind the inputs
}

TEST_CASE("send and receive: lists that do not match are refused") {
  const auto said = [](const std::vector<Transfers>& transfers) {
    return verdict(all_send_recv(transfers), {.goal = Goal::kSendRecv, .transfers = transfers});
  };
  CHECK(said({{.sends = {1}}, {.receives = {0}}}) == "");
  CHECK(has(said({{.sends = {1}}, {}}), "rank 0 sends more than rank 1 receives"));
  CHECK(has(said({{}, {.receives = {0}}}), "rank 1 receives more than rank 0 sends to it"));
  CHECK(has(verdict(all_send_recv({{}, {}}), {.goal = Goal::kSendRecv}), "each rank needs its list of transfers"));
}
