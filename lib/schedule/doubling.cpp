// Builders that exchange with ranks at distances 1, 2, 4, ...
#include <algorithm>
#include <bit>

#include "schedule/algorithms.h"

namespace tutti {
namespace {

struct Order {
  std::span<const int> ranks;
  int n, position;

  Order(std::span<const int> order, int rank) : ranks(order), n(static_cast<int>(order.size())) {
    position = place_of(order, rank);
  }
  // The rank `distance` positions on, round the end.
  int at(int distance) const { return ranks[static_cast<size_t>((position + distance + n) % n)]; }
  int of(int other) const { return ranks[static_cast<size_t>(other)]; }  // by position
};

Schedule one_lane(Schedule schedule, Steps steps) {
  schedule.lanes.push_back({0, std::move(steps)});
  return schedule;
}

// Sends run `window` messages ahead of receives.
void exchange(Steps& steps, const std::vector<Step>& sends, const std::vector<Step>& receives, size_t window) {
  for (size_t i = 0; i < std::max(sends.size(), receives.size() + window - 1); i++) {
    if (i < sends.size()) steps.push_back(sends[i]);
    if (i + 1 >= window && i + 1 - window < receives.size()) steps.push_back(receives[i + 1 - window]);
  }
}

Slice in(uint32_t chunk) {
  return {Buffer::kInput, chunk};
}
Slice out(uint32_t chunk) {
  return {Buffer::kOutput, chunk};
}

}  // namespace

// Before the exchange at distance d a rank has the blocks of d positions, its own and the next ones:
//
//   n = 5, position 0     has      gets from 0+d
//   d = 1                 0        1
//   d = 2                 01       23
//   d = 4                 0123     4            the last exchange is cut short
Schedule bruck_all_gather(std::span<const int> ranks, int rank, uint32_t n_chunks, uint32_t window) {
  const Order order(ranks, rank);
  const int n = order.n;
  Steps steps;
  for (uint32_t c = 0; c < n_chunks; c++) {
    const auto chunk_at = [&](int distance) { return static_cast<uint32_t>(order.at(distance)) * n_chunks + c; };
    const uint32_t own = chunk_at(0);
    steps.push_back({.chunk = own, .local = in(c), .store = out(own)});
    for (int d = 1; d < n; d *= 2) {
      std::vector<Step> sends, receives;
      for (int j = 0; j < std::min(d, n - d); j++) {
        const uint32_t give = chunk_at(j), take = chunk_at(d + j);
        sends.push_back({.send = order.at(-d), .chunk = give, .local = out(give)});
        receives.push_back({.recv = order.at(d), .chunk = take, .store = out(take)});
      }
      exchange(steps, sends, receives, window);
    }
  }
  return one_lane({.rank = rank, .n_ranks = n, .n_chunks = n_chunks, .output_blocks = static_cast<uint32_t>(n)},
                  std::move(steps));
}

// The all-gather backwards: from the longest distance to 1, every message against its direction. Before the exchange at
// distance d a rank has sums for the blocks of 2d positions, its own and the next ones, and gives away the farther
// half:
//
//   n = 5, position 0     has      gives to 0+d      gets parts of, from 0-d
//   d = 4                 01234    4                 0
//   d = 2                 0123     23                01
//   d = 1                 01       1                 0           complete
//
// The sum for the block j positions on is scratch[j], once there is more in it than the input.
Schedule bruck_reduce_scatter(std::span<const int> ranks, int rank, uint32_t n_chunks, uint32_t window) {
  const Order order(ranks, rank);
  const int n = order.n;
  int n_sums = 0;
  Steps steps;
  for (uint32_t c = 0; c < n_chunks; c++) {
    const auto chunk_at = [&](int distance) { return static_cast<uint32_t>(order.at(distance)) * n_chunks + c; };
    n_sums = 0;
    const auto sum_at = [&](int distance) -> Slice {
      if (distance < n_sums) return {Buffer::kScratch, static_cast<uint32_t>(distance)};
      return in(chunk_at(distance));
    };
    for (int d = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))) / 2; d > 0; d /= 2) {
      std::vector<Step> sends, receives;
      const int count = std::min(d, n - d);
      for (int j = 0; j < count; j++) {
        sends.push_back({.send = order.at(d), .chunk = chunk_at(d + j), .local = sum_at(d + j)});
        const Slice store = d > 1 ? Slice{Buffer::kScratch, static_cast<uint32_t>(j)} : out(c);
        receives.push_back({.recv = order.at(-d), .chunk = chunk_at(j), .local = sum_at(j), .store = store});
        receives.back().completes = d == 1;
      }
      exchange(steps, sends, receives, window);
      if (d > 1) n_sums = std::max(n_sums, count);
    }
    if (n == 1) steps.push_back({.chunk = c, .local = in(c), .store = out(c), .completes = true});
  }
  Schedule schedule{.rank = rank, .n_ranks = n, .n_chunks = n_chunks, .n_scratch = static_cast<uint32_t>(n_sums)};
  schedule.input_blocks = static_cast<uint32_t>(n);
  return one_lane(schedule, std::move(steps));
}

// 2^k positions 0 .. p-1 exchange; position p+i folds into i before and hears the result from it.
//
//   n = 5    0 <--> 1     0 <--> 2       4 --> 0 first, then distances 1 and 2, then 0 --> 4
//            2 <--> 3     1 <--> 3
//
// Both sides of an exchange add the lower position's sum to the left, so they get the same bits.
Schedule doubling_all_reduce(std::span<const int> ranks, int rank, uint32_t n_chunks) {
  const Order order(ranks, rank);
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(order.n)));
  const int position = order.position;
  std::vector<int> partners;  // whom this one hears from, in this order
  if (position + p < order.n) partners.push_back(position + p);
  for (int d = 1; d < p && position < p; d *= 2) partners.push_back(position ^ d);
  const bool has_extra = position + p < order.n;
  Steps steps;
  for (uint32_t c = 0; c < n_chunks; c++) {
    if (position >= p) {
      steps.push_back({.send = order.of(position - p), .chunk = c, .local = in(c)});
      steps.push_back({.recv = order.of(position - p), .chunk = c, .store = out(c)});
    } else if (partners.empty()) {
      steps.push_back({.chunk = c, .local = in(c), .store = out(c), .completes = true});
    } else if (!has_extra) {
      steps.push_back({.send = order.of(partners[0]), .chunk = c, .local = in(c)});
    }
    // Every sum goes to the next partner at once, the last one to whom this rank folded in.
    for (size_t k = 0; k < partners.size(); k++) {
      Step step{.recv = order.of(partners[k]), .chunk = c, .store = out(c), .completes = k + 1 == partners.size()};
      const bool own_is_left = partners[k] > position && partners[k] < p;
      (own_is_left ? step.before : step.local) = k == 0 ? in(c) : out(c);
      if (!step.completes) step.send = order.of(partners[k + 1]);
      if (step.completes && has_extra) step.send = order.of(partners[0]);
      steps.push_back(step);
    }
  }
  // Every exchange overwrites the sum that the one before has sent.
  return one_lane({.rank = rank, .n_ranks = order.n, .n_chunks = n_chunks, .may_expose = false}, std::move(steps));
}

namespace {

// Halving and doubling among the positions 0 .. p-1. Chunk c ends at the owner c % p. In the exchange at distance d
// with position ^ d, chunks matter whose owners share this position's bits above d: those whose owners have this one's
// bit d are near, the others are far. Halving gives the far ones away and gets sums of the near ones, doubling the
// other way round. Where every position owns one chunk they go in an order that is the same for all, seen from their
// own: position ^ 0, ^ 1, ^ 2, ...
struct Halving {
  const Order& order;
  int p;
  uint32_t n_chunks;
  size_t window;
  Steps& steps;

  // `give` and `take`: this position's step for a chunk. Far ones are given away, or taken.
  template <class Give, class Take>
  void exchange_chunks(int d, bool gives_far, Give give, Take take) const {
    const auto far = static_cast<uint32_t>(order.position ^ d), near = static_cast<uint32_t>(order.position);
    if (n_chunks == static_cast<uint32_t>(p)) {
      const Steps::Pattern gives{give(gives_far ? far : near)}, takes{take(gives_far ? near : far)};
      const auto n = static_cast<uint32_t>(d), ahead = std::min(static_cast<uint32_t>(window) - 1, n);
      const Walk walk{.stride = 1, .flips = true};
      steps.repeat({gives}, ahead, walk);
      steps.repeat({{gives.step, ahead}, takes}, n - ahead, walk);
      return steps.repeat({{takes.step, n - ahead}}, ahead, walk);
    }
    std::vector<Step> sends, receives;
    for (uint32_t c : chunks(d, gives_far)) sends.push_back(give(c));
    for (uint32_t c : chunks(d, !gives_far)) receives.push_back(take(c));
    exchange(steps, sends, receives, window);
  }

  std::vector<uint32_t> chunks(int d, bool far) const {
    std::vector<uint32_t> found;
    for (uint32_t c = 0; c < n_chunks; c++) {
      const int owner = static_cast<int>(c % static_cast<uint32_t>(p));
      if (((owner ^ order.position) & ~(d - 1)) == (far ? d : 0)) found.push_back(c);
    }
    return found;
  }

  void halve(int d, bool from_input) const {
    const int partner = order.of(order.position ^ d);
    const auto own = [&](uint32_t c) { return from_input ? in(c) : out(c); };
    exchange_chunks(
        d, true, [&](uint32_t c) { return Step{.send = partner, .chunk = c, .local = own(c)}; },
        [&](uint32_t c) {
          return Step{.recv = partner, .chunk = c, .local = own(c), .store = out(c), .completes = d == 1};
        });
  }

  void double_back(int d) const {
    const int partner = order.of(order.position ^ d);
    exchange_chunks(
        d, false, [&](uint32_t c) { return Step{.send = partner, .chunk = c, .local = out(c)}; },
        [&](uint32_t c) { return Step{.recv = partner, .chunk = c, .store = out(c)}; });
  }
};

Cost rabenseifner_cost(const Workload& b) {
  const double part = b.bytes / b.n, sent = 2 * (b.core() - 1) / b.core() * b.bytes;
  const Work moved{sent + b.folds() * b.bytes, b.core() * sent + 2 * b.folded() * b.bytes};
  Cost e = b.hops(2 * b.core_depth() + 2 * b.folds() * std::max(1.0, b.bytes / b.slot_bytes), 2 * b.host_depth);
  // Each rank's chunk is a message of its own.
  const double core = 4 * (b.core() - 1) * b.n, messages = b.messages_for(part, 1);
  b.over_distances(e, {(core / b.core() + 2 * b.folds() * b.n) * messages, (core + 4 * b.folded() * b.n) * messages},
                   b.passed_on(moved));
  e.summed = moved;
  // In each exchange the network idles until the last chunk has been added up: 8 hosts took 1.1 to 1.4 of a ring's
  // time.
  e.out = 1.1 * b.here * (2 * (1 - 1 / static_cast<double>(1 << b.core_host_depth())) + b.folds()) * b.bytes;
  return e;
}

Cost doubling_cost(const Workload& b) {
  const double rounds_in_all = b.core_depth() + 2 * b.folds();
  const Work moved = b.exchanged(b.core_depth() / 2, b.bytes);
  Cost e =
      b.hops(rounds_in_all * b.rounds(b.bytes), std::min(rounds_in_all, b.host_depth + b.folds()) * b.rounds(b.bytes));
  b.over_distances(e, b.exchanged(b.core_depth(), b.messages_for(b.bytes, 1)), b.passed_on(moved));
  e.summed = {2 * moved.busiest, 2 * moved.total};
  e.out = b.here * (b.core_host_depth() + b.folds()) * b.bytes;
  return e;
}

}  // namespace

Schedule rabenseifner_all_reduce(std::span<const int> ranks, int rank, uint32_t n_chunks, uint32_t window) {
  const Order order(ranks, rank);
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(order.n)));
  const int position = order.position, extra = position + p;
  Steps steps;
  const auto for_chunks = [&](auto step) {
    for (uint32_t c = 0; c < n_chunks; c++) steps.push_back(step(c));
  };
  if (position >= p) {
    const int host = order.of(position - p);
    for_chunks([&](uint32_t c) { return Step{.send = host, .chunk = c, .local = in(c)}; });
    for_chunks([&](uint32_t c) { return Step{.recv = host, .chunk = c, .store = out(c)}; });
  } else {
    const Halving halving{order, p, n_chunks, window, steps};
    const bool has_extra = extra < order.n;
    if (has_extra) {
      for_chunks(
          [&](uint32_t c) { return Step{.recv = order.of(extra), .chunk = c, .local = in(c), .store = out(c)}; });
    }
    for (int d = p / 2; d > 0; d /= 2) halving.halve(d, d == p / 2 && !has_extra);
    for (int d = 1; d < p; d *= 2) halving.double_back(d);
    if (has_extra) {
      for_chunks([&](uint32_t c) { return Step{.send = order.of(extra), .chunk = c, .local = out(c)}; });
    }
    if (p == 1) {
      for_chunks([&](uint32_t c) { return Step{.chunk = c, .local = in(c), .store = out(c), .completes = true}; });
    }
  }
  Schedule schedule{.rank = rank, .n_ranks = order.n, .n_chunks = n_chunks};
  if (n_chunks == static_cast<uint32_t>(p) && p == order.n) schedule.alike = {1, {.stride = 1, .flips = true}};
  return one_lane(std::move(schedule), std::move(steps));
}

// For two ranks these are a ring and one-shot.
extern const Algorithm kRabenseifner = {
    .name = "rabenseifner",
    .all_reduce = {[](Ranks r) { return rabenseifner_all_reduce(r.order, r.rank, r.n(), kWindow); }, rabenseifner_cost,
                   1},
    .otherwise = Algo::kTree,
    .least_ranks = 3};
extern const Algorithm kDoubling = {
    .name = "doubling",
    .all_reduce = {[](Ranks r) { return doubling_all_reduce(r.order, r.rank, 1); }, doubling_cost, 1},
    .otherwise = Algo::kTree,
    .least_ranks = 3};

}  // namespace tutti
