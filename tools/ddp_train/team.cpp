// The ranks of a training run: how they meet, and how they go on after one is lost.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "trainer.h"

namespace tutti::train {

Trainer::~Trainer() {
  if (ddp_ != nullptr) static_cast<void>(tuttiDdpDestroy(ddp_));
  if (comm_ != nullptr) static_cast<void>(tuttiCommDestroy(comm_));
}

Status Trainer::call(tuttiResult_t result) {
  if (result == tuttiSuccess) return {};
  lost_rank_ = result == tuttiRemoteError;
  return Error{text("%s: %s", tuttiGetErrorString(result), tuttiGetLastError(nullptr))};
}

Status Trainer::ddp(tuttiResult_t result) {
  if (result == tuttiSuccess) return {};
  lost_rank_ = result == tuttiRemoteError;
  return Error{text("%s: %s", tuttiGetErrorString(result), tuttiDdpGetLastError())};
}

Status Trainer::connect() {
  Status s = setup_.from_launcher ? call(tuttiCommInitFromEnv(&comm_, nullptr))
                                  : call(tuttiCommInitRank(&comm_, setup_.size, setup_.id, setup_.rank));
  if (!s) return s;
  if (s = ask_place(); !s) return s;
  if (options_.batch % size_ != 0)
    return perf::usage_error(text("--batch %d cannot be divided among %d ranks", options_.batch, size_));
  if (local_batch_ < options_.accumulate)
    return perf::usage_error(
        text("a rank's batch of %d samples cannot be split into %d parts; make --accumulate smaller", local_batch_,
             options_.accumulate));
  return check_outputs();
}

namespace {

Status check_output(const char* option, const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_fifo(path, unknown)) return {};  // its reader would take the test for all there is
  const auto there = std::filesystem::symlink_status(path, unknown);
  FILE* const file = fopen(path.c_str(), "a");
  if (file == nullptr) return Error{text("%s %s: cannot be written: %s", option, path.c_str(), strerror(errno))};
  fclose(file);
  if (!std::filesystem::exists(there)) unlink(path.c_str());
  return {};
}

}  // namespace

// Before the training, which would be lost.
Status Trainer::check_outputs() {
  Status s;
  if (!speaks()) return s;
  if (!options_.json.empty()) s = check_output("--json", options_.json);
  if (s && !options_.checkpoint.empty()) s = check_output("--checkpoint", written_first(options_.checkpoint));
  return s;
}

Status Trainer::ask_place() {
  if (Status s = call(tuttiCommUserRank(comm_, &rank_)); !s) return s;
  if (Status s = call(tuttiCommCount(comm_, &size_)); !s) return s;
  local_batch_ = (options_.batch + size_ - 1) / size_;
  return {};
}

// Only rank 0 needs the file.
Status Trainer::share_corpus() {
  Corpus corpus;
  tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER;
  if (rank_ == 0) {
    if (Status s = load_corpus(options_.data, &corpus); !s) return s;
    data.data = corpus.symbols.data();
    data.ndim = 1;
    data.shape[0] = corpus.symbols.size();
    data.metadata = corpus.alphabet.data();
    data.metadataBytes = corpus.alphabet.size();
    source_ = corpus.source;
  }
  if (Status s = ddp(tuttiDdpBroadcastData(&data, 0, comm_)); !s) return s;
  const auto* symbols = static_cast<const uint8_t*>(data.data);
  text_.assign(symbols, symbols + data.shape[0]);
  alphabet_ = static_cast<int>(data.metadataBytes);
  if (rank_ != 0)
    if (Status s = ddp(tuttiDdpFreeData(&data)); !s) return s;
  if (text_.size() <= static_cast<size_t>(options_.context))
    return perf::usage_error(
        text("the text has %zu characters; --context %d needs more", text_.size(), options_.context));
  model_.emplace_back(Shape{alphabet_, options_.context, options_.embedding, options_.hidden, options_.layers},
                      options_.seed);
  return {};
}

// Rank 0 reads the file; creating the averager gives its weights to all ranks.
Status Trainer::resume() {
  progress_.loss_scale = options_.loss_scale;
  if (options_.resume && rank_ == 0) {
    bool found = false;
    if (Status s = load_checkpoint(options_.checkpoint, &progress_, &model_[0].weights(), &found); !s) return s;
    if (!quiet_)
      printf("%s %s\n", options_.checkpoint.c_str(),
             found ? text("goes on after step %lld", static_cast<long long>(progress_.step)).c_str()
                   : "does not exist yet: starting a new run");
  }
  return call(tuttiBcast(&progress_, sizeof progress_, tuttiUint8, 0, comm_, nullptr));
}

Status Trainer::make_ddp() {
  tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
  config.firstBucketBytes = options_.first_bucket_bytes;
  config.bucketCapBytes = options_.bucket_bytes;
  config.broadcastBuffers = 0;  // the momentum stays the same on all ranks anyway
  config.overlap = options_.no_overlap ? 0 : 1;
  config.checkEvery = options_.check_every;
  if (options_.compress == "fp16") config.compression = tuttiDdpFloat16;
  if (options_.compress == "bf16") config.compression = tuttiDdpBfloat16;
  if (options_.compress == "int8") config.compression = tuttiDdpInt8;
  if (options_.compress == "e4m3") config.compression = tuttiDdpFloat8e4m3;
  if (options_.compress == "powersgd") config.compression = tuttiDdpPowerSgd;
  config.errorFeedback = options_.error_feedback ? 1 : 0;
  std::vector<tuttiDdpTensor_t> params, momenta;
  for (Weight& w : model_[0].weights()) {
    tuttiDdpTensor_t tensor = {};
    tensor.name = w.name.c_str();
    tensor.data = w.value.data();
    tensor.ndim = 2;
    tensor.shape[0] = static_cast<size_t>(w.value.rows());
    tensor.shape[1] = static_cast<size_t>(w.value.cols());
    tensor.count = tensor.shape[0] * tensor.shape[1];
    tensor.datatype = tuttiFloat32;
    tensor.gradDatatype = options_.bfloat16 ? tuttiBfloat16 : tuttiFloat32;
    tensor.device = TUTTI_DDP_HOST;
    params.push_back(tensor);
    tensor.data = w.momentum.data();
    momenta.push_back(tensor);
  }
  const auto created =
      tuttiDdpCreate(&ddp_, comm_, params.data(), params.size(), momenta.data(), momenta.size(), &config);
  if (Status s = ddp(created); !s) return s;
  if (!speaks()) return {};
  tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
  if (Status s = ddp(tuttiDdpGetStats(ddp_, &stats)); !s) return s;
  printf("%d rank(s), a batch of %d each; %zu parameters in %zu buckets; %zu characters of %s\n", size_, local_batch_,
         stats.parameters, stats.buckets, text_.size(), source_.c_str());
  return {};
}

// ---- when a rank is lost -------------------------------------------------------------------------------------------

// The ranks of the communicator that died; waits a moment for the first of them.
Status Trainer::find_lost(std::vector<int>& lost) {
  int count = 0;
  lost.resize(static_cast<size_t>(size_));
  for (int tries = 0; count == 0 && tries < 100; tries++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (Status s = call(tuttiCommLostRanks(comm_, lost.data(), &count)); !s) return s;
  }
  lost.resize(static_cast<size_t>(count));
  return {};
}

// The survivors continue from the state of the rank that is farthest ahead: some may have finished the step in which
// the others heard of the loss.
Status Trainer::recover(const Status& why) {
  if (Status s = ddp(tuttiDdpDestroy(std::exchange(ddp_, nullptr))); !s) return s;
  std::vector<int> lost;
  if (Status s = find_lost(lost); !s) return s;
  if (lost.empty()) return why;
  tuttiComm_t left = nullptr;
  const auto shrunk = tuttiCommShrink(comm_, nullptr, 0, &left, nullptr, TUTTI_SHRINK_DEFAULT);
  if (Status s = call(shrunk); !s) return s;
  static_cast<void>(tuttiCommDestroy(std::exchange(comm_, left)));  // reports once more that it is broken
  if (Status s = ask_place(); !s) return s;
  std::vector<int64_t> steps(static_cast<size_t>(size_));
  if (Status s = call(tuttiAllGather(&progress_.step, steps.data(), 1, tuttiInt64, comm_, nullptr)); !s) return s;
  const auto farthest = static_cast<int>(std::max_element(steps.begin(), steps.end()) - steps.begin());
  if (Status s = call(tuttiBcast(&progress_, sizeof progress_, tuttiUint8, farthest, comm_, nullptr)); !s) return s;
  if (speaks())
    printf("%zu lost after step %lld; continuing with %d\n", lost.size(), static_cast<long long>(progress_.step),
           size_);
  started_ = 0;
  first_step_ = progress_.step;
  // Creation gives rank 0's weights to all ranks, but they need not be the newest. So each rank's own are saved.
  const std::vector<Weight> mine = model_[0].weights();
  if (Status s = make_ddp(); !s) return s;
  for (size_t i = 0; i < mine.size(); i++) {
    model_[0].weights()[i].value = mine[i].value;
    model_[0].weights()[i].momentum = mine[i].momentum;
  }
  return ddp(tuttiDdpBroadcast(ddp_, farthest));
}

}  // namespace tutti::train
