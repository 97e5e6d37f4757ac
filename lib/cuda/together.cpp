#include "cuda/together.h"

#include <algorithm>
#include <optional>

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
        programs_(port, n_ranks, multiprocessors) {}
  ~Launches() {
    for (const EventRef event : events_) port_.destroy_event(event);
  }

  // The first rank to come launches for all; the others learn what became of it.
  Result<void> launch(uint64_t round, const Arrivals& everyone) {
    const std::lock_guard lock(mutex_);
    if (last_round_ < round) {
      last_round_ = round;
      failure_.reset();
      auto launched = launch(everyone);
      if (!launched) failure_ = std::move(launched).error();
    }
    if (failure_) return *failure_;
    return {};
  }

 private:
  Result<void> launch(const Arrivals& everyone) {
    TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
    const StreamRef stream = everyone[0].stream;
    TUTTI_TRY(join_streams(everyone));
    TUTTI_TRY(interprets(everyone[0].operation, algo_) ? launch_program(everyone, stream)
                                                       : launch_jobs(everyone, stream));
    return part_streams(everyone);
  }

  // The streams other than rank 0's, each once.
  static std::vector<StreamRef> other_streams(const Arrivals& everyone) {
    std::vector<StreamRef> others;
    for (const Arrival& a : everyone)
      if (a.stream != everyone[0].stream && std::find(others.begin(), others.end(), a.stream) == others.end())
        others.push_back(a.stream);
    return others;
  }

  Result<void> join_streams(const Arrivals& everyone) {
    const auto others = other_streams(everyone);
    while (events_.size() < others.size() + 1) {
      TUTTI_TRY_ASSIGN(const EventRef event, port_.create_event());
      events_.push_back(event);
    }
    for (size_t i = 0; i < others.size(); i++) {
      TUTTI_TRY(port_.record(events_[i + 1], others[i]));
      TUTTI_TRY(port_.wait(everyone[0].stream, events_[i + 1]));
    }
    return {};
  }

  Result<void> part_streams(const Arrivals& everyone) {
    const auto others = other_streams(everyone);
    if (others.empty()) return {};
    TUTTI_TRY(port_.record(events_[0], everyone[0].stream));
    for (const StreamRef other : others) TUTTI_TRY(port_.wait(other, events_[0]));
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
  std::mutex mutex_;  // all that follows
  uint64_t last_round_ = 0;
  std::optional<Error> failure_;  // of the last round
  SharedPrograms programs_;
  std::vector<EventRef> events_;  // the first for the end
};

class Together final : public Way {
 public:
  Together(Host& host, std::shared_ptr<Meeting> meeting, std::shared_ptr<Launches> launches)
      : n_ranks_(host.n_ranks()), attendee_(std::move(meeting), host.rank()), launches_(std::move(launches)) {}

  const char* name() const override { return "by one kernel for all ranks"; }
  bool takes(const Operation& operation) const override {
    return operation.collective != Collective::kSendRecv && n_ranks_ <= kMaxPlaces;
  }
  Result<bool> meet(const Operation& operation, StreamRef stream) override {
    return attendee_.come(operation, stream, true);
  }
  Result<void> submit(const Operation&, StreamRef) override {
    return launches_->launch(attendee_.round(), attendee_.everyone());
  }

 private:
  const int n_ranks_;
  MeetingAttendee attendee_;
  const std::shared_ptr<Launches> launches_;
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
