#include "cuda/programs.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "plan/planner.h"

namespace tutti::cuda {
namespace {

constexpr uint64_t kWordBytes = 128;  // words lie on lines of their own
constexpr int kWordsPerEnd = 2;       // what the other end tells, and what this one has done

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

// A link's number among the ends of its receiver and of its sender.
struct LinkPlace {
  uint64_t at_receiver = 0, at_sender = 0;
};

// How many ends a rank has. Receiving ones, which have slots, come first.
struct RankEnds {
  uint64_t n_recvs = 0, n_sends = 0;
};

// Every link that some step sends on.
class Links {
 public:
  explicit Links(std::span<const Schedule> schedules) : ends_(schedules.size()) {
    for (const Schedule& schedule : schedules)
      for (const Lane& lane : schedule.lanes)
        for (const Step& step : lane.steps)
          if (step.send >= 0) places_[{schedule.rank, step.send, lane.channel}] = {};
    for (auto& [name, place] : places_) place.at_receiver = ends_[at(std::get<1>(name))].n_recvs++;
    for (auto& [name, place] : places_) {
      RankEnds& ends = ends_[at(std::get<0>(name))];
      place.at_sender = ends.n_recvs + ends.n_sends++;
    }
  }
  const LinkPlace& place(const LinkName& name) const { return places_.at(name); }
  const RankEnds& ends(int rank) const { return ends_[at(rank)]; }

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }

  std::map<LinkName, LinkPlace> places_;
  std::vector<RankEnds> ends_;
};

// A rank's part of the links, in memory of its device: words of all its ends, slots of the receiving ones, scratch.
struct RankMemory {
  char* base = nullptr;
  RankEnds ends;
  LoadedPrograms::Shape shape;

  uint64_t slots_bytes() const { return static_cast<uint64_t>(shape.n_slots) * shape.slot_bytes; }
  uint64_t slots_at() const { return (ends.n_recvs + ends.n_sends) * shape.n_stripes * kWordsPerEnd * kWordBytes; }
  uint64_t scratch_at() const { return slots_at() + ends.n_recvs * shape.n_stripes * slots_bytes(); }
  uint32_t* word(uint64_t end, uint64_t stripe, uint64_t which) const {
    return reinterpret_cast<uint32_t*>(base + ((end * shape.n_stripes + stripe) * kWordsPerEnd + which) * kWordBytes);
  }
  char* slots(uint64_t end, uint64_t stripe) const {
    return base + slots_at() + (end * shape.n_stripes + stripe) * slots_bytes();
  }
};

// Where all links' memory is, by rank. Each side waits on memory of its own device: the receiver for `head`, the sender
// for `tail`.
struct LinkMemory {
  const Links& links;
  std::vector<RankMemory> ranks;

  LinkEnd end(const LinkName& name, uint64_t stripe, bool sends) const {
    const LinkPlace& place = links.place(name);
    const RankMemory& sender = ranks[static_cast<size_t>(std::get<0>(name))];
    const RankMemory& receiver = ranks[static_cast<size_t>(std::get<1>(name))];
    return {receiver.slots(place.at_receiver, stripe), receiver.word(place.at_receiver, stripe, 0),
            sender.word(place.at_sender, stripe, 0),
            sends ? sender.word(place.at_sender, stripe, 1) : receiver.word(place.at_receiver, stripe, 1)};
  }
};

// One rank's schedule, taken apart.
class Translation {
 public:
  Translation(const Schedule& schedule, size_t n_lanes) : schedule_(schedule) {
    for (const Lane& lane : schedule.lanes) {
      lanes_.push_back({static_cast<uint32_t>(steps_.size()), static_cast<uint32_t>(lane.steps.size())});
      for (const Step& step : lane.steps) translate(step, lane.channel);
    }
    lanes_.resize(n_lanes);
  }

  // The program, whose pointers count from the beginning of the tables.
  Program write(Tables& tables, const LinkMemory& memory, const char* base) const {
    const RankMemory& mine = memory.ranks[static_cast<size_t>(schedule_.rank)];
    std::vector<LinkEnd> ends;
    for (uint64_t stripe = 0; stripe < mine.shape.n_stripes; stripe++)
      for (const auto& [link, sends] : ends_) ends.push_back(memory.end(link, stripe, sends));
    Program program;
    program.lanes = reinterpret_cast<const ProgramLane*>(base + tables.add(lanes_));
    program.steps = reinterpret_cast<const ProgramStep*>(base + tables.add(steps_));
    program.recvs = reinterpret_cast<const int32_t*>(base + tables.add(recvs_));
    program.ends = reinterpret_cast<const LinkEnd*>(base + tables.add(ends));
    program.scratch = mine.base + mine.scratch_at();
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
    const std::pair<LinkName, bool> end{name, sends};
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
  std::vector<ProgramLane> lanes_;
  std::vector<ProgramStep> steps_;
  std::vector<int32_t> recvs_;
  std::vector<std::pair<LinkName, bool>> ends_;  // sends
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
                                                             std::span<const int> devices, const Shape& shape) {
  std::unique_ptr<LoadedPrograms> loaded(new LoadedPrograms(port));
  const Links links(schedules);
  LinkMemory memory{links, {}};
  for (size_t r = 0; r < schedules.size(); r++) {
    TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port, devices[r]));
    RankMemory& mine = memory.ranks.emplace_back(RankMemory{nullptr, links.ends(schedules[r].rank), shape});
    const uint64_t scratch_bytes = static_cast<uint64_t>(schedules[r].n_scratch) * shape.n_stripes * shape.slot_bytes;
    TUTTI_TRY_ASSIGN(void* made, port.allocate(mine.scratch_at() + scratch_bytes + 1));
    loaded->memory_.push_back(made);
    mine.base = static_cast<char*>(made);
  }

  const size_t n_lanes = most_lanes(schedules);
  const auto write_all = [&](Tables& tables, const char* base) {
    std::vector<Program> programs;
    for (const Schedule& s : schedules) programs.push_back(Translation(s, n_lanes).write(tables, memory, base));
    return tables.add(programs);
  };
  Tables sizes;  // written twice, for the tables name addresses of each other
  write_all(sizes, nullptr);
  for (size_t r = 0; r < schedules.size(); r++) {  // each device has the tables of all ranks that it may serve
    TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port, devices[r]));
    TUTTI_TRY_ASSIGN(void* made, port.allocate(sizes.bytes().size()));
    loaded->tables_.push_back(made);
    Tables tables;
    const uint64_t programs_at = write_all(tables, static_cast<char*>(made));
    TUTTI_TRY(copy_now(port, made, tables.bytes()));
    ProgramCall& call = loaded->calls_.emplace_back();
    call.programs = reinterpret_cast<const Program*>(static_cast<char*>(made) + programs_at) + r;
    call.n_ranks = static_cast<uint32_t>(schedules.size() - r);
    call.n_lanes = static_cast<uint32_t>(n_lanes);
    call.n_stripes = shape.n_stripes;
    call.n_chunks = std::max(1u, schedules[0].n_chunks);
    call.n_slots = shape.n_slots;
    call.slot_bytes = shape.slot_bytes;
  }
  return loaded;
}

LoadedPrograms::~LoadedPrograms() {
  for (void* memory : memory_) port_.free(memory);
  for (void* tables : tables_) port_.free(tables);
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

Result<std::unique_ptr<LoadedPrograms>> Programs::load(Collective collective, Algo algo, int root) {
  constexpr uint8_t kLanes = 2;
  const auto n_ranks = static_cast<int>(devices_.size());
  std::vector<Schedule> schedules;
  for (int r = 0; r < n_ranks; r++) {
    const Planner planner(r, flat_layout(n_ranks), algo, false);
    schedules.push_back(planner.schedule(collective, {algo, kLanes}, root));
  }
  const auto n_sharing = static_cast<int>(std::count(devices_.begin(), devices_.end(), devices_[0]));
  const auto n_blocks = static_cast<int>(most_lanes(schedules)) * n_sharing;
  const int room = multiprocessors_ * kProgramBlocksPerMultiprocessor;
  if (n_blocks > room)
    return Error{Code::kInvalidUsage,
                 format("%s of %d ranks takes %d blocks at once, and this GPU has room for %d: unset TUTTI_ALGO",
                        algo_name(algo), n_sharing, n_blocks, room)};
  constexpr int kMostStripes = 16;
  LoadedPrograms::Shape shape;
  shape.n_stripes = static_cast<uint32_t>(std::min(kMostStripes, room / n_blocks));
  return LoadedPrograms::load(port_, schedules, devices_, shape);
}

Result<ProgramCall> Programs::find(const Operation& operation, Algo algo, int rank) {
  auto& loaded = loaded_[Key{operation.collective, algo, operation.root}];
  if (loaded == nullptr) {
    TUTTI_TRY_ASSIGN(loaded, load(operation.collective, algo, operation.root));
  }
  ProgramCall call = rank == kAllRanks ? loaded->call() : loaded->call_of(rank);
  call.block_elems = operation.count;
  call.dtype = operation.dtype;
  call.op = operation.op;
  const bool divides = operation.op == RedOp::kAvg && traits(operation.collective).reduces;
  call.divisor = divides ? static_cast<uint32_t>(devices_.size()) : 0;
  return call;
}

}  // namespace tutti::cuda
