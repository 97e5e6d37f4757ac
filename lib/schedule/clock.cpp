#include "schedule/clock.h"

#include <algorithm>

namespace tutti::checker {

// The node itself if only this clock has it, otherwise a copy that takes its place here.
template <class Node>
Node& Clock::own(Ref& ref) {
  if (ref == nullptr)
    ref = std::make_shared<Node>();
  else if (ref.use_count() > 1)
    ref = std::make_shared<Node>(*static_cast<const Node*>(ref.get()));
  return *static_cast<Node*>(ref.get());
}

uint32_t Clock::operator[](size_t lane) const {
  const Ref* node = &root_;
  for (size_t height = height_; *node != nullptr && height > 0; height--)
    node = &(*static_cast<const Inner*>(node->get()))[child_of(lane, height)];
  return *node == nullptr ? 0 : (*static_cast<const Leaf*>(node->get()))[lane % kLeaf];
}

void Clock::set(size_t lane, uint32_t tick) {
  Ref* node = &root_;
  for (size_t height = height_; height > 0; height--) node = &own<Inner>(*node)[child_of(lane, height)];
  own<Leaf>(*node)[lane % kLeaf] = tick;
}

void Clock::learn(Ref& mine, const Ref& theirs, size_t height) {
  if (theirs == nullptr || mine == theirs) return;
  if (mine == nullptr) {
    mine = theirs;
    return;
  }
  if (height == 0) return learn_leaf(mine, theirs);
  const Inner& other = *static_cast<const Inner*>(theirs.get());
  Inner& children = own<Inner>(mine);
  for (size_t i = 0; i < kWidth; i++) learn(children[i], other[i], height - 1);
  if (children == other) mine = theirs;
}

void Clock::learn_leaf(Ref& mine, const Ref& theirs) {
  const Leaf &known = *static_cast<const Leaf*>(mine.get()), &other = *static_cast<const Leaf*>(theirs.get());
  // Signed and without a bool, this loop becomes vector instructions on any x86; else it is half of the proof's time.
  int32_t know_more = 0, learn_more = 0;
  for (size_t i = 0; i < kLeaf; i++) {
    const auto mine_at = static_cast<int32_t>(known[i]), theirs_at = static_cast<int32_t>(other[i]);
    know_more |= mine_at > theirs_at ? -1 : 0;
    learn_more |= theirs_at > mine_at ? -1 : 0;
  }
  if (know_more == 0) mine = theirs;
  if (know_more == 0 || learn_more == 0) return;
  Leaf& latest = own<Leaf>(mine);
  for (size_t i = 0; i < kLeaf; i++) latest[i] = std::max(latest[i], other[i]);
}

}  // namespace tutti::checker
