// How a step went, on all ranks.
#include <bit>
#include <cmath>
#include <cstring>

#include "reducer.h"

namespace tutti::ddp {
namespace {

constexpr size_t kNoIndex = ~size_t{0};

// Bits that say how large a number is: all set means Inf or NaN.
template <class Bits>
size_t first_with_all(const char* data, size_t count, Bits exponent) {
  const auto* bits = reinterpret_cast<const Bits*>(data);
  for (size_t i = 0; i < count; i++)
    if ((bits[i] & exponent) == exponent) return i;
  return kNoIndex;
}

size_t first_non_finite(tuttiDataType_t type, const char* data, size_t count) {
  switch (type) {
    case tuttiFloat64: return first_with_all<uint64_t>(data, count, 0x7ff0000000000000);
    case tuttiFloat16: return first_with_all<uint16_t>(data, count, 0x7c00);
    case tuttiBfloat16: return first_with_all<uint16_t>(data, count, 0x7f80);
    default: return first_with_all<uint32_t>(data, count, 0x7f800000);
  }
}

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
  note(invalid_usage(
      list_of(missing, params_) +
      " never became ready in this step; call tuttiDdpMarkReady for every parameter or, where a step does "
      "not use all of them, set findUnused and call tuttiDdpMarkUnused"));
}

// Whether ranks tell each other which parameters they used in this step.
bool Reducer::tracks_use() const {
  return config_.staticGraph ? !graph_known_ : config_.findUnused != 0;
}

Status Reducer::finish_step() {
  tuttiResult_t state = tuttiSuccess;
  if (Status s = library(tuttiCommGetAsyncError(group_.comm, &state)); !s) return s;
  if (state != tuttiSuccess) return Error{state, tuttiGetLastError(group_.comm)};
  std::vector<int32_t> used;
  if (tracks_use())
    for (const Mark mark : marks_) used.push_back(mark == Mark::kReady ? 1 : 0);
  if (Status s = agree(group_, outcome_, &used); !s) return s;
  if (checks_this_step())
    if (Status s = compare_ranks(); !s) return s;
  take_back(used);
  used_before_.assign(params_.size(), false);
  rebuild_due_ |= order_due_;
  order_due_ = false;
  return {};
}

void Reducer::take_back(const std::vector<int32_t>& used) {
  if (config_.staticGraph && !graph_known_) {
    used_somewhere_ = used;
    for (const Mark mark : marks_) never_used_.push_back(mark == Mark::kUnused);
    graph_known_ = true;
  }
  const std::vector<int32_t>& somewhere = graph_known_ ? used_somewhere_ : used;
  for (size_t i = 0; i < params_.size(); i++) {
    const Tensor& param = params_[i];
    char* slot = buckets_.slot_of(i);
    if (param.count == 0) continue;
    if (somewhere.empty() || somewhere[i] != 0) {
      if (param.grad != nullptr) memcpy(param.grad, slot, param.grad_bytes());
    } else if (param.grad == nullptr) {
      memcpy(slot, kept_[i].data(), param.grad_bytes());
    }
    std::vector<char>().swap(kept_[i]);
  }
}

bool Reducer::checks_this_step() const {
  return config_.checkEvery > 0 && (stats_.steps + 1) % static_cast<uint64_t>(config_.checkEvery) == 0;
}

Status Reducer::find_non_finite(const Layout& layout, const char* data) const {
  for (size_t i = 0; i < layout.params.size(); i++) {
    const size_t param = layout.params[i];
    const char* at = data + layout.offsets[i] * element_bytes(layout.type);
    const size_t found = first_non_finite(layout.type, at, params_[param].count);
    if (found != kNoIndex)
      return invalid_usage(
          text("the gradient of %s has Inf or NaN at element %zu; lower the learning rate or the loss scale, or look "
               "for a division by zero",
               name_of("parameter", param, params_[param]).c_str(), found));
  }
  return {};
}

Status Reducer::compare_ranks() const {
  std::vector<uint64_t> mine, all;
  for (size_t i = 0; i < params_.size(); i++) {
    mine.push_back(params_[i].data == nullptr ? 0 : hash_bytes(params_[i].data, params_[i].data_bytes()));
    mine.push_back(hash_bytes(buckets_.slot_of(i), params_[i].grad_bytes()));
  }
  if (Status s = gather(group_, mine, &all); !s) return s;
  for (size_t i = 0; i < mine.size(); i++) {
    std::string ranks;
    for (size_t r = 1; r < static_cast<size_t>(group_.size); r++)
      if (all[r * mine.size() + i] != all[i]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    if (!ranks.empty())
      return invalid_usage(text("%s%s differs from rank 0's on rank %s; tuttiDdpBroadcast makes all ranks equal again",
                                i % 2 == 0 ? "" : "the averaged gradient of ",
                                name_of("parameter", i / 2, params_[i / 2]).c_str(), ranks.c_str()));
  }
  return {};
}

}  // namespace tutti::ddp
