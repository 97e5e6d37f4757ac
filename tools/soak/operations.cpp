#include "operations.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "../perf/collectives.h"
#include "../perf/types.h"

namespace tutti::soak {
namespace {

using namespace perf;  // NOLINT: the tools share what they call and how it is checked

constexpr size_t kMostAtOnce = 3;

// The elements of every third rank are none, those of the next rank one block, those of the third two; in total never
// more than one block per rank plus one.
size_t share(size_t block, size_t rank) {
  return block * (rank % 3);
}
size_t shares_before(size_t block, size_t rank) {
  size_t sum = 0;
  for (size_t r = 0; r < rank; r++) sum += share(block, r);
  return sum;
}
Layout gathering_shares(size_t total, size_t n_ranks, size_t rank) {
  const size_t block = total / (n_ranks + 1);
  return {.count = block,
          .send = share(block, rank),
          .recv = shares_before(block, n_ranks),
          .in_place_send_offset = shares_before(block, rank)};
}
Layout scattering_shares(size_t total, size_t n_ranks, size_t rank) {
  const Layout other = gathering_shares(total, n_ranks, rank);
  return {
      .count = other.count, .send = other.recv, .recv = other.send, .in_place_recv_offset = other.in_place_send_offset};
}
struct Shares {
  std::array<size_t, kMostRanks> counts{}, displs{};
  explicit Shares(const Call& c) {
    for (size_t r = 0; r < static_cast<size_t>(c.n_ranks); r++) {
      counts[r] = share(c.count, r);
      displs[r] = shares_before(c.count, r);
    }
  }
};

const Collective kAllGatherv = {
    .tool = nullptr,
    .call = "tuttiAllGatherv",
    .layout = gathering_shares,
    .bus_factor = everything,
    .run =
        [](const Call& c) {
          const Shares s(c);
          return tuttiAllGatherv(c.send, c.recv, s.counts.data(), s.displs.data(), c.type, c.comm, c.stream);
        },
    .count_wrong =
        [](const Received& r) {
          size_t wrong = 0;
          for (int from = 0; from < r.key.n_ranks; from++) {
            const size_t at = shares_before(r.count, static_cast<size_t>(from)) * r.elem_bytes;
            wrong += count_wrong_copy(r.key, from, r.first, share(r.count, static_cast<size_t>(from)),
                                      static_cast<const char*>(r.data) + at);
          }
          return wrong;
        },
};

const Collective kReduceScatterv = {
    .tool = nullptr,
    .call = "tuttiReduceScatterv",
    .has_op = true,
    .layout = scattering_shares,
    .bus_factor = everything,
    .run =
        [](const Call& c) {
          return tuttiReduceScatterv(c.send, c.recv, Shares(c).counts.data(), c.type, c.op, c.comm, c.stream);
        },
    .count_wrong =
        [](const Received& r) {
          const auto rank = static_cast<size_t>(r.rank);
          return count_wrong_reduction(r.key, r.first + shares_before(r.count, rank), share(r.count, rank), r.data);
        },
};

const Collective* const kKinds[] = {
    &kAllReduce, &kAllReduce,  &kAllReduceQuantized, &kAllGather, &kReduceScatter, &kBroadcast,
    &kReduce,    &kAlltoAll,   &kAlltoAllv,          &kGather,    &kScatter,       &kSendRecv,
    &kBarrier,   &kAllGatherv, &kReduceScatterv};

tuttiDataType_t wire_of(const DataKey& key) {
  return key.seed % 2 == 0 ? tuttiInt8 : tuttiFloat8e4m3;
}

template <class Number>
Number below(std::mt19937_64& random, Number end) {
  return static_cast<Number>(random() % static_cast<uint64_t>(end));
}

// Small sizes more often than large ones, and sometimes none.
size_t draw_elems(std::mt19937_64& random, size_t most) {
  if (most == 0 || below(random, 12) == 0) return 0;
  const int width = static_cast<int>(std::bit_width(most));
  const int bits = std::min(below(random, width), below(random, width));
  return std::min(most, (size_t{1} << bits) + below(random, size_t{1} << bits));
}

}  // namespace

struct Operations::Draw {
  const Collective* kind;
  DataKey key;
  tuttiRedOp_t op;  // if key.op is kMulSum, made for the call
  size_t total;     // elements in the larger buffer
  int root;
  bool in_place;
  size_t at;  // offset in the buffers, in bytes
  Layout layout;
};

Operations::Operations(const Options& options, Counts& counts, char (&doing)[kDoingBytes])
    : options_(options), counts_(counts), doing_(doing) {
  for (Buffer* buffer : {&send_, &recv_}) {
    if (Status s = buffer->allocate(options.max_bytes, Memory::kTutti); s) continue;
    fprintf(stderr, "tutti-soak: no memory for buffers of %s\n",
            human_bytes(static_cast<double>(options.max_bytes)).c_str());
    _exit(1);
  }
  if (tuttiStreamCreate(&stream_) != tuttiSuccess) _exit(1);
}

Operations::~Operations() {
  static_cast<void>(tuttiStreamDestroy(stream_));
}

std::vector<Operations::Draw> Operations::draw(const Place& place, std::mt19937_64& random) {
  const auto n = static_cast<size_t>(place.n_ranks);
  const size_t wanted = below(random, 4) > 0 ? 1 : 2 + below(random, kMostAtOnce - 1);
  const size_t room = options_.max_bytes / wanted;
  std::vector<Draw> draws;
  for (size_t i = 0; i < wanted; i++) {
    const Collective& kind = *kKinds[below(random, std::size(kKinds))];
    const TypeInfo& type = kind.quantises ? type_info(tuttiFloat32) : kTypes[below(random, kTypes.size())];
    const int sum = below(random, 2) == 0 ? tuttiSum : tuttiAvg;
    const int op = kind.quantises ? sum : kind.has_op ? below(random, kMulSum + 1) : kCopy;
    const size_t at = i * room + below(random, size_t{64});  // unaligned
    const size_t most = (room - 64) / type.bytes / (n + 1) - 1;
    const size_t total = draw_elems(random, most) * (n + 1) + below(random, n);
    const bool in_place = below(random, 3) == 0 && kind.has_in_place;
    const int root = below(random, place.n_ranks);
    draws.push_back({&kind,
                     {type.type, op, place.n_ranks, random()},
                     static_cast<tuttiRedOp_t>(std::max(op, 0)),
                     total,
                     root,
                     in_place,
                     at,
                     kind.layout(total, n, static_cast<size_t>(place.rank))});
  }
  return draws;
}

Call Operations::call_of(const Place& place, const Draw& draw, tuttiStream_t stream) const {
  const size_t elem_bytes = type_info(draw.key.type).bytes;
  char *send = send_.data() + draw.at, *recv = recv_.data() + draw.at;
  if (draw.in_place) {
    send = recv + draw.layout.in_place_send_offset * elem_bytes;
    recv += draw.layout.in_place_recv_offset * elem_bytes;
  }
  return {send,       recv,          draw.layout.count, draw.key.type, draw.op,          draw.root,
          place.rank, place.n_ranks, place.comm,        stream,        wire_of(draw.key)};
}

tuttiResult_t Operations::step(const Place& place, uint64_t seed) {
  std::mt19937_64 random(seed);
  const unsigned form = below(random, 16u);
  in_part_ = form == 0 && place.n_ranks > 1;
  if (in_part_) return run_on_part(place, random);
  return run(place, draw(place, random), form < 8, form % 4 == 1);
}

// On one of two parts, odd and even ranks; its communicator is destroyed afterwards.
tuttiResult_t Operations::run_on_part(const Place& place, std::mt19937_64& random) {
  say(place, "tuttiCommSplit");
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 1;
  Place part = {nullptr, place.rank / 2, (place.n_ranks + 1 - place.rank % 2) / 2};
  tuttiResult_t code = tuttiCommSplit(place.comm, place.rank % 2, place.rank, &part.comm, &config);
  if (code != tuttiSuccess) return code;
  code = run(part, draw(part, random), true, false);
  say(part, "tuttiCommFinalize");
  if (code == tuttiSuccess) code = tuttiCommFinalize(part.comm);
  if (code != tuttiSuccess) {
    static_cast<void>(tuttiCommAbort(part.comm));
    return code;
  }
  return tuttiCommDestroy(part.comm);
}

tuttiResult_t Operations::run(const Place& place, std::vector<Draw> draws, bool grouped, bool queued) {
  const Draw& last = draws.back();
  const size_t used = last.at + std::max(last.layout.send, last.layout.recv) * type_info(last.key.type).bytes;
  recv_.poison(used);
  for (const Draw& draw : draws) {
    const Call call = call_of(place, draw, nullptr);
    fill_input(draw.key, place.rank, 0, draw.layout.send, const_cast<void*>(call.send));
  }
  say(place, draws.size() > 1 ? "a group of calls, first " : "", draws.data());
  tuttiResult_t code = call_all(place, draws, grouped && draws.size() > 1, queued ? stream_ : nullptr);
  if (queued) {
    const tuttiResult_t waited = tuttiStreamSynchronize(stream_);
    if (code == tuttiSuccess) code = waited;
  }
  if (code != tuttiSuccess) return code;
  for (const Draw& draw : draws) check(place, draw);
  if (const size_t spoiled = recv_.count_overwritten(used); spoiled > 0) {
    counts_.wrong++;
    fprintf(stderr, "tutti-soak: WRONG: %s wrote %zu bytes beside its buffer\n", doing_, spoiled);
  }
  return code;
}

tuttiResult_t Operations::call_all(const Place& place, std::vector<Draw>& draws, bool grouped, tuttiStream_t stream) {
  tuttiResult_t code = tuttiSuccess;
  for (Draw& draw : draws) {
    if (draw.key.op != kMulSum) continue;
    double scalar[2] = {};
    fill_scalar(draw.key, place.rank, scalar);
    code = tuttiRedOpCreatePreMulSum(&draw.op, scalar, draw.key.type, tuttiScalarHostImmediate, place.comm);
    if (code != tuttiSuccess) return code;
  }
  if (grouped) code = tuttiGroupStart();
  for (const Draw& draw : draws)
    if (code == tuttiSuccess) code = draw.kind->run(call_of(place, draw, stream));
  const tuttiResult_t ended = grouped ? tuttiGroupEnd() : tuttiSuccess;
  if (code == tuttiSuccess) code = ended;
  if (code != tuttiSuccess) return code;  // the operators are destroyed with the communicator
  for (const Draw& draw : draws)
    if (draw.key.op == kMulSum && code == tuttiSuccess) code = tuttiRedOpDestroy(draw.op, place.comm);
  return code;
}

void Operations::say(const Place& place, const char* what, const Draw* draw) {
  if (draw == nullptr) {
    snprintf(doing_, kDoingBytes, "%s as rank %d of %d", what, place.rank, place.n_ranks);
  } else {
    snprintf(doing_, kDoingBytes, "%s%s of %zu x %s as rank %d of %d", what, draw->kind->call, draw->layout.count,
             type_info(draw->key.type).name, place.rank, place.n_ranks);
  }
}

void Operations::check(const Place& place, const Draw& draw) {
  counts_.operations++;
  counts_.bytes += draw.layout.recv * type_info(draw.key.type).bytes;
  if (draw.kind->only_root_receives && place.rank != draw.root) return;
  const Call call = call_of(place, draw, nullptr);
  const TypeInfo& type = type_info(draw.key.type);
  const size_t wrong =
      draw.kind->count_wrong({draw.key, place.rank, draw.root, 0, draw.layout.count, type.bytes, call.recv, call.wire});
  if (wrong == 0) return;
  counts_.wrong++;
  fprintf(stderr, "tutti-soak: WRONG: %zu elements of %s of %zu x %s, op %d, root %d, %s, rank %d of %d, seed %llu\n",
          wrong, draw.kind->call, draw.layout.count, type.name, draw.key.op, draw.root,
          draw.in_place ? "in place" : "out of place", place.rank, place.n_ranks,
          static_cast<unsigned long long>(draw.key.seed));
}

}  // namespace tutti::soak
