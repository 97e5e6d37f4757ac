// Orders of ranks on a graph.
#include <algorithm>
#include <limits>
#include <random>

#include "tools/topo/graph.h"

namespace tutti {
namespace {

constexpr size_t kFewToOrder = 16;  // up to this many are improved, from each starting rank

bool is_better(const Order& a, const Order& b) {
  constexpr double kAlike = 1 + 1e-9;
  if (a.bytes_per_second > b.bytes_per_second * kAlike) return true;
  return a.bytes_per_second * kAlike >= b.bytes_per_second && a.strain * kAlike < b.strain;
}

// Always to the nearest of the remaining ranks.
std::vector<int> greedy(Routes& routes, std::vector<int> ranks, size_t first) {
  std::swap(ranks[0], ranks[first]);
  std::sort(ranks.begin() + 1, ranks.end());
  for (auto at = ranks.begin(); at + 1 < ranks.end(); ++at)
    std::rotate(at + 1,
                std::min_element(at + 1, ranks.end(),
                                 [&](int a, int b) { return routes.way(*at, a).ns < routes.way(*at, b).ns; }),
                ranks.end());
  return ranks;
}

enum class Move { kExchange, kTurn, kForward, kBack };

void apply(Move move, std::vector<int>& ranks, size_t i, size_t j) {
  const auto first = ranks.begin() + static_cast<std::ptrdiff_t>(i),
             last = ranks.begin() + static_cast<std::ptrdiff_t>(j);
  switch (move) {
    case Move::kExchange: std::iter_swap(first, last); break;
    case Move::kTurn: std::reverse(first, last + 1); break;
    case Move::kForward: std::rotate(first, first + 1, last + 1); break;
    case Move::kBack: std::rotate(first, last, last + 1); break;
  }
}

// Repeats until no move helps.
Order improve(Routes& routes, std::vector<int> ranks) {
  Order best = measure(routes, std::move(ranks));
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (size_t i = 0; i < best.ranks.size(); i++)
      for (size_t j = i + 1; j < best.ranks.size(); j++)
        for (const Move move : {Move::kExchange, Move::kTurn, Move::kForward, Move::kBack}) {
          std::vector<int> other = best.ranks;
          apply(move, other, i, j);
          Order changed = measure(routes, std::move(other));
          if (!is_better(changed, best)) continue;
          best = std::move(changed);
          is_new = true;
        }
  }
  return best;
}

// Improves the greedy order from each rank, and random orders, which are the same each time.
Order find_among(Routes& routes, const std::vector<int>& ranks) {
  constexpr size_t kAtRandom = 24;
  Order best{ranks, 0, std::numeric_limits<double>::infinity()};
  std::minstd_rand random;
  std::vector<int> shuffled = ranks;
  for (size_t start = 0; start < ranks.size() + kAtRandom; start++) {
    for (size_t i = shuffled.size(); i > 1; i--) std::swap(shuffled[i - 1], shuffled[random() % i]);
    Order found = improve(routes, start < ranks.size() ? greedy(routes, ranks, start) : shuffled);
    if (is_better(found, best)) best = std::move(found);
  }
  return best;
}

// A ring of the ranks of each host. Hosts are often alike: then the order found for one host serves the next.
class HostRings {
 public:
  explicit HostRings(Routes& routes) : routes_(routes) {}
  std::vector<int> find(const std::vector<int>& here) {
    if (here.size() > kFewToOrder) return greedy(routes_, here, 0);
    if (places_.size() == here.size()) {
      std::vector<int> ranks;
      for (const size_t place : places_) ranks.push_back(here[place]);
      const Order same = measure(routes_, ranks);
      if (same.bytes_per_second == last_.bytes_per_second && same.strain == last_.strain) return ranks;
    }
    last_ = find_among(routes_, here);
    places_.clear();
    for (const int rank : last_.ranks)
      places_.push_back(static_cast<size_t>(std::find(here.begin(), here.end(), rank) - here.begin()));
    return last_.ranks;
  }

 private:
  Routes& routes_;
  Order last_;
  std::vector<size_t> places_;  // of last_'s ranks within their host
};

}  // namespace

Order measure(Routes& routes, std::vector<int> ranks) {
  const std::vector<Graph::Edge>& edges = routes.graph().edges;
  std::map<int, int> load;  // messages on each direction of an edge
  Order order{std::move(ranks), std::numeric_limits<double>::infinity(), 0};
  const size_t n = order.ranks.size();
  for (size_t i = 0; n > 1 && i < n; i++)
    for (const int by : routes.way(order.ranks[i], order.ranks[(i + 1) % n]).edges) load[by]++;
  for (const auto& [by, messages] : load) {
    const double speed = edges[static_cast<size_t>(by / 2)].bytes_per_second / messages, slow = 1e9 / speed;
    order.bytes_per_second = std::min(order.bytes_per_second, speed);
    order.strain += slow * slow * slow * slow;
  }
  return order;
}

Order find_order(Routes& routes) {
  const std::vector<int> ranks = routes.graph().ranks();
  if (ranks.size() <= kFewToOrder) return find_among(routes, ranks);
  std::map<int, std::vector<int>> hosts;
  for (const int rank : ranks) hosts[routes.graph().nodes[static_cast<size_t>(rank)].host].push_back(rank);
  std::vector<int> all;
  HostRings rings(routes);
  for (const auto& [host, here] : hosts) {
    const std::vector<int> found = rings.find(here);
    all.insert(all.end(), found.begin(), found.end());
  }
  return measure(routes, std::move(all));
}

}  // namespace tutti
