// What tutti.h promises to multithreaded programs. ThreadSanitizer sees more of it than the assertions do.
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "comm/ranks.h"
#include "debug/folder.h"
#include "own_signal.h"

using namespace tutti_test;

namespace {

#ifdef TUTTI_TEST_TSAN
constexpr int kTurns = 60;
#else
constexpr int kTurns = 300;
#endif

// Threads that start together. Each has its own outcome.
class Crowd {
 public:
  void add(std::function<void(Outcome&)> body) { bodies_.push_back(std::move(body)); }

  std::vector<Outcome> run() {
    std::vector<Outcome> outcomes(bodies_.size());
    std::vector<std::thread> threads;
    std::atomic<size_t> there{0};
    for (size_t i = 0; i < bodies_.size(); i++)
      threads.emplace_back([&, i] {
        there++;
        while (there < bodies_.size()) std::this_thread::yield();
        bodies_[i](outcomes[i]);
      });
    for (auto& thread : threads) thread.join();
    return outcomes;
  }

 private:
  std::vector<std::function<void(Outcome&)>> bodies_;
};

// How threads that share a communicator agree on the order of their calls.
class Turns {
 public:
  template <class Call>
  void take(int turn, Call&& call) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ == turn; });
    call();
    next_++;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int next_ = 0;
};

struct TwoRanks {
  tuttiComm_t comms[2] = {};
  TwoRanks() { REQUIRE(tuttiCommInitAll(comms, 2, nullptr) == tuttiSuccess); }
};

// Everything that may be asked of a communicator, or created for it, while others work with it.
void ask_and_make(tuttiComm_t comm, int rank, Outcome& outcome) {
  tuttiResult_t state = tuttiNumResults;
  tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
  int count = 0, me = -1;
  float factor = 2;
  tuttiRedOp_t op = tuttiSum;
  outcome.take(tuttiCommGetAsyncError(comm, &state));
  outcome.take(tuttiCommCount(comm, &count));
  outcome.take(tuttiCommUserRank(comm, &me));
  outcome.take(tuttiCommMemStats(comm, &stats));
  outcome.take(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, tuttiScalarHostImmediate, comm));
  outcome.take(tuttiRedOpDestroy(op, comm));
  outcome.wrong += state != tuttiSuccess || count != 2 || me != rank || stats.threads != 1 || op < tuttiNumOps;
  outcome.wrong += tuttiGetLastError(comm)[0] != '\0';  // of this thread, which had no error
}

}  // namespace

TEST_CASE("threads share a communicator in turns, while others ask about it and make operators for it") {
  TwoRanks pair;
  Turns turns[2];
  Crowd crowd;
  for (int rank : {0, 1}) {
    tuttiComm_t comm = pair.comms[rank];
    for (int thread : {0, 1})
      crowd.add([=, &turns](Outcome& outcome) {
        for (int i = thread; i < 2 * kTurns; i += 2) {
          int32_t value = i + rank, sum = 0;
          const auto call = [&] { outcome.take(tuttiAllReduce(&value, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr)); };
          turns[rank].take(i, call);
          outcome.wrong += sum != 2 * i + 1;
        }
      });
    for (int asker = 0; asker < 2; asker++)
      crowd.add([=](Outcome& outcome) {
        for (int i = 0; i < kTurns; i++) ask_and_make(comm, rank, outcome);
      });
  }
  require_success(crowd.run());
  for (tuttiComm_t comm : pair.comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("two threads call on streams of their own, in an order that they have settled") {
  TwoRanks pair;
  Turns turns[2];
  Crowd crowd;
  for (int rank : {0, 1})
    for (int thread : {0, 1})
      crowd.add([=, &turns, &pair](Outcome& outcome) {
        tuttiStream_t stream = nullptr;
        outcome.take(tuttiStreamCreate(&stream));
        std::vector<int32_t> values(2 * kTurns, rank + 1);
        for (int i = thread; i < 2 * kTurns; i += 2)
          turns[rank].take(i, [&] {
            int32_t* value = &values[static_cast<size_t>(i)];
            outcome.take(tuttiAllReduce(value, value, 1, tuttiInt32, tuttiSum, pair.comms[rank], stream));
          });
        outcome.take(tuttiStreamDestroy(stream));
        for (int i = thread; i < 2 * kTurns; i += 2) outcome.wrong += values[static_cast<size_t>(i)] != 3;
      });
  require_success(crowd.run());
  for (tuttiComm_t comm : pair.comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

// A call takes its turn at the communicator and its place in the queue atomically.
TEST_CASE("threads call on one stream at once, and no operation waits for one behind it") {
  tuttiComm_t comm = nullptr;
  tuttiStream_t stream = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  Crowd crowd;
  for (int thread = 0; thread < 4; thread++)
    crowd.add([=](Outcome& outcome) {
      for (int i = 0; i < 10 * kTurns; i++) outcome.take(tuttiBarrier(comm, stream));
    });
  require_success(crowd.run());
  tuttiResult_t state = tuttiInProgress;
  for (const double end = now_seconds() + 60; state == tuttiInProgress && now_seconds() < end; poll(nullptr, 0, 1))
    state = tuttiStreamQuery(stream);
  REQUIRE(state == tuttiSuccess);
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("many threads use one stream and one event") {
  tuttiStream_t stream = nullptr;
  tuttiEvent_t event = nullptr;
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  REQUIRE(tuttiEventCreate(&event) == tuttiSuccess);
  int calls = 0;  // written by the stream's thread only
  Crowd crowd;
  for (int thread = 0; thread < 4; thread++)
    crowd.add([&](Outcome& outcome) {
      const auto count = [](tuttiStream_t, tuttiResult_t, void* to) { ++*static_cast<int*>(to); };
      tuttiStream_t mine = nullptr;
      outcome.take(tuttiStreamCreate(&mine));
      for (int i = 0; i < kTurns; i++) {
        tuttiEvent_t brief = nullptr;
        outcome.take(tuttiStreamAddCallback(stream, count, &calls));
        outcome.take(tuttiEventRecord(event, stream));
        outcome.take(tuttiStreamWaitEvent(mine, event));
        outcome.take(tuttiEventCreate(&brief));
        outcome.take(tuttiEventRecord(brief, mine));
        outcome.take(i % 2 == 0 ? tuttiEventSynchronize(brief) : tuttiStreamWaitEvent(nullptr, event));
        outcome.take(tuttiEventDestroy(brief));
        const tuttiResult_t states[] = {tuttiEventQuery(event), tuttiStreamQuery(stream)};
        for (const tuttiResult_t state : states) outcome.wrong += state != tuttiSuccess && state != tuttiInProgress;
      }
      outcome.take(tuttiStreamSynchronize(stream));
      outcome.take(tuttiStreamDestroy(mine));
    });
  require_success(crowd.run());
  CHECK(calls == 4 * kTurns);
  CHECK(tuttiEventDestroy(event) == tuttiSuccess);
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
}

TEST_CASE("communicators come and go side by side, with groups of calls in every thread") {
  Crowd crowd;
  for (int thread = 0; thread < 3; thread++)
    crowd.add([=](Outcome& outcome) {
      for (int i = 0; i < kTurns / 30; i++) {
        tuttiComm_t comms[2] = {}, parts[2] = {};
        int32_t one = 1, sums[2] = {};
        outcome.take(tuttiCommInitAll(comms, 2, nullptr));
        outcome.take(tuttiGroupStart());
        for (int r : {0, 1}) outcome.take(tuttiCommSplit(comms[r], thread, -r, &parts[r], nullptr));
        outcome.take(tuttiGroupEnd());
        outcome.take(tuttiGroupStart());
        for (int r : {0, 1}) outcome.take(tuttiAllReduce(&one, &sums[r], 1, tuttiInt32, tuttiSum, parts[r], nullptr));
        outcome.take(tuttiGroupEnd());
        outcome.wrong += sums[0] != 2 || sums[1] != 2;
        for (tuttiComm_t comm : {comms[0], comms[1], parts[0], parts[1]}) outcome.take(tuttiCommDestroy(comm));
        void* block = nullptr;
        outcome.take(tuttiMemAlloc(&block, 10000));
        outcome.take(tuttiMemFree(block));
      }
    });
  require_success(crowd.run());
}

TEST_CASE("of threads that destroy one handle, one succeeds") {
  constexpr int kThreads = 4;
  for (int i = 0; i < kTurns / 10; i++) {
    tuttiComm_t comm = nullptr;
    tuttiStream_t stream = nullptr;
    tuttiEvent_t event = nullptr;
    float factor = 1;
    tuttiRedOp_t op = tuttiSum;
    REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
    REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
    REQUIRE(tuttiEventCreate(&event) == tuttiSuccess);
    REQUIRE(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, tuttiScalarDevice, comm) == tuttiSuccess);
    std::atomic<int> successes[4] = {};
    Crowd crowd;
    for (int thread = 0; thread < kThreads; thread++)
      crowd.add([&, thread](Outcome& outcome) {
        const auto end = [&](int what, tuttiResult_t result) {
          if (result == tuttiSuccess)
            successes[what]++;
          else
            outcome.wrong += result != tuttiInvalidArgument;
        };
        end(0, tuttiRedOpDestroy(op, comm));
        end(1, tuttiStreamDestroy(stream));
        end(2, tuttiEventDestroy(event));
        end(3, thread % 2 == 0 ? tuttiCommDestroy(comm) : tuttiCommAbort(comm));
      });
    require_success(crowd.run());
    for (const auto& n : successes) CHECK(n <= 1);
    for (int what : {1, 2, 3}) CHECK(successes[what] == 1);
  }
}

TEST_CASE("an abort ends what other threads do with a communicator") {
  for (int i = 0; i < kTurns / 20; i++) {
    TwoRanks pair;
    std::atomic<int> working{0};
    tuttiComm_t comm = pair.comms[0];
    tuttiStream_t stream = nullptr;
    REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
    Crowd crowd;
    // These wait for rank 1, which never calls. Their error depends on how far each had come.
    const auto ended = [](tuttiResult_t result) {
      return result == tuttiInvalidUsage || result == tuttiInvalidArgument;
    };
    crowd.add([&](Outcome& outcome) {
      working++;
      outcome.wrong += !ended(tuttiBarrier(comm, nullptr));
    });
    crowd.add([&](Outcome& outcome) {
      working++;
      const tuttiResult_t queued = tuttiBarrier(comm, stream);
      outcome.wrong += queued != tuttiSuccess && !ended(queued);
      const tuttiResult_t done = tuttiStreamSynchronize(stream);
      outcome.wrong += queued == tuttiSuccess ? !ended(done) : done != tuttiSuccess;
    });
    crowd.add([&](Outcome& outcome) {
      working++;
      for (tuttiResult_t state = tuttiSuccess, asked = tuttiSuccess; asked == tuttiSuccess;) {
        asked = tuttiCommGetAsyncError(comm, &state);
        outcome.wrong += asked != tuttiSuccess && asked != tuttiInvalidArgument;
        outcome.wrong += state != tuttiSuccess && state != tuttiInvalidUsage;
        (void)tuttiGetLastError(comm);
      }
    });
    crowd.add([&](Outcome& outcome) {
      while (working < 3) std::this_thread::yield();
      poll(nullptr, 0, i % 3);
      outcome.take(tuttiCommAbort(comm));
    });
    crowd.add([&](Outcome& outcome) {
      tuttiResult_t state = tuttiSuccess;
      for (const double end = now_seconds() + 60; state == tuttiSuccess && now_seconds() < end; poll(nullptr, 0, 1))
        outcome.take(tuttiCommGetAsyncError(pair.comms[1], &state));
      outcome.wrong += state != tuttiRemoteError;
    });
    require_success(crowd.run());
    CHECK(tuttiCommDestroy(pair.comms[1]) == tuttiRemoteError);
    CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  }
}

TEST_CASE("threads ask about a creation in the background, and one of them ends it") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (int i = 0; i < kTurns / 20; i++) {
    const bool completes = i % 2 == 0;
    const tuttiUniqueId id = completes ? new_id() : id_of_few();
    tuttiComm_t comms[2] = {};
    for (int r = 0; r < (completes ? 2 : 1); r++)
      REQUIRE(tuttiCommInitRankConfig(&comms[r], 2, id, r, &config) == tuttiInProgress);
    Crowd crowd;
    for (int thread = 0; thread < 3; thread++)
      crowd.add([&](Outcome& outcome) {
        for (tuttiResult_t asked = tuttiSuccess; asked == tuttiSuccess;) {
          tuttiResult_t state = tuttiSuccess;
          int count = 2;
          asked = tuttiCommGetAsyncError(comms[0], &state);
          outcome.wrong += state != tuttiSuccess && state != tuttiInProgress && state != tuttiInvalidUsage;
          const tuttiResult_t counted = tuttiCommCount(comms[0], &count);
          outcome.wrong += count != 2 ||
                           (counted != tuttiSuccess && counted != tuttiInvalidUsage && counted != tuttiInvalidArgument);
        }
      });
    crowd.add([&](Outcome& outcome) {
      poll(nullptr, 0, i);
      outcome.take(tuttiCommAbort(comms[0]));
    });
    require_success(crowd.run());
    if (completes) CHECK(tuttiCommAbort(comms[1]) == tuttiSuccess);
  }
}

TEST_CASE("the threads of communicators and of streams take no signals of the program's") {
  const Folder metrics("TUTTI_METRICS_FILE", "/%r");
  tuttiComm_t comms[2];
  tuttiStream_t stream;
  REQUIRE(tuttiCommInitAll(comms, 2, nullptr) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  CHECK(signal_comes_to_who_waits());
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}
