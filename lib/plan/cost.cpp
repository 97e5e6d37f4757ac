#include "plan/cost.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <string_view>

namespace tutti {
namespace {

// A slot's bytes as the model sees it: those that are usual, so that TUTTI_SLOT_BYTES changes no choice.
constexpr double kSharedSlotBytes = 128 << 10, kSocketSlotBytes = 512 << 10;

// Where nothing comes back, operations in a row overlap, so hops count for less.
constexpr double kPassedOn = 0.5;

// Where several hosts send to one at once, its link is idle now and then. From 64 KiB on it took 1.1 to 1.4 times what
// a ring took.
constexpr double kIncast = 1.15;

// Of the rank that has most of it, and of all ranks.
struct Work {
  double busiest = 0, total = 0;
};

// Messages and bytes are counted where they are sent and where they are received.
struct Moves {
  Work messages, bytes;
};

struct Effort {
  double here_hops = 0, wire_hops = 0;
  Moves here, wire;
  Work summed;
  double out = 0;
};

// How an algorithm's effort comes together. `n`: ranks, `bytes`: as for load_of.
struct Bill {
  const double n, lanes, bytes, slot_bytes;
  const double hosts, here;  // `here`: ranks of the largest host
  const int depth, host_depth;
  const bool shares_memory;

  double others() const { return n - 1; }
  double elsewhere() const { return n - here; }
  double incast() const { return hosts > 2 ? kIncast : 1; }
  Work each(double work) const { return {work, work * n}; }
  // Messages that a value of so many bytes takes, at least `least`.
  double messages_for(double value_bytes, double least) const { return std::max(least, value_bytes / slot_bytes); }
  // Rounds follow each other, and each waits for its hops unless another lane has something to do meanwhile.
  double rounds(double value_bytes) const { return std::max(1.0, value_bytes / slot_bytes / (lanes * lanes)); }

  // A rank and all the others, so much with each.
  void with_all(Effort& effort, double messages, double bytes_each) const {
    effort.here = {each(messages * (here - 1)), each(bytes_each * (here - 1))};
    effort.wire = {each(messages * elsewhere()), each(bytes_each * elsewhere())};
  }
  // Of which the share `out` leaves the host.
  static void split(Effort& effort, Work messages, Work moved, double out) {
    const auto part = [](Work work, double share) { return Work{work.busiest * share, work.total * share}; };
    effort.here = {part(messages, 1 - out), part(moved, 1 - out)};
    effort.wire = {part(messages, out), part(moved, out)};
  }
  // One rank and all the others.
  void with_one(Effort& effort, Work messages, Work moved) const {
    split(effort, messages, moved, elsewhere() / others());
  }
  // Where a rank receives from one and sends to another through shared memory, what it writes is in the caches of the
  // one that reads. Between CPUs that share none the same ring took 240 us on one day, 1500 on another; what is sent to
  // all at once, 240 and 300.
  Work passed_on(Work moved) const {
    const double dearer = shares_memory ? 1.5 : 1;
    return {dearer * moved.busiest, dearer * moved.total};
  }
  // What goes one way through shared memory is written past the caches, a chunk at a time, and one that takes turns
  // with others on its CPU finds it soon after. Of 4 ranks on 2 CPUs rings and trees took .6 to .9 of what it takes to
  // send the same to each, from 256 KiB to 16 MiB, whether the CPUs share a cache or not.
  Work handed_down(Work moved) const { return {moved.busiest, (shares_memory ? 0.8 : 1) * moved.total}; }
  // From a rank to the next one, host after host.
  void to_next(Effort& effort, Work messages, Work moved) const {
    if (hosts == 1 || here == 1) return split(effort, messages, moved, hosts == 1 ? 0 : 1);
    const double out = hosts / n;  // a host has two ranks at its ends
    effort.here = {{messages.busiest / 2, messages.total * (1 - out)}, {moved.busiest / 2, moved.total * (1 - out)}};
    effort.wire = {{messages.busiest / 2, messages.total * out}, {moved.busiest / 2, moved.total * out}};
  }
  // Over distances 1, 2, 4, ..., of which the longest leave the host.
  double out_share() const { return depth > 0 ? static_cast<double>(host_depth) / depth : 0; }
  void over_distances(Effort& effort, Work messages, Work moved) const { split(effort, messages, moved, out_share()); }
  void hops(Effort& effort, double all, double out) const {
    effort.wire_hops = hosts > 1 ? out : 0;
    effort.here_hops = all - effort.wire_hops;
  }

  Effort all_reduce(Algo algo) const {
    switch (algo) {
      case Algo::kOneShot: return one_shot();
      case Algo::kDirect: return two_shot();
      case Algo::kStar: return star();
      case Algo::kTree: return trees();
      case Algo::kHalving: return halving();
      case Algo::kDoubling: return doubling();
      case Algo::kHierarchical: return hierarchical();
      default: return ring();
    }
  }

  Effort one_shot() const {
    Effort e;
    hops(e, rounds(bytes), rounds(bytes));
    with_all(e, 2 * messages_for(bytes, 1), bytes);
    e.summed = each(n * bytes);
    e.out = incast() * here * elsewhere() * bytes;
    return e;
  }

  Effort two_shot() const {
    const double part = bytes / n;
    Effort e;
    hops(e, 2 * rounds(part), 2 * rounds(part));
    with_all(e, 4 * messages_for(part, lanes), 3 * part);
    e.summed = each(bytes);
    e.out = incast() * 2 * here * elsewhere() * part;
    return e;
  }

  Effort star() const {
    const double whole = messages_for(bytes, 1);
    Effort e;
    hops(e, 2 * rounds(bytes), 2 * rounds(bytes));
    with_one(e, {2 * others() * whole, 4 * others() * whole}, {2 * others() * bytes, 4 * others() * bytes});
    e.summed = {n * bytes, n * bytes};
    e.out = elsewhere() * bytes;
    return e;
  }

  Effort trees() const {
    const double half = messages_for(bytes / 2, lanes), filling = pipe_filling(2);  // each of the two trees
    const double pieces = std::max(1.0, bytes / (2 * slot_bytes * lanes * lanes));
    Effort e;
    // Up and down, and each rank waits for both of its trees.
    hops(e, 4 * depth * pieces, 4 * host_depth * pieces);
    over_distances(e, {8 * half, 8 * others() * half},
                   passed_on({2.5 * bytes + filling, 2.5 * others() * bytes + n * filling}));
    e.summed = {2 * bytes, 2 * others() * bytes};
    e.out = 2 * bytes;
    return e;
  }

  Effort halving() const {
    const double part = bytes / n, sent = 2 * (core() - 1) / core() * bytes;
    const Work moved{sent + folds() * bytes, core() * sent + 2 * folded() * bytes};
    Effort e;
    hops(e, 2 * core_depth() + 2 * folds() * std::max(1.0, bytes / slot_bytes), 2 * host_depth);
    over_distances(e, exchanged(2 * core_depth(), messages_for(part, 1)), passed_on(moved));
    e.summed = moved;
    e.out = 2 * here * elsewhere() * part + 2 * folds() * bytes;
    return e;
  }

  Effort doubling() const {
    const double rounds_in_all = core_depth() + 2 * folds();
    const Work moved = exchanged(core_depth() / 2, bytes);
    Effort e;
    hops(e, rounds_in_all * rounds(bytes), std::min(rounds_in_all, host_depth + folds()) * rounds(bytes));
    over_distances(e, exchanged(core_depth(), messages_for(bytes, 1)), passed_on(moved));
    e.summed = {2 * moved.busiest, 2 * moved.total};
    e.out = here * host_depth * bytes + 2 * folds() * bytes;
    return e;
  }

  Effort ring() const {
    const double part = bytes / n;
    Effort e;
    hops(e, 2 * others() * rounds(part), 2 * (hosts - 1) * rounds(part));
    to_next(e, each(4 * others() * messages_for(part, lanes)), passed_on(each(2 * others() * part)));
    e.summed = each(2 * others() * part);
    e.out = 2 * others() * part;
    return e;
  }

  Effort hierarchical() const {
    const double part = bytes / n, share = bytes / here, all = 2 * (here - 1 + hosts - 1), out = 2 * (hosts - 1);
    Effort e;
    hops(e, all * rounds(part), out * rounds(part));
    e.here = {each(2 * (here - 1) * messages_for(share / hosts, hosts * lanes)), each(2 * (here - 1) * share)};
    e.wire = {each(out * 2 * messages_for(part, lanes)), each(out * part)};
    e.summed = each(2 * others() * part);
    e.out = out / hosts * bytes;
    return e;
  }

  // What is beyond a power of two goes there and back first.
  double core() const { return std::bit_floor(static_cast<unsigned>(n)); }
  double core_depth() const { return std::bit_width(static_cast<unsigned>(n)) - 1; }
  double folded() const { return n - core(); }
  double folds() const { return folded() > 0 ? 1 : 0; }
  // In so many rounds, to and fro.
  Work exchanged(double n_rounds, double each_time) const {
    return {2 * (n_rounds + folds()) * each_time, 2 * (core() * n_rounds + 2 * folded()) * each_time};
  }

  // The first chunk has to go all the way before the last rank has anything to do.
  double pipe_filling(double ways) const {
    return ways * std::max(0, depth - 1) * std::min(slot_bytes, bytes / (2 * lanes));
  }

  // What a rank passes on only after it has it as a whole. Of small operations many are on their way at once.
  double piece_behind(double value_bytes, double chunks) const {
    constexpr double kSmallBytes = 64 << 10;
    return bytes > kSmallBytes ? std::min(chunks * slot_bytes, value_bytes) : 0;
  }
  // Those in the middle receive and send. In shared memory nobody reads what is still being written.
  double sides() const { return n > 2 || shares_memory ? 2 : 1; }

  // From or to one rank.
  Effort rooted(Algo algo, bool sums) const {
    Effort e;
    Work moved;
    e.out = bytes;
    switch (algo) {
      case Algo::kRing: {
        const double whole = messages_for(bytes, 1),
                     filling = std::max(0.0, others() - 1) * std::min(slot_bytes, bytes);
        hops(e, kPassedOn * others() + bytes / slot_bytes, kPassedOn * (hosts - 1));
        moved = {sides() * bytes + filling, 2 * others() * bytes};
        e.out = bytes + std::max(0.0, hosts - 2) * piece_behind(bytes, 1);
        to_next(e, {2 * whole, 2 * others() * whole}, handed_down(moved));
        break;
      }
      case Algo::kTree: {
        const double half = messages_for(bytes / 2, lanes);
        // Each rank waits for both of its trees.
        hops(e, kPassedOn * 2 * depth + bytes / (2 * slot_bytes * lanes * lanes), kPassedOn * 2 * host_depth);
        moved = {sides() * bytes + pipe_filling(1), 2 * others() * bytes};
        e.out = bytes * (here > 1 ? std::max(1.3, 1.3 * here * out_share()) : 1) +
                std::max(0, host_depth - 1) * piece_behind(bytes, 2 * lanes);
        over_distances(e, {4 * half, 4 * others() * half}, handed_down(moved));
        break;
      }
      case Algo::kDirect:
        if (sums && lanes > 1) return two_shot_reduce();
        [[fallthrough]];
      default: {
        const double pieces = messages_for(bytes, lanes * lanes);
        const double at_root = sums ? n * bytes : others() * bytes + bytes / pieces;
        hops(e, rounds(bytes), rounds(bytes));
        moved = {at_root, 2 * others() * bytes};
        // To send over a socket is to do most of the receiver's work.
        const double at_root_each = shares_memory ? 1 : sums ? 0.5 : 1.5;
        with_one(e, {at_root_each * others() * pieces, 2 * others() * pieces}, moved);
        e.out = elsewhere() * bytes;
      }
    }
    if (sums) e.summed = moved;
    return e;
  }

  Effort two_shot_reduce() const {
    const double part = bytes / n, messages = messages_for(part, 1), all = (2 * others() + 2) * n;
    Effort e;
    hops(e, 2 * rounds(part), 2 * rounds(part));
    with_one(e, {3 * others() * messages, all * messages}, {3 * others() * part, all * part});
    e.summed = each(bytes);
    e.out = here * (elsewhere() + 1) * part;
    return e;
  }

  // Everybody has a block for everybody, or gets one from everybody.
  Effort blocks(Algo algo, bool sums) const {
    Effort e;
    const double messages = messages_for(bytes, algo == Algo::kRing ? lanes : 1);
    e.out = here * elsewhere() * bytes;
    switch (algo) {
      case Algo::kRing:
        hops(e, others() * rounds(bytes), (hosts - 1) * rounds(bytes));
        to_next(e, each(2 * others() * messages), passed_on(each(2 * others() * bytes)));
        e.out = others() * bytes;
        break;
      case Algo::kTree:
        hops(e, depth + others() * bytes / slot_bytes / 2, depth);
        over_distances(e, each(2 * others() * messages), passed_on(each(2 * others() * bytes)));
        break;
      default:
        hops(e, rounds(bytes), rounds(bytes));
        with_all(e, 2 * messages, sums ? bytes : 2 * bytes);
        e.out *= incast();
    }
    if (sums) e.summed = each(algo == Algo::kDirect ? n * bytes : 2 * others() * bytes);
    return e;
  }
};

bool in_blocks(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
         collective == Collective::kAllToAll;
}

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

double price_ns(const Share& share, const Medium& medium, double crowding) {
  const double hop = crowding > 1 ? crowding * medium.turn : medium.hop;
  return share.hops * hop + share.messages * medium.message + share.bytes * medium.byte;
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

std::string to_text(const Facts& f) {
  return format(
      "facts: %d ranks on %d hosts of at most %d; %d ranks for %d of %d CPUs; %s, %s of %llu bytes per second; caches "
      "of "
      "%llu bytes\n",
      f.n_ranks, f.hosts, f.largest_host, f.ranks_here, f.cpus_here, f.machine_cpus,
      f.shares_memory ? "shm" : "loopback", f.has_rdma ? "rdma" : "network",
      static_cast<unsigned long long>(f.wire_bytes_per_second), static_cast<unsigned long long>(f.cache_bytes));
}

std::optional<Facts> facts_from_text(const std::string& text) {
  Facts f;
  char here[16] = "", between[16] = "";
  unsigned long long speed = 0, cache = 0;
  const size_t at = text.find("facts: ");
  if (at == text.npos ||
      sscanf(text.c_str() + at,
             "facts: %d ranks on %d hosts of at most %d; %d ranks for %d of %d CPUs; %15[a-z], %15[a-z] of %llu bytes "
             "per second; caches of %llu bytes",
             &f.n_ranks, &f.hosts, &f.largest_host, &f.ranks_here, &f.cpus_here, &f.machine_cpus, here, between, &speed,
             &cache) != 10)
    return std::nullopt;
  f.shares_memory = here == std::string_view("shm");
  f.has_rdma = between == std::string_view("rdma");
  f.wire_bytes_per_second = speed;
  f.cache_bytes = cache;
  return f;
}

Load load_of(Collective collective, Plan plan, uint64_t bytes, const Facts& facts) {
  if (facts.n_ranks == 1) return {.here = {0, 0, 2 * static_cast<double>(bytes)}};
  const auto n = static_cast<unsigned>(facts.n_ranks), hosts = static_cast<unsigned>(facts.hosts);
  const Bill bill{static_cast<double>(n),
                  static_cast<double>(plan.lanes),
                  static_cast<double>(bytes),
                  facts.hosts == 1 && facts.shares_memory ? kSharedSlotBytes : kSocketSlotBytes,
                  static_cast<double>(hosts),
                  static_cast<double>(facts.largest_host),
                  static_cast<int>(std::bit_width(n - 1)),
                  static_cast<int>(std::bit_width(hosts - 1)),
                  facts.hosts == 1 && facts.shares_memory};
  const Effort effort = effort_of(collective, own_algo(collective, plan.algo), bill);
  const auto share = [&](Work work) { return std::max(work.busiest, work.total / bill.n * facts.crowding()); };
  Load load{{effort.here_hops, share(effort.here.messages), share(effort.here.bytes)},
            {effort.wire_hops, share(effort.wire.messages), share(effort.wire.bytes)},
            share(effort.summed),
            facts.hosts > 1 ? effort.out : 0,
            0};
  const double blocks = in_blocks(collective) ? bill.n + 1 : 2, all = blocks * bill.bytes * facts.largest_host;
  if (all > static_cast<double>(facts.cache_bytes))
    load.far_bytes = load.here.bytes + load.wire.bytes + load.summed_bytes;
  return load;
}

Load load_of(const Traffic& traffic, const Facts& facts) {
  const double share = facts.crowding();
  const auto of = [&](uint64_t messages, uint64_t bytes) {
    return Share{messages > 0 ? 1.0 : 0.0, static_cast<double>(messages) * share, static_cast<double>(bytes) * share};
  };
  return {of(traffic.here_messages, traffic.here_bytes), of(traffic.wire_messages, traffic.wire_bytes), 0,
          static_cast<double>(traffic.out_bytes)};
}

double price_ns(const Load& load, const Facts& facts, const Prices& prices) {
  return price_ns(load.here, facts.shares_memory ? prices.shm : prices.loopback, facts.crowding()) +
         price_ns(load.wire, facts.has_rdma ? prices.rdma : prices.network, facts.crowding()) +
         load.summed_bytes * prices.summed_byte + load.far_bytes * prices.far_byte +
         load.out_bytes * 1e9 / static_cast<double>(facts.wire_bytes_per_second);
}

}  // namespace tutti
