#include "cuda/programs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "plan/planner.h"

namespace tutti::cuda {
namespace {

constexpr uint64_t kWordBytes = 128;            // each word has its own cache line
constexpr uint64_t kEndBytes = 2 * kWordBytes;  // the other end's count, and this end's own

// Tables for the device, one after another. add() returns where a table begins.
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

struct LinkName {
  int from = 0, to = 0;
  uint32_t channel = 0;
  auto operator<=>(const LinkName&) const = default;
};

// Where every link that some step sends on is in its ranks' memory. Words come first, so that slots of any size leave
// them aligned. Each side waits on memory of its own device: the receiver for `head`, the sender for `tail`.
class LinkLayout {
 public:
  LinkLayout(const std::vector<Schedules>& kinds, const ProgramShape& shape) : shape_(shape), bytes_(kinds[0].size()) {
    for (const Schedules& schedules : kinds)
      for (const Schedule& schedule : schedules) add(schedule);
    for (auto& [link, place] : places_) {
      place.at_receiver = take(link.to, kEndBytes);
      place.at_sender = take(link.from, kEndBytes);
    }
    for (auto& [link, place] : places_) place.slots = take(link.to, slots_bytes());
    for (size_t r = 0; r < bytes_.size(); r++) {
      uint64_t most = 0;
      for (const Schedules& schedules : kinds) most = std::max<uint64_t>(most, schedules[r].n_scratch);
      scratch_.push_back(take(static_cast<int>(r), most * shape_.slot_bytes));
    }
  }
  uint32_t n_stripes() const { return shape_.n_stripes; }
  uint64_t bytes(int rank) const { return bytes_[static_cast<size_t>(rank)]; }
  uint64_t scratch(int rank) const { return scratch_[static_cast<size_t>(rank)]; }

  // `memory`: of all ranks.
  LinkEnd end(const LinkName& link, uint64_t stripe, bool sends, const std::vector<void*>& memory) const {
    const Place& place = places_.at(link);
    char* const to = static_cast<char*>(memory[static_cast<size_t>(link.to)]);
    char* const receiver = to + place.at_receiver + stripe * kEndBytes;
    char* const sender =
        static_cast<char*>(memory[static_cast<size_t>(link.from)]) + place.at_sender + stripe * kEndBytes;
    const auto word = [](char* at) { return reinterpret_cast<uint32_t*>(at); };
    return {to + place.slots + stripe * slots_bytes(), word(receiver), word(sender),
            word((sends ? sender : receiver) + kWordBytes)};
  }

 private:
  // Offsets: of the words of its two ends, and of its slots at the receiver.
  struct Place {
    uint64_t at_receiver = 0, at_sender = 0, slots = 0;
  };

  uint64_t slots_bytes() const { return static_cast<uint64_t>(shape_.n_slots) * shape_.slot_bytes; }
  uint64_t take(int rank, uint64_t stripe_bytes) {
    uint64_t& bytes = bytes_[static_cast<size_t>(rank)];
    return std::exchange(bytes, bytes + shape_.n_stripes * stripe_bytes);
  }
  void add(const Schedule& schedule) {
    for (const Lane& lane : schedule.lanes)
      for (const Step& step : lane.steps.patterns())
        if (step.send >= 0) places_[{schedule.rank, step.send, lane.channel}] = {};
  }

  const ProgramShape shape_;
  std::map<LinkName, Place> places_;
  std::vector<uint64_t> bytes_, scratch_;  // by rank: the size of its memory, and where scratch begins there
};

// One rank's schedule, translated into tables.
class Translation {
 public:
  Translation(const Schedule& schedule, size_t n_lanes) : schedule_(schedule) {
    for (const Lane& lane : schedule.lanes) {
      lanes_.push_back({static_cast<uint32_t>(steps_.size()), static_cast<uint32_t>(lane.steps.size())});
      for (const Step& step : lane.steps) translate(step, lane.channel);
    }
    lanes_.resize(n_lanes);
  }

  // The program. `memory`: of all ranks; `base`: where the tables will be.
  Program write(Tables& tables, const LinkLayout& layout, const std::vector<void*>& memory, const char* base) const {
    std::vector<LinkEnd> ends;
    for (uint64_t stripe = 0; stripe < layout.n_stripes(); stripe++)
      for (const auto& [link, sends] : ends_) ends.push_back(layout.end(link, stripe, sends, memory));
    Program program;
    program.lanes = reinterpret_cast<const ProgramLane*>(base + tables.add(lanes_));
    program.steps = reinterpret_cast<const ProgramStep*>(base + tables.add(steps_));
    program.recvs = reinterpret_cast<const int32_t*>(base + tables.add(recvs_));
    program.ends = reinterpret_cast<const LinkEnd*>(base + tables.add(ends));
    program.scratch = static_cast<char*>(memory[static_cast<size_t>(schedule_.rank)]) + layout.scratch(schedule_.rank);
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
  std::vector<std::pair<LinkName, bool>> ends_;  // the link, and whether this rank sends on it
};

size_t most_lanes(const Schedules& schedules) {
  size_t most = 1;
  for (const Schedule& schedule : schedules) most = std::max(most, schedule.lanes.size());
  return most;
}

constexpr Collective kInterpreted[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                       Collective::kBroadcast, Collective::kReduce};

// An operation with a root has one kind for each root.
int kinds_of(Collective collective, int n_ranks) {
  return traits(collective).has_root() ? n_ranks : 1;
}

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

SpreadPrograms::SpreadPrograms(Port& port, std::vector<Schedules> kinds, const ProgramShape& shape)
    : port_(port), kinds_(std::move(kinds)), shape_(shape) {}

SpreadPrograms::~SpreadPrograms() {
  if (tables_ != nullptr) port_.free(tables_);
  for (void* memory : own_) port_.free(memory);
}

size_t SpreadPrograms::bytes(int rank) const {
  return LinkLayout(kinds_, shape_).bytes(rank);
}

// Tables are written twice, first to learn their size, because they contain each other's addresses.
Result<void> SpreadPrograms::load(int rank, const std::vector<void*>& memory, int n) {
  const LinkLayout layout(kinds_, shape_);
  for (const Schedules& schedules : kinds_) {
    ProgramCall& call = calls_.emplace_back();
    call.n_ranks = static_cast<uint32_t>(n);
    call.n_lanes = static_cast<uint32_t>(most_lanes(schedules));
    call.n_stripes = shape_.n_stripes;
    call.n_chunks = std::max(1u, schedules[0].n_chunks);
    call.n_slots = shape_.n_slots;
    call.slot_bytes = shape_.slot_bytes;
  }
  const auto write_all = [&](Tables& tables, const char* base) {
    for (size_t k = 0; k < kinds_.size(); k++) {
      std::vector<Program> programs;
      for (int r = rank; r < rank + n; r++) {
        const Translation translation(kinds_[k][static_cast<size_t>(r)], calls_[k].n_lanes);
        programs.push_back(translation.write(tables, layout, memory, base));
      }
      calls_[k].programs = reinterpret_cast<const Program*>(base + tables.add(programs));
    }
  };
  Tables sizes, tables;
  write_all(sizes, nullptr);
  TUTTI_TRY_ASSIGN(tables_, port_.allocate(sizes.bytes().size() + 1));
  write_all(tables, static_cast<char*>(tables_));
  kinds_.clear();
  const std::string& bytes = tables.bytes();
  return do_now(port_, [&](StreamRef stream) { return port_.copy(tables_, bytes.data(), bytes.size(), stream); });
}

Result<std::unique_ptr<SpreadPrograms>> SpreadPrograms::together(Port& port, const Schedules& schedules,
                                                                 const ProgramShape& shape) {
  auto made = std::make_unique<SpreadPrograms>(port, std::vector<Schedules>{schedules}, shape);
  const auto n_ranks = static_cast<int>(schedules.size());
  for (int r = 0; r < n_ranks; r++) {
    TUTTI_TRY_ASSIGN(void* memory, port.allocate(made->bytes(r) + 1));
    made->own_.push_back(memory);
  }
  TUTTI_TRY(made->load(0, made->own_, n_ranks));
  return made;
}

bool interprets(const Operation& operation, Algo algo) {
  if (algo == Algo::kAuto || operation.unequal != nullptr || operation.op == RedOp::kPreMulSum) return false;
  if (traits(operation.collective).reduces && is_small_float(operation.dtype)) return false;
  const auto found = std::find(std::begin(kInterpreted), std::end(kInterpreted), operation.collective);
  return found != std::end(kInterpreted) && operation.count > 0;
}

Result<ProgramCall> SharedPrograms::find(const Operation& operation, Algo algo) {
  auto& loaded = loaded_[Key{operation.collective, algo, operation.root}];
  if (loaded == nullptr) {
    const Schedules schedules = schedules_of(operation.collective, algo, n_ranks_, operation.root);
    const int n_blocks = static_cast<int>(most_lanes(schedules)) * n_ranks_;
    const int room = multiprocessors_ * kProgramBlocksPerMultiprocessor;
    if (n_blocks > room)
      return Error{Code::kInvalidUsage,
                   format("%s with %d ranks needs %d blocks at once, but this GPU has room for %d: unset TUTTI_ALGO",
                          algo_name(algo), n_ranks_, n_blocks, room)};
    ProgramShape shape;
    shape.n_stripes = static_cast<uint32_t>(std::min(kMostStripes, room / n_blocks));
    TUTTI_TRY_ASSIGN(loaded, SpreadPrograms::together(port_, schedules, shape));
  }
  ProgramCall call = loaded->call();
  describe(operation, n_ranks_, &call);
  return call;
}

std::unique_ptr<SpreadPrograms> spread_programs(Port& port, int n_ranks, int multiprocessors, Algo algo) {
  std::vector<Schedules> kinds;
  for (const Collective collective : kInterpreted)
    for (int root = 0; root < kinds_of(collective, n_ranks); root++)
      kinds.push_back(schedules_of(collective, algo, n_ranks, root));
  size_t n_lanes = 1;
  for (const Schedules& schedules : kinds) n_lanes = std::max(n_lanes, most_lanes(schedules));
  const int room = multiprocessors * kProgramBlocksPerMultiprocessor / static_cast<int>(n_lanes);
  if (room == 0) return nullptr;
  ProgramShape shape;
  shape.n_stripes = static_cast<uint32_t>(std::min(kMostStripes, room));
  return std::make_unique<SpreadPrograms>(port, std::move(kinds), shape);
}

ProgramCall find_program(const SpreadPrograms& programs, const Operation& operation, int n_ranks) {
  int kind = traits(operation.collective).has_root() ? operation.root : 0;
  for (const Collective* other = kInterpreted; *other != operation.collective; other++)
    kind += kinds_of(*other, n_ranks);
  ProgramCall call = programs.call(static_cast<size_t>(kind));
  describe(operation, n_ranks, &call);
  return call;
}

}  // namespace tutti::cuda
