#include "plan/cost.h"

#include <algorithm>
#include <array>
#include <bit>

namespace tutti {
namespace {

// Small all-reduces in few steps take a shorter way (SmallRun in lib/exec): their messages cost less.
constexpr double kSmallBytes = 4096, kSmallShare = 0.25;

// Of the rank that has most of it, and of all ranks.
struct Work {
  double busiest = 0, total = 0;
};

struct Effort {
  double hops = 0;
  Work messages, copied, summed;
  double wired = 0;  // bytes out of the host that sends most
};

// How an algorithm's effort comes together. `n`: ranks, `bytes`: as for load_of.
struct Bill {
  const double n, lanes, bytes, slot_bytes;
  const double hosts, here;  // `here`: ranks of the largest host
  const int depth, is_power_of_two;

  double elsewhere() const { return n - here; }

  double others() const { return n - 1; }
  // Messages that a value of so many bytes takes, at least `least`.
  double messages_for(double value_bytes, double least) const { return std::max(least, value_bytes / slot_bytes); }
  double small_share() const { return bytes <= kSmallBytes ? kSmallShare : 1; }
  static Work each(double work, double ranks) { return {work, work * ranks}; }
  Work each(double work) const { return each(work, n); }
  // Rounds follow each other, and each waits for its hops unless another lane has something to do meanwhile.
  double hops_of(double hops, double value_bytes) const {
    return hops * std::max(1.0, value_bytes / slot_bytes / (lanes * lanes));
  }

  Effort all_reduce(Algo algo) const {
    const double part = bytes / n, messages = others() * messages_for(part, lanes);
    const Work moved = each(2 * others() * part);
    switch (algo) {
      case Algo::kOneShot:
        return {hops_of(1, bytes), each(2 * others() * small_share() * messages_for(bytes, 1)), each(others() * bytes),
                each(n * bytes), here * elsewhere() * bytes};
      case Algo::kDirect:
        return {hops_of(2, part), each(4 * messages), each(3 * others() * part), each(bytes),
                2 * here * elsewhere() * part};
      case Algo::kStar: {
        const double whole = small_share() * messages_for(bytes, 1);
        return {hops_of(2, bytes),
                {2 * others() * whole, 4 * others() * whole},
                {others() * bytes, 3 * others() * bytes},
                {n * bytes, n * bytes},
                elsewhere() * bytes};
      }
      case Algo::kTree: {
        const double half = messages_for(bytes / 2, lanes);  // of each of the two trees
        return {2 * depth * std::max(1.0, bytes / (2 * slot_bytes * lanes * lanes)),
                {8 * half, 8 * others() * half},
                {2.5 * bytes + pipe_filling(2), 2.5 * others() * bytes + n * pipe_filling(2)},
                {2 * bytes, 2 * others() * bytes},
                2 * bytes};
      }
      case Algo::kHalving: {
        const double folds = is_power_of_two ? 0 : 1;  // what is beyond a power of two goes there and back first
        const Work all = each(2 * others() * part + folds * bytes);
        return {2 * depth + 2 * folds * bytes / slot_bytes, each(4 * (others() + folds * n) * messages_for(part, 1)),
                all, all, 2 * here * elsewhere() * part};
      }
      case Algo::kDoubling: {
        const double folds = is_power_of_two ? 0 : 1;
        return {hops_of(depth + folds, bytes), each(2 * depth * small_share() * messages_for(bytes, 1)),
                each(depth * bytes), each(2 * depth * bytes), 2 * bytes};
      }
      case Algo::kHierarchical: {
        const double hops = 2 * (here - 1 + hosts - 1);
        return {hops_of(hops, part), each(2 * hops * messages_for(part, 2 * lanes)), moved, moved,
                2 * (hosts - 1) / hosts * bytes};
      }
      default: return {hops_of(2 * others(), part), each(4 * messages), moved, moved, 2 * others() * part};
    }
  }

  // The first chunk has to go all the way before the last rank has anything to do.
  double pipe_filling(double ways) const {
    return ways * std::max(0, depth - 1) * std::min(slot_bytes, bytes / (2 * lanes));
  }

  // From or to one rank.
  Effort rooted(Algo algo, bool sums) const {
    const double whole = messages_for(bytes, 1), half = messages_for(bytes / 2, lanes);
    Work messages, bytes_moved;
    double hops = 1, wired = bytes;
    switch (algo) {
      case Algo::kRing: {
        hops = others() + bytes / slot_bytes;
        messages = {2 * whole, 2 * others() * whole};
        const double filling = std::max(0.0, others() - 1) * std::min(slot_bytes, bytes);
        bytes_moved = {2 * bytes + filling, 2 * others() * bytes};
        break;
      }
      case Algo::kTree:
        hops = depth + bytes / (2 * slot_bytes * lanes * lanes);
        messages = {4 * half, 4 * others() * half};
        bytes_moved = {2 * bytes + pipe_filling(1), 2 * others() * bytes};
        break;
      default: {
        const double pieces = messages_for(bytes, lanes * lanes);
        hops = hops_of(1, bytes);
        messages = {others() * pieces, 2 * others() * pieces};
        bytes_moved = {sums ? n * bytes : others() * bytes + bytes / pieces, 2 * others() * bytes};
        wired = elsewhere() * bytes;
      }
    }
    if (!sums) return {hops, messages, bytes_moved, {}, wired};
    return {hops, messages, {bytes, others() * bytes}, bytes_moved, wired};
  }

  // Everybody has a block for everybody, or gets one from everybody.
  Effort blocks(Algo algo, bool sums) const {
    const double least = algo == Algo::kRing ? lanes : 1;
    const Work messages = each(2 * others() * messages_for(bytes, least));
    const double hops = algo == Algo::kRing   ? hops_of(others(), bytes)
                        : algo == Algo::kTree ? depth + others() * bytes / slot_bytes / 2
                                              : hops_of(1, bytes);
    const double wired = algo == Algo::kRing ? others() * bytes : here * elsewhere() * bytes;
    if (!sums) return {hops, messages, each((2 * others() + 1) * bytes), {}, wired};
    if (algo == Algo::kDirect) return {hops, messages, each(others() * bytes), each(n * bytes), wired};
    return {hops, messages, each(bytes), each(2 * others() * bytes), wired};
  }
};

Effort effort_of(Collective collective, Algo algo, const Bill& bill) {
  switch (collective) {
    case Collective::kBroadcast: return bill.rooted(algo, false);
    case Collective::kReduce: return bill.rooted(algo, true);
    case Collective::kAllGather: return bill.blocks(algo, false);
    case Collective::kReduceScatter: return bill.blocks(algo, true);
    case Collective::kAllReduce: return bill.all_reduce(algo);
    default: return bill.blocks(Algo::kDirect, false);
  }
}

std::array<double, kPrices> to_array(const Load& load) {
  return {load.hops, load.messages, load.copied_bytes, load.summed_bytes, load.wired_bytes};
}

std::array<double, kPrices> to_array(const Prices& prices) {
  return {prices.hop, prices.message, prices.copied_byte, prices.summed_byte, prices.wired_byte};
}

}  // namespace

Algo own_algo(Collective collective, Algo algo) {
  if (collective == Collective::kAllReduce) return algo;
  switch (algo) {
    case Algo::kHalving:
    case Algo::kDoubling: return Algo::kTree;
    case Algo::kHierarchical: return Algo::kRing;
    case Algo::kOneShot:
    case Algo::kStar: return Algo::kDirect;
    default: return algo;
  }
}

Load load_of(Collective collective, Plan plan, uint64_t bytes, const Ground& ground) {
  if (ground.n_ranks == 1) return {0, 0, static_cast<double>(bytes), 0};
  const auto n = static_cast<unsigned>(ground.n_ranks);
  const Bill bill{static_cast<double>(n),
                  static_cast<double>(plan.lanes),
                  static_cast<double>(bytes),
                  static_cast<double>(ground.slot_bytes),
                  static_cast<double>(ground.hosts),
                  static_cast<double>(ground.largest_host),
                  static_cast<int>(std::bit_width(n - 1)),
                  std::has_single_bit(n)};
  const Effort effort = effort_of(collective, own_algo(collective, plan.algo), bill);
  const auto share = [&](Work work) { return std::max(work.busiest, work.total / bill.n * ground.crowding()); };
  return {effort.hops, share(effort.messages), share(effort.copied), share(effort.summed),
          ground.hosts > 1 ? effort.wired : 0};
}

Load load_of(const Traffic& traffic, const Ground& ground) {
  const double share = ground.crowding();
  return {traffic.messages > 0 ? 1.0 : 0.0, static_cast<double>(traffic.messages) * share,
          static_cast<double>(traffic.copied_bytes) * share, 0, static_cast<double>(traffic.wired_bytes)};
}

double price_of(const Load& load, const Prices& prices) {
  const auto amounts = to_array(load), each = to_array(prices);
  double sum = 0;
  for (size_t i = 0; i < kPrices; i++) sum += amounts[i] * each[i];
  return sum;
}

// Least squares of relative errors with prices that may not be negative, one price after the other until they rest. The
// guess counts as a weak sample of each price, but for adding up, which is measured apart: nothing else tells it from
// copying.
Prices fit_prices(std::span<const Sample> samples, const Prices& guess) {
  constexpr std::array<double, kPrices> kGuessWeights = {0.001, 0.001, 0.001, 1, 0.001};
  constexpr int kTurns = 1000;
  const auto prior = to_array(guess);
  std::array<double, kPrices> prices = prior;
  for (int turn = 0; turn < kTurns; turn++)
    for (size_t p = 0; p < kPrices; p++) {
      // (price / prior - 1)^2 * weight + sum of ((predicted - ns) / ns)^2, as a function of this price alone
      double square = kGuessWeights[p] / (prior[p] * prior[p]), line = kGuessWeights[p] / prior[p];
      for (const Sample& sample : samples) {
        const auto load = to_array(sample.load);
        double rest = 1;
        for (size_t q = 0; q < kPrices; q++)
          if (q != p) rest -= load[q] * prices[q] / sample.ns;
        square += load[p] * load[p] / (sample.ns * sample.ns);
        line += load[p] / sample.ns * rest;
      }
      prices[p] = std::max(line / square, prior[p] / 1000);
    }
  return {prices[0], prices[1], prices[2], prices[3], prices[4]};
}

Prices default_prices(bool shared_memory, const Ground& ground) {
  const bool crowded = ground.crowding() > 1;
  if (shared_memory) return {crowded ? 4000.0 : 200.0, 100, 0.1, 0.05, 1};
  return {crowded ? 30000.0 : 10000.0, 3000, 0.4, 0.05, 1};
}

}  // namespace tutti
