#include "schedule/algorithms.h"

namespace tutti {

// The rows. Where two cost the same, the first is taken.
extern const Algorithm kDirect, kOneShot, kLinear, kTree, kRing, kCirculant, kDoubling, kHierarchical, kRacks, kChain;
constexpr const Algorithm* kAlgorithms[] = {&kDirect,    &kOneShot,  &kLinear,       &kTree,  &kRing,
                                            &kCirculant, &kDoubling, &kHierarchical, &kRacks, &kChain};
static_assert(std::size(kAlgorithms) < 16, "a message has 4 bits for the number");

std::span<const Algorithm* const> algorithms() {
  return kAlgorithms;
}

const Method& Algorithm::method(Collective collective) const {
  static constexpr Method kNone;
  const Method* const all[] = {&all_reduce, &broadcast, &reduce, &all_gather, &reduce_scatter};  // Collective's order
  const size_t place = static_cast<size_t>(collective) - static_cast<size_t>(Collective::kAllReduce);
  return place < std::size(all) ? *all[place] : kNone;
}

const Algorithm* algorithm_of(Algo algo) {
  const size_t number = static_cast<size_t>(algo);
  return number - 1 < std::size(kAlgorithms) ? kAlgorithms[number - 1] : nullptr;
}

const char* algo_name(Algo algo) {
  return algorithm_of(algo) != nullptr ? algorithm_of(algo)->name : "auto";
}

Algo algo_named(std::string_view name) {
  size_t row = std::size(kAlgorithms);
  while (row > 0 && name != kAlgorithms[row - 1]->name) row--;
  return static_cast<Algo>(row);
}

Algo own_algo(Collective collective, Algo algo) {
  const Algorithm* const algorithm = algorithm_of(algo);
  if (algorithm == nullptr || algorithm->method(collective).build != nullptr) return algo;
  return own_algo(collective, algorithm->otherwise);
}

}  // namespace tutti
