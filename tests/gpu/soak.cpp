// Random operations, -n of them: collective, type, operator, size, place and root, up to sixteen in flight in a stream
// before the data are checked. All data are checked. Takes the perf tools' flags for ranks, devices and the largest
// size (-e). The last line on stdout is JSON.
#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

#include "buffer.h"
#include "collectives.h"
#include "device.h"
#include "launch.h"
#include "options.h"
#include "team.h"
#include "types.h"

namespace tutti::perf {
namespace {

constexpr Collective kTool = {
    .tool = "soak", .call = "operations at random", .has_op = true, .has_root = true, .layout = same_size};
constexpr int kMostAtOnce = 16;
constexpr int kMostPrinted = 5;

constexpr const Collective* kKinds[] = {&kAllReduce, &kReduceScatter, &kAllGather, &kBroadcast};

// One operation of a round, the same on all ranks.
struct Draw {
  const Collective* kind;
  DataKey key;
  tuttiRedOp_t op;
  size_t total;  // elements in the larger buffer
  int root;
  bool in_place;
  size_t at;  // offset in the buffers, in bytes
};

class Soak {
 public:
  Soak(const Options& options, Team& team) : options_(options), team_(team), random_(1) {}

  ~Soak() {
    if (stream_ != nullptr && team_.device() >= 0) device::destroy(stream_);
    if (stream_ != nullptr && team_.device() < 0) static_cast<void>(tuttiStreamDestroy(stream_));
  }

  Status run() {
    if (Status s = team_.agree(prepare()); !s) return s;
    long long launched = 0;
    for (bool progress = true; launched < options_.iters && progress;) {
      const std::vector<Draw> draws = draw_round(options_.iters - launched);
      progress = !draws.empty();
      if (Status s = round(draws); !s) return s;
      launched += static_cast<long long>(draws.size());
    }
    long long wrong = wrong_;
    if (Status s = team_.sum(&wrong); !s) return s;
    if (team_.rank() == 0)
      printf("{\"ranks\": %d, \"procs\": %d, \"device\": \"%s\", \"launches\": %lld, \"wrong\": %lld}\n",
             team_.n_ranks(), std::max(1, options_.procs), team_.device() < 0 ? "host" : "cuda", launched, wrong);
    if (wrong > 0) return Error{"", kExitWrongData, true};
    return {};
  }

 private:
  Status prepare() {
    const Memory memory = team_.device() >= 0 ? Memory::kDevice : Memory::kHost;
    if (Status s = send_.allocate(options_.max_bytes, memory); !s) return s;
    if (Status s = recv_.allocate(options_.max_bytes, memory); !s) return s;
    if (options_.null_stream) return {};
    if (team_.device() >= 0) return device::create_stream(&stream_);
    const tuttiResult_t result = tuttiStreamCreate(&stream_);
    return result == tuttiSuccess ? Status() : library_error("tuttiStreamCreate", result, nullptr);
  }

  template <class Number>
  Number below(Number end) {
    return static_cast<Number>(random_() % static_cast<uint64_t>(end));
  }

  // Log-uniform: as often between 1 and 2 as between 1000 and 2000; half of them odd.
  size_t draw_elems(size_t elem_bytes, size_t room) {
    const size_t most = room / elem_bytes;
    if (most < 2) return most;
    const int bits = 1 + below(static_cast<int>(std::bit_width(most)) - 1);
    return std::min(most, (size_t{1} << bits >> 1) + below(size_t{1} << bits >> 1) + 1);
  }

  std::vector<Draw> draw_round(long long most) {
    const long long wanted = std::min<long long>(most, 1 + below(kMostAtOnce));
    const auto n = static_cast<size_t>(team_.n_ranks());
    std::vector<Draw> draws;
    for (size_t at = 0; static_cast<long long>(draws.size()) < wanted;) {
      const Collective& kind = *kKinds[below(std::size(kKinds))];
      const TypeInfo& type = kTypes[below(kTypes.size())];
      // Aligned as the type requires, no further.
      at = (at + type.bytes - 1) / type.bytes * type.bytes;
      if (at + n * type.bytes > options_.max_bytes) break;
      const size_t room = (options_.max_bytes - at) / static_cast<size_t>(1 + below(kMostAtOnce));
      const size_t total = std::max(n, draw_elems(type.bytes, room)) / n * n;
      const auto op = static_cast<tuttiRedOp_t>(below(static_cast<int>(tuttiNumOps)));
      const DataKey key = {type.type, kind.has_op ? op : kCopy, team_.n_ranks(), ++seed_};
      draws.push_back({&kind, key, op, total, below(team_.n_ranks()), below(2) == 1, at});
      at += total * type.bytes + below(size_t{64});
    }
    return draws;
  }

  Call call_of(const Draw& draw, char* send_base, char* recv_base) const {
    const Layout layout = layout_of(draw);
    const size_t elem_bytes = type_info(draw.key.type).bytes;
    char *send = send_base + draw.at, *recv = recv_base + draw.at;
    if (draw.in_place) {
      send = recv + layout.in_place_send_offset * elem_bytes;
      recv += layout.in_place_recv_offset * elem_bytes;
    }
    return {send,      recv,         layout.count,    draw.key.type, draw.op,
            draw.root, team_.rank(), team_.n_ranks(), team_.comm(),  stream_};
  }

  Layout layout_of(const Draw& draw) const {
    return draw.kind->layout(draw.total, static_cast<size_t>(team_.n_ranks()), static_cast<size_t>(team_.rank()));
  }

  Status round(const std::vector<Draw>& draws) {
    const size_t used =
        draws.empty() ? 0 : draws.back().at + draws.back().total * type_info(draws.back().key.type).bytes;
    recv_.poison(used);
    for (const Draw& draw : draws) {
      const Call host = call_of(draw, send_.data(), recv_.data());
      fill_input(draw.key, team_.rank(), 0, layout_of(draw).send, const_cast<void*>(host.send));
    }
    for (const Buffer* buffer : {&send_, &recv_})
      if (Status s = buffer->upload(used); !s) return s;
    for (const Draw& draw : draws) {
      const tuttiResult_t result = draw.kind->run(call_of(draw, send_.operand(), recv_.operand()));
      if (result != tuttiSuccess) return library_error(draw.kind->call, result, team_.comm());
    }
    if (Status s = wait(); !s) return s;
    if (Status s = recv_.download(used); !s) return s;
    for (const Draw& draw : draws) check(draw);
    if (const size_t spoiled = recv_.count_overwritten(used); spoiled > 0) {
      wrong_ += static_cast<long long>(spoiled);
      fprintf(stderr, "[rank %d] %zu bytes beside the buffer were written\n", team_.rank(), spoiled);
    }
    return {};
  }

  Status wait() const {
    if (team_.device() >= 0) return device::synchronize(stream_);
    if (stream_ == nullptr) return {};
    const tuttiResult_t result = tuttiStreamSynchronize(stream_);
    return result == tuttiSuccess ? Status() : library_error("tuttiStreamSynchronize", result, team_.comm());
  }

  void check(const Draw& draw) {
    const Call host = call_of(draw, send_.data(), recv_.data());
    const TypeInfo& type = type_info(draw.key.type);
    const size_t wrong =
        draw.kind->count_wrong({draw.key, team_.rank(), draw.root, 0, host.count, type.bytes, host.recv});
    wrong_ += static_cast<long long>(wrong);
    if (wrong == 0 || ++printed_ > kMostPrinted) return;
    fprintf(stderr, "[rank %d] %zu wrong: %s of %zu x %s %s, root %d, %s, %zu bytes into the buffer, seed %llu\n",
            team_.rank(), wrong, draw.kind->call, host.count, type.name, kOpNames[static_cast<size_t>(draw.op)],
            draw.root, draw.in_place ? "in place" : "out of place", draw.at,
            static_cast<unsigned long long>(draw.key.seed));
  }

  const Options& options_;
  Team& team_;
  std::mt19937_64 random_;  // same sequence on all ranks
  Buffer send_, recv_;
  tuttiStream_t stream_ = nullptr;
  uint64_t seed_ = 0;
  long long wrong_ = 0;
  int printed_ = 0;
};

Status run_soak(const Options& options, tuttiComm_t comm) {
  Team team;
  if (Status s = team.join(comm); !s) return s;
  if (options.device != kHostMemory) {
    if (Status s = team.move_to_device(options); !s) return s;
  }
  if (Status s = Soak(options, team).run(); !s) return s;
  return team.leave_device();
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::launch_tool(argc, argv, tutti::perf::kTool, tutti::perf::run_soak);
}
