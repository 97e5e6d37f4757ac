// The training loop.
#include "trainer.h"

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <limits>

namespace tutti::train {
namespace {

constexpr int kGoodStepsBeforeDoubling = 200;

using Bfloat16s = Eigen::Map<Eigen::Matrix<Eigen::bfloat16, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Status Trainer::run() {
  for (const auto stage : {&Trainer::connect, &Trainer::share_corpus, &Trainer::resume, &Trainer::make_ddp})
    if (Status s = (this->*stage)(); !s) return s;
  if (Status s = train(); !s) return s;
  finish();
  if (Status s = ddp(tuttiDdpDestroy(std::exchange(ddp_, nullptr))); !s) return s;
  return call(tuttiCommFinalize(comm_));
}

Status Trainer::train() {
  first_step_ = progress_.step;
  while (progress_.step < options_.steps) {
    if (progress_.step == first_step_ + kWarmUpSteps) {
      started_ = now_seconds();
      started_samples_ = progress_.samples;
      started_step_ = progress_.step;
      if (Status s = ddp(tuttiDdpGetStats(ddp_, &started_stats_)); !s) return s;
    }
    Status s = step();
    if (s && (progress_.step % options_.log_every == 0 || progress_.step == 1)) s = log();
    if (s && options_.checkpoint_every > 0 && progress_.step % options_.checkpoint_every == 0) s = save();
    if (!s && lost_rank_) s = recover(s);
    if (!s) return s;
  }
  return options_.checkpoint.empty() ? Status() : save();
}

Status Trainer::step() {
  if (Status s = ddp(tuttiDdpZeroGradients(ddp_)); !s) return s;
  loss_ = 0;
  for (int part = 0; part < options_.accumulate; part++) {
    const bool last = part + 1 == options_.accumulate;
    if (!last)
      if (Status s = ddp(tuttiDdpNoSyncBegin(ddp_)); !s) return s;
    if (Status s = run_part(part); !s) return s;
    if (!last)
      if (Status s = ddp(tuttiDdpNoSyncEnd(ddp_)); !s) return s;
  }
  // The averages have the same bits on all ranks, so all come to the same conclusion.
  const bool finite = gradients_are_finite();
  if (finite) descend();
  adapt_loss_scale(finite);
  progress_.step++;
  progress_.samples += int64_t{local_batch_} * size_;
  return {};
}

Status Trainer::run_part(int part) {
  const auto begin_of = [&](int p) { return static_cast<int>(int64_t{local_batch_} * p / options_.accumulate); };
  const int first = begin_of(part), count = begin_of(part + 1) - first;
  const float weight = static_cast<float>(count) / static_cast<float>(local_batch_);
  Batch batch;
  if (Status s = take_batch(first, count, &batch); !s) return s;
  if (Status s = ddp(tuttiDdpBegin(ddp_)); !s) return s;
  loss_ += static_cast<double>(weight) * model_[0].forward(batch);
  part_ = {};
  const float scale = progress_.loss_scale > 0 ? progress_.loss_scale : 1;
  model_[0].backward(batch, weight * scale, [&](size_t index, const Matrix& gradient) {
    add_gradient(index, gradient);
    if (part_) part_ = ddp(tuttiDdpMarkReady(ddp_, index));
    if (setup_.rank == options_.die_rank && progress_.step == options_.die_step) raise(SIGKILL);
  });
  if (!part_) return part_;
  return ddp(tuttiDdpWait(ddp_));
}

// A step's samples are a contiguous part of the epoch's order, dealt out to the ranks round-robin; so they do not
// depend on the number of ranks.
Status Trainer::take_batch(int first, int count, Batch* batch) {
  tuttiDdpSampler_t sampler = TUTTI_DDP_SAMPLER_INITIALIZER;
  sampler.datasetSize = text_.size() - static_cast<size_t>(options_.context);
  sampler.nranks = size_;
  sampler.rank = rank_;
  sampler.dropLast = 1;
  sampler.seed = options_.seed;
  uint64_t length = 0;
  if (Status s = ddp(tuttiDdpSamplerLength(&sampler, &length)); !s) return s;
  const auto local = static_cast<uint64_t>(local_batch_), steps = length / local;
  if (steps == 0)
    return perf::usage_error(text("the text has %zu samples, which is less than a batch; make --batch smaller",
                                  static_cast<size_t>(sampler.datasetSize)));
  const uint64_t step = static_cast<uint64_t>(progress_.samples) / (local * static_cast<uint64_t>(size_));
  sampler.epoch = step / steps;
  std::vector<uint64_t> indices(static_cast<size_t>(count));
  const uint64_t from = step % steps * local + static_cast<uint64_t>(first);
  if (Status s = ddp(tuttiDdpSamplerIndices(&sampler, from, indices.size(), indices.data())); !s) return s;
  batch->inputs.resize(count, options_.context);
  for (size_t i = 0; i < indices.size(); i++) {
    const uint8_t* at = text_.data() + indices[i];
    std::copy_n(at, options_.context, batch->inputs.row(static_cast<Eigen::Index>(i)).data());
    batch->targets.push_back(at[options_.context]);
  }
  return {};
}

void Trainer::add_gradient(size_t index, const Matrix& gradient) {
  void* at = nullptr;
  if (part_) part_ = ddp(tuttiDdpGradient(ddp_, index, &at));
  if (at == nullptr) return;
  if (options_.bfloat16) {
    Bfloat16s sum(static_cast<Eigen::bfloat16*>(at), gradient.rows(), gradient.cols());
    sum = (sum.cast<float>() + gradient).cast<Eigen::bfloat16>();
  } else {
    Eigen::Map<Matrix>(static_cast<float*>(at), gradient.rows(), gradient.cols()) += gradient;
  }
}

namespace {

// The averaged gradient as 32-bit floats.
Matrix gradient_of(tuttiDdp_t ddp, size_t index, const Weight& weight, bool bfloat16) {
  void* at = nullptr;
  if (tuttiDdpGradient(ddp, index, &at) != tuttiSuccess)
    return Matrix::Constant(1, 1, std::numeric_limits<float>::quiet_NaN());
  if (bfloat16)
    return Bfloat16s(static_cast<Eigen::bfloat16*>(at), weight.value.rows(), weight.value.cols()).cast<float>();
  return Eigen::Map<Matrix>(static_cast<float*>(at), weight.value.rows(), weight.value.cols());
}

}  // namespace

bool Trainer::gradients_are_finite() {
  if (progress_.loss_scale == 0) return true;
  const auto& weights = model_[0].weights();
  for (size_t i = 0; i < weights.size(); i++)
    if (!gradient_of(ddp_, i, weights[i], options_.bfloat16).allFinite()) return false;
  return true;
}

void Trainer::descend() {
  const float scale = progress_.loss_scale > 0 ? 1 / progress_.loss_scale : 1;
  auto& weights = model_[0].weights();
  for (size_t i = 0; i < weights.size(); i++) {
    Weight& w = weights[i];
    w.momentum = options_.momentum * w.momentum + scale * gradient_of(ddp_, i, w, options_.bfloat16);
    w.value -= options_.learning_rate * w.momentum;
  }
}

void Trainer::adapt_loss_scale(bool finite) {
  if (progress_.loss_scale == 0) return;
  progress_.good_steps = finite ? progress_.good_steps + 1 : 0;
  if (!finite) {
    result_.skipped++;
    progress_.loss_scale /= 2;
  } else if (progress_.good_steps == kGoodStepsBeforeDoubling) {
    progress_.good_steps = 0;
    progress_.loss_scale *= 2;
  }
}

Status Trainer::log() {
  double loss = loss_;
  if (Status s = call(tuttiAllReduce(&loss, &loss, 1, tuttiFloat64, tuttiAvg, comm_, nullptr)); !s) return s;
  result_.losses.emplace_back(progress_.step, loss);
  if (!speaks()) return {};
  std::string speed;
  if (started_ > 0 && progress_.step > started_step_)
    speed = text("  %.0f samples/s",
                 static_cast<double>(progress_.samples - started_samples_) / (now_seconds() - started_));
  if (progress_.loss_scale > 0) speed += text("  loss scale %g", static_cast<double>(progress_.loss_scale));
  printf("step %lld/%d  loss %.4f%s\n", static_cast<long long>(progress_.step), options_.steps, loss, speed.c_str());
  fflush(stdout);
  return {};
}

Status Trainer::save() {
  return rank_ == 0 ? save_checkpoint(options_.checkpoint, progress_, model_[0].weights()) : Status();
}

void Trainer::finish() {
  tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
  const bool known = tuttiDdpGetStats(ddp_, &stats) == tuttiSuccess;
  const auto steps = static_cast<double>(progress_.step - started_step_);
  result_.ranks = size_;
  result_.loss_scale = progress_.loss_scale;
  result_.parameters = stats.parameters;
  if (!known || started_ == 0 || steps <= 0) return;
  const double seconds = now_seconds() - started_;
  const double comm = stats.totalCommSeconds - started_stats_.totalCommSeconds;
  const double exposed = stats.totalExposedSeconds - started_stats_.totalExposedSeconds;
  result_.samples_per_second = static_cast<double>(progress_.samples - started_samples_) / seconds;
  result_.step_seconds = seconds / steps;
  result_.backward_seconds = (stats.totalBackwardSeconds - started_stats_.totalBackwardSeconds) / steps;
  result_.comm_seconds = comm / steps;
  result_.exposed_seconds = exposed / steps;
  result_.overlap_percent = comm > 0 ? 100 * (1 - exposed / comm) : 0;
}

}  // namespace tutti::train
