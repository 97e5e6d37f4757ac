// Creation and finalization in the background.
#include <poll.h>

#include <atomic>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

tuttiConfig_t non_blocking() {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// Polls until it is done, like a program that has other things to do.
tuttiResult_t outcome_of(tuttiComm_t comm) {
  tuttiResult_t state = tuttiInProgress;
  for (const double end = now_seconds() + 60; state == tuttiInProgress && now_seconds() < end; poll(nullptr, 0, 1))
    if (tuttiCommGetAsyncError(comm, &state) != tuttiSuccess) return tuttiNumResults;
  return state;
}

bool mentions(const char* text) {
  return std::string(tuttiGetLastError(nullptr)).find(text) != std::string::npos;
}

// How many calls that need a finished communicator are not refused with the reason.
size_t wrongly_usable(tuttiComm_t comm) {
  int number = -1;
  float data = 1;
  const auto refused = [](tuttiResult_t result) {
    return result == tuttiInvalidUsage && mentions("still in progress");
  };
  size_t wrong = !refused(tuttiCommCount(comm, &number)) + !refused(tuttiCommUserRank(comm, &number));
  wrong += !refused(tuttiAllReduce(&data, &data, 1, tuttiFloat, tuttiSum, comm, nullptr));
  wrong += !refused(tuttiCommFinalize(comm));
  void* handle = nullptr;
  wrong += !refused(tuttiCommRegister(comm, &data, sizeof data, &handle)) + (handle != nullptr);
  wrong += !refused(tuttiCommDeregister(comm, &data));
  return wrong + (number != -1) + (data != 1);
}

}  // namespace

TEST_CASE("one thread creates, uses and finalizes all ranks in the background") {
  constexpr int n = 3;
  const tuttiConfig_t config = non_blocking();
  const tuttiUniqueId id = new_id();
  tuttiComm_t comms[n] = {};
  const bool grouped = GENERATE(false, true);
  if (grouped) REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < n; r++) {
    CHECK(tuttiCommInitRankConfig(&comms[r], n, id, r, &config) == tuttiInProgress);
    REQUIRE(comms[r] != nullptr);
    if (r == 0) {  // no other rank is there, so it cannot be done
      CHECK(wrongly_usable(comms[r]) == 0);
      tuttiResult_t state = tuttiSuccess;
      CHECK(tuttiCommGetAsyncError(comms[r], &state) == tuttiSuccess);
      CHECK(state == tuttiInProgress);
    }
  }
  if (grouped) {
    // The refused calls above spoilt the group, but not the creations in the background.
    CHECK(tuttiGroupEnd() == tuttiInvalidUsage);
  }
  for (int r = 0; r < n; r++) REQUIRE(outcome_of(comms[r]) == tuttiSuccess);
  int32_t values[n], sums[n] = {};
  tuttiGroupStart();
  for (int r = 0; r < n; r++) {
    values[r] = 1 << r;
    CHECK(tuttiAllReduce(&values[r], &sums[r], 1, tuttiInt32, tuttiSum, comms[r], nullptr) == tuttiSuccess);
  }
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  for (const int32_t sum : sums) CHECK(sum == 7);
  for (int r = 0; r < n; r++) {
    CHECK(tuttiCommFinalize(comms[r]) == tuttiInProgress);
    if (r == 0) CHECK(wrongly_usable(comms[r]) == 0);
  }
  for (int r = 0; r < n; r++) CHECK(outcome_of(comms[r]) == tuttiSuccess);
  for (int r = 0; r < n; r++) CHECK(tuttiCommDestroy(comms[r]) == tuttiSuccess);
}

TEST_CASE("the end of a group says that creations go on") {
  const tuttiConfig_t config = non_blocking();
  const tuttiUniqueId id = new_id();
  tuttiComm_t comms[2] = {};
  CHECK(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < 2; r++) CHECK(tuttiCommInitRankConfig(&comms[r], 2, id, r, &config) == tuttiInProgress);
  CHECK(tuttiGroupEnd() == tuttiInProgress);
  for (tuttiComm_t comm : comms) CHECK(outcome_of(comm) == tuttiSuccess);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

// The stream's operation is called first, but starts later than the small one after it could start.
TEST_CASE("a communicator that was made in the background keeps the order of calls, small ones and those on streams") {
  const tuttiConfig_t config = non_blocking();
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& outcome = outcomes[static_cast<size_t>(r)];
      tuttiComm_t comm = nullptr;
      tuttiStream_t stream = nullptr;
      outcome.wrong += tuttiCommInitRankConfig(&comm, 2, id, r, &config) != tuttiInProgress;
      outcome.take(outcome_of(comm));
      outcome.take(tuttiStreamCreate(&stream));
      int32_t one = 1, sum = 0, behind = 0;
      const auto add = [&](int32_t* to, tuttiStream_t where) {
        outcome.take(tuttiAllReduce(&one, to, 1, tuttiInt32, tuttiSum, comm, where));
      };
      for (int i = 0; i < 3; i++) add(&sum, nullptr);
      const auto hold = [](tuttiStream_t, tuttiResult_t, void*) { poll(nullptr, 0, 50); };
      outcome.take(tuttiStreamAddCallback(stream, hold, nullptr));
      add(&behind, stream);
      add(&sum, nullptr);
      outcome.wrong += behind != 2 || sum != 2;
      outcome.take(tuttiStreamDestroy(stream));
      outcome.take(tuttiCommDestroy(comm));
    });
  for (auto& thread : threads) thread.join();
  require_success(outcomes);
}

TEST_CASE("a creation that waits for a rank that never comes can be ended") {
  const tuttiConfig_t config = non_blocking();
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitRankConfig(&comm, 2, id_of_few(), 1, &config) == tuttiInProgress);
  poll(nullptr, 0, GENERATE(0, 100));  // before it reaches the root, or after
  int count = 0;
  CHECK(tuttiCommCount(comm, &count) == tuttiInvalidUsage);
  CHECK(tuttiGetLastError(comm) == std::string(tuttiGetLastError(nullptr)));
  CHECK(mentions("still in progress"));  // progress is not an error of its own
  const bool abort = GENERATE(false, true);
  CHECK((abort ? tuttiCommAbort(comm) : tuttiCommDestroy(comm)) == tuttiSuccess);
  CHECK(tuttiCommDestroy(comm) == tuttiInvalidArgument);
  CHECK(mentions("not a live communicator"));
}

TEST_CASE("the environment may be changed as soon as a creation has been ended") {
  const tuttiConfig_t config = non_blocking();
  tuttiUniqueId id{};
  for (int i = 0; i < 100; i++) {
    if (i % 10 == 0) id = id_of_few();  // its root gives up after two seconds
    tuttiComm_t comm = nullptr;
    REQUIRE(tuttiCommInitRankConfig(&comm, 2, id, 1, &config) == tuttiInProgress);
    CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
    for (int k = 0; k < 20; k++) setenv(("A_NEW_VARIABLE_" + std::to_string(i * 20 + k)).c_str(), "1", 1);
  }
  for (int i = 0; i < 2000; i++) unsetenv(("A_NEW_VARIABLE_" + std::to_string(i)).c_str());
}

TEST_CASE("a finalization that waits for a rank that never comes can be ended") {
  const tuttiConfig_t config = non_blocking();
  const tuttiUniqueId id = new_id();
  tuttiComm_t comms[2] = {};
  for (int r = 0; r < 2; r++) REQUIRE(tuttiCommInitRankConfig(&comms[r], 2, id, r, &config) == tuttiInProgress);
  for (tuttiComm_t comm : comms) REQUIRE(outcome_of(comm) == tuttiSuccess);
  CHECK(tuttiCommFinalize(comms[0]) == tuttiInProgress);
  tuttiResult_t state = tuttiSuccess;
  CHECK(tuttiCommGetAsyncError(comms[0], &state) == tuttiSuccess);
  CHECK(state == tuttiInProgress);
  CHECK(tuttiCommAbort(comms[0]) == tuttiSuccess);
  for (const double end = now_seconds() + 60; state != tuttiRemoteError && now_seconds() < end; poll(nullptr, 0, 1))
    CHECK(tuttiCommGetAsyncError(comms[1], &state) == tuttiSuccess);
  CHECK(tuttiBarrier(comms[1], nullptr) == tuttiRemoteError);
  CHECK(mentions("rank 0"));
  CHECK(tuttiCommDestroy(comms[1]) == tuttiRemoteError);
}

TEST_CASE("a creation that fails in the background says so until it is destroyed") {
  tuttiConfig_t config = non_blocking();
  config.initTimeoutSeconds = 1;
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitRankConfig(&comm, 2, id_of_few(), 1, &config) == tuttiInProgress);
  CHECK(outcome_of(comm) == tuttiTimeout);
  CHECK(std::string(tuttiGetLastError(comm)).find("rank 0") != std::string::npos);
  float data = 1;
  CHECK(tuttiAllReduce(&data, &data, 1, tuttiFloat, tuttiSum, comm, nullptr) == tuttiTimeout);
  CHECK(tuttiCommDestroy(comm) == tuttiTimeout);
  // Wrong arguments are reported at once.
  config.blocking = 2;
  CHECK(tuttiCommInitRankConfig(&comm, 1, id_of_few(), 0, &config) == tuttiInvalidArgument);
  CHECK(mentions("config.blocking=2"));
  CHECK(comm == nullptr);
}

// Rank 0 never comes. If it comes later, its calls have other numbers.
TEST_CASE("a creation from the environment that fails has the number of its call") {
  setenv("TUTTI_RANK", "1", 1);
  setenv("TUTTI_NRANKS", "2", 1);
  setenv("TUTTI_ROOT", "127.0.0.1", 1);  // without a port
  setenv("TUTTI_SECRET", "numbers", 1);
  setenv("TUTTI_INIT_TIMEOUT", "1", 1);
  tuttiComm_t comm = nullptr;
  CHECK(tuttiCommInitFromEnv(&comm, nullptr) == tuttiInvalidUsage);
  const std::string text = tuttiGetLastError(nullptr), before = "in call ";
  const size_t at = text.find(before);
  const int n = at == std::string::npos ? 0 : atoi(text.c_str() + at + before.size());
  CHECK(n > 0);
  const auto in_call = [&](int number) { return before + std::to_string(number) + " of tuttiCommInitFromEnv"; };
  setenv("TUTTI_ROOT", "127.0.0.1:1", 1);  // where nobody listens
  CHECK(tuttiCommInitFromEnv(&comm, nullptr) == tuttiTimeout);
  CHECK(mentions(in_call(n + 1).c_str()));
  const tuttiConfig_t config = non_blocking();
  CHECK(tuttiCommInitFromEnv(&comm, &config) == tuttiInProgress);
  CHECK(outcome_of(comm) == tuttiTimeout);
  CHECK(std::string(tuttiGetLastError(comm)).find(in_call(n + 2)) != std::string::npos);
  CHECK(tuttiCommAbort(comm) == tuttiSuccess);
  for (const char* name : {"TUTTI_RANK", "TUTTI_NRANKS", "TUTTI_ROOT", "TUTTI_SECRET", "TUTTI_INIT_TIMEOUT"})
    unsetenv(name);
}

TEST_CASE("a split goes on in the background, in its place among the operations") {
  const tuttiConfig_t config = non_blocking();
  require_success(run_threads(4, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    int32_t one = 1, sum = 0;
    tuttiComm_t part = nullptr;
    const bool joins = rank != 3;
    const tuttiResult_t begun = tuttiCommSplit(comm, joins ? rank % 2 : TUTTI_SPLIT_NOCOLOR, 0, &part, &config);
    outcome.wrong += begun != (joins ? tuttiInProgress : tuttiSuccess) || (part != nullptr) != joins;
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr));
    outcome.wrong += sum != 4;
    if (!joins) return;
    outcome.take(outcome_of(part));
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, part, nullptr));
    outcome.wrong += sum != (rank == 1 ? 1 : 2);
    outcome.take(tuttiCommDestroy(part));
  }));
}

TEST_CASE("a split that was aborted waits for nobody and leaves the old communicator alone") {
  tuttiConfig_t config = non_blocking();
  std::atomic<bool> has_given_up{false};
  require_success(run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t part = nullptr;
    if (rank == 1) {
      for (const double end = now_seconds() + 10; !has_given_up && now_seconds() < end;) poll(nullptr, 0, 1);
      outcome.wrong += !has_given_up;
    }
    outcome.wrong += tuttiCommSplit(comm, 0, 0, &part, &config) != tuttiInProgress;
    if (rank == 0) {
      outcome.take(tuttiCommAbort(part));
      has_given_up = true;
    }
    if (rank == 1) outcome.wrong += outcome_of(part) != tuttiRemoteError;  // long before the limit
    if (rank == 1) outcome.wrong += tuttiCommDestroy(part) != tuttiRemoteError;
    if (rank == 1) outcome.wrong += !mentions("rank 0 (");
    int32_t one = 1, sum = 0;
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr));
    outcome.wrong += sum != 2;
  }));
}

// The new rank only comes when the old ones' calls have returned.
TEST_CASE("a group grows in the background, on its old ranks and on a new one") {
  const tuttiUniqueId id = new_id();
  const tuttiConfig_t config = non_blocking();
  std::atomic<int> begun{0};
  const auto grow = [&](tuttiComm_t old, Outcome& outcome) {
    tuttiComm_t made = nullptr;
    outcome.wrong += tuttiCommGrow(old, 3, &id, old == nullptr ? 2 : -1, &made, &config) != tuttiInProgress;
    begun++;
    outcome.take(outcome_of(made));
    float one = 1, sum = 0;
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiFloat, tuttiSum, made, nullptr));
    outcome.wrong += sum != 3;
    outcome.wrong += tuttiCommFinalize(made) != tuttiInProgress;
    outcome.take(outcome_of(made));
    outcome.take(tuttiCommDestroy(made));
  };
  Outcome newcomers;
  std::thread newcomer([&] {
    for (const double end = now_seconds() + 30; begun < 2 && now_seconds() < end;) poll(nullptr, 0, 1);
    newcomers.wrong += begun < 2;
    grow(nullptr, newcomers);
  });
  auto outcomes = run_threads(2, nullptr, [&](int, tuttiComm_t comm, Outcome& outcome) { grow(comm, outcome); });
  newcomer.join();
  outcomes.push_back(newcomers);
  require_success(outcomes);
}
