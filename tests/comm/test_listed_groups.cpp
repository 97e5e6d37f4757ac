// Groups that are formed by the ranks on a list, without the others.
#include <poll.h>

#include <algorithm>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

// Every rank adds 2^(its rank in the old group).
void check_sum(tuttiComm_t part, int rank, int32_t want, Outcome& outcome) {
  int32_t mine = 1 << rank, sum = 0;
  outcome.take(tuttiAllReduce(&mine, &sum, 1, tuttiInt32, tuttiSum, part, nullptr));
  outcome.wrong += sum != want;
}

void check_both_told(const std::vector<Outcome>& outcomes, tuttiResult_t code, const std::vector<std::string>& parts) {
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == code);
    CHECK(outcome.wrong == 0);
    for (const std::string& part : parts) CHECK(outcome.message.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("the columns of two times three ranks, each formed by its own members") {
  const int blocking = GENERATE(0, 1);
  require_success(run_threads(6, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.blocking = blocking;
    const int column[] = {rank % 3, rank % 3 + 3};
    tuttiComm_t part = nullptr;
    const tuttiResult_t begun = tuttiCommCreateGroup(comm, column, 2, &part, &config);
    outcome.wrong += begun != (blocking == 1 ? tuttiSuccess : tuttiInProgress);
    tuttiResult_t state = tuttiInProgress;
    for (const double end = now_seconds() + 60; state == tuttiInProgress && now_seconds() < end; poll(nullptr, 0, 1))
      outcome.take(tuttiCommGetAsyncError(part, &state));
    outcome.take(state);
    int place = -1;
    outcome.take(tuttiCommUserRank(part, &place));
    outcome.wrong += place != rank / 3;
    check_sum(part, rank, 9 << (rank % 3), outcome);
    check_sum(comm, rank, 63, outcome);  // the old group still works
    outcome.take(tuttiCommDestroy(part));
  }));
}

TEST_CASE("any subset in any order, again and again, while others do something else") {
  require_success(run_threads(5, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const int lists[][3] = {{4, 0, 2}, {2, 4, 0}, {1, 3, 4}};
    const auto pass_token = [&](int to, bool sends, bool receives) {
      int32_t token = 7, got = 0;
      if (rank == 4 && sends) outcome.take(tuttiSend(&token, 1, tuttiInt32, to, comm, nullptr));
      if (rank != to || !receives) return;
      outcome.take(tuttiRecv(&got, 1, tuttiInt32, 4, comm, nullptr));
      outcome.wrong += got != 7;
    };
    for (int to = 0; to < 3; to++) pass_token(to, true, true);  // makes the links, so that later sends need not wait
    for (const auto& list : lists) {
      const int* place = std::find(list, list + 3, rank);
      if (place == list + 3) continue;
      tuttiComm_t part = nullptr;
      // A message under way at that time does no harm.
      const int to = list[0] == 4 ? list[1] : list[0];
      pass_token(to, true, false);
      outcome.take(tuttiCommCreateGroup(comm, list, 3, &part, nullptr));
      if (part == nullptr) return;
      pass_token(to, false, true);
      int mine = -1;
      outcome.take(tuttiCommUserRank(part, &mine));
      outcome.wrong += mine != place - list;
      check_sum(part, rank, (1 << list[0]) + (1 << list[1]) + (1 << list[2]), outcome);
      outcome.take(tuttiCommFinalize(part));
      outcome.take(tuttiCommDestroy(part));
    }
    tuttiComm_t alone = nullptr;
    outcome.take(tuttiCommCreateGroup(comm, &rank, 1, &alone, nullptr));
    check_sum(alone, rank, 1 << rank, outcome);
    outcome.take(tuttiCommDestroy(alone));
    outcome.take(tuttiCommFinalize(comm));
  }));
}

TEST_CASE("one thread forms a group for several of its ranks") {
  constexpr int n = 3;
  tuttiComm_t comms[n], parts[n] = {};
  REQUIRE(tuttiCommInitAll(comms, n, nullptr) == tuttiSuccess);
  const int list[] = {2, 0};
  CHECK(tuttiGroupStart() == tuttiSuccess);
  for (const int r : list) CHECK(tuttiCommCreateGroup(comms[r], list, 2, &parts[r], nullptr) == tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  for (const int r : list) {
    int count = 0;
    REQUIRE(parts[r] != nullptr);
    CHECK(tuttiCommCount(parts[r], &count) == tuttiSuccess);
    CHECK(count == 2);
    CHECK(tuttiCommDestroy(parts[r]) == tuttiSuccess);
  }
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("members whose lists differ are told both lists") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 2;
  const std::vector<int> others = GENERATE(std::vector<int>{1, 0}, std::vector<int>{0, 1, 2});
  const auto outcomes = run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    const std::vector<int> list = rank == 0 ? std::vector<int>{0, 1} : others;
    tuttiComm_t part = nullptr;
    if (rank < 2)
      outcome.take(tuttiCommCreateGroup(comm, list.data(), static_cast<int>(list.size()), &part, &config));
    else
      outcome.take(tuttiBarrier(comm, nullptr));  // waits for the others, and is told of the error, too
    outcome.wrong += part != nullptr;
  });
  check_both_told(outcomes, tuttiInvalidUsage,
                  {"ranks=[0, 1]", others.size() == 2 ? "ranks=[1, 0]" : "ranks=[0, 1, 2]"});
}

TEST_CASE("members whose long lists differ at the end are told") {
  constexpr int n = 18;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = kSanitized ? 10 : 2;
  const auto outcomes = run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<int> list;
    for (int r = 0; r < n; r++) list.push_back(r);
    if (rank == 0) std::swap(list[16], list[17]);
    tuttiComm_t part = nullptr;
    outcome.take(tuttiCommCreateGroup(comm, list.data(), n, &part, &config));
    outcome.wrong += part != nullptr;
  });
  bool is_told = false;
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code != tuttiSuccess);
    CHECK(outcome.wrong == 0);
    is_told = is_told || (outcome.code == tuttiInvalidUsage && contains(outcome.message, "15, ... (18 ranks)]"));
  }
  CHECK(is_told);
}

TEST_CASE("a listed rank that does not call is missed in time") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 1;
  const int absent = GENERATE(0, 1);
  const bool known = GENERATE(false, true);  // whether a group was formed before, so that there are links
  const auto outcomes = run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    const int list[] = {0, 1};
    tuttiComm_t part = nullptr;
    if (known) outcome.take(tuttiCommCreateGroup(comm, list, 2, &part, nullptr));
    if (known) outcome.take(tuttiCommDestroy(part));
    if (rank != absent) outcome.take(tuttiCommCreateGroup(comm, list, 2, &part, &config));
    outcome.take(tuttiBarrier(comm, nullptr));
    outcome.wrong += rank != absent && part != nullptr;
  });
  // A rank that took part before may be missed only at the new group's meeting.
  const Outcome& waited = outcomes[static_cast<size_t>(1 - absent)];
  INFO(waited.message);
  CHECK(waited.code == tuttiTimeout);
  CHECK(waited.message.find("rank " + std::to_string(absent)) != std::string::npos);
  CHECK(waited.wrong == 0);
  // What was meant for it must not be taken for a part of a later call: the old group is broken.
  CHECK(outcomes[static_cast<size_t>(absent)].code == tuttiTimeout);
}

TEST_CASE("wrong lists are refused, and name what is wrong") {
  require_success(run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const auto refused = [&](std::vector<int> ranks, const std::string& part) {
      tuttiComm_t made = comm;
      const auto code = tuttiCommCreateGroup(comm, ranks.data(), static_cast<int>(ranks.size()), &made, nullptr);
      const std::string message = tuttiGetLastError(nullptr);
      outcome.wrong += code != tuttiInvalidArgument || made != nullptr || message.find(part) == std::string::npos;
    };
    refused({0, 2}, "ranks[1]=2");
    refused({-1, 0}, "ranks[0]=-1");
    refused({0, 0}, "ranks[1]=0");
    refused({1 - rank}, "ranks=[" + std::to_string(1 - rank) + "]");
    refused({0, 1, 0}, "n=3");
    tuttiComm_t made = nullptr;
    const int both[] = {0, 1};
    outcome.wrong += tuttiCommCreateGroup(comm, both, 0, &made, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiCommCreateGroup(comm, nullptr, 2, &made, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiCommCreateGroup(comm, both, 2, nullptr, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiCommCreateGroup(nullptr, both, 2, &made, nullptr) != tuttiInvalidArgument;
    // Before its turn, so that the others wait for its next call.
    tuttiConfig_t misspelt = TUTTI_CONFIG_INITIALIZER;
    misspelt.algo = "rign";
    if (rank == 1) outcome.wrong += tuttiCommCreateGroup(comm, both, 2, &made, &misspelt) != tuttiInvalidUsage;
    outcome.take(tuttiCommCreateGroup(comm, both, 2, &made, nullptr));
    outcome.take(tuttiCommDestroy(made));
  }));
}

TEST_CASE("a group with several ids meets through the first") {
  tuttiUniqueId ids[2] = {new_id(), new_id()};
  tuttiComm_t comms[2] = {};
  CHECK(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < 2; r++) CHECK(tuttiCommInitRankScalable(&comms[r], 2, r, 2, ids, nullptr) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  CHECK(tuttiCommInitRankScalable(nullptr, 2, 0, 2, ids, nullptr) == tuttiInvalidArgument);
  CHECK(std::string(tuttiGetLastError(nullptr)).find("newcomm is NULL") != std::string::npos);
  CHECK(tuttiCommInitRankScalable(comms, 2, 0, 0, ids, nullptr) == tuttiInvalidArgument);
  CHECK(std::string(tuttiGetLastError(nullptr)).find("nId=0") != std::string::npos);
  CHECK(tuttiCommInitRankScalable(comms, 2, 0, 1, nullptr, nullptr) == tuttiInvalidArgument);
  CHECK(std::string(tuttiGetLastError(nullptr)).find("commIds is NULL") != std::string::npos);
  CHECK(tuttiCommInitRankScalable(comms, 2, 2, 2, ids, nullptr) == tuttiInvalidArgument);
  CHECK(std::string(tuttiGetLastError(nullptr)).find("rank=2") != std::string::npos);
  ids[1] = {};
  CHECK(tuttiCommInitRankScalable(comms, 2, 0, 2, ids, nullptr) == tuttiInvalidArgument);
  CHECK(std::string(tuttiGetLastError(nullptr)).find("commIds[1]: these 128 bytes") != std::string::npos);
}

// As if the process that made the second id had ended: nobody listens there.
TEST_CASE("a group meets though another id's root does not answer") {
  constexpr int kRanks = 12;
  tuttiUniqueId ids[2] = {new_id(), new_id()};
  ids[1].internal[5] = 1, ids[1].internal[6] = 0;  // the port in the id
  tuttiComm_t comms[kRanks] = {};
  CHECK(tuttiGroupStart() == tuttiSuccess);
  for (int r = kRanks - 1; r >= 0; r--)
    CHECK(tuttiCommInitRankScalable(&comms[r], kRanks, r, 2, ids, nullptr) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("members of a listed group may come to it later than the limit of who came first: that is for the meeting") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 2;
  const int delays_ms[] = {1200, 0, 2400};  // rank 0 leads
  const int all[] = {0, 1, 2};
  require_success(run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    poll(nullptr, 0, delays_ms[rank]);
    tuttiComm_t part = nullptr;
    outcome.take(tuttiCommCreateGroup(comm, all, 3, &part, &config));
    if (part != nullptr) outcome.take(tuttiCommDestroy(part));
  }));
}

TEST_CASE("the limit of a listed group begins with its leader's turn, not with its call") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 2;
  require_success(run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 1) poll(nullptr, 0, 2500);
    const int both[] = {0, 1};
    int32_t one = 1, sum = 0;
    tuttiStream_t stream = nullptr;
    tuttiComm_t part = nullptr;
    outcome.take(tuttiStreamCreate(&stream));
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, stream));
    outcome.take(tuttiCommCreateGroup(comm, both, 2, &part, &config));
    if (part != nullptr) outcome.take(tuttiCommDestroy(part));
    outcome.take(tuttiStreamSynchronize(stream));
    outcome.take(tuttiStreamDestroy(stream));
  }));
}

TEST_CASE("a rank that cannot start a listed group says why, and the others say which rank that is", "[processes]") {
  Processes ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t part = nullptr;
    const int both[] = {0, 1};
    if (rank == 0) setenv("TUTTI_SOCKET_IFNAME", "nosuchif", 1);
    const tuttiResult_t code = tuttiCommCreateGroup(comm, both, 2, &part, nullptr);
    const char* const says = rank == 0 ? "TUTTI_SOCKET_IFNAME=nosuchif" : "rank 0 could not start the new group";
    outcome.wrong += code != (rank == 0 ? tuttiInvalidUsage : tuttiRemoteError) || part != nullptr;
    outcome.wrong += !contains(tuttiGetLastError(nullptr), says);
    unsetenv("TUTTI_SOCKET_IFNAME");
    outcome.take(tuttiCommCreateGroup(comm, both, 2, &part, nullptr));  // the old group still works
    outcome.take(tuttiCommDestroy(part));
    outcome.take(tuttiCommFinalize(comm));
    outcome.take(tuttiCommDestroy(comm));
  });
  require_success(ranks.wait());
}
