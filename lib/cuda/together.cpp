#include "cuda/together.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <optional>

#include "cuda/launcher.h"
#include "cuda/moves.h"
#include "cuda/programs.h"
#include "debug/call.h"

namespace tutti::cuda {
namespace {

struct Arrival {
  Operation operation;
  StreamRef stream = nullptr;
};

// What the ranks of one group share.
class Meeting {
 public:
  Meeting(Port& port, int device, int multiprocessors, int n_ranks, Algo algo)
      : port_(port),
        device_(device),
        multiprocessors_(multiprocessors),
        n_ranks_(static_cast<size_t>(n_ranks)),
        algo_(algo),
        programs_(port, n_ranks, multiprocessors) {}
  ~Meeting() {
    for (const EventRef event : events_) port_.destroy_event(event);
  }

  // The rank's next operation. The last rank to come launches for all.
  void arrive(int rank, uint64_t round, const Operation& operation, StreamRef stream) {
    const std::lock_guard lock(mutex_);
    Round& r = rounds_[round];
    r.arrivals.resize(n_ranks_);
    r.arrivals[static_cast<size_t>(rank)] = Arrival{operation, stream};
    if (++r.arrived < n_ranks_) return;
    auto result = launch(r.arrivals);
    if (!result) r.failure = std::move(result).error();
    r.launched = true;
    changed_.notify_all();
  }

  // Until the launch was made, or the group is broken.
  Result<void> wait(uint64_t round, Host& host) {
    std::unique_lock lock(mutex_);
    while (!rounds_[round].launched) {
      if (host.broken()) return host.breakage();
      changed_.wait_for(lock, std::chrono::milliseconds(50));  // to see whether the group is broken
    }
    Round& r = rounds_[round];
    const std::optional<Error> failure = r.failure;
    if (++r.left == n_ranks_) rounds_.erase(round);
    if (failure) return *failure;
    return {};
  }

 private:
  struct Round {
    std::vector<Arrival> arrivals;
    size_t arrived = 0, left = 0;
    bool launched = false;
    std::optional<Error> failure;
  };

  Result<void> check_alike(const std::vector<Arrival>& arrivals) const {
    const Call first = to_call(arrivals[0].operation);
    for (size_t r = 1; r < arrivals.size(); r++) {
      const Call other = to_call(arrivals[r].operation);
      if (other == first) continue;
      return Error{Code::kInvalidUsage,
                   format("ranks called different operations: rank 0 %s, rank %zu %s; all ranks have to call the same "
                          "ones in the same order",
                          to_text(first).c_str(), r, to_text(other).c_str()),
                   static_cast<int>(r)};
    }
    return {};
  }

  Result<void> launch(const std::vector<Arrival>& arrivals) {
    TUTTI_TRY(check_alike(arrivals));
    TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
    const StreamRef stream = arrivals[0].stream;
    TUTTI_TRY(join_streams(arrivals));
    const bool interprets = Programs::takes(arrivals[0].operation, algo_);
    TUTTI_TRY(interprets ? launch_program(arrivals, stream) : launch_jobs(arrivals, stream));
    return part_streams(arrivals);
  }

  // The streams other than rank 0's, each once.
  std::vector<StreamRef> other_streams(const std::vector<Arrival>& arrivals) const {
    std::vector<StreamRef> others;
    for (const Arrival& a : arrivals)
      if (a.stream != arrivals[0].stream && std::find(others.begin(), others.end(), a.stream) == others.end())
        others.push_back(a.stream);
    return others;
  }

  Result<void> join_streams(const std::vector<Arrival>& arrivals) {
    const auto others = other_streams(arrivals);
    while (events_.size() < others.size() + 1) {
      TUTTI_TRY_ASSIGN(const EventRef event, port_.create_event());
      events_.push_back(event);
    }
    for (size_t i = 0; i < others.size(); i++) {
      TUTTI_TRY(port_.record(events_[i + 1], others[i]));
      TUTTI_TRY(port_.wait(arrivals[0].stream, events_[i + 1]));
    }
    return {};
  }

  Result<void> part_streams(const std::vector<Arrival>& arrivals) {
    const auto others = other_streams(arrivals);
    if (others.empty()) return {};
    TUTTI_TRY(port_.record(events_[0], arrivals[0].stream));
    for (const StreamRef other : others) TUTTI_TRY(port_.wait(other, events_[0]));
    return {};
  }

  // The schedule that the user wants, instead of one that needs no messages.
  Result<void> launch_program(const std::vector<Arrival>& arrivals, StreamRef stream) {
    TUTTI_TRY_ASSIGN(ProgramCall call, programs_.find(arrivals[0].operation, algo_));
    for (size_t r = 0; r < n_ranks_; r++) {
      call.inputs[r] = arrivals[r].operation.input;
      call.outputs[r] = arrivals[r].operation.output;
    }
    return port_.run(call, stream);
  }

  Result<void> launch_jobs(const std::vector<Arrival>& arrivals, StreamRef stream) {
    const Operation& operation = arrivals[0].operation;
    const int n_ranks = static_cast<int>(n_ranks_);
    Launcher launcher(port_, multiprocessors_, operation, stream);
    if (operation.op == RedOp::kPreMulSum && traits(operation.collective).reduces)
      for (int r = 0; r < n_ranks; r++) launcher.scale(r, arrivals[static_cast<size_t>(r)].operation);
    const size_t elem_bytes = dtype_bytes(operation.dtype);
    std::vector<const void*> src;
    std::vector<void*> dst;
    for (const Move& move : moves_of(operation, n_ranks)) {
      src.clear();
      dst.clear();
      for (int r = 0; r < n_ranks; r++) {
        const Operation& its = arrivals[static_cast<size_t>(r)].operation;
        if (move.from == kAllRanks || move.from == r)
          src.push_back(static_cast<const char*>(its.input) + move.from_elem * elem_bytes);
        if (move.to == kAllRanks || move.to == r)
          dst.push_back(static_cast<char*>(its.output) + move.to_elem * elem_bytes);
      }
      const bool divides = operation.op == RedOp::kAvg && traits(operation.collective).reduces;
      TUTTI_TRY(launcher.add(move.elems, divides ? static_cast<uint32_t>(n_ranks) : 0, src, dst));
    }
    return launcher.launch();
  }

  Port& port_;
  const int device_, multiprocessors_;
  const size_t n_ranks_;
  const Algo algo_;
  std::mutex mutex_;  // all that follows
  Programs programs_;
  std::condition_variable changed_;
  std::map<uint64_t, Round> rounds_;
  std::vector<EventRef> events_;  // the first for the end
};

class Together final : public Way {
 public:
  Together(Host& host, std::shared_ptr<Meeting> meeting) : host_(host), meeting_(std::move(meeting)) {}

  bool takes(const Operation& operation) const override {
    return operation.collective != Collective::kSendRecv && host_.n_ranks() <= kMaxPlaces;
  }
  Result<void> submit(const Operation& operation, StreamRef stream) override {
    meeting_->arrive(host_.rank(), ++round_, operation, stream);
    return {};
  }
  Result<bool> settle() override {
    const std::lock_guard lock(settling_);
    while (settled_ < round_) TUTTI_TRY(meeting_->wait(++settled_, host_));
    return true;
  }

 private:
  Host& host_;
  std::shared_ptr<Meeting> meeting_;
  std::atomic<uint64_t> round_{0};
  std::mutex settling_;
  uint64_t settled_ = 0;
};

// The meetings that are held, by name.
std::shared_ptr<Meeting> find_meeting(const std::string& name, Port& port, int device, int multiprocessors, int n_ranks,
                                      Algo algo) {
  static auto* mutex = new std::mutex;  // never destroyed: other threads may outlive main
  static auto* meetings = new std::map<std::string, std::weak_ptr<Meeting>>;
  const std::lock_guard lock(*mutex);
  std::erase_if(*meetings, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Meeting> meeting = (*meetings)[name].lock();
  if (meeting == nullptr)
    (*meetings)[name] = meeting = std::make_shared<Meeting>(port, device, multiprocessors, n_ranks, algo);
  return meeting;
}

}  // namespace

std::unique_ptr<Way> make_together(Host& host, Port& port, int device, int multiprocessors, const std::string& name) {
  return std::make_unique<Together>(
      host, find_meeting(name, port, device, multiprocessors, host.n_ranks(), host.forced_algo()));
}

}  // namespace tutti::cuda
