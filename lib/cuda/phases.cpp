#include "cuda/phases.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/log.h"
#include "cuda/arena.h"
#include "cuda/board.h"
#include "cuda/device_group.h"
#include "cuda/launcher.h"
#include "cuda/meeting.h"
#include "cuda/moves.h"
#include "cuda/programs.h"

namespace tutti::cuda {
namespace {

// From here on each rank adds up a part of an all-reduce and the others take it from there, instead of adding up
// everything themselves: less to read, but one more wait.
constexpr uint64_t kTwoShotBytes = 256 << 10;
constexpr size_t kHalfBytes = kArenaDataBytes / 2;

// What kernels are launched with.
struct Gpu {
  Port& port;
  const DeviceInfo& info;
  Arenas& arenas;
};

// Ranks that use one stream, and their calls of one operation.
struct Calls {
  std::vector<int> ranks;
  Arrivals calls;
  StreamRef stream;

  const Operation& first() const { return calls[0].operation; }
  bool have(int rank) const { return rank == kAllRanks || std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }
};

// One operation of these ranks.
class Enqueued {
 public:
  Enqueued(const Gpu& gpu, int n_ranks, const Calls& calls)
      : n_ranks_(n_ranks),
        ours_(calls),
        operation_(calls.first()),
        gpu_(gpu),
        elem_bytes_(dtype_bytes(operation_.dtype)),
        divisor_(divisor_of(operation_, n_ranks_)),
        moves_(moves_of(operation_, n_ranks_)) {
    for (const Arrival& call : calls.calls) moves_of_ours_.push_back(moves_of(call.operation, n_ranks_));
    lay_out();
  }

  Result<void> enqueue() {
    if (operation_.collective == Collective::kBarrier) {
      TUTTI_TRY(meet(kPut));
      return meet(kTaken);
    }
    uint64_t longest = 0;
    for (const Move& move : moves_) longest = std::max(longest, move.elems);
    if (longest == 0) return {};
    for (uint64_t at = 0; at < longest; at += piece_elems_) {
      TUTTI_TRY(enqueue_piece(at));
      half_ = 1 - half_;
    }
    return meet(kTaken);
  }

 private:
  Result<void> meet(int stage) { return gpu_.arenas.meet(stage, ours_.ranks, ours_.stream); }

  // Every rank's input blocks lie in its arena one after the other, a piece of each at a time.
  void lay_out() {
    std::vector<uint64_t> blocks(static_cast<size_t>(n_ranks_), 0);
    for (const Move& move : moves_) {
      auto& places = places_.emplace_back(static_cast<size_t>(n_ranks_), 0);
      for (size_t r = 0; r < blocks.size(); r++)
        if (move.from == kAllRanks || move.from == static_cast<int>(r)) places[r] = blocks[r]++;
    }
    const uint64_t most = std::max<uint64_t>(1, *std::max_element(blocks.begin(), blocks.end()));
    piece_elems_ = kHalfBytes / most / kLineBytes * kLineBytes / elem_bytes_;
  }

  Range piece_of(const Move& move, uint64_t at) const {
    return {at, std::min(piece_elems_, move.elems - std::min(at, move.elems))};
  }

  char* in_arena(int rank, size_t move) const {
    const uint64_t block = places_[move][static_cast<size_t>(rank)];
    return gpu_.arenas.data(rank) + half_ * kHalfBytes + block * piece_elems_ * elem_bytes_;
  }

  // Pieces alternate between the halves of the arenas. A rank that has put the next piece has taken this one before, so
  // the meeting after that put frees this half, and no rank waits for the others to have taken what it has put.
  Result<void> enqueue_piece(uint64_t at) {
    TUTTI_TRY(put(at));
    TUTTI_TRY(meet(half_ == 0 ? kPut : kPutNext));
    const uint64_t elems = piece_of(moves_[0], at).elems;
    const bool two_shot =
        operation_.collective == Collective::kAllReduce && n_ranks_ > 2 && elems * elem_bytes_ >= kTwoShotBytes;
    return two_shot ? sum_and_take(at, elems) : take(at);
  }

  Launcher launcher() const { return {gpu_.port, gpu_.info, operation_, ours_.stream}; }

  Result<void> put(uint64_t at) {
    Launcher jobs = launcher();
    for (size_t i = 0; i < ours_.ranks.size(); i++) {
      const int rank = ours_.ranks[i];
      const Operation& its = ours_.calls[i].operation;
      if (its.op == RedOp::kPreMulSum && traits(its.collective).reduces) {
        TUTTI_TRY(jobs.launch());  // the jobs of other ranks, which are scaled differently
        jobs.scale(0, its);
      }
      for (size_t m = 0; m < moves_.size(); m++) {
        const Move& move = moves_of_ours_[i][m];
        if (move.from != kAllRanks && move.from != rank) continue;
        const Range piece = piece_of(move, at);
        const char* from = static_cast<const char*>(its.input) + (move.from_elem + piece.begin) * elem_bytes_;
        TUTTI_TRY(jobs.add(piece.elems, 0, {from}, {in_arena(rank, m)}));
      }
    }
    return jobs.launch();
  }

  std::vector<const void*> sources(size_t m, uint64_t skipped_elems) const {
    std::vector<const void*> src;
    for (int r = 0; r < n_ranks_; r++)
      if (moves_[m].from == kAllRanks || moves_[m].from == r)
        src.push_back(in_arena(r, m) + skipped_elems * elem_bytes_);
    return src;
  }

  // The outputs of those of our ranks that take move `m`.
  std::vector<void*> outputs(size_t m, uint64_t at) const {
    std::vector<void*> dst;
    for (size_t i = 0; i < ours_.ranks.size(); i++) {
      const Move& move = moves_of_ours_[i][m];
      if (move.to == kAllRanks || move.to == ours_.ranks[i])
        dst.push_back(static_cast<char*>(ours_.calls[i].operation.output) + (move.to_elem + at) * elem_bytes_);
    }
    return dst;
  }

  Result<void> take(uint64_t at) {
    Launcher jobs = launcher();
    for (size_t m = 0; m < moves_.size(); m++) {
      const Move& move = moves_[m];
      if (!ours_.have(move.to)) continue;
      const Range piece = piece_of(move, at);
      TUTTI_TRY(jobs.add(piece.elems, divisor_, sources(m, 0), outputs(m, at)));
    }
    return jobs.launch();
  }

  Result<void> sum_and_take(uint64_t at, uint64_t elems) {
    Launcher sums = launcher();
    for (const int rank : ours_.ranks) {
      const Range its = part_of(rank, n_ranks_, elems, elem_bytes_);
      TUTTI_TRY(sums.add(its.elems, divisor_, sources(0, its.begin), {in_arena(rank, 0) + its.begin * elem_bytes_}));
    }
    TUTTI_TRY(sums.launch());
    TUTTI_TRY(meet(kSummed));
    Launcher copies = launcher();
    for (int k = 0; k < n_ranks_; k++) {
      const int r = (ours_.ranks[0] + k) % n_ranks_;
      const Range part = part_of(r, n_ranks_, elems, elem_bytes_);
      TUTTI_TRY(copies.add(part.elems, 0, {in_arena(r, 0) + part.begin * elem_bytes_}, outputs(0, at + part.begin)));
    }
    return copies.launch();
  }

  const int n_ranks_;
  const Calls& ours_;
  const Operation& operation_;  // the first one's
  const Gpu gpu_;
  const uint64_t elem_bytes_;
  const uint32_t divisor_;
  const std::vector<Move> moves_;
  std::vector<std::vector<Move>> moves_of_ours_;  // each rank has its own places for unequal blocks
  std::vector<std::vector<uint64_t>> places_;     // by move and rank: the block in that rank's arena
  uint64_t piece_elems_ = 0;
  size_t half_ = 0;  // the half of the arenas in which the piece lies
};

// All ranks access all buffers directly, without arenas. A single move touches the same places of every rank's buffers,
// so each rank does its part; of several moves a rank does those to it, or, if these go to all ranks, those from it.
Result<void> enqueue_where_it_lies(const Gpu& gpu, const Arrivals& everyone, const Calls& ours) {
  const Operation& operation = ours.first();
  const auto n_ranks = static_cast<int>(everyone.size());
  const auto moves = moves_of(operation, n_ranks);
  Launcher jobs(gpu.port, gpu.info, operation, ours.stream);
  // A stream that comes late, after another rank has given up and taken its buffers back, must not touch these.
  jobs.stop_at(gpu.arenas.stop_word());
  // All buffers may be read and written from here on, because every stream has reached the operation.
  TUTTI_TRY(gpu.arenas.meet(kPut, ours.ranks, ours.stream));
  for (const Move& move : moves) {
    if (moves.size() == 1) {
      for (const int rank : ours.ranks)
        TUTTI_TRY(add_move(jobs, everyone, move, part_of(rank, n_ranks, move.elems, dtype_bytes(operation.dtype))));
    } else if (ours.have(move.to != kAllRanks ? move.to : move.from)) {
      TUTTI_TRY(add_move(jobs, everyone, move, {0, move.elems}));
    }
  }
  TUTTI_TRY(jobs.launch());
  return gpu.arenas.meet(kTaken, ours.ranks, ours.stream);  // what the others write here has arrived
}

// Memory of a rank that is gone. Others may still have it mapped, or one of their kernels still writes to it unobserved
// (the count of a message that was taken), so it is freed by the rank that notices that all have left.
struct Kept {
  Port* port = nullptr;
  int device = 0;
  void* memory = nullptr;
  std::unique_ptr<Attendee> others;  // null: nobody can tell, so it is leaked
};

// False if some rank may still use it. Checked only once, because the last one may leave at any time.
bool free_if_unused(const Kept& kept) {
  if (kept.others == nullptr || !kept.others->all_have_left()) return false;
  const auto on_device = OnDevice::enter(*kept.port, kept.device);
  if (on_device) kept.port->free(kept.memory);
  return true;
}

// Without memory, only frees. Any thread: the last rank that leaves frees all that the others could not.
void keep(Kept kept) {
  static auto* mutex = new std::mutex;  // never destroyed: other threads may outlive main
  static auto* all = new std::vector<Kept>;
  const std::lock_guard lock(*mutex);
  if (kept.memory != nullptr) all->push_back(std::move(kept));
  std::erase_if(*all, free_if_unused);
}

class Phases final : public Way {
 public:
  // `may_spin`: every rank has a GPU of its own, with room for all blocks of a launch by lines.
  Phases(Host& host, Port& port, const Seat& seat, std::unique_ptr<Arenas> arenas, bool may_spin, uint64_t by_host_most,
         std::unique_ptr<SpreadPrograms> programs, std::unique_ptr<Attendee> others,
         const std::shared_ptr<DeviceGroup>& device_group)
      : host_(host),
        port_(port),
        seat_(seat),
        arenas_(std::move(arenas)),
        may_spin_(may_spin && host.n_ranks() <= kLineRanks),
        by_host_most_(by_host_most),
        programs_(std::move(programs)),
        others_(std::move(others)) {
    if (device_group != nullptr) member_.emplace(device_group, host.rank());
    ranks_ = device_group != nullptr ? device_group->ranks() : std::vector<int>{host.rank()};
  }
  ~Phases() override {
    void* const memory = arenas_->give_up();
    arenas_.reset();
    const bool may_be_used = others_ == nullptr || others_->leave();
    // Within a process only interpreters and failed operations write to others that no longer wait for them. Freeing
    // later makes the last rank to leave wait for this device, where operations of other communicators may wait for it.
    const bool stays = may_be_used || programs_ != nullptr || host_.broken();
    if (memory != nullptr && !stays) port_.free(memory);
    keep({&port_, seat_.device, stays ? memory : nullptr, std::move(others_)});
  }

  const char* name() const override { return "by kernels that read the other ranks' memory"; }
  bool waits_unseen() const override { return true; }
  bool takes(const Operation& operation) const override {
    if (operation.collective == Collective::kSendRecv) return false;
    return by_host_most_ == 0 || data_bytes(operation, host_.n_ranks()) > by_host_most_;
  }
  Attendee* others() override { return others_.get(); }
  Result<bool> meet(const Operation& operation, const Turn& turn) override {
    if (!has_met_others_) {
      TUTTI_TRY_ASSIGN(has_met_others_, meet_others(operation));
    }
    if (!has_met_others_) return false;
    const auto has_met = member_ ? member_->meet(operation, turn) : Result<bool>(true);
    has_met_others_ = has_met && !has_met.value();
    return has_met;
  }
  bool withdraw(const Error& why) override {
    return (others_ == nullptr || others_->withdraw(why)) && (!member_ || member_->withdraw(why));
  }
  Result<void> submit(const Operation& operation, const Turn& turn) override {
    if (interprets(operation)) return interpret(operation, turn.stream);
    if (const int hops = hops_for(operation); hops > 0) return sum_lines(operation, hops, turn.stream);
    const auto enqueue = [&](const Arrivals& calls, StreamRef stream) -> Result<void> {
      const Gpu gpu{port_, seat_.info, *arenas_};
      const Calls ours{ranks_, calls, stream};
      if (lies_in_reach(operation)) return enqueue_where_it_lies(gpu, others_->everyone(), ours);
      return Enqueued(gpu, host_.n_ranks(), ours).enqueue();
    };
    return member_ ? member_->enqueue(enqueue) : enqueue(Arrivals{Arrival{operation}}, turn.stream);
  }
  EventRef end() const override { return member_ ? member_->end() : nullptr; }
  void release() override { arenas_->release_waits(); }

 private:
  Result<bool> meet_others(const Operation& operation) {
    if (others_ == nullptr) return true;
    if (interprets(operation) || !wants_buffers(operation)) return others_->pass(operation);
    return others_->come(operation, others_->board() == nullptr && is_reachable(operation));
  }
  bool lies_in_reach(const Operation& operation) const {
    if (!wants_buffers(operation)) return false;
    const Arrivals& everyone = others_->everyone();
    return std::all_of(everyone.begin(), everyone.end(), [](const Arrival& arrival) { return arrival.is_reachable; });
  }

  // The schedule that the user has forced, where every rank's GPU has room for its blocks.
  bool interprets(const Operation& operation) const {
    return programs_ != nullptr && cuda::interprets(operation, host_.forced_algo());
  }
  Result<void> interpret(const Operation& operation, StreamRef stream) {
    ProgramCall call = find_program(*programs_, operation, host_.n_ranks());
    call.inputs[0] = operation.input;
    call.outputs[0] = operation.output;
    call.abort = arenas_->abort_word();
    return port_.run(call, stream);
  }

  // To use buffers where they lie, ranks need to know each other's, so small operations do without.
  bool wants_buffers(const Operation& operation) const {
    constexpr uint64_t kLeastBytes = 1 << 20;
    if (others_ == nullptr || operation.op == RedOp::kPreMulSum) return false;
    return operation.count * dtype_bytes(operation.dtype) > kLeastBytes;
  }
  bool is_reachable(const Operation& operation) const {
    const Extent extent = extent_of(operation, host_.rank(), host_.n_ranks());
    return (extent.input == 0 || port_.is_reachable(operation.input)) &&
           (extent.output == 0 || port_.is_reachable(operation.output));
  }

  // The hops of an all-reduce by lines; 0 where it goes by phases. A lone rank has nobody to send lines to.
  int hops_for(const Operation& operation) const {
    const uint64_t bytes = operation.count * dtype_bytes(operation.dtype);
    if (!may_spin_ || host_.n_ranks() == 1 || operation.collective != Collective::kAllReduce ||
        operation.op == RedOp::kPreMulSum || bytes == 0 || bytes > kTwoHopBytesMost)
      return 0;
    return bytes <= kOneHopBytesMost ? 1 : 2;
  }

  Result<void> sum_lines(const Operation& operation, int hops, StreamRef stream) {
    LineCall call{};
    call.n_hops = static_cast<int16_t>(hops);
    call.n_ranks = static_cast<int16_t>(host_.n_ranks());
    call.rank = static_cast<int16_t>(host_.rank());
    for (int r = 0; r < host_.n_ranks(); r++) call.rooms[r] = arenas_->lines(r, hops);
    call.epochs = arenas_->epochs(hops);
    call.input = operation.input;
    call.output = operation.output;
    call.abort = arenas_->abort_word();
    call.elems = static_cast<uint32_t>(operation.count);
    call.divisor = divisor_of(operation, host_.n_ranks());
    call.dtype = operation.dtype;
    call.op = operation.op;
    return port_.run(call, stream);
  }

  Host& host_;
  Port& port_;
  const Seat seat_;
  std::unique_ptr<Arenas> arenas_;
  const bool may_spin_;
  const uint64_t by_host_most_;  // operations of up to this many bytes are faster through host memory
  const std::unique_ptr<SpreadPrograms> programs_;
  std::unique_ptr<Attendee> others_;  // null: nobody learns what the others call
  bool has_met_others_ = false;       // for the current operation
  std::optional<DeviceGroupMember> member_;
  std::vector<int> ranks_;  // those for which one enqueues; this one alone if it shares no GPU
};

// Whether every rank's kernel can run, with all its blocks at once, whatever the others' kernels do.
bool may_wait_in_kernels(const std::vector<Seat>& seats) {
  for (const Seat& seat : seats)
    if (seat.info.multiprocessors < kLineMultiprocessors) return false;
  for (size_t a = 0; a < seats.size(); a++)
    for (size_t b = 0; b < a; b++)
      if (seats[a].is_on_gpu_of(seats[b])) return false;
  return true;
}

// Up to which size processes that share a GPU are faster through the host; 0: never. By phases, an operation takes each
// process one turn on the GPU per phase; through the host, it takes what its bytes take (H100, 2 processes: 305 us, or
// 25 us and 0.29 us a KiB; 4: 905 to 1360 us, or 40 us and 0.42 us a KiB; 8: 2215 to 3550 us, or 90 us and 0.6 us a
// KiB). 0 if threads share a GPU as well, because what goes through the host could then not be captured.
uint64_t by_host_most(const std::vector<Seat>& seats) {
  uint64_t most = 0;
  for (const Seat& one : seats) {
    uint64_t n = 0;
    for (const Seat& other : seats) {
      n += one.is_on_gpu_of(other);
      if (&one != &other && one.shares_gpu_with(other)) return 0;
    }
    most = std::max(most, n);
  }
  return most > 1 ? (most - 1) * (768 << 10) : 0;
}

// Without a board operations work, but are not checked.
Result<std::unique_ptr<Attendee>> acquaint(Host& host, Port& port, const std::vector<Seat>& seats,
                                           const std::string& name) {
  if (are_in_one_process(seats)) {
    std::vector<int> ranks(seats.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    auto meeting = find_shared<Meeting>(name, [&] { return std::make_shared<Meeting>(ranks); });
    return std::unique_ptr<Attendee>(std::make_unique<MeetingAttendee>(std::move(meeting), host.rank()));
  }
  std::string why;
  TUTTI_TRY_ASSIGN(std::unique_ptr<Attendee> board, Board::create(host, port, seats, &why));
  if (board == nullptr)
    log(LogLevel::kWarn, "CUDA: mismatched calls will not be noticed, and registering memory has no effect: %s",
        why.c_str());
  return board;
}

// Why these ranks cannot take this way, the same on all ranks. Asked before they allocate memory and make programs, of
// which large groups have very many.
std::string obstacle(const std::vector<Seat>& seats) {
  for (size_t r = 0; r < seats.size(); r++)
    if (seats[r].host != seats[0].host) return format("rank %zu is on another host than rank 0", r);
  return seats.size() > kMaxPlaces ? format("there are more than %d ranks", kMaxPlaces) : "";
}

}  // namespace

Result<std::unique_ptr<Way>> make_phases(Host& host, Port& port, const std::vector<Seat>& seats,
                                         const std::shared_ptr<DeviceGroup>& device_group, const std::string& name,
                                         std::string* why) {
  *why = obstacle(seats);
  if (!why->empty()) return std::unique_ptr<Way>();
  const bool may_spin = may_wait_in_kernels(seats);
  std::unique_ptr<SpreadPrograms> programs;
  if (may_spin && host.forced_algo() != Algo::kAuto) {
    const auto has_less = [](const Seat& a, const Seat& b) { return a.info.multiprocessors < b.info.multiprocessors; };
    const int least = std::min_element(seats.begin(), seats.end(), has_less)->info.multiprocessors;
    programs = spread_programs(port, host.n_ranks(), least, host.forced_algo());
  }
  const size_t program_bytes = programs == nullptr ? 0 : programs->bytes(host.rank());
  TUTTI_TRY_ASSIGN(auto arenas, Arenas::create(host, port, seats, program_bytes, why));
  if (arenas == nullptr) return std::unique_ptr<Way>();
  if (programs != nullptr) {
    std::vector<void*> memory;
    for (int r = 0; r < host.n_ranks(); r++) memory.push_back(arenas->more(r));
    TUTTI_TRY(programs->load(host.rank(), memory));
  }
  TUTTI_TRY_ASSIGN(auto others, acquaint(host, port, seats, name));
  return std::unique_ptr<Way>(new Phases(host, port, seats[static_cast<size_t>(host.rank())], std::move(arenas),
                                         may_spin, by_host_most(seats), std::move(programs), std::move(others),
                                         device_group));
}

}  // namespace tutti::cuda
