// A step's beginning, and the marks.
#include "reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti::ddp {

Reducer::Reducer(HostTwin twin, const Group& group, Devices devices, const tuttiDdpConfig_t& config,
                 std::vector<Tensor> params, std::vector<Tensor> buffers)
    : twin_(std::move(twin)),
      group_(group),
      devices_(std::move(devices)),
      config_(config),
      params_(std::move(params)),
      buffers_(std::move(buffers)) {
  order_due_ = config_.rebuildBuckets && (!config_.findUnused || config_.staticGraph);
  used_before_.resize(params_.size());
  for (const Tensor& param : params_) stats_.parameters += param.count;
}

Reducer::~Reducer() {
  if (stream_ != nullptr) static_cast<void>(tuttiStreamDestroy(stream_));
  static_cast<void>(synchronize());
}

Status Reducer::prepare() {
  std::vector<size_t> order(params_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  hook_ = make_hook(config_, params_);
  if (Status s = build_buckets(order); !s) return s;
  return library(tuttiStreamCreate(&stream_));
}

Status Reducer::build_buckets(const std::vector<size_t>& order) {
  auto layouts = plan_buckets(params_, order, config_.firstBucketBytes, config_.bucketCapBytes);
  Buckets fresh;
  if (Status s = buckets_.rebuilt(devices_, params_, std::move(layouts), &fresh); !s) return s;
  {
    const std::lock_guard lock(mutex_);
    std::swap(buckets_, fresh);
  }
  for (Device* device : devices_.all())
    if (Status s = hook_->prepare(*device, buckets_.largest_bytes(device->number())); !s) return s;
  return {};
}

Status Reducer::set_stream(tuttiStream_t stream) {
  if (Status s = need_idle("tuttiDdpSetStream"); !s) return s;
  if (devices_.cuda == nullptr)
    return invalid_usage("tuttiDdpSetStream needs a communicator on a CUDA device; in host memory there is no stream");
  return devices_.cuda->set_stream(stream);
}

Status Reducer::synchronize() const {
  for (Device* device : devices_.all())
    if (Status s = device->synchronize(); !s) return s;
  return {};
}

Status Reducer::need_idle(const char* what) const {
  if (phase_ == Phase::kIdle) return {};
  return invalid_usage(text("%s during a step; tuttiDdpWait ends it", what));
}

// ---- data ----------------------------------------------------------------------------------------------------------

Status Reducer::broadcast_all(const std::vector<Tensor>& tensors, int root, Queue queue) {
  if (root < 0 || root >= group_.size)
    return invalid_argument(text("root=%d; it has to be in [0, %d)", root, group_.size));
  for (const Tensor& tensor : tensors) {
    if (tensor.data == nullptr || tensor.count == 0) continue;
    const Device& device = device_of(tensor);
    const auto sent =
        tuttiBcast(tensor.data, tensor.data_bytes(), tuttiUint8, root, device.comm(), device.stream(queue));
    if (Status s = library(sent); !s) return s;
  }
  return {};
}

Status Reducer::broadcast(int root, Queue queue) {
  if (Status s = need_idle("tuttiDdpBroadcast"); !s) return s;
  if (Status s = broadcast_all(params_, root, queue); !s) return s;
  return broadcast_all(buffers_, root, queue);
}

Status Reducer::broadcast_buffers(int root) {
  if (Status s = need_idle("tuttiDdpBroadcastBuffers"); !s) return s;
  return broadcast_all(buffers_, root);
}

Status Reducer::gradient(size_t index, void** grad) const {
  if (grad == nullptr) return invalid_argument("grad is NULL");
  if (index >= params_.size())
    return invalid_argument(text("index=%zu; there are %zu parameters", index, params_.size()));
  const std::lock_guard lock(mutex_);
  *grad = params_[index].grad != nullptr ? params_[index].grad : buckets_.slot_of(index);
  return {};
}

Status Reducer::zero_gradients() {
  if (Status s = need_idle("tuttiDdpZeroGradients"); !s) return s;
  for (size_t i = 0; i < params_.size(); i++) {
    void* grad = params_[i].grad != nullptr ? params_[i].grad : buckets_.slot_of(i);
    if (params_[i].count == 0) continue;
    if (Status s = device_of(params_[i]).zero(grad, params_[i].grad_bytes(), Queue::kCaller); !s) return s;
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
  following_ = false;
  bool anybody = true;
  if (Status s = meet(&anybody); !s) return s;
  return open_step();
}

// Who has input, and whether they have yet to learn their graphs; the lowest of them leads.
Status Reducer::meet(bool* anybody) {
  learning_ = config_.staticGraph && !graph_known_;
  if (!config_.joinable) return {};
  constexpr int32_t kAbsent = 0, kPresent = 1, kLearning = 2;
  std::vector<int32_t> active(static_cast<size_t>(group_.size));
  active[static_cast<size_t>(group_.rank)] = following_ ? kAbsent : learning_ ? kLearning : kPresent;
  const auto reduced =
      tuttiAllReduce(active.data(), active.data(), active.size(), tuttiInt32, tuttiMax, group_.comm, nullptr);
  if (Status s = library(reduced); !s) return s;
  const auto first = std::find_if(active.begin(), active.end(), [](int32_t state) { return state != kAbsent; });
  *anybody = first != active.end();
  learning_ = std::find(active.begin(), active.end(), kLearning) != active.end();
  if (*anybody) leader_ = static_cast<int>(first - active.begin());
  return {};
}

Status Reducer::open_step() {
  if (rebuild_due_)
    if (Status s = rebuild(); !s) return s;
  if (config_.broadcastBuffers)
    if (Status s = broadcast_all(buffers_, leader_); !s) return s;
  running_ = 0;
  reduced_bytes_ = 0;
  looked_at_ = 0;
  non_finite_.assign(params_.size(), kNoIndex);
  const std::lock_guard lock(mutex_);
  for (Device* device : devices_.all())
    if (Status s = device->begin_step(buckets_.size()); !s) return s;
  marks_.assign(params_.size(), Mark::kNone);
  pending_.assign(buckets_.size(), 0);
  for (size_t i = 0; i < params_.size(); i++) pending_[buckets_.bucket_of(i)]++;
  order_.clear();
  next_bucket_ = 0;
  waiting_ = false;
  outcome_ = {};
  phase_ = Phase::kForward;
  for (size_t i = 0; graph_known_ && i < params_.size(); i++) {
    if (!never_used_[i]) continue;
    if (used_before_[i]) note(check_graph(i, Mark::kReady));
    set_mark(i, Mark::kUnused);
  }
  return {};
}

Status Reducer::rebuild() {
  std::vector<uint64_t> order(order_.begin(), order_.end());
  order.resize(params_.size());
  const auto sent = tuttiBcast(order.data(), order.size(), tuttiUint64, leader_, group_.comm, nullptr);
  if (Status s = library(sent); !s) return s;
  const std::vector<size_t> in_order(order.begin(), order.end());
  if (Status s = agree(group_, build_buckets(in_order)); !s) return s;
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
    return check_graph(index, kind);
  }
  if (waiting_) {
    const Status late = invalid_usage(name_of("parameter", index, params_[index]) +
                                      " was marked while tuttiDdpWait ended the step; mark all gradients before it");
    note(late);
    return late;
  }
  if (graph_known_ && never_used_[index] && kind == Mark::kUnused) return {};  // marked since the beginning
  if (Status s = check_mark(index, kind); !s) {
    note(s);
    return s;
  }
  if (std::exchange(phase_, Phase::kReducing) == Phase::kForward) note_all(&Device::begin_backward);
  set_mark(index, kind);
  return {};
}

Status Reducer::check_graph(size_t index, Mark kind) const {
  if (!graph_known_ || never_used_[index] == (kind == Mark::kUnused)) return {};
  return invalid_usage(name_of("parameter", index, params_[index]) +
                       (kind == Mark::kReady ? " has a gradient, but had none in the first step"
                                             : " is unused, but was used in the first step") +
                       "; where that changes, set findUnused instead of staticGraph");
}

Status Reducer::check_mark(size_t index, Mark kind) const {
  if (Status s = check_graph(index, kind); !s) return s;
  const std::string name = name_of("parameter", index, params_[index]);
  if (marks_[index] != Mark::kNone)
    return invalid_usage(
        name + " was marked twice in one step; mark a gradient once, when nothing will be added to it any more");
  if (kind == Mark::kUnused && !config_.findUnused && !config_.staticGraph)
    return invalid_usage(name + " was marked as unused; that needs findUnused=1 or staticGraph=1 on all ranks");
  return {};
}

void Reducer::set_mark(size_t index, Mark kind) {
  if (kind == Mark::kUnused && used_before_[index]) kind = Mark::kReady;
  marks_[index] = kind;
  order_.push_back(index);
  note(fill_slot(index, kind));
  const size_t bucket = buckets_.bucket_of(index);
  if (--pending_[bucket] == 0) note(device_of(params_[index]).mark_filled(bucket));
  launch_due();
}

Status Reducer::fill_slot(size_t index, Mark kind) {
  const Tensor& param = params_[index];
  Device& device = device_of(param);
  char* slot = buckets_.slot_of(index);
  if (param.count == 0) return {};
  if (kind == Mark::kUnused) {
    if (param.grad == nullptr)
      if (Status s = buckets_.keep(device, index, param.grad_bytes()); !s) return s;
    return device.zero(slot, param.grad_bytes(), Queue::kCaller);
  }
  return param.grad == nullptr ? Status() : device.copy(slot, param.grad, param.grad_bytes(), Queue::kCaller);
}

void Reducer::launch_due() {
  if (!config_.overlap && !waiting_) return;
  for (; next_bucket_ < buckets_.size() && pending_[next_bucket_] == 0; next_bucket_++)
    note(library(tuttiStreamAddCallback(stream_, run_on_stream, this)));
}

void Reducer::note(const Status& status) {
  if (outcome_ && !status) outcome_ = status;
}

void Reducer::note_all(Status (Device::*does)()) {
  for (Device* device : devices_.all()) note((device->*does)());
}

// ---- on the stream's thread ----------------------------------------------------------------------------------------

void Reducer::run_on_stream(tuttiStream_t, tuttiResult_t, void* reducer) {
  static_cast<Reducer*>(reducer)->run_next_bucket();
}

void Reducer::run_next_bucket() {
  const size_t index = running_++;
  const Bucket& bucket = buckets_[index];
  const Layout& layout = bucket.layout;
  Device& device = devices_.of(layout.device);
  const tuttiDdpBucket_t view = {.index = index,
                                 .nbuckets = buckets_.size(),
                                 .data = bucket.memory.data(),
                                 .count = layout.count,
                                 .datatype = layout.type,
                                 .nparams = layout.params.size(),
                                 .params = layout.params.data(),
                                 .offsets = layout.offsets.data()};
  const Status began = device.begin_bucket(index);
  const Status looked = checks_this_step() ? look_for_non_finite(layout, device) : Status();
  // Whatever was before: the other ranks count on this bucket.
  const Status ran = hook_->run(view, device, &reduced_bytes_);
  const Status ended = device.end_bucket(index);
  const std::lock_guard lock(mutex_);
  for (const Status* status : {&began, &looked, &ran, &ended}) note(*status);
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
  {
    const std::lock_guard lock(mutex_);
    settle_unmarked();
    note_all(&Device::end_backward);
    waiting_ = true;
    launch_due();
  }
  Status outcome = library(tuttiStreamSynchronize(stream_));
  {
    const std::lock_guard lock(mutex_);
    note_all(&Device::end_step);
  }
  if (outcome) outcome = finish_step();
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kIdle;
  used_before_.assign(params_.size(), false);
  if (outcome) {
    stats_.steps++;
    stats_.reducedBytes = reduced_bytes_;
  }
  return outcome;
}

tuttiDdpStats_t Reducer::stats() {
  const std::lock_guard lock(mutex_);
  tuttiDdpStats_t out = stats_;
  out.buckets = buckets_.size();
  out.gradientBytes = buckets_.bytes();
  for (Device* device : devices_.all()) {
    const Times times = device->times();
    out.backwardSeconds = std::max(out.backwardSeconds, times.last.backward);
    out.commSeconds += times.last.comm;
    out.exposedSeconds += times.last.exposed;
    out.totalBackwardSeconds = std::max(out.totalBackwardSeconds, times.total.backward);
    out.totalCommSeconds += times.total.comm;
    out.totalExposedSeconds += times.total.exposed;
  }
  if (out.totalCommSeconds > 0) out.overlapPercent = 100 * (1 - out.totalExposedSeconds / out.totalCommSeconds);
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
  if (!config_.joinable) return invalid_usage("tuttiDdpJoin needs joinable=1 on all ranks");
  {
    const std::lock_guard lock(mutex_);
    used_before_.assign(params_.size(), false);
  }
  following_ = true;
  for (;;) {
    bool anybody = false;
    if (Status s = meet(&anybody); !s) return s;
    if (!anybody) return broadcast(leader_);
    if (Status s = open_step(); !s) return s;
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = params_.size(); i-- > 0;)
        if (marks_[i] == Mark::kNone) set_mark(i, Mark::kUnused);
    }
    if (Status s = close_step(); !s) return s;
  }
}

}  // namespace tutti::ddp
