// Steps of the gradient averager that succeed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "ddp/model.h"

using namespace tutti_test;

namespace {
const std::vector<size_t> kCounts = {3, 700, 0, 1, 64, 17, 300, 5};
}

TEST_CASE("all ranks start with rank 0's data") {
  const int n = GENERATE(1, 2, 3);
  on_ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model(kCounts);
    std::vector<int64_t> buffer(5, rank + 40);
    const tuttiDdpTensor_t buffers[] = {{.name = "running mean",
                                         .data = buffer.data(),
                                         .grad = nullptr,
                                         .count = 5,
                                         .datatype = tuttiInt64,
                                         .gradDatatype = tuttiInt64,
                                         .ndim = 0,
                                         .shape = {},
                                         .device = TUTTI_DDP_HOST}};
    std::vector<tuttiDdpTensor_t> params;
    for (size_t p = 0; p < model.size(); p++) {
      std::fill(model.data(p).begin(), model.data(p).end(), static_cast<float>(rank + 1));
      params.push_back(model.tensor(p));
    }
    take(outcome, tuttiDdpCreate(&model.ddp, comm, params.data(), params.size(), buffers, 1, nullptr));
    if (outcome.code != tuttiSuccess) return;
    for (size_t p = 0; p < model.size(); p++)
      for (const float x : model.data(p)) outcome.wrong += x != 1;
    outcome.wrong += buffer[4] != 40;
    buffer.assign(5, rank + 50);  // every step sets the buffers to rank 0's
    model.step(rank, 0, outcome);
    outcome.wrong += buffer[0] != 50;
    buffer.assign(5, rank + 60);
    take(outcome, tuttiDdpBroadcastBuffers(model.ddp, n - 1));
    outcome.wrong += buffer[0] != n - 1 + 60;
    model.data(1).assign(kCounts[1], static_cast<float>(rank));
    take(outcome, tuttiDdpBroadcast(model.ddp, n - 1));
    outcome.wrong += model.data(1)[7] != static_cast<float>(n - 1);
    outcome.wrong += tuttiDdpBroadcast(model.ddp, n) != tuttiInvalidArgument;
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("gradients become averages, in buckets and in the caller's memory") {
  const int n = GENERATE(1, 2, 3, 5);
  const bool own = GENERATE(false, true);
  const int overlap = GENERATE(0, 1);
  on_ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model(kCounts, own);
    tuttiDdpConfig_t config = small_buckets();
    config.overlap = overlap;
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 4 && outcome.code == tuttiSuccess; step++) {
      model.step(rank, step, outcome);
      outcome.wrong += model.wrong_averages(n, step);
    }
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    outcome.wrong += stats.steps != 4 || stats.rebuilds != 1 || stats.buckets < 3;
    outcome.wrong += stats.parameters != std::accumulate(kCounts.begin(), kCounts.end(), size_t{0});
    outcome.wrong += stats.overlapPercent < 0 || stats.overlapPercent > 100;
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("a model without parameters, and one of nothing, takes steps") {
  for (const auto& counts : {std::vector<size_t>{}, std::vector<size_t>{0}})
    on_ranks(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
      Model model(counts);
      take(outcome, model.create(comm));
      for (int step = 0; step < 3; step++) model.step(rank, step, outcome);
      take(outcome, tuttiDdpDestroy(model.ddp));
    });
}

TEST_CASE("gradients of all types are averaged, each type in buckets of its own") {
  on_ranks(3, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const tuttiDataType_t types[] = {tuttiFloat64, tuttiFloat32, tuttiFloat64, tuttiBfloat16, tuttiFloat16};
    std::vector<tuttiDdpTensor_t> params;
    for (const tuttiDataType_t type : types)
      params.push_back({.name = nullptr,
                        .data = nullptr,
                        .grad = nullptr,
                        .count = 10,
                        .datatype = type,
                        .gradDatatype = type,
                        .ndim = 2,
                        .shape = {5, 2},
                        .device = TUTTI_DDP_HOST});
    tuttiDdp_t ddp = nullptr;
    take(outcome, tuttiDdpCreate(&ddp, comm, params.data(), params.size(), nullptr, 0, nullptr));
    if (outcome.code != tuttiSuccess) return;
    take(outcome, tuttiDdpBegin(ddp));
    void* at[5];
    for (size_t p = 0; p < 5; p++) take(outcome, tuttiDdpGradient(ddp, p, &at[p]));
    const float one = static_cast<float>(rank + 1);  // the average is 2
    const uint16_t bfloat16s[] = {0x3f80, 0x4000, 0x4040}, halves[] = {0x3c00, 0x4000, 0x4200};
    for (size_t i = 0; i < 10; i++) {
      static_cast<double*>(at[0])[i] = static_cast<double*>(at[2])[i] = static_cast<double>(one);
      static_cast<float*>(at[1])[i] = one;
      static_cast<uint16_t*>(at[3])[i] = bfloat16s[rank];
      static_cast<uint16_t*>(at[4])[i] = halves[rank];
    }
    for (size_t p = 0; p < 5; p++) take(outcome, tuttiDdpMarkReady(ddp, p));
    take(outcome, tuttiDdpWait(ddp));
    for (size_t i = 0; i < 10; i++) {
      outcome.wrong += static_cast<double*>(at[0])[i] != 2 || static_cast<double*>(at[2])[i] != 2;
      outcome.wrong += static_cast<float*>(at[1])[i] != 2;
      outcome.wrong += static_cast<uint16_t*>(at[3])[i] != 0x4000 || static_cast<uint16_t*>(at[4])[i] != 0x4000;
    }
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(ddp, &stats));
    outcome.wrong += stats.buckets != 4;
    take(outcome, tuttiDdpDestroy(ddp));
  });
}

TEST_CASE("marks may come from several threads and in any order, another one on each rank") {
  constexpr int n = 3;
  on_ranks(n, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model(std::vector<size_t>(40, 50));
    const tuttiDdpConfig_t config = small_buckets();
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 5 && outcome.code == tuttiSuccess; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      std::atomic<size_t> next{0}, failed{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; t++)
        threads.emplace_back([&] {
          for (size_t i; (i = next++) < model.size();) {
            // 7 and 11 are coprime to 40, so this visits all parameters.
            const size_t param = (i * (rank == 0 ? 7 : 11) + static_cast<size_t>(step)) % model.size();
            model.fill(rank, step, param);
            failed += tuttiDdpMarkReady(model.ddp, param) != tuttiSuccess;
          }
        });
      for (auto& thread : threads) thread.join();
      outcome.wrong += failed;
      take(outcome, tuttiDdpWait(model.ddp));
      outcome.wrong += model.wrong_averages(n, step);
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

namespace {

// What a hook sees of the layout: the parameters of each bucket.
tuttiResult_t note_layout(const tuttiDdpBucket_t* bucket, tuttiComm_t comm, tuttiStream_t stream, void* user) {
  auto& seen = *static_cast<std::vector<std::vector<size_t>>*>(user);
  if (bucket->index == 0) seen.clear();
  seen.emplace_back(bucket->params, bucket->params + bucket->nparams);
  return tuttiAllReduce(bucket->data, bucket->data, bucket->count, bucket->datatype, tuttiAvg, comm, stream);
}

}  // namespace

TEST_CASE("buckets are in reverse order of the parameters, then in rank 0's ready order") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    // 64 floats are 256 bytes: the first bucket has one of them, the others four.
    Model model(std::vector<size_t>(9, 64));
    std::vector<std::vector<size_t>> seen;
    tuttiDdpConfig_t config = small_buckets();
    config.hook = note_layout;
    config.hookUserData = &seen;
    take(outcome, model.create(comm, &config));
    const auto run = [&](int step) {
      take(outcome, tuttiDdpBegin(model.ddp));
      for (size_t i = 0; i < 9; i++) {
        const size_t param = rank == 0 ? (i * 2) % 9 : i;
        model.fill(rank, step, param);
        take(outcome, tuttiDdpMarkReady(model.ddp, param));
      }
      take(outcome, tuttiDdpWait(model.ddp));
      outcome.wrong += model.wrong_averages(2, step);
    };
    run(0);
    outcome.wrong += seen != std::vector<std::vector<size_t>>{{8}, {7, 6, 5, 4}, {3, 2, 1, 0}};
    take(outcome, tuttiDdpBegin(model.ddp));  // moves the gradients, with their values
    outcome.wrong += model.wrong_averages(2, 0);
    for (size_t p = 0; p < 9; p++) take(outcome, tuttiDdpMarkReady(model.ddp, p));
    take(outcome, tuttiDdpWait(model.ddp));
    run(2);
    outcome.wrong += seen != std::vector<std::vector<size_t>>{{0}, {2, 4, 6, 8}, {1, 3, 5, 7}};
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("buckets are averaged while others are still to be marked, and only by tuttiDdpWait without overlap") {
  const int overlap = GENERATE(0, 1);
  on_ranks(1, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model(std::vector<size_t>(9, 64));  // buckets of one, four and four
    std::atomic<size_t> seen{0};
    tuttiDdpConfig_t config = small_buckets();
    config.overlap = overlap;
    config.hookUserData = &seen;
    config.hook = [](const tuttiDdpBucket_t*, tuttiComm_t, tuttiStream_t, void* user) {
      (*static_cast<std::atomic<size_t>*>(user))++;
      return tuttiSuccess;  // the data of a single rank is the average already
    };
    take(outcome, model.create(comm, &config));
    take(outcome, tuttiDdpBegin(model.ddp));
    for (size_t p = 9; p-- > 0;) {
      model.fill(rank, 0, p);
      if (p > 0) take(outcome, tuttiDdpMarkReady(model.ddp, p));
    }
    for (int ms = 0; ms < (overlap == 1 ? 5000 : 50) && seen < 2; ms++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    outcome.wrong += seen != (overlap == 1 ? 2u : 0u);
    take(outcome, tuttiDdpMarkReady(model.ddp, 0));
    take(outcome, tuttiDdpWait(model.ddp));
    outcome.wrong += seen != 3 || model.wrong_averages(1, 0) > 0;
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

namespace {

// Accumulates that many steps from zero; the last one averages.
void accumulate(Model& model, int rank, int n_steps, Outcome& outcome) {
  take(outcome, tuttiDdpZeroGradients(model.ddp));
  for (int step = 0; step < n_steps; step++) {
    if (step == 0) take(outcome, tuttiDdpNoSyncBegin(model.ddp));
    if (step == n_steps - 1) take(outcome, tuttiDdpNoSyncEnd(model.ddp));
    take(outcome, tuttiDdpBegin(model.ddp));
    for (size_t p = model.size(); p-- > 0;) {
      model.fill(rank, step, p, true);
      take(outcome, tuttiDdpMarkReady(model.ddp, p));
    }
    take(outcome, tuttiDdpWait(model.ddp));
  }
}

}  // namespace

TEST_CASE("steps without synchronisation accumulate, the next one averages the sums") {
  const bool own = GENERATE(false, true);
  const int n = 3;
  on_ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model(kCounts, own);
    const tuttiDdpConfig_t config = small_buckets();
    take(outcome, model.create(comm, &config));
    for (int round = 0; round < 3; round++) {
      accumulate(model, rank, 4, outcome);
      for (size_t p = 0; p < model.size(); p++)
        outcome.wrong += model.wrong(p, [&](size_t param, size_t i) {
          double sum = 0;
          for (int step = 0; step < 4; step++) sum += average_of(n, step, param, i);
          return sum;
        });
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("what some ranks do not use counts as zero, what none uses stays as it is") {
  const bool own = GENERATE(false, true);
  constexpr int n = 3;
  on_ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20, 30, 40}, own);
    tuttiDdpConfig_t config = small_buckets();
    config.findUnused = 1;
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 4 && outcome.code == tuttiSuccess; step++) {
      // In each step no rank uses one parameter, and only rank 1 uses `rare`.
      const auto unused = static_cast<size_t>(step % 4), rare = 3 - unused;
      take(outcome, tuttiDdpBegin(model.ddp));
      for (size_t p = 0; p < model.size(); p++) {
        std::fill_n(model.grad(p), model.tensor(p).count, 1000.0f);
        const bool used = p != unused && (p != rare || rank == 1);
        if (used) model.fill(rank, step, p);
        take(outcome, used ? tuttiDdpMarkReady(model.ddp, p) : tuttiDdpMarkUnused(model.ddp, p));
      }
      take(outcome, tuttiDdpWait(model.ddp));
      for (size_t p = 0; p < model.size(); p++)
        outcome.wrong += model.wrong(p, [&](size_t param, size_t i) {
          if (param == unused) return 1000.0;
          return param == rare ? gradient_of(1, step, param, i) / n : average_of(n, step, param, i);
        });
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("what was used without synchronisation counts, although the last step did not use it") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20});
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.findUnused = 1;
    take(outcome, model.create(comm, &config));
    take(outcome, tuttiDdpNoSyncBegin(model.ddp));
    take(outcome, tuttiDdpBegin(model.ddp));
    model.fill(rank, 0, 1);
    take(outcome, tuttiDdpMarkReady(model.ddp, 1));
    take(outcome, tuttiDdpWait(model.ddp));
    take(outcome, tuttiDdpNoSyncEnd(model.ddp));
    take(outcome, tuttiDdpBegin(model.ddp));
    model.fill(rank, 0, 0);
    take(outcome, tuttiDdpMarkReady(model.ddp, 0));
    take(outcome, tuttiDdpMarkUnused(model.ddp, 1));
    take(outcome, tuttiDdpWait(model.ddp));
    outcome.wrong += model.wrong_averages(2, 0);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("what was unused without synchronisation, and then as well, stays as it is") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20});
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.findUnused = 1;
    take(outcome, model.create(comm, &config));
    std::fill_n(model.grad(1), model.tensor(1).count, static_cast<float>(rank + 1));
    take(outcome, tuttiDdpNoSyncBegin(model.ddp));
    take(outcome, tuttiDdpBegin(model.ddp));
    take(outcome, tuttiDdpMarkUnused(model.ddp, 1));
    take(outcome, tuttiDdpWait(model.ddp));
    take(outcome, tuttiDdpNoSyncEnd(model.ddp));
    take(outcome, tuttiDdpBegin(model.ddp));
    take(outcome, tuttiDdpMarkReady(model.ddp, 0));
    take(outcome, tuttiDdpMarkUnused(model.ddp, 1));
    take(outcome, tuttiDdpWait(model.ddp));
    outcome.wrong += model.wrong(1, [&](size_t, size_t) { return rank + 1.0; });
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("a static graph's unused parameters are those of the first step") {
  constexpr int n = 2;
  on_ranks(n, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20, 30, 40});
    tuttiDdpConfig_t config = small_buckets();
    config.staticGraph = 1;
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 4 && outcome.code == tuttiSuccess; step++) {
      for (size_t p = 0; p < 4; p++) std::fill_n(model.grad(p), model.tensor(p).count, 1000.0f);
      take(outcome, tuttiDdpBegin(model.ddp));
      for (size_t p = 0; p < 4; p++) {
        if (p == 2 || (p == 1 && rank == 1)) continue;  // 2: no rank uses it; 1: only rank 0 does
        model.fill(rank, step, p);
        take(outcome, tuttiDdpMarkReady(model.ddp, p));
      }
      take(outcome, tuttiDdpWait(model.ddp));
      for (size_t p = 0; p < 4; p++)
        outcome.wrong += model.wrong(p, [&](size_t param, size_t i) {
          if (param == 2) return 1000.0;
          return param == 1 ? gradient_of(0, step, param, i) / n : average_of(n, step, param, i);
        });
    }
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    outcome.wrong += stats.rebuilds != 1;
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("a rank that has joined sits out the others' steps without synchronisation, and averages the sums after") {
  const int find_unused = GENERATE(0, 1), static_graph = GENERATE(0, 1);
  constexpr int n = 3, kAccumulated = 2;
  on_ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model(kCounts);
    tuttiDdpConfig_t config = small_buckets();
    config.joinable = 1;
    config.findUnused = find_unused;
    config.staticGraph = static_graph;
    take(outcome, model.create(comm, &config));
    const int rounds[] = {1, 3, 2};
    for (int round = 0; round < rounds[rank]; round++) {
      accumulate(model, rank, kAccumulated + 1, outcome);
      for (size_t p = 0; p < model.size(); p++)
        outcome.wrong += model.wrong(p, [&](size_t param, size_t i) {
          double sum = 0;
          for (int r = 0; r < n; r++)
            for (int step = 0; step <= kAccumulated; step++)
              sum += round < rounds[r] ? gradient_of(r, step, param, i) : 0;
          return sum / n;
        });
    }
    // What was accumulated before is discarded.
    take(outcome, tuttiDdpNoSyncBegin(model.ddp));
    take(outcome, tuttiDdpBegin(model.ddp));
    for (size_t p = 0; p < model.size(); p++) take(outcome, tuttiDdpMarkReady(model.ddp, p));
    take(outcome, tuttiDdpWait(model.ddp));
    take(outcome, tuttiDdpJoin(model.ddp));
    take(outcome, tuttiDdpNoSyncEnd(model.ddp));
    model.step(rank, 1, outcome);
    outcome.wrong += model.wrong_averages(n, 1);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("what a rank has accumulated when it joins goes into nobody's average") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20});
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.joinable = 1;
    take(outcome, model.create(comm, &config));
    if (rank == 0) {
      take(outcome, tuttiDdpNoSyncBegin(model.ddp));
      model.step(rank, 7, outcome);
      take(outcome, tuttiDdpJoin(model.ddp));
      take(outcome, tuttiDdpNoSyncEnd(model.ddp));
    } else {
      model.step(rank, 1, outcome);
      for (size_t p = 0; p < model.size(); p++)
        outcome.wrong += model.wrong(p, [](size_t param, size_t i) { return gradient_of(1, 1, param, i) / 2; });
      take(outcome, tuttiDdpJoin(model.ddp));
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("steps without synchronisation within others: only the outermost end brings it back") {
  require_success(run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({30, 5});
    take(outcome, model.create(comm));
    // Checks the sum of steps 0 to `last`: this rank's own, or the average.
    const auto step = [&](int last, bool reduced) {
      take(outcome, tuttiDdpBegin(model.ddp));
      for (size_t p = model.size(); p-- > 0;) {
        model.fill(rank, last, p, last > 0);
        take(outcome, tuttiDdpMarkReady(model.ddp, p));
      }
      take(outcome, tuttiDdpWait(model.ddp));
      for (size_t p = 0; p < model.size(); p++)
        outcome.wrong += model.wrong(p, [&](size_t param, size_t i) {
          double sum = 0;
          for (int s = 0; s <= last; s++) sum += reduced ? average_of(2, s, param, i) : gradient_of(rank, s, param, i);
          return sum;
        });
    };
    for (int i = 0; i < 2; i++) take(outcome, tuttiDdpNoSyncBegin(model.ddp));
    step(0, false);
    take(outcome, tuttiDdpNoSyncEnd(model.ddp));
    step(1, false);
    take(outcome, tuttiDdpNoSyncEnd(model.ddp));
    outcome.wrong += tuttiDdpNoSyncEnd(model.ddp) != tuttiInvalidUsage;
    step(2, true);
    take(outcome, tuttiDdpDestroy(model.ddp));
  }));
}

TEST_CASE("the backward pass of a static graph begins with the first mark") {
  on_ranks(1, [](int, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 10});
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.staticGraph = 1;
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 2; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      std::this_thread::sleep_for(std::chrono::milliseconds(400));  // the forward pass
      const auto mark = std::chrono::steady_clock::now();
      take(outcome, tuttiDdpMarkReady(model.ddp, 0));
      take(outcome, tuttiDdpWait(model.ddp));
      const std::chrono::duration<double> since_mark = std::chrono::steady_clock::now() - mark;
      tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
      take(outcome, tuttiDdpGetStats(model.ddp, &stats));
      outcome.wrong += !(stats.backwardSeconds <= since_mark.count());
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("parameters of one bucket that nobody uses keep each its own gradient") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20, 30});  // all in one bucket
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.findUnused = 1;
    take(outcome, model.create(comm, &config));
    for (size_t p = 0; p < 3; p++) std::fill_n(model.grad(p), model.tensor(p).count, static_cast<float>(p + 1));
    take(outcome, tuttiDdpBegin(model.ddp));
    model.fill(rank, 0, 1);
    take(outcome, tuttiDdpMarkReady(model.ddp, 1));
    for (const size_t p : {0, 2}) take(outcome, tuttiDdpMarkUnused(model.ddp, p));
    take(outcome, tuttiDdpWait(model.ddp));
    for (const size_t p : {0, 2})
      outcome.wrong += model.wrong(p, [](size_t param, size_t) { return static_cast<double>(param + 1); });
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}
