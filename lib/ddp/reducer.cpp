#include "reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti::ddp {
namespace {

// The first few by name, and the number of the others.
std::string list_of(const std::vector<size_t>& indices, const Replica& replica) {
  constexpr size_t kShown = 8;
  std::string out;
  for (size_t i = 0; i < indices.size() && i < kShown; i++) out += (i > 0 ? ", " : "") + replica.name(indices[i]);
  if (indices.size() > kShown) out += " and " + std::to_string(indices.size() - kShown) + " more";
  return out;
}

}  // namespace

Reducer::Reducer(Replica replica)
    : replica_(std::move(replica)),
      present_(replica_.config.joinable != 0),
      graph_(replica_.config),
      marks_(replica_.params.size()),
      checks_(replica_),
      hooks_(replica_, buckets_, checks_, outcome_) {
  for (const Tensor& param : replica_.params) stats_.parameters += param.count;
}

Status Reducer::prepare() {
  std::vector<size_t> order(replica_.params.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  if (Status s = build_buckets(order); !s) return s;
  // In the own queue, because other ranks of this process may use the default stream.
  if (Status s = broadcast(0, Queue::kOwn); !s) return s;
  return replica_.synchronize();
}

Status Reducer::build_buckets(const std::vector<size_t>& order) {
  Buckets fresh;
  Status built = buckets_.rebuilt(replica_, order, &fresh);
  if (built) {
    {
      const std::lock_guard lock(mutex_);
      std::swap(buckets_, fresh);
    }
    built = hooks_.prepare();
  }
  return agree(replica_.group, built);
}

Status Reducer::set_stream(tuttiStream_t stream) {
  if (Status s = need_idle("tuttiDdpSetStream"); !s) return s;
  if (replica_.cuda == nullptr)
    return invalid_usage("tuttiDdpSetStream needs a communicator on a CUDA device; in host memory there is no stream");
  return replica_.cuda->set_stream(stream);
}

Status Reducer::need_idle(const char* what) const {
  if (phase_ == Phase::kIdle) return {};
  return invalid_usage(text("%s during a step; tuttiDdpWait ends it", what));
}

// ---- data ----------------------------------------------------------------------------------------------------------

Status Reducer::broadcast(int root, Queue queue) {
  if (Status s = need_idle("tuttiDdpBroadcast"); !s) return s;
  if (Status s = replica_.broadcast(replica_.params, root, queue); !s) return s;
  return replica_.broadcast(replica_.buffers, root, queue);
}

Status Reducer::broadcast_buffers(int root) {
  if (Status s = need_idle("tuttiDdpBroadcastBuffers"); !s) return s;
  return replica_.broadcast(replica_.buffers, root, Queue::kCaller);
}

Status Reducer::gradient(size_t index, void** grad) const {
  if (grad == nullptr) return invalid_argument("grad is NULL");
  if (index >= replica_.params.size())
    return invalid_argument(text("index=%zu; there are %zu parameters", index, replica_.params.size()));
  const std::lock_guard lock(mutex_);
  *grad = replica_.params[index].grad != nullptr ? replica_.params[index].grad : buckets_.slot_of(index);
  return {};
}

Status Reducer::zero_gradients() {
  if (Status s = need_idle("tuttiDdpZeroGradients"); !s) return s;
  for (size_t i = 0; i < replica_.params.size(); i++) {
    const Tensor& param = replica_.params[i];
    if (param.count == 0) continue;
    void* const grad = param.grad != nullptr ? param.grad : buckets_.slot_of(i);
    if (Status s = replica_.device(param.device).zero(grad, param.grad_bytes()); !s) return s;
  }
  return {};
}

// ---- the beginning of a step ---------------------------------------------------------------------------------------

Status Reducer::begin() {
  if (Status s = need_idle("tuttiDdpBegin"); !s) return s;
  if (Status s = check_communicators(); !s) return s;
  if (no_sync_depth_ > 0) {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::kAccumulating;
    return {};
  }
  if (Status s = present_.meet(replica_.group, false, graph_.learns()); !s) return s;
  return open_step();
}

Status Reducer::open_step() {
  const tuttiDdpConfig_t& config = replica_.config;
  // Buckets are rebuilt once, in the order of the first successful step.
  const bool orders = config.rebuildBuckets != 0 && (config.findUnused == 0 || config.staticGraph != 0);
  if (orders && stats_.rebuilds == 0 && stats_.steps > 0)
    if (Status s = rebuild(); !s) return s;
  if (config.broadcastBuffers)
    if (Status s = replica_.broadcast(replica_.buffers, present_.leader(), Queue::kCaller); !s) return s;
  hooks_.begin_step();
  checks_.begin_step(stats_.steps + 1);
  static_cast<void>(outcome_.take());  // left by a step that ended before ranks agreed on it
  const std::lock_guard lock(mutex_);
  for (Device* device : replica_.devices())
    if (Status s = device->begin_step(buckets_.size()); !s) return s;
  marks_.begin_step(buckets_);
  graph_.begin_step(present_.anybody_learns());
  phase_ = Phase::kForward;
  for (size_t i = 0; i < replica_.params.size(); i++) {
    if (!graph_.never_uses(i)) continue;
    if (marks_.has_accumulated(i)) outcome_.note(graph_.check(replica_, i, Mark::kReady));
    set_mark(i, Mark::kUnused);
  }
  return {};
}

Status Reducer::rebuild() {
  std::vector<uint64_t> order(marks_.order().begin(), marks_.order().end());
  order.resize(replica_.params.size());
  const Group& group = replica_.group;
  const auto sent = tuttiBcast(order.data(), order.size(), tuttiUint64, present_.leader(), group.comm, nullptr);
  if (Status s = library(sent); !s) return s;
  if (Status s = build_buckets({order.begin(), order.end()}); !s) return s;
  const std::lock_guard lock(mutex_);
  stats_.rebuilds++;
  return {};
}

// ---- marks ---------------------------------------------------------------------------------------------------------

Status Reducer::mark(size_t index, Mark kind) {
  if (index >= replica_.params.size())
    return invalid_argument(text("index=%zu; there are %zu parameters", index, replica_.params.size()));
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kIdle) {
    if (Status s = check_communicators(); !s) return s;  // why there is none
    return invalid_usage(replica_.name(index) + " was marked, but no step is under way; tuttiDdpBegin begins one");
  }
  if (phase_ == Phase::kAccumulating) {
    if (kind == Mark::kReady) marks_.accumulate(index);
    return graph_.check(replica_, index, kind);
  }
  if (phase_ != Phase::kWaiting && kind == Mark::kUnused && graph_.never_uses(index))
    return {};  // marked when the step began
  if (Status s = check_mark(index, kind); !s) {
    outcome_.note(s);
    return s;
  }
  if (std::exchange(phase_, Phase::kReducing) == Phase::kForward) note_all(&Device::begin_backward);
  set_mark(index, kind);
  return {};
}

Status Reducer::check_mark(size_t index, Mark kind) const {
  if (phase_ == Phase::kWaiting)
    return invalid_usage(replica_.name(index) +
                         " was marked while tuttiDdpWait was ending the step; mark all gradients before calling it");
  if (Status s = graph_.check(replica_, index, kind); !s) return s;
  if (marks_[index] != Mark::kNone)
    return invalid_usage(
        replica_.name(index) +
        " was marked twice in one step; mark a gradient once, when nothing will be added to it any more");
  if (kind == Mark::kUnused && replica_.config.findUnused == 0 && replica_.config.staticGraph == 0)
    return invalid_usage(replica_.name(index) +
                         " was marked as unused; that needs findUnused=1 or staticGraph=1 on all ranks");
  return {};
}

void Reducer::set_mark(size_t index, Mark kind) {
  kind = marks_.set(index, kind);
  outcome_.note(buckets_.fill(replica_, index, kind == Mark::kReady));
  const size_t bucket = buckets_.bucket_of(index);
  if (marks_.fill(bucket)) outcome_.note(replica_.device(buckets_[bucket].device).mark_filled(bucket));
  if (replica_.config.overlap != 0) hooks_.launch_full(marks_);
}

// Whatever is wrong here, all buckets are launched afterwards, because the other ranks wait for them.
void Reducer::settle_unmarked() {
  std::vector<size_t> missing;
  for (size_t i = 0; i < marks_.size(); i++)
    if (marks_[i] == Mark::kNone) missing.push_back(i);
  if (graph_.learns()) {
    for (const size_t i : missing) set_mark(i, Mark::kUnused);
    return;
  }
  if (missing.empty()) return;
  marks_.fill_all();
  outcome_.note(
      invalid_usage(list_of(missing, replica_) +
                    " never became ready in this step; call tuttiDdpMarkReady for every parameter or, if a step does "
                    "not use all of them, set findUnused and call tuttiDdpMarkUnused"));
}

void Reducer::note_all(Status (Device::*does)()) {
  for (Device* device : replica_.devices()) outcome_.note((device->*does)());
}

// ---- the end of a step ---------------------------------------------------------------------------------------------

Status Reducer::wait() {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kIdle) {
      if (Status s = check_communicators(); !s) return s;
      return invalid_usage("there is no step to wait for; tuttiDdpBegin begins one");
    }
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
    phase_ = Phase::kWaiting;
    hooks_.launch_full(marks_);
  }
  Status outcome = hooks_.synchronize();
  {
    const std::lock_guard lock(mutex_);
    note_all(&Device::end_step);
  }
  if (outcome) outcome = finish_step();
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kIdle;
  marks_.drop_accumulated();
  if (outcome) {
    stats_.steps++;
    stats_.reducedBytes = hooks_.reduced_bytes();
  }
  return outcome;
}

Status Reducer::check_communicators() {
  for (const Device* device : replica_.devices()) {
    tuttiResult_t state = tuttiSuccess;
    if (Status s = library(tuttiCommGetAsyncError(device->comm(), &state)); !s) return s;
    if (state != tuttiSuccess) return Error{state, tuttiGetLastError(device->comm())};
  }
  return {};
}

Status Reducer::finish_step() {
  if (Status s = check_communicators(); !s) return s;
  outcome_.note(checks_.find_non_finite(buckets_));
  std::vector<int32_t> used = graph_.used_here(marks_);
  if (Status s = agree(replica_.group, outcome_.take(), &used); !s) return s;
  if (Status s = checks_.compare_ranks(buckets_, present_); !s) return s;
  graph_.take(marks_, used, present_.follows());
  for (size_t i = 0; i < replica_.params.size(); i++)
    if (Status s = buckets_.take_back(replica_, i, graph_.is_used(i)); !s) return s;
  return {};
}

tuttiDdpStats_t Reducer::stats() {
  const std::lock_guard lock(mutex_);
  tuttiDdpStats_t out = stats_;
  out.buckets = buckets_.size();
  out.gradientBytes = buckets_.bytes();
  for (Device* device : replica_.devices()) {
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

// A step without input differs from others only in its marks: all at once, as unused.
Status Reducer::join() {
  if (Status s = need_idle("tuttiDdpJoin"); !s) return s;
  if (replica_.config.joinable == 0) return invalid_usage("tuttiDdpJoin needs joinable=1 on all ranks");
  {
    const std::lock_guard lock(mutex_);
    marks_.drop_accumulated();
  }
  for (;;) {
    if (Status s = present_.meet(replica_.group, true, false); !s) return s;
    if (!present_.anybody_leads()) return broadcast(present_.leader());
    if (Status s = open_step(); !s) return s;
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = marks_.size(); i-- > 0;)
        if (marks_[i] == Mark::kNone) set_mark(i, Mark::kUnused);
    }
    if (Status s = close_step(); !s) return s;
  }
}

}  // namespace tutti::ddp
