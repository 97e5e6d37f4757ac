#include "cuda/together.h"

#include <optional>
#include <set>

#include "cuda/meeting.h"
#include "cuda/programs.h"

namespace tutti::cuda {
namespace {

// The launches of one group.
class Launches {
 public:
  Launches(Port& port, int device, int multiprocessors, int n_ranks, Algo algo)
      : port_(port),
        device_(device),
        multiprocessors_(multiprocessors),
        algo_(algo),
        seats_(static_cast<size_t>(n_ranks)),
        programs_(port, n_ranks, multiprocessors) {}
  ~Launches() {
    for (const Seat& seat : seats_)
      if (seat.come != nullptr) port_.destroy_event(seat.come);
    if (end_ != nullptr) port_.destroy_event(end_);
  }

  // Before a rank comes, in its own thread: what its stream is. A stream that means something else in other threads
  // records its own event.
  Result<void> announce(size_t rank, StreamRef stream) {
    const std::lock_guard lock(mutex_);
    Seat& seat = seats_[rank];
    TUTTI_TRY_ASSIGN(seat.stream_id, port_.id_of(stream));
    seat.is_per_thread = port_.is_per_thread(stream);
    if (!seat.is_per_thread) return {};
    TUTTI_TRY(make_event(&seat.come));
    return port_.record(seat.come, stream);
  }

  // The first rank to come launches for all, on its own stream; the others learn what became of it.
  Result<void> launch(size_t rank, uint64_t round, const Arrivals& everyone) {
    const std::lock_guard lock(mutex_);
    if (last_round_ < round) {
      last_round_ = round;
      failure_.reset();
      launcher_ = rank;
      launch_stream_id_ = seats_[rank].stream_id;
      auto launched = launch(everyone);
      if (!launched) failure_ = std::move(launched).error();
    }
    if (failure_) return *failure_;
    const bool waits = seats_[rank].is_per_thread && seats_[rank].stream_id != launch_stream_id_;
    return waits ? port_.wait(everyone[rank].stream, end_) : Result<void>();
  }

 private:
  struct Seat {
    uint64_t stream_id = 0;
    bool is_per_thread = false;
    EventRef come = nullptr;
  };

  Result<void> launch(const Arrivals& everyone) {
    TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
    const StreamRef stream = everyone[launcher_].stream;
    const auto others = other_ranks();
    for (const size_t rank : others) {
      Seat& seat = seats_[rank];
      TUTTI_TRY(make_event(&seat.come));
      if (!seat.is_per_thread) TUTTI_TRY(port_.record(seat.come, everyone[rank].stream));
      TUTTI_TRY(port_.wait(stream, seat.come));
    }
    TUTTI_TRY(interprets(everyone[0].operation, algo_) ? launch_program(everyone, stream)
                                                       : launch_jobs(everyone, stream));
    if (others.empty()) return {};
    TUTTI_TRY(make_event(&end_));
    TUTTI_TRY(port_.record(end_, stream));
    for (const size_t rank : others)
      if (!seats_[rank].is_per_thread) TUTTI_TRY(port_.wait(everyone[rank].stream, end_));
    return {};
  }

  // One rank of each stream that is not the launching one's.
  std::vector<size_t> other_ranks() const {
    std::vector<size_t> others;
    std::set<uint64_t> streams = {launch_stream_id_};
    for (size_t rank = 0; rank < seats_.size(); rank++)
      if (streams.insert(seats_[rank].stream_id).second) others.push_back(rank);
    return others;
  }

  Result<void> make_event(EventRef* event) {
    if (*event != nullptr) return {};
    TUTTI_TRY_ASSIGN(*event, port_.create_event());
    return {};
  }

  // The schedule that the user wants, instead of one that needs no messages.
  Result<void> launch_program(const Arrivals& everyone, StreamRef stream) {
    TUTTI_TRY_ASSIGN(ProgramCall call, programs_.find(everyone[0].operation, algo_));
    for (size_t r = 0; r < everyone.size(); r++) {
      call.inputs[r] = everyone[r].operation.input;
      call.outputs[r] = everyone[r].operation.output;
    }
    return port_.run(call, stream);
  }

  Result<void> launch_jobs(const Arrivals& everyone, StreamRef stream) {
    const Operation& operation = everyone[0].operation;
    const auto n_ranks = static_cast<int>(everyone.size());
    Launcher launcher(port_, multiprocessors_, operation, stream);
    if (operation.op == RedOp::kPreMulSum && traits(operation.collective).reduces)
      for (int r = 0; r < n_ranks; r++) launcher.scale(r, everyone[static_cast<size_t>(r)].operation);
    for (const Move& move : moves_of(operation, n_ranks))
      TUTTI_TRY(add_move(launcher, everyone, move, {0, move.elems}));
    return launcher.launch();
  }

  Port& port_;
  const int device_, multiprocessors_;
  const Algo algo_;
  std::mutex mutex_;         // all that follows
  std::vector<Seat> seats_;  // by rank
  EventRef end_ = nullptr;
  size_t launcher_ = 0;  // of the last round
  uint64_t launch_stream_id_ = 0;
  uint64_t last_round_ = 0;
  std::optional<Error> failure_;  // of the last round
  SharedPrograms programs_;
};

class Together final : public Way {
 public:
  Together(Host& host, std::shared_ptr<Meeting> meeting, std::shared_ptr<Launches> launches)
      : n_ranks_(host.n_ranks()),
        rank_(host.rank()),
        attendee_(std::move(meeting), host.rank()),
        launches_(std::move(launches)) {}

  const char* name() const override { return "by one kernel for all ranks"; }
  bool takes(const Operation& operation) const override {
    return operation.collective != Collective::kSendRecv && n_ranks_ <= kMaxPlaces;
  }
  Result<bool> meet(const Operation& operation, StreamRef stream) override {
    if (!std::exchange(is_coming_, true)) TUTTI_TRY(launches_->announce(static_cast<size_t>(rank_), stream));
    TUTTI_TRY_ASSIGN(const bool has_met, attendee_.come(operation, stream, true));
    is_coming_ = !has_met;
    return has_met;
  }
  Result<void> submit(const Operation&, StreamRef) override {
    return launches_->launch(static_cast<size_t>(rank_), attendee_.round(), attendee_.everyone());
  }

 private:
  const int n_ranks_, rank_;
  MeetingAttendee attendee_;
  const std::shared_ptr<Launches> launches_;
  bool is_coming_ = false;
};

}  // namespace

std::unique_ptr<Way> make_together(Host& host, Port& port, int device, int multiprocessors, const std::string& name) {
  const int n_ranks = host.n_ranks();
  auto meeting = find_shared<Meeting>(name, [&] { return std::make_shared<Meeting>(n_ranks); });
  auto launches = find_shared<Launches>(
      name, [&] { return std::make_shared<Launches>(port, device, multiprocessors, n_ranks, host.forced_algo()); });
  return std::make_unique<Together>(host, std::move(meeting), std::move(launches));
}

}  // namespace tutti::cuda
