// Whatever goes wrong ends on all ranks, and soon, with an error that names it: mismatched calls, death, abort,
// absence.
#include <poll.h>

#include <atomic>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

tuttiResult_t sum(tuttiComm_t comm, size_t count = 4, tuttiDataType_t type = tuttiFloat, tuttiRedOp_t op = tuttiSum) {
  std::vector<double> a(count), b(count);
  return tuttiAllReduce(a.data(), b.data(), count, type, op, comm, nullptr);
}

tuttiResult_t bcast(tuttiComm_t comm, int root, size_t count = 4) {
  std::vector<double> a(count);
  return tuttiBcast(a.data(), count, tuttiFloat, root, comm, nullptr);
}

// One rank calls `odd`, the others `usual`; all must fail with a text that names both calls.
void require_mismatch(int n, const std::function<tuttiResult_t(tuttiComm_t)>& usual,
                      const std::function<tuttiResult_t(tuttiComm_t)>& odd, const std::string& usual_text,
                      const std::string& odd_text) {
  const auto outcomes = run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(sum(comm));
    outcome.take(rank == 1 ? odd(comm) : usual(comm));
    if (outcome.code == tuttiSuccess) outcome.take(sum(comm));  // a rank that receives nothing may be told only here
  });
  for (int r = 0; r < n; r++) {
    const Outcome& outcome = outcomes[static_cast<size_t>(r)];
    INFO("rank " << r << " of " << n << ": " << outcome.message);
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(contains(outcome.message, usual_text));
    CHECK(contains(outcome.message, odd_text));
    CHECK(contains(outcome.message, "rank 1 called"));
  }
}

}  // namespace

TEST_CASE("ranks that call different things are told, with both calls written out") {
  const int n = GENERATE(2, 3, 5);
  const auto usual = [](tuttiComm_t comm) { return sum(comm); };
  const std::string usual_text = "AllReduce(count=4, float, sum)";
  SECTION("count") {
    require_mismatch(
        n, usual, [](tuttiComm_t comm) { return sum(comm, 5); }, usual_text, "count=5");
  }
  SECTION("count zero") {
    require_mismatch(
        n, usual, [](tuttiComm_t comm) { return sum(comm, 0); }, usual_text, "count=0");
  }
  SECTION("count so large that the algorithm differs") {
    require_mismatch(
        n, usual, [](tuttiComm_t comm) { return sum(comm, 4 << 20); }, usual_text, "count=4194304");
  }
  SECTION("type") {
    require_mismatch(
        n, usual, [](tuttiComm_t comm) { return sum(comm, 4, tuttiInt32); }, usual_text, "int32");
  }
  SECTION("operator") {
    require_mismatch(
        n, usual, [](tuttiComm_t comm) { return sum(comm, 4, tuttiFloat, tuttiMax); }, usual_text, "max");
  }
  SECTION("operation") {
    require_mismatch(
        n, usual, [](tuttiComm_t comm) { return bcast(comm, 0); }, usual_text, "Broadcast");
  }
  SECTION("root") {
    require_mismatch(
        n, [](tuttiComm_t comm) { return bcast(comm, 0); }, [](tuttiComm_t comm) { return bcast(comm, 1); }, "root=0",
        "root=1");
  }
  SECTION("one rank finalizes while the others go on") {
    require_mismatch(
        n, usual, [](tuttiComm_t comm) { return tuttiCommFinalize(comm); }, usual_text, "Finalize");
  }
}

TEST_CASE("a broken communicator keeps saying why, and others are not harmed") {
  const auto outcomes = run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(sum(comm, rank == 0 ? 4 : 5));
    const std::string first = outcome.message;
    Outcome again;
    again.take(sum(comm));
    outcome.wrong += again.code != outcome.code || again.message != first;
    tuttiResult_t state = tuttiSuccess;
    tuttiCommGetAsyncError(comm, &state);
    outcome.wrong += state != tuttiInvalidUsage || tuttiGetLastError(comm) != first;
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(outcome.wrong == 0);
  }
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) { outcome.take(sum(comm)); }));
}

TEST_CASE("an abort in another thread ends a blocked operation; peers learn who it was") {
  std::atomic<tuttiComm_t> handle{nullptr};
  const bool repeats = GENERATE(false, true);
  const auto outcomes = run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (int i = 0; repeats && i < 3; i++) outcome.take(sum(comm));
    if (rank == 2) {  // never calls: ranks 0 and 1 would wait for ever
      while (handle.load() == nullptr) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      outcome.take(tuttiCommAbort(handle.load()));
      while (outcome.wrong < 200) {  // the loss reaches this rank without any call
        tuttiResult_t state = tuttiSuccess;
        tuttiCommGetAsyncError(comm, &state);
        if (state == tuttiRemoteError) break;
        outcome.wrong++;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      if (outcome.wrong < 200) outcome.wrong = 0;
      outcome.message = tuttiGetLastError(comm);
    } else {
      if (rank == 0) handle.store(comm);
      outcome.take(sum(comm));
    }
  });
  CHECK(outcomes[0].code == tuttiInvalidUsage);
  CHECK(contains(outcomes[0].message, "tuttiCommAbort"));
  CHECK(outcomes[1].code == tuttiRemoteError);
  CHECK(contains(outcomes[1].message, "rank 0"));
  CHECK(outcomes[2].wrong == 0);
  CHECK(contains(outcomes[2].message, "rank 0"));
}

TEST_CASE("init gives up in time and lists the absent ranks") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 1;
  const tuttiUniqueId id = id_of_few();
  Outcome outcomes[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; i++)
    threads.emplace_back([&, i] {
      tuttiComm_t comm = nullptr;
      outcomes[i].take(tuttiCommInitRankConfig(&comm, 5, id, i * 3, &config));  // ranks 0 and 3 of 5
      outcomes[i].wrong += comm != nullptr;
    });
  for (auto& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiTimeout);
    CHECK(contains(outcome.message, "1, 2, 4 of 5"));
    CHECK(outcome.wrong == 0);
  }
}

TEST_CASE("an operation without progress ends after its limit and names whom it waits for") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.opTimeoutSeconds = 1;
  std::atomic<int> done{0};
  const auto outcomes = run_threads(2, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 0) outcome.take(sum(comm));
    done++;
    while (done < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  CHECK(outcomes[0].code == tuttiTimeout);
  CHECK(contains(outcomes[0].message, "rank 1"));
}

TEST_CASE("leaving early is told to the others") {
  const auto outcomes = run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(sum(comm));
    if (rank != 1) outcome.take(sum(comm));
  });
  CHECK(outcomes[1].code == tuttiSuccess);
  for (const int r : {0, 2}) {
    INFO(outcomes[static_cast<size_t>(r)].message);
    CHECK(outcomes[static_cast<size_t>(r)].code == tuttiRemoteError);
    CHECK(contains(outcomes[static_cast<size_t>(r)].message, "rank 1"));
  }
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("a killed rank ends all others soon, with its name", "[processes]") {
  const char* transports = GENERATE("shm", "tcp");
  const char* algo = GENERATE("ring", "tree");
  const size_t count = GENERATE(size_t{2}, size_t{4} << 20);
  constexpr int n = 6, kVictim = 2;
  INFO(algo << " over " << transports << ", " << count << " elements");
  setenv("TUTTI_TRANSPORTS", transports, 1);
  setenv("TUTTI_ALGO", algo, 1);
  Processes ranks(n, [&](int, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> data(count, 0.0f);
    double last_good = now_seconds();
    while (outcome.code == tuttiSuccess) {
      outcome.take(tuttiAllReduce(data.data(), data.data(), count, tuttiFloat, tuttiSum, comm, nullptr));
      if (outcome.code == tuttiSuccess) last_good = now_seconds();
    }
    outcome.seconds = now_seconds() - last_good;
  });
  unsetenv("TUTTI_TRANSPORTS");
  unsetenv("TUTTI_ALGO");
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(ranks.pid(kVictim), SIGKILL);
  const auto outcomes = ranks.wait();
  for (int r = 0; r < n; r++) {
    if (r == kVictim) continue;
    const Outcome& outcome = outcomes[static_cast<size_t>(r)];
    INFO("rank " << r << " after " << outcome.seconds << " s: " << outcome.message);
    CHECK(outcome.code == tuttiRemoteError);
    CHECK(contains(outcome.message, "rank 2"));
  }
}

TEST_CASE("a rank that is killed while the others compute is noticed without a call", "[processes]") {
  constexpr int n = 3;
  Processes ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(sum(comm));
    if (rank == 0) _exit(7);  // leaves without finalizing
    for (int i = 0; i < 500; i++) {
      tuttiResult_t state = tuttiSuccess;
      tuttiCommGetAsyncError(comm, &state);
      if (state != tuttiSuccess) {
        outcome.code = state;
        outcome.message = tuttiGetLastError(comm);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  const auto outcomes = ranks.wait();
  for (const int r : {1, 2}) {
    INFO(outcomes[static_cast<size_t>(r)].message);
    CHECK(outcomes[static_cast<size_t>(r)].code == tuttiRemoteError);
    CHECK(contains(outcomes[static_cast<size_t>(r)].message, "rank 0"));
  }
}

TEST_CASE("a process that ends after tuttiCommFinalize, without tuttiCommDestroy, has not died", "[processes]") {
  Processes ranks(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(sum(comm));
    outcome.take(tuttiCommFinalize(comm));
    if (rank == 0) _exit(outcome.code == tuttiSuccess ? 0 : 7);
    for (int i = 0; i < 30 && outcome.code == tuttiSuccess; i++) {
      tuttiResult_t state = tuttiSuccess;
      outcome.take(tuttiCommGetAsyncError(comm, &state));
      if (state != tuttiSuccess) outcome.code = state, outcome.message = tuttiGetLastError(comm);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  const Outcome outcome = ranks.wait()[1];
  INFO(outcome.message);
  CHECK(outcome.code == tuttiSuccess);
}
#endif

TEST_CASE("a rank that leaves a working communicator is not lost") {
  const auto outcomes = run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(sum(comm));
    if (rank == 1) return;
    outcome.take(sum(comm));
    int lost[2], count = -1;
    outcome.wrong += tuttiCommLostRanks(comm, lost, &count) != tuttiSuccess || count != 0;
  });
  CHECK(outcomes[0].code == tuttiRemoteError);
  CHECK(outcomes[0].wrong == 0);
}

TEST_CASE("a test's forked ranks end with it, also if it crashes or an assertion fails before it has awaited them",
          "[processes]") {
  const bool crashes = GENERATE(true, false);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t test = fork();
  if (test == 0) {
    {
      Processes ranks(1, [](int, tuttiComm_t, Outcome&) { pause(); });
      if (crashes) _exit(0);
    }
    close(ends[1]);
    pause();
  }
  close(ends[1]);
  struct pollfd left = {ends[0], POLLIN, 0};
  CHECK(poll(&left, 1, kSanitized ? 60'000 : 20'000) == 1);  // nobody has the other end any more
  kill(test, SIGKILL);
  waitpid(test, nullptr, 0);
  close(ends[0]);
}
