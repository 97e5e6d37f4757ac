#include "cuda/programs.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "plan/planner.h"

namespace tutti::cuda {
namespace {

constexpr uint64_t kWordBytes = 128;  // words lie on lines of their own
constexpr int kWordsPerLink = 4;      // head, tail, and what each end has done

// Tables for the device: their addresses are known before they are filled in.
class Tables {
 public:
  template <class T>
  uint64_t add(const std::vector<T>& rows) {
    const uint64_t at = bytes_.size();
    bytes_.append(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(T));
    bytes_.resize((bytes_.size() + 63) / 64 * 64);
    return at;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

using LinkName = std::tuple<int, int, uint32_t>;  // from, to, channel

// Every link that some step sends on, numbered.
std::map<LinkName, uint64_t> links_of(std::span<const Schedule> schedules) {
  std::map<LinkName, uint64_t> links;
  for (const Schedule& schedule : schedules)
    for (const Lane& lane : schedule.lanes)
      for (const Step& step : lane.steps)
        if (step.send >= 0) links.emplace(LinkName{schedule.rank, step.send, lane.channel}, 0);
  uint64_t number = 0;
  for (auto& [name, n] : links) n = number++;
  return links;
}

// Where the links' memory is.
struct LinkMemory {
  char* base;
  uint64_t n_links;
  LoadedPrograms::Shape shape;

  static uint64_t bytes(uint64_t n_links, const LoadedPrograms::Shape& shape) {
    return n_links * shape.n_stripes * (kWordsPerLink * kWordBytes + slots_bytes(shape));
  }
  static uint64_t slots_bytes(const LoadedPrograms::Shape& shape) {
    return static_cast<uint64_t>(shape.n_slots) * shape.slot_bytes;
  }
  LinkEnd end(uint64_t link, uint64_t stripe, bool sends) const {
    const uint64_t i = link * shape.n_stripes + stripe;
    const auto word = [&](uint64_t w) {
      return reinterpret_cast<uint32_t*>(base + (i * kWordsPerLink + w) * kWordBytes);
    };
    char* slots = base + n_links * shape.n_stripes * kWordsPerLink * kWordBytes + i * slots_bytes(shape);
    return {slots, word(0), word(1), word(sends ? 2 : 3)};
  }
};

// One rank's schedule, taken apart.
class Translation {
 public:
  Translation(const Schedule& schedule, const std::map<LinkName, uint64_t>& links, size_t n_lanes)
      : schedule_(schedule), links_(links) {
    for (const Lane& lane : schedule.lanes) {
      lanes_.push_back({static_cast<uint32_t>(steps_.size()), static_cast<uint32_t>(lane.steps.size())});
      for (const Step& step : lane.steps) translate(step, lane.channel);
    }
    lanes_.resize(n_lanes);
  }

  // The program, whose pointers count from the beginning of the tables.
  Program write(Tables& tables, const LinkMemory& memory, char* scratch, const char* base) const {
    std::vector<LinkEnd> ends;
    for (uint64_t stripe = 0; stripe < memory.shape.n_stripes; stripe++)
      for (const auto& [link, sends] : ends_) ends.push_back(memory.end(link, stripe, sends));
    Program program;
    program.lanes = reinterpret_cast<const ProgramLane*>(base + tables.add(lanes_));
    program.steps = reinterpret_cast<const ProgramStep*>(base + tables.add(steps_));
    program.recvs = reinterpret_cast<const int32_t*>(base + tables.add(recvs_));
    program.ends = reinterpret_cast<const LinkEnd*>(base + tables.add(ends));
    program.scratch = scratch;
    program.n_ends = static_cast<uint32_t>(ends_.size());
    program.n_scratch = schedule_.n_scratch;
    return program;
  }

 private:
  ProgramSlice place(const Slice& slice) const {
    const PlacedSlice placed = take_apart(slice, schedule_.n_chunks);
    return {static_cast<uint8_t>(placed.buffer), placed.block, placed.chunk};
  }

  int32_t end_of(const LinkName& name, bool sends) {
    const std::pair<uint64_t, bool> end{links_.at(name), sends};
    const auto found = std::find(ends_.begin(), ends_.end(), end);
    const auto number = static_cast<int32_t>(found - ends_.begin());
    if (found == ends_.end()) ends_.push_back(end);
    return number;
  }

  void translate(const Step& step, uint32_t channel) {
    ProgramStep out;
    out.size = place({Buffer::kNone, step.chunk});
    out.before = place(step.before);
    out.local = place(step.local);
    out.store = place(step.store);
    out.completes = step.completes;
    out.first_recv = static_cast<int32_t>(recvs_.size());
    for_each_sender(schedule_, step, [&](int peer) {
      recvs_.push_back(end_of({peer, schedule_.rank, channel}, false));
    });
    out.n_recv = static_cast<int32_t>(recvs_.size()) - out.first_recv;
    out.local_place = static_cast<uint32_t>(step.recv == kEveryone ? schedule_.rank : out.n_recv);
    if (step.send >= 0) out.send = end_of({schedule_.rank, step.send, channel}, true);
    steps_.push_back(out);
  }

  const Schedule& schedule_;
  const std::map<LinkName, uint64_t>& links_;
  std::vector<ProgramLane> lanes_;
  std::vector<ProgramStep> steps_;
  std::vector<int32_t> recvs_;
  std::vector<std::pair<uint64_t, bool>> ends_;  // link, sends
};

Result<void> copy_now(Port& port, void* to, const std::string& bytes) {
  TUTTI_TRY_ASSIGN(const StreamRef stream, port.create_stream());
  auto copied = port.copy(to, bytes.data(), bytes.size(), stream);
  if (copied) copied = port.synchronize(stream);
  port.destroy_stream(stream);
  return copied;
}

size_t most_lanes(std::span<const Schedule> schedules) {
  size_t most = 1;
  for (const Schedule& schedule : schedules) most = std::max(most, schedule.lanes.size());
  return most;
}

}  // namespace

Result<std::unique_ptr<LoadedPrograms>> LoadedPrograms::load(Port& port, std::span<const Schedule> schedules,
                                                             const Shape& shape) {
  std::unique_ptr<LoadedPrograms> loaded(new LoadedPrograms(port));
  const auto links = links_of(schedules);
  const size_t n_lanes = most_lanes(schedules);
  uint64_t scratch_bytes = 0;
  for (const Schedule& s : schedules)
    scratch_bytes += static_cast<uint64_t>(s.n_scratch) * shape.n_stripes * shape.slot_bytes;
  const uint64_t link_bytes = LinkMemory::bytes(links.size(), shape);
  TUTTI_TRY_ASSIGN(loaded->links_, port.allocate(link_bytes + scratch_bytes + 1));
  const LinkMemory memory{static_cast<char*>(loaded->links_), links.size(), shape};
  char* scratch = memory.base + link_bytes;

  const auto write_all = [&](Tables& tables, const char* base) {
    std::vector<Program> programs;
    char* next_scratch = scratch;
    for (const Schedule& s : schedules) {
      programs.push_back(Translation(s, links, n_lanes).write(tables, memory, next_scratch, base));
      next_scratch += static_cast<uint64_t>(s.n_scratch) * shape.n_stripes * shape.slot_bytes;
    }
    return tables.add(programs);
  };
  Tables sizes, tables;  // written twice, for the tables name addresses of each other
  write_all(sizes, nullptr);
  TUTTI_TRY_ASSIGN(loaded->tables_, port.allocate(sizes.bytes().size()));
  char* const base = static_cast<char*>(loaded->tables_);
  const uint64_t programs_at = write_all(tables, base);
  TUTTI_TRY(copy_now(port, base, tables.bytes()));

  ProgramCall& call = loaded->call_;
  call.programs = reinterpret_cast<const Program*>(base + programs_at);
  call.n_ranks = static_cast<uint32_t>(schedules.size());
  call.n_lanes = static_cast<uint32_t>(n_lanes);
  call.n_stripes = shape.n_stripes;
  call.n_chunks = std::max(1u, schedules[0].n_chunks);
  call.n_slots = shape.n_slots;
  call.slot_bytes = shape.slot_bytes;
  return loaded;
}

LoadedPrograms::~LoadedPrograms() {
  if (links_ != nullptr) port_.free(links_);
  if (tables_ != nullptr) port_.free(tables_);
}

bool Programs::takes(const Operation& operation, Algo algo) {
  if (algo == Algo::kAuto || operation.unequal != nullptr || operation.op == RedOp::kPreMulSum) return false;
  const bool reduces = traits(operation.collective).reduces;
  if (reduces && is_small_float(operation.dtype)) return false;
  switch (operation.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kAllGather:
    case Collective::kReduceScatter: return operation.count > 0;
    default: return false;
  }
}

Result<ProgramCall> Programs::find(const Operation& operation, Algo algo) {
  const Key key{operation.collective, algo, operation.root};
  auto& loaded = loaded_[key];
  if (loaded == nullptr) {
    constexpr uint8_t kLanes = 2;
    std::vector<Schedule> schedules;
    for (int r = 0; r < n_ranks_; r++) {
      const Planner planner(r, flat_layout(n_ranks_), algo, false);
      schedules.push_back(planner.schedule(operation.collective, {algo, kLanes}, operation.root));
    }
    const auto n_blocks = static_cast<int>(most_lanes(schedules)) * n_ranks_;
    const int room = multiprocessors_ * kProgramBlocksPerMultiprocessor;
    if (n_blocks > room)
      return Error{Code::kInvalidUsage,
                   format("%s of %d ranks takes %d blocks at once, and this GPU has room for %d: unset TUTTI_ALGO",
                          algo_name(algo), n_ranks_, n_blocks, room)};
    constexpr int kMostStripes = 16;
    LoadedPrograms::Shape shape;
    shape.n_stripes = static_cast<uint32_t>(std::min(kMostStripes, room / n_blocks));
    TUTTI_TRY_ASSIGN(loaded, LoadedPrograms::load(port_, schedules, shape));
  }
  ProgramCall call = loaded->call();
  call.block_elems = operation.count;
  call.dtype = operation.dtype;
  call.op = operation.op;
  const bool divides = operation.op == RedOp::kAvg && traits(operation.collective).reduces;
  call.divisor = divides ? static_cast<uint32_t>(n_ranks_) : 0;
  return call;
}

}  // namespace tutti::cuda
