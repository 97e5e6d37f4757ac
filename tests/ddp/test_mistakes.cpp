// All ranks are told of a mistake, with the parameter's name; the next step succeeds.
#include <cstddef>
#include <limits>

#include "ddp/model.h"

using namespace tutti_test;

TEST_CASE("ranks whose models differ are told at creation which parameter it is, and who has what") {
  require_error(
      3, tuttiInvalidUsage,
      {"ranks 0, 2 have parameter 1 'layer1' of float32 [4, 3]", "rank 1 has parameter 1 'layer1' of float32 [3, 4]"},
      [](int rank, tuttiComm_t comm, Outcome& outcome) {
        Model model({5, 12});
        model.tensor(1).ndim = 2;
        model.tensor(1).shape[0] = rank == 1 ? 3 : 4;
        model.tensor(1).shape[1] = rank == 1 ? 4 : 3;
        model.ddp = reinterpret_cast<tuttiDdp_t>(8);
        take(outcome, model.create(comm));
        outcome.wrong += model.ddp != nullptr;
      });
  require_error(2, tuttiInvalidUsage, {"rank 0 has parameter 2 'layer2' of float32 [7]", "rank 1 has"},
                [](int rank, tuttiComm_t comm, Outcome& outcome) {
                  Model model(rank == 0 ? std::vector<size_t>{5, 12, 7} : std::vector<size_t>{5, 12});
                  take(outcome, model.create(comm));
                });
  require_error(3, tuttiInvalidUsage, {"ranks 0, 1 have parameter 0 'layer0' of float32 [5]", "rank 2 has"},
                [](int rank, tuttiComm_t comm, Outcome& outcome) {
                  Model model({rank == 2 ? size_t{6} : size_t{5}});
                  take(outcome, model.create(comm));
                });
  require_error(2, tuttiInvalidUsage, {"gradient float32", "gradient bfloat16"},
                [](int rank, tuttiComm_t comm, Outcome& outcome) {
                  Model model({5});
                  if (rank == 1) model.tensor(0).gradDatatype = tuttiBfloat16;
                  take(outcome, model.create(comm));
                });
  require_error(2, tuttiInvalidUsage, {"findUnused=0", "findUnused=1"},
                [](int rank, tuttiComm_t comm, Outcome& outcome) {
                  Model model({5});
                  tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
                  config.findUnused = rank;
                  take(outcome, model.create(comm, &config));
                });
}

TEST_CASE("each option and each buffer that differs is told at creation") {
  using Change = std::function<void(tuttiDdpConfig_t&, tuttiDdpTensor_t&)>;
  const auto differ = [](const std::string& part, const Change& change) {
    require_error(2, tuttiInvalidUsage, {"models or options differ", "rank 1 has ", part},
                  [&](int rank, tuttiComm_t comm, Outcome& outcome) {
                    Model model({5});
                    int32_t values[2] = {};
                    tuttiDdpTensor_t buffer = model.tensor(0);
                    buffer.name = "mean";
                    buffer.data = values;
                    buffer.count = 2;
                    buffer.datatype = tuttiInt32;
                    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
                    if (rank == 1) change(config, buffer);
                    take(outcome, tuttiDdpCreate(&model.ddp, comm, &model.tensor(0), 1, &buffer, 1, &config));
                  });
  };
  differ("rank 1 has buffer 0 'mean' of int32 [1]", [](auto&, auto& b) { b.count = 1; });
  differ("buffer 0 'mean' of int32 [2], without data", [](auto&, auto& b) { b.data = nullptr; });
  differ("firstBucketBytes=77", [](auto& c, auto&) { c.firstBucketBytes = 77; });
  differ("bucketCapBytes=77", [](auto& c, auto&) { c.bucketCapBytes = 77; });
  differ("broadcastBuffers=0", [](auto& c, auto&) { c.broadcastBuffers = 0; });
  differ("staticGraph=1", [](auto& c, auto&) { c.staticGraph = 1; });
  differ("rebuildBuckets=0", [](auto& c, auto&) { c.rebuildBuckets = 0; });
  differ("joinable=1", [](auto& c, auto&) { c.joinable = 1; });
  differ("checkEvery=77", [](auto& c, auto&) { c.checkEvery = 77; });
  differ("compression=4", [](auto& c, auto&) { c.compression = tuttiDdpInt8; });
  differ("powerSgdRank=77", [](auto& c, auto&) { c.powerSgdRank = 77; });
  differ("powerSgdStartStep=77", [](auto& c, auto&) { c.powerSgdStartStep = 77; });
  differ("powerSgdSeed=77", [](auto& c, auto&) { c.powerSgdSeed = 77; });
  differ("errorFeedback=1", [](auto& c, auto&) { c.errorFeedback = 1; });
  differ("a hook", [](auto& c, auto&) {
    c.hook = [](const tuttiDdpBucket_t*, tuttiComm_t, tuttiStream_t, void*) { return tuttiSuccess; };
  });
}

TEST_CASE("a shape that differs is told though it stands behind a long name") {
  require_error(2, tuttiInvalidUsage, {"rank 0 has parameter 0 'aaaa", "[5]", "rank 1 has", "[6]"},
                [](int rank, tuttiComm_t comm, Outcome& outcome) {
                  Model model({rank == 0 ? size_t{5} : size_t{6}});
                  const std::string name(300, 'a');
                  model.tensor(0).name = name.c_str();
                  take(outcome, model.create(comm));
                });
}

TEST_CASE("a wrong argument of one rank ends the creation of all, and the communicator lives on") {
  require_error(2, tuttiInvalidArgument, {"rank 1: parameter 0 'layer0'", "count=5", "[2, 3]"},
                [](int rank, tuttiComm_t comm, Outcome& outcome) {
                  Model model({5});
                  if (rank == 1) {
                    model.tensor(0).ndim = 2;
                    model.tensor(0).shape[0] = 2;
                    model.tensor(0).shape[1] = 3;
                  }
                  take(outcome, model.create(comm));
                  Model good({5});
                  Outcome second;
                  take(second, good.create(comm));
                  good.step(rank, 0, second);
                  outcome.wrong += second.code != tuttiSuccess || good.wrong_averages(2, 0) > 0;
                  outcome.wrong += tuttiDdpDestroy(good.ddp) != tuttiSuccess;
                });
}

TEST_CASE("arguments are checked") {
  on_ranks(1, [](int, tuttiComm_t comm, Outcome& outcome) {
    const auto refused = [&](const std::string& part, auto&& change) {
      Model model({6});
      tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
      change(model.tensor(0), config);
      const tuttiResult_t result = model.create(comm, &config);
      if (result == tuttiInvalidArgument && contains(tuttiDdpGetLastError(), part)) return;
      outcome.wrong++;
      outcome.message += "not refused: " + part + "; said: " + tuttiDdpGetLastError() + "\n";
    };
    refused("datatype=99", [](auto& t, auto&) { t.datatype = static_cast<tuttiDataType_t>(99); });
    refused("gradDatatype is 2 (int32)", [](auto& t, auto&) { t.gradDatatype = tuttiInt32; });
    refused("device=0", [](auto& t, auto&) { t.device = 0; });
    refused("ndim=9", [](auto& t, auto&) { t.ndim = 9; });
    refused("ndim=-1", [](auto& t, auto&) { t.ndim = -1; });
    refused("count=", [](auto& t, auto&) { t.count = ~size_t{0}; });
    refused("config.overlap=2", [](auto&, auto& c) { c.overlap = 2; });
    refused("config.broadcastBuffers=2", [](auto&, auto& c) { c.broadcastBuffers = 2; });
    refused("config.findUnused=-1", [](auto&, auto& c) { c.findUnused = -1; });
    refused("config.staticGraph=2", [](auto&, auto& c) { c.staticGraph = 2; });
    refused("config.rebuildBuckets=2", [](auto&, auto& c) { c.rebuildBuckets = 2; });
    refused("config.joinable=2", [](auto&, auto& c) { c.joinable = 2; });
    refused("config.errorFeedback=2", [](auto&, auto& c) { c.errorFeedback = 2; });
    refused("config.powerSgdStartStep=-1", [](auto&, auto& c) { c.powerSgdStartStep = -1; });
    refused("config.checkEvery=-1", [](auto&, auto& c) { c.checkEvery = -1; });
    refused("config.compression=7", [](auto&, auto& c) { c.compression = static_cast<tuttiDdpCompression_t>(7); });
    refused("config.powerSgdRank=0", [](auto&, auto& c) { c.powerSgdRank = 0; });
    refused("TUTTI_DDP_CONFIG_INITIALIZER", [](auto&, auto& c) { c.magic = 0; });
    tuttiDdp_t ddp = nullptr;
    outcome.wrong += tuttiDdpCreate(&ddp, comm, nullptr, 1, nullptr, 0, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiDdpCreate(nullptr, comm, nullptr, 0, nullptr, 0, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiDdpCreate(&ddp, nullptr, nullptr, 0, nullptr, 0, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiDdpBegin(nullptr) != tuttiInvalidArgument;
    Model model({6});
    take(outcome, model.create(comm));
    void* at = nullptr;
    outcome.wrong += tuttiDdpGradient(model.ddp, 1, &at) != tuttiInvalidArgument;
    outcome.wrong += tuttiDdpGradient(model.ddp, 0, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiDdpMarkReady(model.ddp, 1) != tuttiInvalidArgument;
    outcome.wrong += tuttiDdpGetStats(model.ddp, nullptr) != tuttiInvalidArgument;
    tuttiDdpStats_t small = {};
    outcome.wrong += tuttiDdpGetStats(model.ddp, &small) != tuttiInvalidArgument;
    take(outcome, tuttiDdpDestroy(model.ddp));
    outcome.wrong += tuttiDdpDestroy(model.ddp) != tuttiInvalidArgument;
    outcome.wrong += tuttiDdpBegin(model.ddp) != tuttiInvalidArgument;
  });
}

TEST_CASE("a config of an older header lacks what came later, which is not read") {
  on_ranks(1, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({6});
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.size = offsetof(tuttiDdpConfig_t, errorFeedback);
    config.errorFeedback = 77;  // past the end of the older program's struct
    take(outcome, model.create(comm, &config));
    if (outcome.code != tuttiSuccess) return;
    model.step(rank, 0, outcome);
    take(outcome, tuttiDdpDestroy(model.ddp));
    config.size = offsetof(tuttiDdpConfig_t, firstBucketBytes) - 1;
    outcome.wrong += model.create(comm, &config) != tuttiInvalidArgument;
  });
}

TEST_CASE("calls that do not fit the step are refused, and do no harm") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({6, 7});
    take(outcome, model.create(comm));
    outcome.wrong += tuttiDdpMarkReady(model.ddp, 0) != tuttiInvalidUsage;
    outcome.wrong += !contains(tuttiDdpGetLastError(), "parameter 0 'layer0'");
    outcome.wrong += tuttiDdpWait(model.ddp) != tuttiInvalidUsage;
    outcome.wrong += tuttiDdpNoSyncEnd(model.ddp) != tuttiInvalidUsage;
    outcome.wrong += tuttiDdpJoin(model.ddp) != tuttiInvalidUsage;
    take(outcome, tuttiDdpBegin(model.ddp));
    outcome.wrong += tuttiDdpBegin(model.ddp) != tuttiInvalidUsage;
    outcome.wrong += tuttiDdpNoSyncBegin(model.ddp) != tuttiInvalidUsage;
    outcome.wrong += tuttiDdpBroadcast(model.ddp, 0) != tuttiInvalidUsage;
    outcome.wrong += tuttiDdpBroadcastBuffers(model.ddp, 0) != tuttiInvalidUsage;
    outcome.wrong += tuttiDdpZeroGradients(model.ddp) != tuttiInvalidUsage;
    for (size_t p = 0; p < 2; p++) {
      model.fill(rank, 0, p);
      take(outcome, tuttiDdpMarkReady(model.ddp, p));
    }
    take(outcome, tuttiDdpWait(model.ddp));
    outcome.wrong += model.wrong_averages(2, 0);
    take(outcome, tuttiDdpNoSyncBegin(model.ddp));
    take(outcome, tuttiDdpBegin(model.ddp));
    outcome.wrong += tuttiDdpNoSyncEnd(model.ddp) != tuttiInvalidUsage;
    take(outcome, tuttiDdpWait(model.ddp));
    take(outcome, tuttiDdpNoSyncEnd(model.ddp));
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

namespace {

// A step that fails on rank 1 because of `mistake`, then one that succeeds.
void require_recovery(const tuttiDdpConfig_t& config, const std::vector<std::string>& parts,
                      const std::function<void(Model&)>& mistake) {
  require_error(3, tuttiInvalidUsage, parts, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({64, 64, 64, 64, 64, 64});
    take(outcome, model.create(comm, &config));
    if (config.staticGraph) model.step(rank, 0, outcome);
    take(outcome, tuttiDdpBegin(model.ddp));
    for (size_t p = 0; p < model.size(); p++) model.fill(rank, 0, p);
    if (rank == 1) {
      mistake(model);
    } else {
      for (size_t p = model.size(); p-- > 0;) take(outcome, tuttiDdpMarkReady(model.ddp, p));
    }
    take(outcome, tuttiDdpWait(model.ddp));
    for (int step = 1; step < 3; step++) {
      Outcome next;
      model.step(rank, step, next);
      outcome.wrong += next.code != tuttiSuccess || model.wrong_averages(3, step) > 0;
    }
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    outcome.wrong += tuttiDdpGetStats(model.ddp, &stats) != tuttiSuccess;
    outcome.wrong += stats.steps != (config.staticGraph != 0 ? 3u : 2u);
    outcome.wrong += tuttiDdpDestroy(model.ddp) != tuttiSuccess;
  });
}

}  // namespace

TEST_CASE("parameters that never become ready are named on all ranks") {
  require_recovery(small_buckets(), {"rank 1:", "parameter 2 'layer2', parameter 5 'layer5'", "never became ready"},
                   [](Model& model) {
                     for (const size_t p : {4, 3, 1, 0})
                       if (tuttiDdpMarkReady(model.ddp, p) != tuttiSuccess) abort();
                   });
}

TEST_CASE("buckets are rebuilt in the order of a whole step, though rank 0 left out a mark in the one before") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({64, 64, 64});
    const tuttiDdpConfig_t config = small_buckets();
    take(outcome, model.create(comm, &config));
    take(outcome, tuttiDdpBegin(model.ddp));
    for (const size_t p : {2, 0}) take(outcome, tuttiDdpMarkReady(model.ddp, p));
    if (rank == 1) take(outcome, tuttiDdpMarkReady(model.ddp, 1));
    outcome.wrong += tuttiDdpWait(model.ddp) != tuttiInvalidUsage;
    for (int step = 0; step < 3; step++) {
      model.step(rank, step, outcome);
      outcome.wrong += model.wrong_averages(2, step);
    }
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    outcome.wrong += stats.rebuilds != 1;
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("of many parameters that never become ready eight are named, and the others counted") {
  const auto never_ready = [](size_t n, const std::string& last) {
    require_error(2, tuttiInvalidUsage, {"rank 1: parameter 0 'layer0', ", last + " never became ready"},
                  [&](int rank, tuttiComm_t comm, Outcome& outcome) {
                    Model model(std::vector<size_t>(n, 4));
                    Outcome good;
                    take(good, model.create(comm));
                    take(good, tuttiDdpBegin(model.ddp));
                    for (size_t p = 0; rank == 0 && p < n; p++) take(good, tuttiDdpMarkReady(model.ddp, p));
                    take(outcome, tuttiDdpWait(model.ddp));
                    outcome.wrong += good.code != tuttiSuccess || tuttiDdpDestroy(model.ddp) != tuttiSuccess;
                  });
  };
  never_ready(8, "parameter 6 'layer6', parameter 7 'layer7'");
  never_ready(10, "parameter 7 'layer7' and 2 more");
}

TEST_CASE("a parameter that is marked twice is named on all ranks") {
  require_recovery(small_buckets(), {"rank 1:", "parameter 4 'layer4' was marked twice"}, [](Model& model) {
    for (const size_t p : {5, 4, 4, 3, 2, 1, 0}) {
      const bool again = tuttiDdpMarkReady(model.ddp, p) != tuttiSuccess;
      if (again && !contains(tuttiDdpGetLastError(), "layer4")) abort();
    }
  });
}

TEST_CASE("to mark what is unused takes an option") {
  require_recovery(small_buckets(), {"rank 1:", "parameter 3 'layer3' was marked as unused", "findUnused=1"},
                   [](Model& model) {
                     for (const size_t p : {5, 4, 2, 1, 0})
                       if (tuttiDdpMarkReady(model.ddp, p) != tuttiSuccess) abort();
                     if (tuttiDdpMarkUnused(model.ddp, 3) != tuttiInvalidUsage) abort();
                   });
}

TEST_CASE("a static graph that changes is an error") {
  tuttiDdpConfig_t config = small_buckets();
  config.staticGraph = 1;
  require_recovery(config, {"rank 1:", "parameter 0 'layer0' is unused, but was used in the first step"},
                   [](Model& model) {
                     for (const size_t p : {5, 4, 3, 2, 1})
                       if (tuttiDdpMarkReady(model.ddp, p) != tuttiSuccess) abort();
                     if (tuttiDdpMarkUnused(model.ddp, 0) != tuttiInvalidUsage) abort();
                   });
}

TEST_CASE("a static graph that changed without synchronisation is an error of the next step with it") {
  tuttiDdpConfig_t config = small_buckets();
  config.staticGraph = 1;
  constexpr int kSteps = 4, kWrong = 2;
  require_error(2, tuttiSuccess, {}, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({10, 20});
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < kSteps; step++) {
      const bool changes = step == kWrong && rank == 1;
      take(outcome, tuttiDdpNoSyncBegin(model.ddp));
      take(outcome, tuttiDdpBegin(model.ddp));
      take(outcome, tuttiDdpMarkReady(model.ddp, 1));
      if (changes) outcome.wrong += tuttiDdpMarkReady(model.ddp, 0) != tuttiInvalidUsage;
      take(outcome, tuttiDdpWait(model.ddp));
      take(outcome, tuttiDdpNoSyncEnd(model.ddp));
      take(outcome, tuttiDdpBegin(model.ddp));
      take(outcome, tuttiDdpMarkReady(model.ddp, 1));
      const tuttiResult_t ended = tuttiDdpWait(model.ddp);
      outcome.wrong += ended != (step == kWrong ? tuttiInvalidUsage : tuttiSuccess);
      if (step != kWrong) continue;
      for (const char* part : {"rank 1:", "parameter 0 'layer0' has a gradient, but had none in the first step"})
        outcome.wrong += !contains(tuttiDdpGetLastError(), part);
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("NaN and Inf are found, with rank and parameter") {
  tuttiDdpConfig_t config = small_buckets();
  config.checkEvery = 1;
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
  require_recovery(config, {"rank 1:", "parameter 3 'layer3' has Inf or NaN at element 17"}, [&](Model& model) {
    model.grad(3)[17] = bad;
    for (size_t p = model.size(); p-- > 0;)
      if (tuttiDdpMarkReady(model.ddp, p) != tuttiSuccess) abort();
  });
}

TEST_CASE("NaN is found in gradients of every type and in any step, and large numbers are none") {
  struct Kind {
    tuttiDataType_t type;
    size_t bytes;
    uint64_t nan, large;
  };
  for (const Kind& kind :
       {Kind{tuttiFloat64, 8, 0x7ff8000000000000, 0x7fd0000000000000}, Kind{tuttiFloat32, 4, 0x7fc00000, 0x7e800000},
        Kind{tuttiFloat16, 2, 0x7e00, 0x7400}, Kind{tuttiBfloat16, 2, 0x7fc0, 0x7e80}}) {
    const auto step = [&](Model& model, bool is_bad, Outcome& outcome) {
      void* grad = nullptr;
      take(outcome, tuttiDdpBegin(model.ddp));
      take(outcome, tuttiDdpGradient(model.ddp, 0, &grad));
      for (size_t i = 0; i < 5; i++)
        memcpy(static_cast<char*>(grad) + i * kind.bytes, is_bad && i == 4 ? &kind.nan : &kind.large, kind.bytes);
      take(outcome, tuttiDdpMarkReady(model.ddp, 0));
      take(outcome, tuttiDdpWait(model.ddp));
    };
    INFO("type " << static_cast<int>(kind.type));
    require_error(2, tuttiInvalidUsage, {"rank 1:", "parameter 0 'layer0' has Inf or NaN at element 4"},
                  [&](int rank, tuttiComm_t comm, Outcome& outcome) {
                    Model model({5});
                    model.tensor(0).gradDatatype = kind.type;
                    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
                    config.checkEvery = 1;
                    Outcome good;
                    take(good, model.create(comm, &config));
                    step(model, false, good);
                    step(model, rank == 1, outcome);
                    outcome.wrong += good.code != tuttiSuccess || tuttiDdpDestroy(model.ddp) != tuttiSuccess;
                  });
  }
}

TEST_CASE("a model that has come to differ between ranks is found") {
  tuttiDdpConfig_t config = small_buckets();
  config.checkEvery = 2;
  require_error(3, tuttiInvalidUsage, {"parameter 1 'layer1' differs from rank 0's on rank 2"},
                [&](int rank, tuttiComm_t comm, Outcome& outcome) {
                  Model model({8, 8, 8});
                  Outcome first;
                  take(first, model.create(comm, &config));
                  if (rank == 2) model.data(1)[3] += 1e-6f;
                  model.step(rank, 0, first);  // this step is not checked
                  outcome.wrong += first.code != tuttiSuccess;
                  model.step(rank, 1, outcome);
                  outcome.wrong += tuttiDdpDestroy(model.ddp) != tuttiSuccess;
                });
}

TEST_CASE("a model that differs in its very last element, and averages that differ, are found") {
  tuttiDdpConfig_t config = small_buckets();
  config.checkEvery = 1;
  const auto body = [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({8, 9});  // nine floats do not fill whole words
    Outcome created;
    take(created, model.create(comm, &config));
    if (rank == 1 && config.hook == nullptr) model.data(1)[8] = 1;
    model.step(rank, 0, outcome);
    outcome.wrong += created.code != tuttiSuccess || tuttiDdpDestroy(model.ddp) != tuttiSuccess;
  };
  require_error(2, tuttiInvalidUsage, {"parameter 1 'layer1' differs from rank 0's on rank 1"}, body);
  config.hook = [](const tuttiDdpBucket_t*, tuttiComm_t, tuttiStream_t, void*) { return tuttiSuccess; };
  require_error(3, tuttiInvalidUsage, {"averaged gradient of parameter 0 'layer0' differs from rank 0's on rank 1, 2"},
                body);
}

TEST_CASE("a hook that fails ends the step on all ranks with its own error") {
  tuttiDdpConfig_t config = small_buckets();
  config.hook = [](const tuttiDdpBucket_t* bucket, tuttiComm_t comm, tuttiStream_t stream, void* user) {
    const auto result =
        tuttiAllReduce(bucket->data, bucket->data, bucket->count, bucket->datatype, tuttiAvg, comm, stream);
    return *static_cast<bool*>(user) && bucket->index == 1 ? tuttiInternalError : result;
  };
  require_error(2, tuttiInternalError, {"rank 1: the hook of bucket 1"},
                [&](int rank, tuttiComm_t comm, Outcome& outcome) {
                  bool fails = rank == 1;
                  tuttiDdpConfig_t mine = config;
                  mine.hookUserData = &fails;
                  Model model({64, 64, 64, 64, 64, 64});
                  take(outcome, model.create(comm, &mine));
                  model.step(rank, 0, outcome);
                  outcome.wrong += tuttiDdpDestroy(model.ddp) != tuttiSuccess;
                });
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("a killed rank ends the others' step with its name") {
  constexpr int n = 3;
  Processes ranks(n, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({100, 100000, 3});
    const tuttiDdpConfig_t config = small_buckets();
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 1000000 && outcome.code == tuttiSuccess; step++) {
      model.step(rank, step, outcome);
      if (rank == 1 && step == 5) _exit(7);
    }
    const std::string first = outcome.message;
    Outcome again;
    model.step(rank, 0, again);
    outcome.wrong += again.code != outcome.code;
    outcome.wrong += tuttiDdpMarkReady(model.ddp, 0) != outcome.code;
    outcome.wrong += !contains(tuttiDdpGetLastError(), "rank 1");
    outcome.wrong += tuttiDdpWait(model.ddp) != outcome.code;
    outcome.wrong += !contains(tuttiDdpGetLastError(), "rank 1");
    outcome.wrong += tuttiDdpDestroy(model.ddp) != tuttiSuccess;
  });
  check_survivors(ranks.wait());
}
#endif

TEST_CASE("a root that does not exist is refused, also where there is nothing to broadcast") {
  require_error(2, tuttiInvalidArgument, {"root=2"}, [](int, tuttiComm_t comm, Outcome& outcome) {
    Model model({5});
    Outcome good;
    take(good, model.create(comm));
    take(outcome, tuttiDdpBroadcastBuffers(model.ddp, 2));
    outcome.wrong += good.code != tuttiSuccess || tuttiDdpDestroy(model.ddp) != tuttiSuccess;
  });
}

TEST_CASE("a number of parameters that no memory holds is told to all ranks") {
  require_error(2, tuttiInvalidArgument, {"rank 1: ", "parameters are more than memory can hold"},
                [](int rank, tuttiComm_t comm, Outcome& outcome) {
                  Model model({5});
                  const size_t n = rank == 1 ? SIZE_MAX : 1;
                  take(outcome, tuttiDdpCreate(&model.ddp, comm, &model.tensor(0), n, nullptr, 0, nullptr));
                });
}
