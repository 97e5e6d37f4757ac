// The checker's vector clocks: how many steps of each lane, of all ranks, have certainly happened. Clocks share the
// memory of what they have in common, so that a hundred thousand lanes may know of each other. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace tutti::checker {

class Clock {
 public:
  Clock() = default;
  explicit Clock(size_t n_lanes) {
    while (n_lanes > kLeaf << kBits * height_) height_++;
  }
  uint32_t operator[](size_t lane) const;
  void set(size_t lane, uint32_t tick);
  // From now on this clock also knows what the other one knows.
  void learn(const Clock& other) { learn(root_, other.root_, height_); }

 private:
  static constexpr size_t kLeaf = 64, kBits = 4, kWidth = 1 << kBits;
  using Ref = std::shared_ptr<void>;  // a node, which is changed only while it is unshared; null: nothing is known
  using Leaf = std::array<uint32_t, kLeaf>;
  using Inner = std::array<Ref, kWidth>;

  static size_t child_of(size_t lane, size_t height) { return lane / kLeaf >> kBits * (height - 1) & (kWidth - 1); }
  template <class Node>
  static Node& own(Ref& ref);
  static void learn(Ref& mine, const Ref& theirs, size_t height);
  static void learn_leaf(Ref& mine, const Ref& theirs);

  size_t height_ = 0;
  Ref root_;
};

}  // namespace tutti::checker
