// A step's beginning, and the marks.
#include "reducer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace tutti::ddp {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Reducer::Reducer(const Group& group, const tuttiDdpConfig_t& config, std::vector<Tensor> params,
                 std::vector<Tensor> buffers)
    : group_(group), config_(config), params_(std::move(params)), buffers_(std::move(buffers)) {
  order_due_ = config_.rebuildBuckets && (!config_.findUnused || config_.staticGraph);
  used_before_.resize(params_.size());
  kept_.resize(params_.size());
  for (const Tensor& param : params_) stats_.parameters += param.count;
}

Reducer::~Reducer() {
  if (stream_ != nullptr) static_cast<void>(tuttiStreamDestroy(stream_));
}

Status Reducer::prepare() {
  std::vector<size_t> order(params_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  if (Status s =
          buckets_.build(params_, plan_buckets(params_, order, config_.firstBucketBytes, config_.bucketCapBytes));
      !s)
    return s;
  hook_ = make_hook(config_, params_);
  return library(tuttiStreamCreate(&stream_));
}

Status Reducer::need_idle(const char* what) const {
  if (phase_ == Phase::kIdle) return {};
  return invalid_usage(text("%s during a step; tuttiDdpWait ends it", what));
}

// ---- data ----------------------------------------------------------------------------------------------------------

Status Reducer::broadcast_all(const std::vector<Tensor>& tensors, int root) {
  for (const Tensor& tensor : tensors) {
    if (tensor.data == nullptr || tensor.count == 0) continue;
    const auto sent = tuttiBcast(tensor.data, tensor.data_bytes(), tuttiUint8, root, group_.comm, nullptr);
    if (Status s = library(sent); !s) return s;
  }
  return {};
}

Status Reducer::broadcast(int root) {
  if (Status s = need_idle("tuttiDdpBroadcast"); !s) return s;
  if (Status s = broadcast_all(params_, root); !s) return s;
  return broadcast_all(buffers_, root);
}

Status Reducer::broadcast_buffers(int root) {
  if (Status s = need_idle("tuttiDdpBroadcastBuffers"); !s) return s;
  return broadcast_all(buffers_, root);
}

Status Reducer::gradient(size_t index, void** grad) const {
  if (grad == nullptr) return invalid_argument("grad is NULL");
  if (index >= params_.size())
    return invalid_argument(text("index=%zu; there are %zu parameters", index, params_.size()));
  *grad = params_[index].grad != nullptr ? params_[index].grad : buckets_.slot_of(index);
  return {};
}

Status Reducer::zero_gradients() {
  if (Status s = need_idle("tuttiDdpZeroGradients"); !s) return s;
  for (size_t i = 0; i < params_.size(); i++) {
    void* grad = params_[i].grad != nullptr ? params_[i].grad : buckets_.slot_of(i);
    if (params_[i].count > 0) memset(grad, 0, params_[i].grad_bytes());
  }
  return {};
}

// ---- the beginning of a step ---------------------------------------------------------------------------------------

Status Reducer::begin() {
  if (Status s = need_idle("tuttiDdpBegin"); !s) return s;
  if (no_sync_depth_ > 0) {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::kAccumulating;
    return {};
  }
  bool anybody = true;
  if (Status s = meet(true, &anybody); !s) return s;
  return open_step();
}

// Who has input; the lowest of them leads.
Status Reducer::meet(bool has_input, bool* anybody) {
  if (!config_.joinable) return {};
  std::vector<int32_t> active(static_cast<size_t>(group_.size));
  active[static_cast<size_t>(group_.rank)] = has_input ? 1 : 0;
  const auto reduced =
      tuttiAllReduce(active.data(), active.data(), active.size(), tuttiInt32, tuttiMax, group_.comm, nullptr);
  if (Status s = library(reduced); !s) return s;
  const auto first = std::find(active.begin(), active.end(), 1);
  *anybody = first != active.end();
  if (*anybody) leader_ = static_cast<int>(first - active.begin());
  return {};
}

Status Reducer::open_step() {
  if (rebuild_due_)
    if (Status s = rebuild(); !s) return s;
  if (config_.broadcastBuffers)
    if (Status s = broadcast_all(buffers_, leader_); !s) return s;
  running_ = 0;
  comm_seconds_ = 0;
  reduced_bytes_ = 0;
  const std::lock_guard lock(mutex_);
  marks_.assign(params_.size(), Mark::kNone);
  pending_.assign(buckets_.size(), 0);
  for (size_t i = 0; i < params_.size(); i++) pending_[buckets_.bucket_of(i)]++;
  order_.clear();
  next_bucket_ = 0;
  first_mark_ = 0;
  waiting_ = false;
  outcome_ = {};
  phase_ = Phase::kReducing;
  for (size_t i = 0; graph_known_ && i < params_.size(); i++)
    if (never_used_[i]) set_mark(i, Mark::kUnused);
  return {};
}

Status Reducer::rebuild() {
  std::vector<uint64_t> order(order_.begin(), order_.end());
  order.resize(params_.size());
  const auto sent = tuttiBcast(order.data(), order.size(), tuttiUint64, leader_, group_.comm, nullptr);
  if (Status s = library(sent); !s) return s;
  const std::vector<size_t> in_order(order.begin(), order.end());
  const Status built =
      buckets_.build(params_, plan_buckets(params_, in_order, config_.firstBucketBytes, config_.bucketCapBytes));
  if (Status s = agree(group_, built); !s) return s;
  rebuild_due_ = false;
  const std::lock_guard lock(mutex_);
  stats_.rebuilds++;
  return {};
}

// ---- marks ---------------------------------------------------------------------------------------------------------

Status Reducer::mark(size_t index, Mark kind) {
  if (index >= params_.size())
    return invalid_argument(text("index=%zu; there are %zu parameters", index, params_.size()));
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kIdle)
    return invalid_usage(name_of("parameter", index, params_[index]) +
                         " was marked, but no step is under way; tuttiDdpBegin begins one");
  if (phase_ == Phase::kAccumulating) {
    if (kind == Mark::kReady) used_before_[index] = true;
    return {};
  }
  if (graph_known_ && never_used_[index] && kind == Mark::kUnused) return {};  // marked since the beginning
  if (Status s = check_mark(index, kind); !s) {
    note(s);
    return s;
  }
  set_mark(index, kind);
  return {};
}

Status Reducer::check_mark(size_t index, Mark kind) const {
  const std::string name = name_of("parameter", index, params_[index]);
  if (graph_known_ && never_used_[index] != (kind == Mark::kUnused))
    return invalid_usage(name +
                         (kind == Mark::kReady ? " has a gradient, but had none in the first step"
                                               : " is unused, but was used in the first step") +
                         "; where that changes, set findUnused instead of staticGraph");
  if (marks_[index] != Mark::kNone)
    return invalid_usage(name +
                         " was marked twice in one step; mark a gradient once, when nothing adds to it any more");
  if (kind == Mark::kUnused && !config_.findUnused && !config_.staticGraph)
    return invalid_usage(name + " was marked as unused; that takes findUnused=1 or staticGraph=1 on all ranks");
  return {};
}

void Reducer::set_mark(size_t index, Mark kind) {
  if (first_mark_ == 0) first_mark_ = now_seconds();
  if (kind == Mark::kUnused && used_before_[index]) kind = Mark::kReady;
  marks_[index] = kind;
  order_.push_back(index);
  fill_slot(index, kind);
  pending_[buckets_.bucket_of(index)]--;
  launch_due();
}

void Reducer::fill_slot(size_t index, Mark kind) {
  const Tensor& param = params_[index];
  char* slot = buckets_.slot_of(index);
  if (param.count == 0) return;
  if (kind == Mark::kUnused) {
    if (param.grad == nullptr) kept_[index].assign(slot, slot + param.grad_bytes());
    memset(slot, 0, param.grad_bytes());
  } else if (param.grad != nullptr) {
    memcpy(slot, param.grad, param.grad_bytes());
  }
}

void Reducer::launch_due() {
  if (!config_.overlap && !waiting_) return;
  for (; next_bucket_ < buckets_.size() && pending_[next_bucket_] == 0; next_bucket_++)
    note(library(tuttiStreamAddCallback(stream_, run_on_stream, this)));
}

void Reducer::note(const Status& status) {
  if (outcome_ && !status) outcome_ = status;
}

// ---- on the stream's thread ----------------------------------------------------------------------------------------

void Reducer::run_on_stream(tuttiStream_t, tuttiResult_t, void* reducer) {
  static_cast<Reducer*>(reducer)->run_next_bucket();
}

void Reducer::run_next_bucket() {
  const size_t index = running_++;
  const double started = now_seconds();
  const Bucket& bucket = buckets_[index];
  const Layout& layout = bucket.layout;
  const tuttiDdpBucket_t view = {.index = index,
                                 .nbuckets = buckets_.size(),
                                 .data = bucket.memory.data(),
                                 .count = layout.count,
                                 .datatype = layout.type,
                                 .nparams = layout.params.size(),
                                 .params = layout.params.data(),
                                 .offsets = layout.offsets.data()};
  const Status checked = checks_this_step() ? find_non_finite(layout, bucket.memory.data()) : Status();
  // Also after a failed check: the other ranks count on this bucket.
  const Status ran = hook_->run(view, group_.comm, &reduced_bytes_);
  comm_seconds_ += now_seconds() - started;
  const std::lock_guard lock(mutex_);
  note(checked);
  note(ran);
}

// ---- the end of a step ---------------------------------------------------------------------------------------------

Status Reducer::wait() {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kIdle) return invalid_usage("there is no step to wait for; tuttiDdpBegin begins one");
    if (phase_ == Phase::kAccumulating) {
      phase_ = Phase::kIdle;
      return {};
    }
  }
  return close_step();
}

Status Reducer::close_step() {
  const double called = now_seconds();
  {
    const std::lock_guard lock(mutex_);
    settle_unmarked();
    waiting_ = true;
    launch_due();
  }
  Status outcome = library(tuttiStreamSynchronize(stream_));
  const double done = now_seconds();
  if (outcome) outcome = finish_step();
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kIdle;
  if (outcome) count_step(called, done);
  return outcome;
}

void Reducer::count_step(double called, double done) {
  stats_.steps++;
  stats_.reducedBytes = reduced_bytes_;
  stats_.backwardSeconds = first_mark_ > 0 ? called - std::min(first_mark_, called) : 0;
  stats_.commSeconds = comm_seconds_;
  stats_.exposedSeconds = std::min(done - called, comm_seconds_);
  stats_.totalBackwardSeconds += stats_.backwardSeconds;
  stats_.totalCommSeconds += stats_.commSeconds;
  stats_.totalExposedSeconds += stats_.exposedSeconds;
  if (stats_.totalCommSeconds > 0)
    stats_.overlapPercent = 100 * (1 - stats_.totalExposedSeconds / stats_.totalCommSeconds);
}

tuttiDdpStats_t Reducer::stats() {
  const std::lock_guard lock(mutex_);
  tuttiDdpStats_t out = stats_;
  out.buckets = buckets_.size();
  out.gradientBytes = buckets_.bytes();
  return out;
}

// ---- without synchronisation, and joined ---------------------------------------------------------------------------

Status Reducer::enter_no_sync() {
  if (Status s = need_idle("tuttiDdpNoSyncBegin"); !s) return s;
  no_sync_depth_++;
  return {};
}

Status Reducer::leave_no_sync() {
  if (Status s = need_idle("tuttiDdpNoSyncEnd"); !s) return s;
  if (no_sync_depth_ == 0) return invalid_usage("tuttiDdpNoSyncEnd without tuttiDdpNoSyncBegin");
  no_sync_depth_--;
  return {};
}

// A step without input differs from others only in who marks: all gradients at once, as unused.
Status Reducer::join() {
  if (Status s = need_idle("tuttiDdpJoin"); !s) return s;
  if (!config_.joinable) return invalid_usage("tuttiDdpJoin takes joinable=1 on all ranks");
  used_before_.assign(params_.size(), false);
  for (;;) {
    bool anybody = false;
    if (Status s = meet(false, &anybody); !s) return s;
    if (!anybody) return broadcast(leader_);
    if (Status s = open_step(); !s) return s;
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = params_.size(); i-- > 0;) set_mark(i, Mark::kUnused);
    }
    if (Status s = close_step(); !s) return s;
  }
}

}  // namespace tutti::ddp
