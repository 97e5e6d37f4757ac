#include "schedule/steps.h"

#include <algorithm>
#include <map>

namespace tutti {

uint32_t Steps::const_iterator::index() const {
  if (run_ == steps_->runs_.size()) return steps_->size_;
  const Run& run = steps_->runs_[run_];
  return run.begin + time_ * run.n_patterns + pattern_ - run.first_pattern;
}

Steps::Steps(std::initializer_list<Step> steps) : Steps(std::span(steps.begin(), steps.size())) {}

Steps::Steps(std::span<const Step> steps) {
  for (const Step& step : steps) push_back(step);
}

void Steps::push_back(const Step& step) {
  const auto at = static_cast<uint32_t>(patterns_.size());
  if (runs_.empty() || runs_.back().times > 1) runs_.push_back({.first_pattern = at, .begin = size_});
  patterns_.push_back(step);
  runs_.back().n_patterns++;
  size_++;
}

void Steps::repeat(std::span<const Step> patterns, uint32_t times, Walk walk) {
  if (times == 1)
    for (const Step& step : patterns) push_back(step);
  if (times <= 1 || patterns.empty()) return;
  const auto n = static_cast<uint32_t>(patterns.size());
  runs_.push_back({static_cast<uint32_t>(patterns_.size()), n, times, walk, size_});
  patterns_.insert(patterns_.end(), patterns.begin(), patterns.end());
  size_ += n * times;
}

Steps::const_iterator Steps::at(size_t index) const {
  if (index >= size_) return end();
  const auto i = static_cast<uint32_t>(index);
  const auto after = std::ranges::upper_bound(runs_, i, {}, &Run::begin);
  const Run& run = *(after - 1);
  const uint32_t in_run = i - run.begin;
  return {this, static_cast<uint32_t>(&run - runs_.data()), in_run / run.n_patterns,
          run.first_pattern + in_run % run.n_patterns};
}

Steps::const_iterator Steps::first_of(uint32_t pattern) const {
  const auto after = std::ranges::upper_bound(runs_, pattern, {}, &Run::first_pattern);
  return {this, static_cast<uint32_t>(after - runs_.begin()) - 1, 0, pattern};
}

std::vector<Placeable> placeable_messages(std::span<const Step> steps) {
  std::vector<Placeable> found;
  // By sender, the next one. Until it is found, `ahead` lacks the messages from everyone, which count for all senders.
  std::map<int32_t, Placeable> next_of;
  uint32_t from_everyone = 0;
  for (uint32_t s = 0; s < steps.size(); s++) {
    const Step& step = steps[s];
    from_everyone += step.recv == kEveryone;
    if (step.recv < 0) continue;
    Placeable& next = next_of[step.recv];
    const bool only_stored = step.before.buffer == Buffer::kNone && step.local.buffer == Buffer::kNone;
    if (only_stored && step.store.buffer == Buffer::kOutput) {
      found.push_back({s, next.from, next.ahead + from_everyone});
      next = {.from = s + 1, .ahead = 0 - from_everyone};
    } else {
      next.ahead++;
    }
  }
  return found;
}

}  // namespace tutti
