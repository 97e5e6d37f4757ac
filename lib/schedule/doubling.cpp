// Builders that exchange with ranks at distances that halve or double.
#include <algorithm>
#include <bit>

#include "schedule/algorithms.h"

namespace tutti {
namespace {

Schedule one_lane(Schedule schedule, Steps steps) {
  schedule.add_lane(0, std::move(steps));
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

// The exchanges of a reduce-scatter: at half the ranks, a quarter, and so on, rounded up. Before one a rank has the
// blocks of `distance + count` positions, its own and the next ones, and gives away the last `count` of them:
//
//   n = 5, position 0     has      gives to 0+d      gets parts of, from 0-d
//   d = 3                 01234    34                01
//   d = 2                 012      2                 0
//   d = 1                 01       1                 0           complete
//
// An all-gather is that backwards, every message against its direction.
struct Exchange {
  int distance, count;
};
std::vector<Exchange> exchanges(int n) {
  std::vector<Exchange> made;
  for (int left = n; left > 1; left = made.back().distance) made.push_back({(left + 1) / 2, left / 2});
  return made;
}

}  // namespace

Schedule circulant_all_gather(std::span<const int> ranks, int rank, uint32_t n_chunks, uint32_t window) {
  const InOrder order(ranks, rank);
  const int n = order.n;
  std::vector<Exchange> backwards = exchanges(n);
  std::reverse(backwards.begin(), backwards.end());
  Steps steps;
  for (uint32_t c = 0; c < n_chunks; c++) {
    const auto chunk_at = [&](int distance) { return static_cast<uint32_t>(order.at(distance)) * n_chunks + c; };
    const uint32_t own = chunk_at(0);
    steps.push_back({.chunk = own, .local = in(c), .store = out(own)});
    for (const auto [d, count] : backwards) {
      std::vector<Step> sends, receives;
      for (int j = 0; j < count; j++) {
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

// The sum for the block j positions on is scratch[j], once there is more in it than the input.
Schedule circulant_reduce_scatter(std::span<const int> ranks, int rank, uint32_t n_chunks, uint32_t window) {
  const InOrder order(ranks, rank);
  const int n = order.n, n_sums = n > 2 ? n / 2 : 0;
  Steps steps;
  for (uint32_t c = 0; c < n_chunks; c++) {
    const auto chunk_at = [&](int distance) { return static_cast<uint32_t>(order.at(distance)) * n_chunks + c; };
    bool is_first = true;
    const auto sum_at = [&](int distance) -> Slice {
      if (!is_first && distance < n_sums) return {Buffer::kScratch, static_cast<uint32_t>(distance)};
      return in(chunk_at(distance));
    };
    for (const auto [d, count] : exchanges(n)) {
      std::vector<Step> sends, receives;
      for (int j = 0; j < count; j++) {
        sends.push_back({.send = order.at(d), .chunk = chunk_at(d + j), .local = sum_at(d + j)});
        const Slice store = d > 1 ? Slice{Buffer::kScratch, static_cast<uint32_t>(j)} : out(c);
        receives.push_back({.recv = order.at(-d), .chunk = chunk_at(j), .local = sum_at(j), .store = store});
        receives.back().completes = d == 1;
      }
      exchange(steps, sends, receives, window);
      is_first = false;
    }
    if (n == 1) steps.push_back({.chunk = c, .local = in(c), .store = out(c), .completes = true});
  }
  Schedule schedule{.rank = rank, .n_ranks = n, .n_chunks = n_chunks, .n_scratch = static_cast<uint32_t>(n_sums)};
  schedule.input_blocks = static_cast<uint32_t>(n);
  return one_lane(schedule, std::move(steps));
}

namespace {

// One exchange of an all-reduce, whose chunk c ends at the position c % n. `give` and `take` are a position's steps for
// what it sends and receives, by their numbers and chunks.
struct ChunkExchange {
  const InOrder& order;
  uint32_t n_chunks;
  int window;
  Steps& steps;

  // Chunks at the distances from give_from and take_from on, `count` of each. From the number `other` on, steps that
  // give are of another kind.
  template <class Give, class Take>
  void run(int count, int give_from, int take_from, int other, Give give, Take take) const {
    const int ahead = std::min(window - 1, count);
    const auto n = static_cast<uint32_t>(order.n);
    if (n_chunks != n) return run_one_by_one(count, give_from, take_from, give, take);
    int begins[] = {0, ahead, other, count, count + ahead};
    std::sort(std::begin(begins), std::end(begins));
    for (size_t k = 0; k + 1 < std::size(begins); k++) {
      const int i = begins[k];
      std::vector<Steps::Pattern> patterns;
      if (i < count) patterns.push_back({give(i, chunk_at(give_from + i))});
      if (i >= ahead) patterns.push_back({take(chunk_at(take_from + i - ahead))});
      const auto times = static_cast<uint32_t>(begins[k + 1] - i);
      if (times > 0) steps.repeat(patterns, times, {.stride = 1, .modulus = n});
    }
  }

  template <class Give, class Take>
  void run_one_by_one(int count, int give_from, int take_from, Give give, Take take) const {
    std::vector<Step> sends, receives;
    for (uint32_t group = 0; group < n_chunks; group += static_cast<uint32_t>(order.n))
      for (int i = 0; i < count; i++) {
        if (const uint32_t c = group + chunk_at(give_from + i); c < n_chunks) sends.push_back(give(i, c));
        if (const uint32_t c = group + chunk_at(take_from + i); c < n_chunks) receives.push_back(take(c));
      }
    exchange(steps, sends, receives, static_cast<size_t>(window));
  }

  uint32_t chunk_at(int distance) const { return static_cast<uint32_t>((order.position + distance) % order.n); }
};

}  // namespace

// Sums stand in the output.
Schedule circulant_all_reduce(std::span<const int> ranks, int rank, uint32_t n_chunks, uint32_t window) {
  const InOrder order(ranks, rank);
  const int n = order.n;
  const std::vector<Exchange> halving = exchanges(n);
  Steps steps;
  const ChunkExchange all{order, n_chunks, static_cast<int>(window), steps};
  for (size_t k = 0; k < halving.size(); k++) {
    const auto [d, count] = halving[k];
    // An odd one out has not been added to.
    const int n_sums = k == 0 ? 0 : std::min(count, n / 2 - d);
    all.run(
        count, d, 0, n_sums,
        [&](int i, uint32_t c) { return Step{.send = order.at(d), .chunk = c, .local = i < n_sums ? out(c) : in(c)}; },
        [&](uint32_t c) {
          return Step{
              .recv = order.at(-d), .chunk = c, .local = k > 0 ? out(c) : in(c), .store = out(c), .completes = d == 1};
        });
  }
  for (size_t k = halving.size(); k-- > 0;) {
    const auto [d, count] = halving[k];
    all.run(
        count, 0, d, count, [&](int, uint32_t c) { return Step{.send = order.at(-d), .chunk = c, .local = out(c)}; },
        [&](uint32_t c) { return Step{.recv = order.at(d), .chunk = c, .store = out(c)}; });
  }
  for (uint32_t c = 0; n == 1 && c < n_chunks; c++)
    steps.push_back({.chunk = c, .local = in(c), .store = out(c), .completes = true});
  Schedule schedule{.rank = rank, .n_ranks = n, .n_chunks = n_chunks};
  if (n_chunks == static_cast<uint32_t>(n)) schedule.alike = {1, {.stride = 1, .modulus = n_chunks}};
  return one_lane(std::move(schedule), std::move(steps));
}

// 2^k positions 0 .. p-1 exchange; position p+i folds into i before and hears the result from it.
//
//   n = 5    0 <--> 1     0 <--> 2       4 --> 0 first, then distances 1 and 2, then 0 --> 4
//            2 <--> 3     1 <--> 3
//
// Both sides of an exchange add the lower position's sum to the left, so they get the same bits.
Schedule doubling_all_reduce(std::span<const int> ranks, int rank, uint32_t n_chunks) {
  const InOrder order(ranks, rank);
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(order.n)));
  const int position = order.position;
  const auto at = [&](int other) { return ranks[static_cast<size_t>(other)]; };  // by position
  std::vector<int> partners;  // whom this one hears from, in this order
  if (position + p < order.n) partners.push_back(position + p);
  for (int d = 1; d < p && position < p; d *= 2) partners.push_back(position ^ d);
  const bool has_extra = position + p < order.n;
  Steps steps;
  for (uint32_t c = 0; c < n_chunks; c++) {
    if (position >= p) {
      steps.push_back({.send = at(position - p), .chunk = c, .local = in(c)});
      steps.push_back({.recv = at(position - p), .chunk = c, .store = out(c)});
    } else if (partners.empty()) {
      steps.push_back({.chunk = c, .local = in(c), .store = out(c), .completes = true});
    } else if (!has_extra) {
      steps.push_back({.send = at(partners[0]), .chunk = c, .local = in(c)});
    }
    // Every sum goes to the next partner at once, the last one to whom this rank folded in.
    for (size_t k = 0; k < partners.size(); k++) {
      Step step{.recv = at(partners[k]), .chunk = c, .store = out(c), .completes = k + 1 == partners.size()};
      const bool own_is_left = partners[k] > position && partners[k] < p;
      (own_is_left ? step.before : step.local) = k == 0 ? in(c) : out(c);
      if (!step.completes) step.send = at(partners[k + 1]);
      if (step.completes && has_extra) step.send = at(partners[0]);
      steps.push_back(step);
    }
  }
  // Every exchange overwrites the sum that the one before has sent.
  return one_lane({.rank = rank, .n_ranks = order.n, .n_chunks = n_chunks, .may_expose = false}, std::move(steps));
}

namespace {

Cost circulant_cost(const Workload& b) {
  const double part = b.bytes / b.n;
  // Over TCP on one host, 6 and 7 ranks take 1.3 to 1.7 times as long as a ring, 4 and 8 as long as that.
  const double uneven = b.hosts == 1 && !b.shares_memory && !std::has_single_bit(static_cast<unsigned>(b.n)) ? 1.5 : 1;
  const double moved = 2 * b.others() * part;
  Cost e = b.hops(2 * b.depth() * b.rounds(part), 2 * b.host_depth() * b.rounds(part));
  // Each rank's chunk is a message of its own.
  b.over_distances(e, b.each(4 * b.others() * b.messages_for(part, 1)), b.passed_on(b.each(moved * uneven)));
  e.summed = b.each(moved);
  // In each exchange the network idles until the last chunk has been added up: 8 hosts took 1.1 to 1.4 of a ring's
  // time.
  e.out = 1.1 * b.here * 2 * (1 - 1 / b.hosts) * b.bytes;
  return e;
}

Cost doubling_cost(const Workload& b) {
  // What is beyond a power of two goes there and back first.
  const double core = std::bit_floor(static_cast<unsigned>(b.n)), folded = b.n - core, folds = folded > 0 ? 1 : 0;
  const double core_depth = std::bit_width(static_cast<unsigned>(b.n)) - 1;
  const double core_host_depth = std::bit_width(static_cast<unsigned>(b.hosts)) - 1;
  const auto exchanged = [&](double n_rounds, double each_time) -> Work {  // both ways
    return {2 * (n_rounds + folds) * each_time, 2 * (core * n_rounds + 2 * folded) * each_time};
  };
  const double rounds_in_all = core_depth + 2 * folds;
  const Work moved = exchanged(core_depth / 2, b.bytes);
  Cost e =
      b.hops(rounds_in_all * b.rounds(b.bytes), std::min(rounds_in_all, b.host_depth() + folds) * b.rounds(b.bytes));
  b.over_distances(e, exchanged(core_depth, b.messages_for(b.bytes, 1)), b.passed_on(moved));
  e.summed = {2 * moved.busiest, 2 * moved.total};
  e.out = b.here * (core_host_depth + folds) * b.bytes;
  return e;
}

}  // namespace

// For two ranks these are a ring and one-shot.
extern const Algorithm kCirculant = {
    .name = "circulant",
    .all_reduce = {[](Ranks r) { return circulant_all_reduce(r.order, r.rank, r.n(), kWindow); }, circulant_cost},
    .otherwise = Algo::kTree,
    .least_ranks = 3};
extern const Algorithm kDoubling = {
    .name = "doubling",
    .all_reduce = {[](Ranks r) { return doubling_all_reduce(r.order, r.rank, 1); }, doubling_cost},
    .otherwise = Algo::kTree,
    .least_ranks = 3};

}  // namespace tutti
