// Shared by the schedule suites.
#pragma once

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "catch.h"
#include "sanitized.h"
#include "schedule/algorithms.h"

namespace tutti::testing {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

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

// One way to do a collective: a row of the library's table.
inline const Method& method_of(const char* algorithm, Goal goal) {
  const Algorithm* const row = algorithm_of(algo_named(algorithm));
  REQUIRE(row != nullptr);
  REQUIRE(row->method(goal).build != nullptr);
  return row->method(goal);
}
inline Schedule schedule_of(const char* algorithm, Goal goal, const tutti::Ranks& ranks) {
  return method_of(algorithm, goal).build(ranks);
}
// An algorithm's schedules of all ranks, on one host.
inline std::vector<Schedule> all_of(const char* algorithm, Goal goal, const std::vector<int>& order, uint32_t lanes = 1,
                                    int root = 0) {
  const std::vector<std::vector<int>> hosts{order};
  return for_all_ranks(static_cast<int>(order.size()), [&](int rank) {
    return schedule_of(algorithm, goal, {order, hosts, hosts, {}, rank, root, lanes});
  });
}
inline std::vector<Schedule> all_ring_all_reduce(const std::vector<int>& order, uint32_t lanes) {
  return all_of("ring", Goal::kAllReduce, order, lanes);
}

// "" if the schedules are right, else the checker's message.
inline std::string verdict(const std::vector<Schedule>& schedules, const CheckOptions& options) {
  auto result = check(schedules, options);
  return result ? "" : result.error().message;
}

inline int floor_log2(int n) {
  return std::bit_width(static_cast<unsigned>(n)) - 1;
}

// When the last lane ends if a message takes one unit of time, steps take none and there are plenty of slots.
inline int hops(const std::vector<Schedule>& schedules) {
  struct Run {
    int rank;
    const Lane* lane;
    Steps::const_iterator at;
    int time = 0;
  };
  std::vector<Run> runs;
  for (const Schedule& schedule : schedules) {
    for (const Lane& lane : schedule.lanes) runs.push_back({schedule.rank, &lane, lane.steps.begin()});
  }
  std::map<std::tuple<int, int, uint32_t>, std::deque<int>> arrivals;  // by from, to, channel
  int end = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (Run& run : runs) {
      for (; run.at != run.lane->steps.end(); ++run.at, moved = true) {
        const Step step = *run.at;
        std::vector<int> senders;
        if (step.recv >= 0) senders = {step.recv};
        if (step.recv == kEveryone)
          for (const Schedule& other : schedules)
            if (other.rank != run.rank) senders.push_back(other.rank);
        const auto queue_of = [&](int sender) -> auto& {
          return arrivals[{sender, run.rank, run.lane->channel}];
        };
        if (std::any_of(senders.begin(), senders.end(), [&](int sender) { return queue_of(sender).empty(); })) break;
        for (const int sender : senders) {
          run.time = std::max(run.time, queue_of(sender).front());
          queue_of(sender).pop_front();
        }
        if (step.send >= 0) arrivals[{run.rank, step.send, run.lane->channel}].push_back(run.time + 1);
      }
      end = std::max(end, run.time);
    }
  }
  return end;
}

inline long sends(const Schedule& schedule) {
  long count = 0;
  for (const Lane& lane : schedule.lanes) {
    count += std::count_if(lane.steps.begin(), lane.steps.end(), [](const Step& step) { return step.send >= 0; });
  }
  return count;
}

inline long sends(const std::vector<Schedule>& schedules) {
  return std::accumulate(schedules.begin(), schedules.end(), 0L,
                         [](long sum, const Schedule& schedule) { return sum + sends(schedule); });
}

}  // namespace tutti::testing
