// How a step went, on all ranks.
#include "reducer.h"

namespace tutti::ddp {
namespace {

// The first ones by name, and how many more.
std::string list_of(const std::vector<size_t>& indices, const std::vector<Tensor>& params) {
  constexpr size_t kShown = 8;
  std::string out;
  for (size_t i = 0; i < indices.size() && i < kShown; i++)
    out += (i > 0 ? ", " : "") + name_of("parameter", indices[i], params[indices[i]]);
  if (indices.size() > kShown) out += " and " + std::to_string(indices.size() - kShown) + " more";
  return out;
}

}  // namespace

// Whatever is wrong here, all buckets are launched in the end: the other ranks wait for them.
void Reducer::settle_unmarked() {
  std::vector<size_t> missing;
  for (size_t i = 0; i < params_.size(); i++)
    if (marks_[i] == Mark::kNone) missing.push_back(i);
  if (config_.staticGraph && !graph_known_) {
    for (const size_t i : missing) set_mark(i, Mark::kUnused);
    return;
  }
  if (missing.empty()) return;
  pending_.assign(pending_.size(), 0);
  note(invalid_usage(list_of(missing, params_) +
                     " never became ready in this step; call tuttiDdpMarkReady for every parameter or, if a step does "
                     "not use all of them, set findUnused and call tuttiDdpMarkUnused"));
}

// Whether ranks tell each other which parameters they used in this step.
bool Reducer::tracks_use() const {
  return config_.staticGraph ? learning_ : config_.findUnused != 0;
}

Status Reducer::finish_step() {
  for (const Device* device : devices_.all()) {
    tuttiResult_t state = tuttiSuccess;
    if (Status s = library(tuttiCommGetAsyncError(device->comm(), &state)); !s) return s;
    if (state != tuttiSuccess) return Error{state, tuttiGetLastError(device->comm())};
  }
  const Status looked = checks_this_step() ? find_non_finite() : Status();
  std::vector<int32_t> used;
  if (tracks_use())
    for (size_t i = 0; i < params_.size(); i++)
      used.push_back((graph_known_ ? !never_used_[i] : marks_[i] == Mark::kReady) ? 1 : 0);
  Status outcome;
  {
    const std::lock_guard lock(mutex_);  // somebody may mark something still
    note(looked);
    outcome = outcome_;
  }
  if (Status s = agree(group_, outcome, &used); !s) return s;
  if (checks_this_step())
    if (Status s = compare_ranks(); !s) return s;
  if (Status s = take_back(used); !s) return s;
  rebuild_due_ |= order_due_;
  order_due_ = false;
  return {};
}

Status Reducer::take_back(const std::vector<int32_t>& used) {
  if (learning_) used_somewhere_ = used;
  if (config_.staticGraph && !graph_known_ && !following_) {
    for (const Mark mark : marks_) never_used_.push_back(mark == Mark::kUnused);
    graph_known_ = true;
  }
  const std::vector<int32_t>& somewhere = config_.staticGraph ? used_somewhere_ : used;
  for (size_t i = 0; i < params_.size(); i++) {
    const Tensor& param = params_[i];
    Device& device = device_of(param);
    const bool is_used = somewhere.empty() || somewhere[i] != 0;
    if (param.count == 0 || is_used == (param.grad == nullptr)) continue;
    const Status taken = is_used ? device.copy(param.grad, buckets_.slot_of(i), param.grad_bytes(), Queue::kCaller)
                                 : buckets_.bring_back(device, i, param.grad_bytes());
    if (!taken) return taken;
  }
  return {};
}

bool Reducer::checks_this_step() const {
  return config_.checkEvery > 0 && (stats_.steps + 1) % static_cast<uint64_t>(config_.checkEvery) == 0;
}

Status Reducer::look_for_non_finite(const Layout& layout, Device& device) {
  std::vector<Span> spans;
  for (const size_t param : layout.params)
    spans.push_back({buckets_.slot_of(param), params_[param].count, layout.type});
  uint64_t* found = non_finite_.data() + looked_at_;
  looked_at_ += spans.size();
  return device.look(Look::kNonFinite, spans, Queue::kOwn, found);
}

Status Reducer::find_non_finite() {
  if (Status s = synchronize(); !s) return s;
  auto found = non_finite_.begin();
  for (size_t b = 0; b < buckets_.size(); b++)
    for (const size_t param : buckets_[b].layout.params)
      if (const uint64_t index = *found++; index != kNoIndex)
        return invalid_usage(
            text("the gradient of %s has Inf or NaN at element %zu; lower the learning rate or the loss scale, or look "
                 "for a division by zero",
                 name_of("parameter", param, params_[param]).c_str(), static_cast<size_t>(index)));
  return {};
}

Status Reducer::compare_ranks() const {
  std::vector<uint64_t> mine(2 * params_.size()), all;
  for (size_t i = 0; i < params_.size(); i++) {
    const Tensor& param = params_[i];
    const std::vector<Span> spans = {{param.data, param.data == nullptr ? 0 : param.count, param.type},
                                     {buckets_.slot_of(i), param.count, param.grad_type}};
    if (Status s = device_of(param).look(Look::kDigest, spans, Queue::kCaller, &mine[2 * i]); !s) return s;
  }
  if (Status s = synchronize(); !s) return s;
  mine.push_back(following_ ? 1 : 0);  // then its parameters are old until it has joined
  if (Status s = gather(group_, mine, &all); !s) return s;
  const uint64_t* const leaders = &all[static_cast<size_t>(leader_) * mine.size()];
  for (size_t i = 0; i + 1 < mine.size(); i++) {
    std::string ranks;
    for (size_t r = 0; r < static_cast<size_t>(group_.size); r++) {
      const uint64_t* const theirs = &all[r * mine.size()];
      const bool is_old = i % 2 == 0 && theirs[mine.size() - 1] != 0;
      if (!is_old && theirs[i] != leaders[i]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    }
    if (!ranks.empty())
      return invalid_usage(text("%s%s differs from rank %d's on rank %s; tuttiDdpBroadcast makes all ranks equal again",
                                i % 2 == 0 ? "" : "the averaged gradient of ",
                                name_of("parameter", i / 2, params_[i / 2]).c_str(), leader_, ranks.c_str()));
  }
  return {};
}

}  // namespace tutti::ddp
