#include "cuda/programs.h"

#include <algorithm>
#include <cstring>
#include <span>
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
  explicit Links(std::span<const Schedules> kinds) : ends_(kinds[0].size()) {
    for (const Schedules& schedules : kinds)
      for (const Schedule& schedule : schedules) add(schedule);
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
  void add(const Schedule& schedule) {
    for (const Lane& lane : schedule.lanes)
      for (const auto& [step, from] : lane.steps.patterns())
        if (step.send >= 0) places_[{schedule.rank, step.send, lane.channel}] = {};
  }

  std::map<LinkName, LinkPlace> places_;
  std::vector<RankEnds> ends_;
};

// A rank's part of the links, in memory of its device: words of all its ends, slots of the receiving ones, scratch.
struct RankMemory {
  char* base = nullptr;
  RankEnds ends;
  ProgramShape shape;
  uint64_t n_scratch = 0;

  uint64_t slots_bytes() const { return static_cast<uint64_t>(shape.n_slots) * shape.slot_bytes; }
  uint64_t slots_at() const { return (ends.n_recvs + ends.n_sends) * shape.n_stripes * kWordsPerEnd * kWordBytes; }
  uint64_t scratch_at() const { return slots_at() + ends.n_recvs * shape.n_stripes * slots_bytes(); }
  uint64_t bytes() const { return scratch_at() + n_scratch * shape.n_stripes * shape.slot_bytes; }
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
  TUTTI_TRY_ASSIGN(const StreamRef stream, port.create_urgent_stream());
  auto copied = port.copy(to, bytes.data(), bytes.size(), stream);
  if (copied) copied = port.synchronize(stream);
  port.destroy_stream(stream);
  return copied;
}

size_t most_lanes(const Schedules& schedules) {
  size_t most = 1;
  for (const Schedule& schedule : schedules) most = std::max(most, schedule.lanes.size());
  return most;
}

RankMemory memory_of(size_t rank, std::span<const Schedules> kinds, const Links& links, const ProgramShape& shape) {
  RankMemory memory{nullptr, links.ends(static_cast<int>(rank)), shape};
  for (const Schedules& schedules : kinds)
    memory.n_scratch = std::max<uint64_t>(memory.n_scratch, schedules[rank].n_scratch);
  return memory;
}

ProgramCall call_of(const Schedules& schedules, const ProgramShape& shape) {
  ProgramCall call{};
  call.n_lanes = static_cast<uint32_t>(most_lanes(schedules));
  call.n_stripes = shape.n_stripes;
  call.n_chunks = std::max(1u, schedules[0].n_chunks);
  call.n_slots = shape.n_slots;
  call.slot_bytes = shape.slot_bytes;
  return call;
}

// Brings tables to the device: write(tables, where they begin there). They are written twice, for they name addresses
// of each other.
template <class Write>
Result<void*> load_tables(Port& port, Write&& write) {
  Tables sizes;
  write(sizes, nullptr);
  TUTTI_TRY_ASSIGN(void* made, port.allocate(sizes.bytes().size() + 1));
  Tables tables;
  write(tables, static_cast<char*>(made));
  if (auto copied = copy_now(port, made, tables.bytes()); !copied) {
    port.free(made);
    return std::move(copied).error();
  }
  return made;
}

const Program* program_at(const char* base, uint64_t offset) {
  return reinterpret_cast<const Program*>(base + offset);
}

}  // namespace

Result<std::unique_ptr<LoadedPrograms>> LoadedPrograms::load(Port& port, const Schedules& schedules,
                                                             const ProgramShape& shape) {
  std::unique_ptr<LoadedPrograms> loaded(new LoadedPrograms(port));
  const std::span<const Schedules> kinds(&schedules, 1);
  const Links links(kinds);
  LinkMemory memory{links, {}};
  for (size_t r = 0; r < schedules.size(); r++) {
    RankMemory& mine = memory.ranks.emplace_back(memory_of(r, kinds, links, shape));
    TUTTI_TRY_ASSIGN(void* made, port.allocate(mine.bytes() + 1));
    loaded->memory_.push_back(made);
    mine.base = static_cast<char*>(made);
  }
  loaded->call_ = call_of(schedules, shape);
  loaded->call_.n_ranks = static_cast<uint32_t>(schedules.size());
  const auto write_all = [&](Tables& tables, const char* base) {
    std::vector<Program> programs;
    for (const Schedule& s : schedules)
      programs.push_back(Translation(s, loaded->call_.n_lanes).write(tables, memory, base));
    loaded->call_.programs = program_at(base, tables.add(programs));
  };
  TUTTI_TRY_ASSIGN(void* tables, load_tables(port, write_all));
  loaded->memory_.push_back(tables);
  return loaded;
}

LoadedPrograms::~LoadedPrograms() {
  for (void* memory : memory_) port_.free(memory);
}

SpreadPrograms::SpreadPrograms(Port& port, std::vector<Schedules> kinds, const ProgramShape& shape)
    : port_(port), kinds_(std::move(kinds)), shape_(shape) {}

SpreadPrograms::~SpreadPrograms() {
  if (tables_ != nullptr) port_.free(tables_);
}

size_t SpreadPrograms::bytes(int rank) const {
  return memory_of(static_cast<size_t>(rank), kinds_, Links(kinds_), shape_).bytes();
}

Result<void> SpreadPrograms::load(int rank, const std::vector<void*>& memory) {
  const Links links(kinds_);
  LinkMemory places{links, {}};
  for (size_t r = 0; r < memory.size(); r++) {
    places.ranks.push_back(memory_of(r, kinds_, links, shape_));
    places.ranks.back().base = static_cast<char*>(memory[r]);
  }
  for (const Schedules& schedules : kinds_) {
    calls_.push_back(call_of(schedules, shape_));
    calls_.back().n_ranks = 1;
  }
  const auto write_all = [&](Tables& tables, const char* base) {
    for (size_t k = 0; k < kinds_.size(); k++) {
      const Translation translation(kinds_[k][static_cast<size_t>(rank)], calls_[k].n_lanes);
      const std::vector<Program> program{translation.write(tables, places, base)};
      calls_[k].programs = program_at(base, tables.add(program));
    }
  };
  TUTTI_TRY_ASSIGN(tables_, load_tables(port_, write_all));
  kinds_.clear();
  return {};
}

bool interprets(const Operation& operation, Algo algo) {
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

namespace {

constexpr Collective kWithoutRoot[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter};
constexpr Collective kWithRoot[] = {Collective::kBroadcast, Collective::kReduce};

Schedules schedules_of(Collective collective, Algo algo, int n_ranks, int root) {
  constexpr uint32_t kLanes = 2;
  Schedules schedules;
  for (int r = 0; r < n_ranks; r++)
    schedules.push_back(Planner(r, flat_layout(n_ranks), algo, false).schedule(collective, algo, root, kLanes));
  return schedules;
}

constexpr int kMostStripes = 16;

void describe(const Operation& operation, int n_ranks, ProgramCall* call) {
  call->block_elems = operation.count;
  call->dtype = operation.dtype;
  call->op = operation.op;
  call->divisor = divisor_of(operation, n_ranks);
}

}  // namespace

Result<ProgramCall> SharedPrograms::find(const Operation& operation, Algo algo) {
  auto& loaded = loaded_[Key{operation.collective, algo, operation.root}];
  if (loaded == nullptr) {
    const Schedules schedules = schedules_of(operation.collective, algo, n_ranks_, operation.root);
    const int n_blocks = static_cast<int>(most_lanes(schedules)) * n_ranks_;
    const int room = multiprocessors_ * kProgramBlocksPerMultiprocessor;
    if (n_blocks > room)
      return Error{Code::kInvalidUsage,
                   format("%s of %d ranks takes %d blocks at once, and this GPU has room for %d: unset TUTTI_ALGO",
                          algo_name(algo), n_ranks_, n_blocks, room)};
    ProgramShape shape;
    shape.n_stripes = static_cast<uint32_t>(std::min(kMostStripes, room / n_blocks));
    TUTTI_TRY_ASSIGN(loaded, LoadedPrograms::load(port_, schedules, shape));
  }
  ProgramCall call = loaded->call();
  describe(operation, n_ranks_, &call);
  return call;
}

std::unique_ptr<SpreadPrograms> spread_programs(Port& port, int n_ranks, int multiprocessors, Algo algo) {
  std::vector<Schedules> kinds;
  for (const Collective collective : kWithoutRoot) kinds.push_back(schedules_of(collective, algo, n_ranks, 0));
  for (const Collective collective : kWithRoot)
    for (int root = 0; root < n_ranks; root++) kinds.push_back(schedules_of(collective, algo, n_ranks, root));
  size_t n_lanes = 1;
  for (const Schedules& schedules : kinds) n_lanes = std::max(n_lanes, most_lanes(schedules));
  const int room = multiprocessors * kProgramBlocksPerMultiprocessor / static_cast<int>(n_lanes);
  if (room == 0) return nullptr;
  ProgramShape shape;
  shape.n_stripes = static_cast<uint32_t>(std::min(kMostStripes, room));
  return std::make_unique<SpreadPrograms>(port, std::move(kinds), shape);
}

ProgramCall find_program(const SpreadPrograms& programs, const Operation& operation, int n_ranks) {
  const auto is_it = [&](Collective collective) { return collective == operation.collective; };
  const auto found = std::find_if(std::begin(kWithoutRoot), std::end(kWithoutRoot), is_it);
  auto kind = static_cast<size_t>(found - std::begin(kWithoutRoot));
  if (found == std::end(kWithoutRoot)) {
    const auto rooted = std::find_if(std::begin(kWithRoot), std::end(kWithRoot), is_it) - std::begin(kWithRoot);
    kind += static_cast<size_t>(rooted * n_ranks + operation.root);
  }
  ProgramCall call = programs.call(kind);
  describe(operation, n_ranks, &call);
  return call;
}

}  // namespace tutti::cuda
