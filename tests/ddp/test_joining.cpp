// Ranks with uneven inputs: those without more input join, and the others go on. Statistics and checks of steps.
#include <chrono>
#include <thread>

#include "ddp/model.h"

using namespace tutti_test;

TEST_CASE("ranks with uneven inputs join, and end with the same model") {
  constexpr int n = 3;
  on_ranks(n, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({3, 700, 0, 1, 64, 17, 300, 5});
    tuttiDdpConfig_t config = small_buckets();
    config.joinable = 1;
    take(outcome, model.create(comm, &config));
    for (int epoch = 0; epoch < 2; epoch++) {
      const int steps[] = {1, 4, 2};
      for (int step = 0; step < steps[rank]; step++) {
        model.step(rank, step, outcome);
        for (size_t p = 0; p < model.size(); p++) {
          outcome.wrong += model.wrong(p, [&](size_t param, size_t i) {
            double sum = 0;
            for (int r = 0; r < n; r++) sum += step < steps[r] ? gradient_of(r, step, param, i) : 0;
            return sum / n;
          });
          for (float& x : model.data(p)) x += 1;
        }
      }
      take(outcome, tuttiDdpJoin(model.ddp));
      for (size_t p = 0; p < model.size(); p++)
        for (const float x : model.data(p)) outcome.wrong += x != static_cast<float>(4 * (epoch + 1));
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("buffers are those of the lowest rank that has not joined, and each rank's own without broadcasts") {
  const int broadcasts = GENERATE(0, 1);
  on_ranks(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10});
    int32_t value = rank + 40;
    tuttiDdpTensor_t buffer = model.tensor(0);
    buffer.name = "steps";
    buffer.data = &value;
    buffer.count = 1;
    buffer.datatype = tuttiInt32;
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.joinable = 1;
    config.broadcastBuffers = broadcasts;
    take(outcome, tuttiDdpCreate(&model.ddp, comm, &model.tensor(0), 1, &buffer, 1, &config));
    outcome.wrong += value != 40;
    for (int step = 0; step <= rank; step++) {  // rank 1 takes the second step alone
      const int mine = 10 * rank + step;
      value = mine;
      model.step(rank, step, outcome);
      outcome.wrong += value != (broadcasts == 1 && step == 0 ? 0 : mine);
    }
    take(outcome, tuttiDdpJoin(model.ddp));
    outcome.wrong += value != 11;  // from the rank that trained longest
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("a static graph of ranks with uneven inputs, one of which joins before its first step") {
  const bool own = GENERATE(false, true);
  const int find_unused = GENERATE(0, 1);
  constexpr int n = 3;
  on_ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20, 30, 40}, own);
    tuttiDdpConfig_t config = small_buckets();
    config.staticGraph = config.joinable = 1;
    config.findUnused = find_unused;
    take(outcome, model.create(comm, &config));
    // Parameter 2 is used by no rank, 1 by rank 0 only, 3 by rank 1 only.
    const auto uses = [](int r, size_t param) {
      return param == 0 || (param == 1 && r == 0) || (param == 3 && r == 1);
    };
    for (int epoch = 0; epoch < 3; epoch++) {
      const int steps[3][n] = {{0, 3, 2}, {1, 0, 2}, {1, 3, 2}};
      for (int step = 0; step < steps[epoch][rank] && outcome.code == tuttiSuccess; step++) {
        for (size_t p = 0; p < 4; p++) std::fill_n(model.grad(p), model.tensor(p).count, 1000.0f);
        take(outcome, tuttiDdpBegin(model.ddp));
        for (size_t p = 0; p < 4; p++) {
          if (!uses(rank, p)) continue;
          model.fill(rank, step, p);
          take(outcome, tuttiDdpMarkReady(model.ddp, p));
        }
        take(outcome, tuttiDdpWait(model.ddp));
        for (size_t p = 0; p < 4; p++)
          outcome.wrong += model.wrong(p, [&](size_t param, size_t i) {
            // Rank 0's graph is unknown before its first step.
            if (param == 2 || (param == 1 && epoch == 0)) return 1000.0;
            double sum = 0;
            for (int r = 0; r < n; r++)
              sum += step < steps[epoch][r] && uses(r, param) ? gradient_of(r, step, param, i) : 0;
            return sum / n;
          });
      }
      take(outcome, tuttiDdpJoin(model.ddp));
    }
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    outcome.wrong += stats.rebuilds != 1;
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("checks leave out the parameters of ranks that have joined, and compare those of the others") {
  const bool differs = GENERATE(false, true);
  const auto body = [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({8, 9});
    tuttiDdpConfig_t config = small_buckets();
    config.joinable = config.checkEvery = 1;
    Outcome created;
    take(created, model.create(comm, &config));
    for (int step = 0; step < (rank == 0 ? 1 : 4) && outcome.code == tuttiSuccess; step++) {
      model.step(rank, step, outcome);
      for (size_t p = 0; p < model.size(); p++)
        for (float& x : model.data(p)) x += 1;
      if (differs && rank == 2 && step == 1) model.data(1)[3] += 1;
    }
    if (outcome.code == tuttiSuccess) take(outcome, tuttiDdpJoin(model.ddp));
    outcome.wrong += created.code != tuttiSuccess || tuttiDdpDestroy(model.ddp) != tuttiSuccess;
  };
  if (differs)
    require_error(3, tuttiInvalidUsage, {"parameter 1 'layer1' differs from rank 1's on rank 2"}, body);
  else
    on_ranks(3, body);
}

TEST_CASE("buckets are rebuilt in the ready order of the lowest rank that has not joined") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model(std::vector<size_t>(4, 64));
    std::vector<size_t> seen;  // parameters of all buckets, in order
    tuttiDdpConfig_t config = small_buckets();
    config.joinable = 1;
    config.hookUserData = &seen;
    config.hook = [](const tuttiDdpBucket_t* bucket, tuttiComm_t its, tuttiStream_t stream, void* user) {
      auto& all = *static_cast<std::vector<size_t>*>(user);
      if (bucket->index == 0) all.clear();
      all.insert(all.end(), bucket->params, bucket->params + bucket->nparams);
      return tuttiAllReduce(bucket->data, bucket->data, bucket->count, bucket->datatype, tuttiAvg, its, stream);
    };
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 2 && rank == 1; step++) {  // rank 0 has no input
      take(outcome, tuttiDdpBegin(model.ddp));
      for (const size_t p : {1, 3, 0, 2}) take(outcome, tuttiDdpMarkReady(model.ddp, p));
      take(outcome, tuttiDdpWait(model.ddp));
    }
    take(outcome, tuttiDdpJoin(model.ddp));
    outcome.wrong += seen != std::vector<size_t>{1, 3, 0, 2};
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("without overlap all of the communication is exposed") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({700});
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.overlap = 0;
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 3; step++) model.step(rank, step, outcome);
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    outcome.wrong += !(stats.commSeconds > 0) || stats.exposedSeconds != stats.commSeconds;
    outcome.wrong += stats.totalExposedSeconds != stats.totalCommSeconds || stats.overlapPercent != 0;
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("the time of a backward pass is that from its first mark to the wait, of all steps in all") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kPass(20);
    Model model({700, 300});
    take(outcome, model.create(comm, nullptr));
    std::chrono::duration<double> passes(0);
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    for (int step = 0; step < 3; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      std::this_thread::sleep_for(2 * kPass);  // the forward pass
      model.fill(rank, step, 0);
      model.fill(rank, step, 1);
      const auto begin = Clock::now();
      take(outcome, tuttiDdpMarkReady(model.ddp, 1));
      std::this_thread::sleep_for(kPass);
      take(outcome, tuttiDdpMarkReady(model.ddp, 0));
      take(outcome, tuttiDdpWait(model.ddp));
      const std::chrono::duration<double> pass = Clock::now() - begin;
      passes += pass;
      take(outcome, tuttiDdpGetStats(model.ddp, &stats));
      outcome.wrong += stats.backwardSeconds < 0.02 || stats.backwardSeconds > pass.count();
    }
    outcome.wrong += stats.totalBackwardSeconds < 0.06 || stats.totalBackwardSeconds > passes.count();
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("checks pass over parameters without data") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20});
    model.tensor(1).data = nullptr;
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.checkEvery = 1;
    take(outcome, model.create(comm, &config));
    model.step(rank, 0, outcome);
    outcome.wrong += model.wrong_averages(2, 0);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}
