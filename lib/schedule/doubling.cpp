// Builders that exchange with ranks at distances that halve or double.
#include <algorithm>
#include <bit>

#include "schedule/algorithms.h"

namespace tutti {
namespace {

// In an exchange a rank sends this many messages ahead, then takes and sends in turn: so circulant needs two slots.
// More would hide more of the hops.
constexpr int kAhead = 1;

// The exchanges of a reduce-scatter: at half the ranks, a quarter, and so on, rounded up. Before each, a rank has the
// blocks of `distance + count` positions, its own and the next ones, and gives away the last `count` of them:
//
//   n = 5, position 0     has      gives to 0+d      gets parts of, from 0-d
//   d = 3                 01234    34                01
//   d = 2                 012      2                 0
//   d = 1                 01       1                 0           complete
//
// An all-gather is the same backwards, with every message in the other direction.
struct Exchange {
  int distance, count;
};
std::vector<Exchange> exchanges(int n) {
  std::vector<Exchange> made;
  for (int left = n; left > 1; left = made.back().distance) made.push_back({(left + 1) / 2, left / 2});
  return made;
}

// The steps give(i) and take(i) for an exchange's messages. With a walk, those that repeat by it are stored once; from
// i == `other` on, give() makes another kind of step.
template <class Give, class Take>
void exchange(Steps& steps, int count, int other, Walk walk, Give give, Take take) {
  int begins[] = {0, kAhead, other, count, count + kAhead};
  std::sort(std::begin(begins), std::end(begins));
  for (size_t k = 0; k + 1 < std::size(begins); k++) {
    const int times = walk.stride > 0 ? begins[k + 1] - begins[k] : 1;
    for (int i = begins[k]; i < begins[k + 1]; i += times) {
      Step patterns[2];
      size_t n = 0;
      if (i < count) patterns[n++] = give(i);
      if (i >= kAhead) patterns[n++] = take(i - kAhead);
      steps.repeat(std::span(patterns, n), static_cast<uint32_t>(times), walk);
    }
  }
}

// A reduce-scatter. The chunk of the position `distance` further on is chunk_at(distance), whose sum is in
// sum_at(distance) once it is more than the input, and in `result` in the end.
template <class ChunkAt, class SumAt>
void add_up(Steps& steps, const InOrder& order, Walk walk, ChunkAt chunk_at, SumAt sum_at, Slice result) {
  int n_sums = 0;  // so many of the chunks that are left have been added to
  for (const auto [d, count] : exchanges(order.n)) {
    const auto value_at = [&](int distance) {
      return distance < n_sums ? sum_at(distance) : input_of(chunk_at(distance));
    };
    exchange(
        steps, count, std::clamp(n_sums - d, 0, count), walk,
        [&](int i) { return Step{.send = order.at(d), .chunk = chunk_at(d + i), .local = value_at(d + i)}; },
        [&](int i) {
          const Slice store = d > 1 ? sum_at(i) : result;
          return Step{
              .recv = order.at(-d), .chunk = chunk_at(i), .local = value_at(i), .store = store, .completes = d == 1};
        });
    n_sums = order.n / 2;  // with an odd number of ranks, the first exchange has not added to the last
  }
  if (order.n == 1) steps.push_back({.local = input_of(0), .store = result, .completes = true});
}

// An all-gather, of what is in the output.
template <class ChunkAt>
void pass_round(Steps& steps, const InOrder& order, Walk walk, ChunkAt chunk_at) {
  std::vector<Exchange> backwards = exchanges(order.n);
  std::reverse(backwards.begin(), backwards.end());
  for (const auto [d, count] : backwards)
    exchange(
        steps, count, count, walk,
        [&](int i) { return Step{.send = order.at(-d), .chunk = chunk_at(i), .local = output_of(chunk_at(i))}; },
        [&](int i) {
          return Step{.recv = order.at(d), .chunk = chunk_at(d + i), .store = output_of(chunk_at(d + i))};
        });
}

// Each rank's block.
auto blocks_of(const InOrder& order) {
  return [&order](int distance) { return static_cast<uint32_t>(order.at(distance)); };
}

// Both, with n chunks, one for each position: a ring's traffic in logarithmic depth. Partial sums are in the output.
Schedule circulant_all_reduce(const Ranks& r) {
  const InOrder order(r.order, r.rank);
  const auto chunk_at = [&](int distance) { return static_cast<uint32_t>((order.position + distance) % order.n); };
  const auto n_chunks = static_cast<uint32_t>(order.n);
  const Walk walk{.stride = 1, .modulus = n_chunks};
  Steps steps;
  add_up(
      steps, order, walk, chunk_at, [&](int distance) { return output_of(chunk_at(distance)); },
      output_of(chunk_at(0)));
  pass_round(steps, order, walk, chunk_at);
  return with_lane({.rank = r.rank, .n_ranks = order.n, .n_chunks = n_chunks, .alike = {1, walk}}, std::move(steps));
}

// The 2^k positions 0 .. p-1 exchange; position p+i folds its input into i first and gets the result from i at the end.
//
//   n = 5    0 <--> 1     0 <--> 2       4 --> 0 first, then distances 1 and 2, then 0 --> 4
//            2 <--> 3     1 <--> 3
//
// Both sides of an exchange have the lower position's sum on the left, so they get the same bits. For small messages,
// so they are not cut into chunks. One slot.
Schedule doubling_all_reduce(const Ranks& r) {
  const InOrder order(r.order, r.rank);
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(order.n)));
  const int position = order.position;
  const auto at = [&](int other) { return r.order[static_cast<size_t>(other)]; };  // by position
  std::vector<int> partners;  // positions that this one receives from, in this order
  const bool has_extra = position + p < order.n;
  if (has_extra) partners.push_back(position + p);
  for (int d = 1; d < p && position < p; d *= 2) partners.push_back(position ^ d);
  Steps steps;
  if (position >= p) {
    steps = {{.send = at(position - p), .local = input_of(0)}, {.recv = at(position - p), .store = output_of(0)}};
  } else if (partners.empty()) {
    steps.push_back({.local = input_of(0), .store = output_of(0), .completes = true});
  } else if (!has_extra) {
    steps.push_back({.send = at(partners[0]), .local = input_of(0)});
  }
  // Every sum goes to the next partner at once, the last one to the rank that folded into this one.
  for (size_t k = 0; k < partners.size(); k++) {
    Step step{.recv = at(partners[k]), .store = output_of(0), .completes = k + 1 == partners.size()};
    const bool own_is_left = partners[k] > position && partners[k] < p;
    (own_is_left ? step.before : step.local) = k == 0 ? input_of(0) : output_of(0);
    if (!step.completes) step.send = at(partners[k + 1]);
    if (step.completes && has_extra) step.send = at(partners[0]);
    steps.push_back(step);
  }
  // Every exchange overwrites the sum that the exchange before has sent.
  return with_lane({.rank = r.rank, .n_ranks = order.n, .n_chunks = 1, .may_expose = false}, std::move(steps));
}

Cost circulant_cost(const Workload& b) {
  const double part = b.bytes / b.n;
  // Over TCP on one host, 6 and 7 ranks take 1.3 to 1.7 times as long as a ring, 4 and 8 as long as a ring.
  const double uneven = b.hosts == 1 && !b.shares_memory && !std::has_single_bit(static_cast<unsigned>(b.n)) ? 1.5 : 1;
  const double moved = 2 * b.others() * part;
  Cost e = b.hops(2 * b.depth() * b.rounds(part), 2 * b.host_depth() * b.rounds(part));
  // Each rank's chunk is a separate message.
  b.over_distances(e, b.each(4 * b.others() * b.messages_for(part, 1)),
                   b.passed_on(b.each(b.in_turn() * moved * uneven)));
  e.summed = b.each(moved);
  // In each exchange the network idles until the last chunk is added up: 8 hosts took 1.1 to 1.4 times a ring's time.
  e.out = 1.1 * b.here * 2 * (1 - 1 / b.hosts) * b.bytes;
  return e;
}

Cost doubling_cost(const Workload& b) {
  // Ranks beyond a power of two fold into the others first and get the result from them in the end.
  const double core = std::bit_floor(static_cast<unsigned>(b.n)), folded = b.n - core, folds = folded > 0 ? 1 : 0;
  const double core_depth = std::bit_width(static_cast<unsigned>(b.n)) - 1;
  const double core_host_depth = std::bit_width(static_cast<unsigned>(b.hosts)) - 1;
  const auto exchanged = [&](double n_rounds, double each_time) -> Work {  // both ways
    return {2 * (n_rounds + folds) * each_time, 2 * (core * n_rounds + 2 * folded) * each_time};
  };
  const double rounds_in_all = core_depth + 2 * folds;
  // Over sockets, 4 ranks on 2 CPUs took 78 us for 64 KiB, where half of what is sent and received predicts 68.
  const Work moved = exchanged(core_depth / (b.shares_memory ? 2 : 1.75), b.bytes);
  Cost e =
      b.hops(rounds_in_all * b.rounds(b.bytes), std::min(rounds_in_all, b.host_depth() + folds) * b.rounds(b.bytes));
  b.over_distances(e, exchanged(core_depth, b.messages_for(b.bytes, 1)), b.passed_on(moved));
  e.summed = {2 * moved.busiest, 2 * moved.total};
  e.out = b.here * (core_host_depth + folds) * b.bytes;
  return e;
}

}  // namespace

Schedule circulant_all_gather(const Ranks& r) {
  const InOrder order(r.order, r.rank);
  const auto own = static_cast<uint32_t>(r.rank);
  Steps steps{{.chunk = own, .local = input_of(0), .store = output_of(own)}};
  pass_round(steps, order, {}, blocks_of(order));
  return with_lane({.rank = r.rank, .n_ranks = order.n, .n_chunks = 1}, std::move(steps));
}

// The sum for the block j positions on is in scratch[j]: for half of the ranks.
Schedule circulant_reduce_scatter(const Ranks& r) {
  const InOrder order(r.order, r.rank);
  const auto sum_at = [](int distance) { return Slice{Buffer::kScratch, static_cast<uint32_t>(distance)}; };
  Steps steps;
  add_up(steps, order, {}, blocks_of(order), sum_at, output_of(0));
  const auto n_sums = static_cast<uint32_t>(order.n > 2 ? order.n / 2 : 0);
  return with_lane({.rank = r.rank, .n_ranks = order.n, .n_chunks = 1, .n_scratch = n_sums}, std::move(steps));
}

//   k = 0   1   2     n = 5: rank r signals r + 2^k and hears from r - 2^k. Each message passes on all that its sender
//   r --> r+1         has heard so far; each message heard is received in the step that sends the next one.
//   r ------> r+2
//   r ----------> r+4
Schedule barrier(int n_ranks, int rank) {
  Steps steps;
  int heard_from = -1;
  for (int d = 1; d < n_ranks; d *= 2) {
    steps.push_back({.recv = heard_from, .send = (rank + d) % n_ranks});
    heard_from = (rank - d + n_ranks) % n_ranks;
  }
  if (heard_from >= 0) steps.push_back({.recv = heard_from});
  return with_lane({.rank = rank, .n_ranks = n_ranks, .n_chunks = 1}, std::move(steps));
}

// With two ranks these are the same as a ring and one-shot.
extern const Algorithm kCirculant = {.name = "circulant",
                                     .all_reduce = {circulant_all_reduce, circulant_cost},
                                     .otherwise = Algo::kTree,
                                     .least_ranks = 3};
extern const Algorithm kDoubling = {
    .name = "doubling", .all_reduce = {doubling_all_reduce, doubling_cost}, .otherwise = Algo::kTree, .least_ranks = 3};

}  // namespace tutti
