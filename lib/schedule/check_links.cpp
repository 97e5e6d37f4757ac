#include "schedule/check_links.h"

#include <algorithm>
#include <utility>

namespace tutti::checker {

Links::Attached Links::attach(int from, int to, uint32_t channel, int Link::*end, int lane) {
  std::vector<int>& candidates = from_[static_cast<size_t>(from)];
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](int index) {
    return (*this)[index].to == to && (*this)[index].channel == channel;
  });
  const int index = found != candidates.end() ? *found : static_cast<int>(links_.size());
  if (found == candidates.end()) {
    candidates.push_back(index);
    links_.push_back({.from = from, .to = to, .channel = channel});
  }
  int& owner = links_[static_cast<size_t>(index)].*end;
  if (owner < 0) owner = lane;
  return {index, owner};
}

Message Links::pop(int index) {
  Link& link = links_[static_cast<size_t>(index)];
  Message message = std::move(slots_[slot(index, 0)]);
  if (++link.head == n_slots_) link.head = 0;
  link.count--;
  return message;
}

void Links::push(int index, Message message) {
  if (slots_.empty()) slots_.resize(links_.size() * n_slots_);  // all links exist by now
  Link& link = links_[static_cast<size_t>(index)];
  slots_[slot(index, link.count++)] = std::move(message);
}

}  // namespace tutti::checker
