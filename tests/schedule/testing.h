// What the schedule suites share.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "schedule/schedule.h"

namespace tutti::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

inline std::vector<int> natural_order(int n) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

inline std::vector<int> shuffled_order(int n, uint32_t seed) {
  std::vector<int> order = natural_order(n);
  std::mt19937 random(seed);
  // Not std::shuffle: its result differs between standard libraries.
  for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random() % i]);
  return order;
}

// The schedules of ranks 0 .. n-1 from build(rank).
template <class Build>
std::vector<Schedule> for_all_ranks(int n, Build build) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < n; rank++) schedules.push_back(build(rank));
  return schedules;
}

inline std::vector<Schedule> all_ring_all_reduce(const std::vector<int>& ring, uint32_t n_chunks, uint32_t n_lanes) {
  return for_all_ranks(static_cast<int>(ring.size()),
                       [&](int rank) { return ring_all_reduce(ring, rank, n_chunks, n_lanes); });
}
inline std::vector<Schedule> all_ring_broadcast(const std::vector<int>& ring, int root, uint32_t n_chunks,
                                                uint32_t n_lanes) {
  return for_all_ranks(static_cast<int>(ring.size()),
                       [&](int rank) { return ring_broadcast(ring, rank, root, n_chunks, n_lanes); });
}
inline std::vector<Schedule> all_tree_all_reduce(const std::vector<int>& order, uint32_t n_chunks) {
  return for_all_ranks(static_cast<int>(order.size()),
                       [&](int rank) { return tree_all_reduce(order, rank, n_chunks); });
}
inline std::vector<Schedule> all_tree_broadcast(const std::vector<int>& order, int root, uint32_t n_chunks) {
  return for_all_ranks(static_cast<int>(order.size()),
                       [&](int rank) { return tree_broadcast(order, rank, root, n_chunks); });
}

// "" when the schedules are right, else what the checker says.
inline std::string verdict(const std::vector<Schedule>& schedules, const CheckOptions& options) {
  auto result = check(schedules, options);
  return result ? "" : result.error().message;
}

}  // namespace tutti::testing
