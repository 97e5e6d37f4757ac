// What any thread may do at any time, while others do their own work. ThreadSanitizer sees more of it than the checks.
#include <atomic>
#include <chrono>
#include <thread>

#include "ddp/model.h"

using namespace tutti_test;

TEST_CASE("other threads ask for statistics and gradients while buckets are rebuilt") {
  for (int turn = 0; turn < 5; turn++)
    on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
      Model model(std::vector<size_t>(50, 100));
      tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
      config.firstBucketBytes = config.bucketCapBytes = 1000;
      take(outcome, model.create(comm, &config));
      std::atomic<bool> stops{false};
      std::atomic<size_t> wrong{0};
      std::thread asks([&] {
        while (!stops) {
          tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
          void* grad = nullptr;
          wrong += tuttiDdpGetStats(model.ddp, &stats) != tuttiSuccess || stats.buckets == 0;
          for (size_t p = 0; p < model.size(); p++)
            wrong += tuttiDdpGradient(model.ddp, p, &grad) != tuttiSuccess || grad == nullptr;
        }
      });
      for (int step = 0; step < 3; step++) {
        take(outcome, tuttiDdpBegin(model.ddp));
        for (size_t p = 0; p < model.size(); p++) {  // not in the expected reverse order, so buckets are rebuilt
          model.fill(rank, step, p);
          take(outcome, tuttiDdpMarkReady(model.ddp, p));
        }
        take(outcome, tuttiDdpWait(model.ddp));
        wrong += model.wrong_averages(2, step);
      }
      stops = true;
      asks.join();
      tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
      take(outcome, tuttiDdpGetStats(model.ddp, &stats));
      outcome.wrong += wrong + (stats.rebuilds == 0);
      take(outcome, tuttiDdpDestroy(model.ddp));
    });
}

TEST_CASE("marks that come while tuttiDdpWait ends the step are refused, and all ranks are told of the mistake") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({3000, 100, 3000}, true);
    take(outcome, model.create(comm));
    for (int turn = 0; turn < 20; turn++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      for (const size_t p : {2, 0}) {
        model.fill(rank, turn, p);
        take(outcome, tuttiDdpMarkReady(model.ddp, p));
      }
      // Too late, just in time, or for the second time.
      std::thread marks([&] {
        for (int i = 0; i < 20; i++)
          if (rank == 0) (void)tuttiDdpMarkReady(model.ddp, 1);
      });
      const tuttiResult_t waited = tuttiDdpWait(model.ddp);
      marks.join();
      outcome.wrong += waited != tuttiInvalidUsage || !contains(tuttiDdpGetLastError(), "'layer1'");
    }
    model.step(rank, 1, outcome);
    outcome.wrong += model.wrong_averages(2, 1);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("a gradient that is marked while tuttiDdpWait waits is refused by name") {
  std::atomic<int> answered{0};
  std::atomic<size_t> late{0};
  constexpr int kTurns = 5;  // the thread surely comes too late in one of them
  on_ranks(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({3000, 100, 3000}, true);
    take(outcome, model.create(comm));
    for (int turn = 0; turn < kTurns; turn++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      for (const size_t p : {2, 0}) {
        model.fill(rank, turn, p);
        take(outcome, tuttiDdpMarkReady(model.ddp, p));
      }
      std::thread marks;
      if (rank == 0)
        marks = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          const tuttiResult_t marked = tuttiDdpMarkReady(model.ddp, 1);
          const std::string said = tuttiDdpGetLastError();
          late += marked == tuttiInvalidUsage && contains(said, "'layer1'") && contains(said, "while tuttiDdpWait");
          answered++;
        });
      while (rank == 1 && answered <= turn) std::this_thread::yield();  // rank 0's tuttiDdpWait waits for this rank
      outcome.wrong += tuttiDdpWait(model.ddp) != tuttiInvalidUsage;
      if (marks.joinable()) marks.join();
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
  CHECK(late > 0);
}

TEST_CASE("tuttiDdpDestroy waits for buckets, also while other threads ask for statistics") {
  struct Seen {
    std::atomic<bool> begun{false}, ended{false};
  };
  for (int turn = 0; turn < 20; turn++)
    on_ranks(1, [](int, tuttiComm_t comm, Outcome& outcome) {
      Model model({100});
      Seen seen;
      tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
      config.hookUserData = &seen;
      config.hook = [](const tuttiDdpBucket_t*, tuttiComm_t, tuttiStream_t, void* data) {
        auto* at = static_cast<Seen*>(data);
        at->begun = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        at->ended = true;
        return tuttiSuccess;
      };
      take(outcome, model.create(comm, &config));
      std::vector<std::thread> ask;
      for (int t = 0; t < 4; t++)
        ask.emplace_back([ddp = model.ddp] {
          tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
          while (tuttiDdpGetStats(ddp, &stats) == tuttiSuccess) {
          }
        });
      take(outcome, tuttiDdpBegin(model.ddp));
      take(outcome, tuttiDdpMarkReady(model.ddp, 0));
      while (!seen.begun) std::this_thread::yield();
      take(outcome, tuttiDdpDestroy(model.ddp));
      outcome.wrong += !seen.ended;
      for (std::thread& each : ask) each.join();
    });
}
