// The survivors go on: new communicators out of old ones that lost ranks, or that leave some behind.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "comm/gathers.h"
#include "comm/ranks.h"

using namespace tutti_test;

namespace {

tuttiResult_t shrink(tuttiComm_t comm, std::vector<int> excluded, tuttiComm_t* left, int flags = TUTTI_SHRINK_DEFAULT,
                     const tuttiConfig_t* config = nullptr) {
  return tuttiCommShrink(comm, excluded.data(), static_cast<int>(excluded.size()), left, config, flags);
}

// Checks that `comm` has `want_count` ranks, that this is rank `want_rank`, and that small and large sums are right.
void check_works(tuttiComm_t comm, int want_rank, int want_count, Outcome& outcome) {
  int rank = -1, count = -1;
  outcome.take(tuttiCommUserRank(comm, &rank));
  outcome.take(tuttiCommCount(comm, &count));
  outcome.wrong += rank != want_rank || count != want_count;
  for (const size_t n : {size_t{1}, size_t{100'003}}) {
    const std::vector<int32_t> mine(n, rank + 1);
    std::vector<int32_t> sum(n, -1);
    outcome.take(tuttiAllReduce(mine.data(), sum.data(), n, tuttiInt32, tuttiSum, comm, nullptr));
    const std::vector<int32_t> want(n, count * (count + 1) / 2);
    outcome.wrong += sum != want;
  }
}

tuttiResult_t work(tuttiComm_t comm) {
  std::vector<float> data(1000, 1.0f);
  return tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiMax, comm, nullptr);
}

// Works until an operation fails, which only the loss of a rank may cause.
void work_until_loss(tuttiComm_t comm, Outcome& outcome) {
  tuttiResult_t code = tuttiSuccess;
  while (code == tuttiSuccess) code = work(comm);
  outcome.wrong += code != tuttiRemoteError;
}

// The sum returns once all others are at work, too, and have finished everything that must not fail.
void work_and_die(tuttiComm_t comm) {
  work(comm);
  raise(SIGKILL);
}

// The ranks that the library reports as lost; waits for the first of them.
std::vector<int> lost_ranks(tuttiComm_t comm, int n, Outcome& outcome) {
  std::vector<int> lost(static_cast<size_t>(n));
  int count = 0;
  for (const double end = now_seconds() + 30; count == 0 && now_seconds() < end; usleep(1000))
    outcome.take(tuttiCommLostRanks(comm, lost.data(), &count));
  lost.resize(static_cast<size_t>(count));
  return lost;
}

}  // namespace

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("after a rank was killed the others shrink and go on, also once more", "[processes]") {
  const char* transports = GENERATE("shm", "tcp");
  const int first = GENERATE(0, 2);
  const int flags = GENERATE(TUTTI_SHRINK_DEFAULT, TUTTI_SHRINK_ABORT);
  INFO("rank " << first << " dies over " << transports << ", flags " << flags);
  setenv("TUTTI_TRANSPORTS", transports, 1);
  Processes ranks(5, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    check_works(comm, rank, 5, outcome);
    if (rank == first) work_and_die(comm);
    work_until_loss(comm, outcome);
    tuttiComm_t four = nullptr, three = nullptr;
    const auto lost = lost_ranks(comm, 5, outcome);
    outcome.wrong += lost != std::vector<int>{first};
    outcome.take(shrink(comm, lost, &four, flags));
    if (four == nullptr) return;
    const int in_four = rank - (rank > first ? 1 : 0);
    check_works(four, in_four, 4, outcome);
    if (in_four == 1) work_and_die(four);
    work_until_loss(four, outcome);
    outcome.take(shrink(four, lost_ranks(four, 4, outcome), &three, flags));
    if (three == nullptr) return;
    check_works(three, in_four == 0 ? 0 : in_four - 1, 3, outcome);
    outcome.wrong += tuttiCommDestroy(comm) == tuttiSuccess;  // it reports why it broke
    outcome.wrong += tuttiCommDestroy(four) == tuttiSuccess;
    outcome.take(tuttiCommFinalize(three));
    outcome.take(tuttiCommDestroy(three));
  });
  unsetenv("TUTTI_TRANSPORTS");
  const auto outcomes = ranks.wait();
  const int second = first == 0 ? 2 : 1;
  for (int r = 0; r < 5; r++) {
    const Outcome& outcome = outcomes[static_cast<size_t>(r)];
    INFO("rank " << r << ": " << outcome.message);
    CHECK(outcome.code == (r == first || r == second ? tuttiNumResults : tuttiSuccess));
    CHECK(outcome.wrong == 0);
  }
}
#endif

#ifndef TUTTI_TEST_TSAN
TEST_CASE("of several ranks that die at about the same time all others learn", "[processes]") {
  Processes ranks(7, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    check_works(comm, rank, 7, outcome);
    if (rank == 1 || rank == 2) work_and_die(comm);
    work_until_loss(comm, outcome);
    int lost[7] = {}, count = 0;
    for (const double end = now_seconds() + 30; count < 2 && now_seconds() < end; usleep(1000))
      outcome.take(tuttiCommLostRanks(comm, lost, &count));
    outcome.wrong += count != 2 || lost[0] + lost[1] != 3 || lost[0] * lost[1] != 2;
    tuttiComm_t left = nullptr;
    outcome.take(shrink(comm, {lost, lost + count}, &left, TUTTI_SHRINK_DEFAULT));
    if (left == nullptr) return;
    outcome.take(tuttiCommFinalize(left));
    outcome.take(tuttiCommDestroy(left));
    static_cast<void>(tuttiCommDestroy(comm));
  });
  const auto outcomes = ranks.wait();
  for (const size_t r : {0u, 3u, 4u, 5u, 6u}) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == tuttiSuccess);
    CHECK(outcomes[r].wrong == 0);
  }
}

TEST_CASE("who left because of a death is lost after the dead, on every rank", "[processes]") {
  Processes ranks(7, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    check_works(comm, rank, 7, outcome);
    if (rank == 5) work_and_die(comm);
    work_until_loss(comm, outcome);
    if (rank == 1) return;
    int lost[7] = {}, count = 0;
    for (const double end = now_seconds() + 30; count < 2 && now_seconds() < end; usleep(1000))
      outcome.take(tuttiCommLostRanks(comm, lost, &count));
    outcome.wrong += count < 2 || lost[0] != 5;
  });
  const auto outcomes = ranks.wait();
  for (const size_t r : {0u, 2u, 3u, 4u, 6u}) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == tuttiSuccess);
    CHECK(outcomes[r].wrong == 0);
  }
}

TEST_CASE("a shrink with a list fails if another rank is lost, and names that", "[processes]") {
  Processes ranks(4, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    check_works(comm, rank, 4, outcome);
    if (rank == 3) work_and_die(comm);
    work_until_loss(comm, outcome);
    if (rank == 2) return;  // it is on the list, so it must not call
    tuttiComm_t left = nullptr;
    outcome.take(shrink(comm, {2}, &left));
    outcome.wrong += left != nullptr;
  });
  const auto outcomes = ranks.wait();
  for (const size_t r : {0u, 1u}) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == tuttiRemoteError);
    CHECK(contains(outcomes[r].message, "rank 3 (host "));
    CHECK(contains(outcomes[r].message, "is lost and not in excludeRanksList"));
    CHECK(outcomes[r].wrong == 0);
  }
}

// Rank 2 joins the new group and dies there, while rank 0 waits there for rank 1, which takes part in the split's
// all-gather only: so the new group may well know of the death before the old one does.
TEST_CASE("who dies in the middle of a split is lost when the others' split returns", "[processes]") {
  Processes ranks(3, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t made = nullptr;
    if (rank == 1) {
      const std::array<char, sizeof(tuttiUniqueId)> nothing{};
      std::array<char, 3 * sizeof(tuttiUniqueId)> all;
      for (const size_t bytes : {2 * sizeof(int32_t), sizeof(tuttiUniqueId)})
        outcome.take(gather_for(tutti::kGathersForSplit, nothing.data(), all.data(), bytes, comm));
      return lost_ranks(comm, 3, outcome), void();
    }
    std::thread death([rank] {
      usleep(300'000);
      if (rank == 2) raise(SIGKILL);
    });
    outcome.wrong += tuttiCommSplit(comm, 0, rank, &made, nullptr) == tuttiSuccess;
    int lost[3] = {}, count = 0;
    outcome.take(tuttiCommLostRanks(comm, lost, &count));
    outcome.wrong += std::count(lost, lost + count, 2) != 1;  // and perhaps rank 1, which has learned of it and left
    death.join();
  });
  const auto outcomes = ranks.wait();
  for (const size_t r : {0u, 1u}) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == tuttiSuccess);
    CHECK(outcomes[r].wrong == 0);
  }
}
#endif

TEST_CASE("lost ranks: nobody where all live, and wrong arguments") {
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    int lost[2], count = -1;
    outcome.take(tuttiCommLostRanks(comm, lost, &count));
    outcome.wrong += count != 0;
    outcome.wrong += tuttiCommLostRanks(comm, nullptr, &count) != tuttiInvalidArgument;
    outcome.wrong += tuttiCommLostRanks(comm, lost, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiCommLostRanks(nullptr, lost, &count) != tuttiInvalidArgument;
    outcome.take(tuttiCommFinalize(comm));
  }));
}

TEST_CASE("a communicator that works is shrunk beside its operations, as often as one likes") {
  require_success(run_threads(5, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const bool stays = rank % 2 == 0;
    for (int i = 0; i < 2 && stays; i++) {
      tuttiComm_t left = nullptr;
      outcome.take(shrink(comm, {3, 1}, &left));
      if (left == nullptr) return;
      check_works(left, rank / 2, 3, outcome);
      outcome.take(tuttiCommFinalize(left));
      outcome.take(tuttiCommDestroy(left));
    }
    check_works(comm, rank, 5, outcome);
    tuttiComm_t all = nullptr;
    outcome.take(tuttiCommShrink(comm, nullptr, 0, &all, nullptr, TUTTI_SHRINK_DEFAULT));
    if (all == nullptr) return;
    check_works(all, rank, 5, outcome);
    outcome.take(tuttiCommDestroy(all));
  }));
}

TEST_CASE("a shrink with abort ends what is stuck, here and at the ranks that are left out") {
  const auto outcomes = run_threads(3, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    float value = 1;
    check_works(comm, rank, 3, outcome);
    if (rank == 1) {  // waits for the others, which never call
      outcome.wrong += tuttiAllReduce(&value, &value, 1, tuttiFloat, tuttiSum, comm, nullptr) != tuttiRemoteError;
      outcome.wrong += !contains(tuttiGetLastError(nullptr), "tuttiCommShrink with TUTTI_SHRINK_ABORT");
      return;
    }
    std::thread stuck([&] {
      float mine = 1;
      const auto code = tuttiRecv(&mine, 1, tuttiFloat, 1, comm, nullptr);
      if (code != tuttiInvalidUsage && code != tuttiRemoteError) outcome.wrong++;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    tuttiComm_t left = nullptr;
    outcome.take(shrink(comm, {1}, &left, TUTTI_SHRINK_ABORT));
    stuck.join();
    if (left == nullptr) return;
    check_works(left, rank / 2, 2, outcome);
    outcome.take(tuttiCommDestroy(left));
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.wrong == 0);
    CHECK(outcome.code != tuttiSuccess);  // from tuttiCommDestroy: the old communicator was aborted
    CHECK(contains(outcome.message, "TUTTI_SHRINK_ABORT"));
  }
}

TEST_CASE("a communicator that breaks while it is finalized can be shrunk") {
  std::atomic<int> finalizing{0};
  const auto outcomes = run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    check_works(comm, rank, 3, outcome);
    if (rank == 2) {
      while (finalizing < 2) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // usually they wait for this rank by now
      outcome.take(tuttiCommRevoke(comm, 0));
    } else {
      finalizing++;
      outcome.wrong += tuttiCommFinalize(comm) != tuttiRemoteError;
      outcome.wrong += tuttiCommFinalize(comm) != tuttiRemoteError;  // the error stays
    }
    tuttiComm_t left = nullptr;
    outcome.take(tuttiCommShrink(comm, nullptr, 0, &left, nullptr, TUTTI_SHRINK_DEFAULT));
    outcome.wrong += left == nullptr;
    if (left == nullptr) return;
    check_works(left, rank, 3, outcome);
    outcome.take(tuttiCommDestroy(left));
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.wrong == 0);
    CHECK(contains(outcome.message, "tuttiCommRevoke"));  // from tuttiCommDestroy: the old communicator was revoked
  }
}

TEST_CASE("a shrink goes on in the background, and a group holds the ranks of one thread") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  require_success(run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 0) return;
    tuttiComm_t left = nullptr;
    outcome.wrong += shrink(comm, {0}, &left, TUTTI_SHRINK_DEFAULT, &config) != tuttiInProgress;
    tuttiResult_t state = tuttiInProgress;
    while (state == tuttiInProgress) outcome.take(tuttiCommGetAsyncError(left, &state));
    outcome.take(state);
    check_works(left, rank - 1, 2, outcome);
    tuttiComm_t again = nullptr;  // non-blocking, like its parent
    outcome.wrong += tuttiCommShrink(left, nullptr, 0, &again, nullptr, TUTTI_SHRINK_DEFAULT) != tuttiInProgress;
    outcome.take(tuttiCommDestroy(again));
    outcome.take(tuttiCommDestroy(left));
  }));
  tuttiComm_t all[3], left[2] = {nullptr, nullptr};
  REQUIRE(tuttiCommInitAll(all, 3, nullptr) == tuttiSuccess);
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < 2; r++) REQUIRE(shrink(all[r], {2}, &left[r]) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  for (int r = 0; r < 2; r++) {
    int rank = -1;
    REQUIRE(tuttiCommUserRank(left[r], &rank) == tuttiSuccess);
    CHECK(rank == r);
    CHECK(tuttiCommDestroy(left[r]) == tuttiSuccess);
  }
  for (tuttiComm_t comm : all) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a rank that does not come to a shrink, or means another, is named in time") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 1;
  std::atomic<int> done{0};
  const bool differs = GENERATE(false, true);
  std::array<tuttiResult_t, 4> again{};
  const auto outcomes = run_threads(4, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t left = nullptr;
    if (rank == 1 || rank == 2) outcome.take(shrink(comm, {0}, &left, TUTTI_SHRINK_DEFAULT, &config));
    if (rank == 3 && differs) outcome.take(shrink(comm, {0, 2}, &left, TUTTI_SHRINK_DEFAULT, &config));
    outcome.wrong += left != nullptr;
    done++;
    while (done < 4) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (rank == 0) return;
    // Their failed attempts are forgotten: they can agree now, though one of them comes later.
    if (rank != 3) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    again[static_cast<size_t>(rank)] = shrink(comm, {0}, &left);
    Outcome works;
    if (left != nullptr) check_works(left, rank - 1, 3, works);
    if (left != nullptr) works.take(tuttiCommDestroy(left));
    outcome.wrong += works.wrong + (works.code != tuttiSuccess ? 1 : 0);
  });
  for (size_t r = 1; r < (differs ? 4 : 3); r++) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == tuttiTimeout);
    CHECK(contains(outcomes[r].message, r == 3 ? "rank 1 (host" : "rank 3 (host"));
    CHECK(contains(outcomes[r].message, "is alive but did not take part in time"));
    CHECK(contains(outcomes[r].message, "give the same excludeRanksList"));
    CHECK(outcomes[r].wrong == 0);
  }
  for (const tuttiResult_t code : again) CHECK(code == tuttiSuccess);
}

TEST_CASE("ranks that cannot reach each other in a shrink are told why, without waiting for its limit") {
  const auto outcomes = run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.transports = rank == 0 ? "shm" : "tcp";
    tuttiComm_t left = nullptr;
    outcome.take(tuttiCommShrink(comm, nullptr, 0, &left, &config, TUTTI_SHRINK_DEFAULT));
    outcome.wrong = left != nullptr;
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiRemoteError);
    CHECK(contains(outcome.message, "no transport"));
    CHECK(outcome.wrong == 0);
  }
}

TEST_CASE("what a shrink is asked for wrongly") {
  tuttiComm_t comms[2], left = nullptr;
  REQUIRE(tuttiCommInitAll(comms, 2, nullptr) == tuttiSuccess);
  const auto refused = [&](tuttiResult_t code, const char* part, const std::function<tuttiResult_t()>& call) {
    left = comms[0];
    CHECK(call() == code);
    INFO(tuttiGetLastError(nullptr));
    CHECK(contains(tuttiGetLastError(nullptr), part));
    CHECK((left == nullptr || left == comms[0]));
  };
  refused(tuttiInvalidArgument, "excludeRanksList[0]=2", [&] { return shrink(comms[0], {2}, &left); });
  refused(tuttiInvalidArgument, "excludeRanksList[0]=-1", [&] { return shrink(comms[0], {-1}, &left); });
  refused(tuttiInvalidArgument, "excludeRanksList has 0, this rank", [&] { return shrink(comms[0], {0}, &left); });
  refused(tuttiInvalidArgument, "excludeRanksCount=2", [&] { return shrink(comms[0], {1, 1}, &left); });
  refused(tuttiInvalidArgument, "excludeRanksCount=-1",
          [&] { return tuttiCommShrink(comms[0], nullptr, -1, &left, nullptr, 0); });
  refused(tuttiInvalidArgument, "excludeRanksList is NULL",
          [&] { return tuttiCommShrink(comms[0], nullptr, 1, &left, nullptr, 0); });
  refused(tuttiInvalidArgument, "newcomm is NULL", [&] { return shrink(comms[0], {1}, nullptr); });
  refused(tuttiInvalidArgument, "comm is NULL", [&] { return shrink(nullptr, {1}, &left); });
  refused(tuttiInvalidArgument, "shrinkFlags=2", [&] { return shrink(comms[0], {1}, &left, 2); });
  REQUIRE(shrink(comms[0], {1}, &left) == tuttiSuccess);  // a group of one rank
  CHECK(tuttiCommFinalize(left) == tuttiSuccess);
  tuttiComm_t none = nullptr;
  CHECK(tuttiCommShrink(left, nullptr, 0, &none, nullptr, 0) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "was finalized"));
  CHECK(tuttiCommDestroy(left) == tuttiSuccess);
  CHECK(tuttiGroupStart() == tuttiSuccess);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommFinalize(comm) == tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  CHECK(shrink(comms[0], {1}, &none) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "was finalized"));
  CHECK_FALSE(contains(tuttiGetLastError(nullptr), "excludeRanksList"));  // the list has nothing to do with it
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a shrink with abort that is in a group ends nothing if that does not run") {
  tuttiComm_t comm = nullptr, left = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  CHECK(tuttiCommShrink(comm, nullptr, 0, &left, nullptr, TUTTI_SHRINK_ABORT) == tuttiSuccess);
  CHECK(tuttiBarrier(nullptr, nullptr) == tuttiInvalidArgument);
  CHECK(tuttiGroupEnd() == tuttiInvalidArgument);
  CHECK(left == nullptr);
  CHECK(work(comm) == tuttiSuccess);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}
