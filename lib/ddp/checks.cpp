#include "checks.h"

#include <string>

namespace tutti::ddp {

void Checks::begin_step(uint64_t number) {
  const auto every = static_cast<uint64_t>(replica_.config.checkEvery);
  are_due_ = every > 0 && number % every == 0;
  looked_at_ = 0;
  non_finite_.assign(replica_.params.size(), kNoIndex);
}

Status Checks::look(const Bucket& bucket, Device& device) {
  if (!are_due_) return {};
  std::vector<Span> spans;
  for (size_t i = 0; i < bucket.params.size(); i++)
    spans.push_back({bucket.slot(i), replica_.params[bucket.params[i]].count, bucket.type});
  uint64_t* found = non_finite_.data() + looked_at_;
  looked_at_ += spans.size();
  return device.look(Look::kNonFinite, spans, Queue::kOwn, found);
}

Status Checks::find_non_finite(const Buckets& buckets) const {
  if (!are_due_) return {};
  if (Status s = replica_.synchronize(); !s) return s;
  auto found = non_finite_.begin();
  for (size_t b = 0; b < buckets.size(); b++)
    for (const size_t param : buckets[b].params)
      if (const uint64_t index = *found++; index != kNoIndex)
        return invalid_usage(
            text("the gradient of %s has Inf or NaN at element %zu; lower the learning rate or the loss scale, or look "
                 "for a division by zero",
                 replica_.name(param).c_str(), static_cast<size_t>(index)));
  return {};
}

Status Checks::compare_ranks(const Buckets& buckets, const Attendance& present) const {
  if (!are_due_) return {};
  const Group& group = replica_.group;
  std::vector<uint64_t> mine(2 * replica_.params.size()), all;
  for (size_t i = 0; i < replica_.params.size(); i++) {
    const Tensor& param = replica_.params[i];
    const std::vector<Span> spans = {{param.data, param.data == nullptr ? 0 : param.count, param.type},
                                     {buckets.slot_of(i), param.count, param.grad_type}};
    if (Status s = replica_.device(param.device).look(Look::kDigest, spans, Queue::kCaller, &mine[2 * i]); !s) return s;
  }
  if (Status s = replica_.synchronize(); !s) return s;
  mine.push_back(present.follows() ? 1 : 0);  // a follower's parameters are old until tuttiDdpJoin ends
  if (Status s = gather(group, mine, &all); !s) return s;
  const uint64_t* const leaders = &all[static_cast<size_t>(present.leader()) * mine.size()];
  for (size_t i = 0; i + 1 < mine.size(); i++) {
    std::string ranks;
    for (size_t r = 0; r < static_cast<size_t>(group.size); r++) {
      const uint64_t* const theirs = &all[r * mine.size()];
      const bool is_old = i % 2 == 0 && theirs[mine.size() - 1] != 0;
      if (!is_old && theirs[i] != leaders[i]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    }
    if (!ranks.empty())
      return invalid_usage(text("%s%s differs from rank %d's on rank %s; tuttiDdpBroadcast makes all ranks equal again",
                                i % 2 == 0 ? "" : "the averaged gradient of ", replica_.name(i / 2).c_str(),
                                present.leader(), ranks.c_str()));
  }
  return {};
}

}  // namespace tutti::ddp
