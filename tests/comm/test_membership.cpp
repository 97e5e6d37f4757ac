// Groups that end, shrink and grow, and go on.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "api/creation.h"
#include "comm/gathers.h"
#include "comm/ranks.h"

using namespace tutti_test;

namespace {

constexpr int kFull = 8, kFew = 2;

// Memory that the processes of a test share.
struct Shared {
  std::atomic<int64_t> died_ns{0};
  std::atomic<int> deaths{0}, recovered_ms[kFull], wrong{0}, sums{0}, joined{0}, has_id{0};
  tuttiUniqueId id;
};

template <class T>
T* shared_between_processes() {
  void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return new (memory) T;
}

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

int size_of(tuttiComm_t comm) {
  int n = 0;
  return tuttiCommCount(comm, &n) == tuttiSuccess ? n : -1;
}

int rank_of(tuttiComm_t comm) {
  int rank = -1;
  return tuttiCommUserRank(comm, &rank) == tuttiSuccess ? rank : -1;
}

// All ranks add the same values, so the sum tells how many ranks there were.
tuttiResult_t add_up(tuttiComm_t comm, Shared& shared) {
  std::vector<int> in(1000), out(1000);
  for (size_t i = 0; i < in.size(); i++) in[i] = static_cast<int>(i) % 7 + 1;
  const tuttiResult_t code = tuttiAllReduce(in.data(), out.data(), in.size(), tuttiInt32, tuttiSum, comm, nullptr);
  if (code != tuttiSuccess) return code;
  for (size_t i = 0; i < in.size(); i++)
    if (out[i] != in[i] * size_of(comm)) shared.wrong++;
  shared.sums++;
  return code;
}

// Replaces `comm` by a communicator of the survivors.
tuttiResult_t shrink(tuttiComm_t& comm, const tuttiConfig_t* config = nullptr) {
  tuttiComm_t smaller = nullptr;
  const tuttiResult_t code = tuttiCommShrink(comm, nullptr, 0, &smaller, config, TUTTI_SHRINK_DEFAULT);
  if (code != tuttiSuccess) return code;
  tuttiCommAbort(comm);
  comm = smaller;
  return code;
}

tuttiResult_t grow(tuttiComm_t& comm, int n_ranks, const tuttiUniqueId* id) {
  tuttiComm_t larger = nullptr;
  const tuttiResult_t code = tuttiCommGrow(comm, n_ranks, id, -1, &larger, nullptr);
  if (code != tuttiSuccess) return code;
  tuttiCommDestroy(comm);
  comm = larger;
  return code;
}

// Sums until the group has kFew ranks; the rank whose turn it is dies in the middle.
tuttiResult_t outlive_deaths(tuttiComm_t& comm, Shared& shared) {
  constexpr int kSumsBetweenDeaths = 40;
  for (int size = size_of(comm), sums = 0; size > kFew;) {
    const tuttiResult_t code = add_up(comm, shared);
    if (code == tuttiSuccess && ++sums < kSumsBetweenDeaths) continue;
    if (code == tuttiSuccess && rank_of(comm) == (size * 5 + 3) % size) {
      shared.deaths++;
      shared.died_ns = now_ns();
      kill(getpid(), SIGKILL);
    }
    if (code == tuttiSuccess) continue;
    if (const tuttiResult_t shrunk = shrink(comm); shrunk != tuttiSuccess) return shrunk;
    if (const tuttiResult_t good = add_up(comm, shared); good != tuttiSuccess) return good;
    size = size_of(comm);
    sums = 0;
    shared.recovered_ms[kFull - 1 - size] = static_cast<int>((now_ns() - shared.died_ns) / 1'000'000);
  }
  return tuttiSuccess;
}

tuttiResult_t go_on_together(tuttiComm_t comm, Shared& shared) {
  for (int i = 0; i < 100; i++)
    if (const tuttiResult_t code = add_up(comm, shared); code != tuttiSuccess) return code;
  return tuttiCommFinalize(comm);
}

[[noreturn]] void be_newcomer(int rank, Shared& shared) {
  alarm(kSanitized ? 300 : 60);
  while (shared.has_id == 0) usleep(1000);
  tuttiComm_t comm = nullptr;
  if (tuttiCommGrow(nullptr, kFull, &shared.id, rank, &comm, nullptr) != tuttiSuccess) {
    fprintf(stderr, "%s\n", tuttiGetLastError(nullptr));
    _exit(1);
  }
  shared.joined++;
  _exit(go_on_together(comm, shared) == tuttiSuccess ? 0 : 1);
}

}  // namespace

TEST_CASE("8 ranks sum, die one after another down to 2, and 6 new ones join: no sum is wrong", "[processes]") {
  auto* const shared = shared_between_processes<Shared>();
  wait_for_one_thread();
  std::vector<pid_t> newcomers;
  for (int rank = kFew; rank < kFull; rank++) {
    newcomers.push_back(fork());
    if (newcomers.back() == 0) be_newcomer(rank, *shared);
  }
  Processes group(kFull, [&](int, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(outlive_deaths(comm, *shared));
    if (outcome.code != tuttiSuccess) return;
    const bool leads = rank_of(comm) == 0;
    if (leads) outcome.take(tuttiGetUniqueId(&shared->id));
    if (leads) shared->has_id = 1;
    outcome.take(grow(comm, kFull, leads ? &shared->id : nullptr));
    if (outcome.code == tuttiSuccess) outcome.take(go_on_together(comm, *shared));
  });
  int went_on = 0;
  for (const Outcome& outcome : group.wait()) {
    if (outcome.code == tuttiNumResults) continue;  // it died
    INFO(outcome.message);
    CHECK(outcome.code == tuttiSuccess);
    went_on++;
  }
  for (const pid_t pid : newcomers) {
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
  }
  CHECK(went_on == kFew);
  CHECK(shared->deaths == kFull - kFew);
  CHECK(shared->joined == kFull - kFew);
  CHECK(shared->wrong == 0);
  std::vector<int> ms(shared->recovered_ms, shared->recovered_ms + kFull - kFew);
  std::sort(ms.begin(), ms.end());
  printf("%d sums, %d deaths; the first good sum after a death came within %d ms (median; at most %d)\n",
         shared->sums.load(), shared->deaths.load(), ms[ms.size() / 2], ms.back());
  fflush(stdout);  // else a child prints it again
}

TEST_CASE("revoked: all ranks' operations end, whatever they are in, and all of them can go on together") {
  std::atomic<int> waiting{0};
  const auto outcomes = run_threads(4, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    float value = 1, sum = 0;
    outcome.take(tuttiAllReduce(&value, &sum, 1, tuttiFloat, tuttiSum, comm, nullptr));
    if (rank == 0) {
      while (waiting < 3) std::this_thread::yield();
      usleep(20'000);
      outcome.take(tuttiCommRevoke(comm, 0));
      outcome.take(tuttiCommRevoke(comm, 0));  // a second revoke changes nothing
    }
    waiting++;
    const tuttiResult_t code = rank == 1 ? tuttiRecv(&value, 1, tuttiFloat, 0, comm, nullptr)
                                         : tuttiAllReduce(&value, &sum, 1, tuttiFloat, tuttiSum, comm, nullptr);
    const std::string why = tuttiGetLastError(nullptr);
    if (code != (rank == 0 ? tuttiInvalidUsage : tuttiRemoteError) || !contains(why, "tuttiCommRevoke")) {
      outcome.code = tuttiInternalError;
      outcome.message = why;
    }
    tuttiComm_t again = nullptr;
    outcome.take(tuttiCommShrink(comm, nullptr, 0, &again, nullptr, TUTTI_SHRINK_DEFAULT));
    if (again == nullptr) return;
    outcome.take(tuttiAllReduce(&value, &sum, 1, tuttiFloat, tuttiSum, again, nullptr));
    outcome.wrong = sum != 4 || size_of(again) != 4;
    outcome.take(tuttiCommFinalize(again));
    outcome.take(tuttiCommDestroy(again));
  });
  for (size_t r = 0; r < outcomes.size(); r++) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].wrong == 0);
    // The error comes from the end of the revoked communicator.
    CHECK(outcomes[r].code == (r == 0 ? tuttiInvalidUsage : tuttiRemoteError));
    CHECK(contains(outcomes[r].message, "tuttiCommRevoke"));
  }
}

TEST_CASE("with config.majority only the greater part goes on, or the half with the lowest rank", "[processes]") {
  struct Case {
    std::vector<int> die;
    bool goes_on, only_2_asks = false;
  };
  const Case c = GENERATE(Case{{3}, true}, Case{{0}, true}, Case{{2, 3}, true}, Case{{0, 1}, false},
                          Case{{1, 2, 3}, false}, Case{{0, 1}, false, true});
  auto* const shared = shared_between_processes<Shared>();
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.majority = c.only_2_asks ? 0 : 1;
  Processes group(
      4,
      [&](int rank, tuttiComm_t comm, Outcome& outcome) {
        outcome.take(add_up(comm, *shared));
        shared->joined++;
        while (shared->joined < 4) usleep(1000);
        if (std::find(c.die.begin(), c.die.end(), rank) != c.die.end()) kill(getpid(), SIGKILL);
        while (add_up(comm, *shared) == tuttiSuccess) continue;
        tuttiConfig_t smaller = config;
        if (rank == 2) smaller.majority = 1;
        outcome.take(shrink(comm, &smaller));
        if (outcome.code == tuttiSuccess) outcome.take(add_up(comm, *shared));
        // Others may not have finished that sum yet.
        if (outcome.code == tuttiSuccess) outcome.take(tuttiCommFinalize(comm));
      },
      &config);
  const auto outcomes = group.wait();
  for (size_t r = 0; r < outcomes.size(); r++) {
    if (std::find(c.die.begin(), c.die.end(), static_cast<int>(r)) != c.die.end()) continue;
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == (c.goes_on ? tuttiSuccess : tuttiRemoteError));
    if (!c.goes_on) CHECK(contains(outcomes[r].message, "not a majority"));
  }
  CHECK(shared->wrong == 0);
}

TEST_CASE("tuttiCommAbort ends a tuttiCommShrink or tuttiCommGrow that waits for ranks that do not call it") {
  const bool grows = GENERATE(false, true);
  setenv("TUTTI_INIT_TIMEOUT", "20", 1);  // see id_of_few()
  const tuttiUniqueId id = new_id();
  unsetenv("TUTTI_INIT_TIMEOUT");
  std::atomic<bool> ended{false};
  const auto outcomes = run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank > 0 && !grows) {  // calls nothing
      while (!ended) usleep(1000);
      return;
    }
    tuttiComm_t made = nullptr;
    tuttiResult_t code = tuttiSuccess;
    std::thread waits([&] {
      code = grows ? tuttiCommGrow(comm, 4, &id, -1, &made, nullptr)
                   : tuttiCommShrink(comm, nullptr, 0, &made, nullptr, TUTTI_SHRINK_DEFAULT);
      outcome.message = tuttiGetLastError(nullptr);
    });
    usleep(100'000);  // usually the thread waits by now; else its call is refused
    outcome.take(tuttiCommAbort(comm));
    waits.join();
    outcome.wrong += made != nullptr || code == tuttiSuccess || code == tuttiTimeout;
    ended = true;
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.wrong == 0);
  }
}

TEST_CASE("what tuttiCommGrow and tuttiCommRevoke cannot mean is refused, and the communicator goes on") {
  const auto outcomes = run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t newcomm = comm;
    tuttiUniqueId id{};
    const auto refuses = [&](tuttiResult_t code, tuttiResult_t expected, const char* why) {
      const std::string said = tuttiGetLastError(nullptr);
      if (code == expected && contains(said, why)) return;
      outcome.wrong++;
      outcome.message += said + "; ";
    };
    refuses(tuttiCommGrow(comm, 3, nullptr, -1, nullptr, nullptr), tuttiInvalidArgument, "newcomm is NULL");
    refuses(tuttiCommGrow(comm, 1, nullptr, -1, &newcomm, nullptr), tuttiInvalidArgument, "nRanks=1");
    refuses(tuttiCommGrow(comm, 3, nullptr, 1 - rank, &newcomm, nullptr), tuttiInvalidArgument, "keep their number");
    refuses(tuttiCommGrow(nullptr, 3, nullptr, 2, &newcomm, nullptr), tuttiInvalidArgument, "uniqueId is NULL");
    refuses(tuttiCommGrow(nullptr, 3, &id, 2, &newcomm, nullptr), tuttiInvalidArgument, "uniqueId is NULL");
    id.internal[0] = 1;
    refuses(tuttiCommGrow(nullptr, 3, &id, 3, &newcomm, nullptr), tuttiInvalidArgument, "rank=3");
    refuses(tuttiCommGrow(nullptr, 3, &id, 0, &newcomm, nullptr), tuttiInvalidArgument, "rank=0");
    refuses(tuttiCommGrow(comm, 3, nullptr, -1, &newcomm, nullptr), tuttiInvalidUsage, "no rank of comm gave");
    id.internal[0] = static_cast<char>(rank + 1);
    refuses(tuttiCommGrow(comm, 3, &id, -1, &newcomm, nullptr), tuttiInvalidUsage, "different uniqueIds");
    refuses(tuttiCommRevoke(comm, 1), tuttiInvalidArgument, "revokeFlags=1");
    refuses(tuttiCommRevoke(nullptr, 0), tuttiInvalidArgument, "comm");
    float one = 1, sum = 0;
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiFloat, tuttiSum, comm, nullptr));
    outcome.wrong += sum != 2;
    outcome.take(tuttiCommFinalize(comm));
  });
  require_success(outcomes);
}

TEST_CASE("any rank of a communicator may be the one that gives the id by which that grows") {
  const tuttiUniqueId id = new_id();
  require_success(run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t made = nullptr;
    outcome.take(tuttiCommGrow(comm, 2, rank == 1 ? &id : nullptr, -1, &made, nullptr));
    outcome.wrong += made == nullptr;
    if (made == nullptr) return;
    outcome.take(tuttiBarrier(made, nullptr));
    outcome.take(tuttiCommDestroy(made));
  }));
}

// Rank 1 does its part of a split or growth on the old communicator, and dies before it gets to the new one, or
// revokes.
TEST_CASE("a rank that dies or revokes on its way to a new group is named soon, not after the limit for creations",
          "[processes]") {
  const bool splits = GENERATE(true, false), dies = GENERATE(true, false);
  Processes group(3, [splits, dies](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 1) {
      std::vector<char> mine(128), all(3 * mine.size());
      const tutti::RedOp purpose = splits ? tutti::kGathersForSplit : tutti::kGathersForGrowth;
      if (splits) gather_for(purpose, mine.data(), all.data(), 8, comm);
      gather_for(purpose, mine.data(), all.data(), mine.size(), comm);
      usleep(100000);  // until the others have all of its data
      if (dies) raise(SIGKILL);
      tuttiComm_t left = nullptr;
      outcome.take(tuttiCommRevoke(comm, 0));
      outcome.take(tuttiCommShrink(comm, nullptr, 0, &left, nullptr, TUTTI_SHRINK_DEFAULT));
      outcome.take(tuttiCommDestroy(left));
      return;
    }
    tuttiUniqueId id{};
    if (rank == 0 && !splits) outcome.take(tuttiGetUniqueId(&id));
    tuttiComm_t made = nullptr;
    const double begin = now_seconds();
    const tuttiResult_t code = splits ? tuttiCommSplit(comm, 0, 0, &made, nullptr)
                                      : tuttiCommGrow(comm, 3, rank == 0 ? &id : nullptr, -1, &made, nullptr);
    outcome.wrong += code != tuttiRemoteError || now_seconds() - begin > 30;
    outcome.wrong += !contains(tuttiGetLastError(nullptr), "rank 1 (");
    outcome.wrong += !dies && !contains(tuttiGetLastError(nullptr), "tuttiCommRevoke");
    outcome.take(tuttiCommShrink(comm, nullptr, 0, &made, nullptr, TUTTI_SHRINK_DEFAULT));
    outcome.take(tuttiCommDestroy(made));
  });
  const auto outcomes = group.wait();
  for (const int rank : {0, 1, 2}) {
    if (dies && rank == 1) continue;
    INFO(outcomes[static_cast<size_t>(rank)].message);
    CHECK(outcomes[static_cast<size_t>(rank)].code == tuttiSuccess);
    CHECK(outcomes[static_cast<size_t>(rank)].wrong == 0);
  }
}

TEST_CASE("how long ranks on their way to a new group are waited for depends on which rank was lost", "[processes]") {
  auto* const shared = shared_between_processes<Shared>();
  Processes group(3, [shared](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 2) {
      while (shared->joined < 2) usleep(1000);
      raise(SIGKILL);
    }
    const auto from = tutti::api::source_of(comm, nullptr, 0).value();
    outcome.wrong += from->patience_ns({0, 1}) != INT64_MAX;
    shared->joined++;
    tuttiResult_t state = tuttiSuccess;
    while (state == tuttiSuccess) outcome.take(tuttiCommGetAsyncError(comm, &state));
    const int64_t of_others = from->patience_ns({0, 1}), of_members = from->patience_ns({1, 2});
    outcome.wrong += of_others < 2'000'000'000 || of_others > 30'000'000'000;
    outcome.wrong += of_members > of_others;
    shared->sums++;
    while (shared->sums < 2) usleep(1000);  // or the other one would see this one end
  });
  const auto outcomes = group.wait();
  for (const size_t rank : {0, 1}) {
    INFO(outcomes[rank].message);
    CHECK(outcomes[rank].code == tuttiSuccess);
    CHECK(outcomes[rank].wrong == 0);
  }
}

TEST_CASE("who waits to join a group is told when that loses a rank and cannot grow", "[processes]") {
  struct Told {
    std::atomic<int> has_id{0};
    tuttiUniqueId id;
    tuttiResult_t code;
    double seconds;
    char why[512];
  };
  auto* const told = shared_between_processes<Told>();
  wait_for_one_thread();
  const pid_t newcomer = fork();
  if (newcomer == 0) {
    alarm(kSanitized ? 300 : 60);
    while (told->has_id == 0) usleep(1000);
    tuttiComm_t comm = nullptr;
    const double begin = now_seconds();
    told->code = tuttiCommGrow(nullptr, 3, &told->id, 2, &comm, nullptr);
    told->seconds = now_seconds() - begin;
    snprintf(told->why, sizeof told->why, "%s", tuttiGetLastError(nullptr));
    _exit(0);
  }
  Processes group(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 1) {
      while (told->has_id == 0) usleep(1000);
      usleep(300'000);  // usually the newcomer waits by then
      raise(SIGKILL);
    }
    outcome.take(tuttiGetUniqueId(&told->id));
    told->has_id = 1;
    tuttiComm_t made = nullptr;
    outcome.wrong += tuttiCommGrow(comm, 3, &told->id, -1, &made, nullptr) != tuttiRemoteError;
    outcome.wrong += !contains(tuttiGetLastError(nullptr), "rank 1 (");
    outcome.take(tuttiCommAbort(comm));
  });
  const Outcome outcome = group.wait()[0];
  INFO(outcome.message);
  CHECK(outcome.code == tuttiSuccess);
  CHECK(outcome.wrong == 0);
  int status = 0;
  waitpid(newcomer, &status, 0);
  CHECK(status == 0);
  INFO(told->why);
  CHECK(told->code == tuttiRemoteError);
  CHECK(contains(told->why, "rank 1 ("));
  CHECK(told->seconds < 30);  // the limit for creations is 60
}

// A program may load its model between the two.
TEST_CASE("an id may be used long after the limit for creations") {
  setenv("TUTTI_INIT_TIMEOUT", "1", 1);
  tuttiUniqueId id{};
  const tuttiResult_t made = tuttiGetUniqueId(&id);
  unsetenv("TUTTI_INIT_TIMEOUT");
  REQUIRE(made == tuttiSuccess);
  sleep(4);  // its limit, and the root's last words
  tuttiComm_t comms[2] = {};
  std::thread other([&] { (void)tuttiCommInitRank(&comms[1], 2, id, 1); });
  const tuttiResult_t joined = tuttiCommInitRank(&comms[0], 2, id, 0);
  other.join();
  CHECK(joined == tuttiSuccess);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommAbort(comm) == tuttiSuccess);
}

TEST_CASE("an abort ends a growth that is being called off", "[processes]") {
  auto* const shared = shared_between_processes<Shared>();
  Processes group(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 1) {  // its process has the meeting
      outcome.take(tuttiGetUniqueId(&shared->id));
      shared->has_id = 1;
      raise(SIGKILL);
    }
    while (shared->has_id == 0) usleep(1000);
    std::thread aborter([&] {
      tuttiResult_t error = tuttiSuccess;
      while (error == tuttiSuccess && tuttiCommGetAsyncError(comm, &error) == tuttiSuccess) usleep(1000);
      usleep(300'000);  // by then the growth is being called off, which takes five seconds
      const double begin = now_seconds();
      outcome.take(tuttiCommAbort(comm));
      outcome.seconds = now_seconds() - begin;
    });
    tuttiComm_t made = nullptr;
    outcome.wrong += tuttiCommGrow(comm, 3, &shared->id, -1, &made, nullptr) == tuttiSuccess;
    outcome.wrong += !contains(tuttiGetLastError(nullptr), "tuttiCommAbort was called");
    aborter.join();
  });
  const Outcome outcome = group.wait()[0];
  INFO(outcome.message);
  CHECK(outcome.code == tuttiSuccess);
  CHECK(outcome.wrong == 0);
  CHECK(outcome.seconds < 3);
}
