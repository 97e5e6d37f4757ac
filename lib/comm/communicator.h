// comm: a rank's membership in a group, from meeting the others to leaving them, and the operations in between.
// Threading: run() and finalize() may be called from several threads; operations are carried out one at a time in the
// order of their tickets (see Turnstile). async_error() and abort() from any thread at any time. The destructor leaves
// the group in good order, without waiting for peers; no other call may be under way.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "base/result.h"
#include "comm/comparison.h"
#include "comm/inquiry.h"
#include "comm/link_pool.h"
#include "comm/metrics.h"
#include "comm/turnstile.h"
#include "cuda/device.h"
#include "debug/lateness.h"
#include "debug/recorder.h"
#include "exec/buffers.h"
#include "exec/operation.h"
#include "exec/wait.h"
#include "group/bootstrap.h"
#include "group/peers.h"
#include "plan/planner.h"
#include "topology/machine.h"

namespace tutti {

struct CommOptions {
  double init_timeout_seconds = 60;
  double op_timeout_seconds = 1800;
  std::string transports;
  std::string algo;
  std::string trace_file, metrics_file;
  bool lends = true;
  bool deterministic = false;
  bool majority = false;
  bool encrypt = false;
  int cuda_device = -1;  // of this rank's buffers; -1: they are in host memory

  static Result<CommOptions> from_env();
};

class Communicator final : private WaitContext, private cuda::Host {
 public:
  static Result<std::unique_ptr<Communicator>> create(const UniqueId& id, int rank, int n_ranks,
                                                      const CommOptions& options, Deadline deadline);
  ~Communicator() override;

  int rank() const override { return rank_; }
  int n_ranks() const override { return n_ranks_; }
  const CommOptions& options() const { return options_; }

  // Operations run in the order of their tickets, so an asynchronous caller takes the ticket when the user calls.
  // On a GPU's communicator that waits for what the GPU has yet to do, some of which may take tickets.
  uint64_t take_ticket() {
    if (device_ != nullptr) device_->drain();
    return turnstile_->take_ticket();
  }
  // Where to queue from now on, before the first operation; it outlives this.
  void queue_at(Turnstile& turnstile) { turnstile_ = &turnstile; }
  Result<void> run(uint64_t ticket, const Operation& operation);
  // The same in fewer instructions, for a small operation that repeats an earlier one, by the only caller.
  // kNo: nothing was done, perhaps because something is wrong with the buffers; kFailed: async_error() has the reason.
  enum class Repeated { kNo, kYes, kFailed };
  Repeated repeat(const CallKey& key, const void* input, void* output, const void* caller) noexcept;

  // Of a communicator on a GPU: its operations go there, and the functions above are for those on memory of the host.
  cuda::Device* device() const { return device_.get(); }

  // Small messages between some of the ranks, for `purpose`: they do not mix with those of kSendRecv.
  Result<void> pass_notes(uint64_t ticket, const std::vector<Message>& notes, double timeout_seconds,
                          const std::string& purpose);

  // A new communicator of the ranks that are left, without those in `excluded`, which is in rising order; only they
  // call this. Works also when this group is broken. Who excludes any needs all the others: it fails when one is lost.
  Result<std::unique_ptr<Communicator>> shrink(uint64_t ticket, const std::vector<int>& excluded,
                                               const CommOptions& options, const Deadline& deadline);

  // Collective: all ranks have come here and called the same number of operations.
  Result<void> finalize(uint64_t ticket);
  Result<void> finalize() { return finalize(take_ticket()); }
  void abort(const char* function = "tuttiCommAbort");
  void fail(const Error& error) { watch_->fail(error); }  // for all ranks
  Result<void> async_error() const;
  // The same, after a moment if need be: a broken connection often is the echo of something else, which the control
  // connections are about to tell.
  Result<void> failure_soon() const;

  // What this rank did last, and one sentence for whom it waits. From any thread, at any time.
  const Recorder& recorder() const { return recorder_; }
  Result<void> dump_trace(const std::string& path) const;
  static Result<void> dump_traces(const std::string& path);  // of all that this process has
  std::string explain_wait() const;
  // Of this rank, or another one of this host, in the operations that the recorders hold.
  RollCall::Rank lateness(int rank) const;

  std::vector<int> lost() const { return watch_->lost(); }  // ranks that died, as far as is known

  // What an operation of this kind takes now, and why. Waits for the operations that were called before.
  std::string explain(Collective collective, uint64_t count, DataType dtype, RedOp op);

  // How long it should take now. Waits likewise.
  double estimate_ns(const Operation& operation);

  // What this rank holds for the group, besides one thread. From any thread.
  struct Holdings {
    size_t links, link_bytes, scratch_bytes, descriptors;
  };
  Holdings holdings() const;

  // For people: how the ranks stand, where this one looked for its place, and through what it reaches another and why:
  // "tcp, because shm: it is on another host".
  const Layout& layout() const { return planner_->layout(); }
  const Machine& machine() const { return *machine_; }
  std::string route(int peer) { return links_->route(peer); }

 private:
  using ProgramKey = std::tuple<Collective, Algo, uint8_t, int>;  // lanes, root
  // Connected from the start, so that ranks can always agree.
  static constexpr Plan kTreePlan{Algo::kTree, kMostLanes}, kRingPlan{Algo::kRing, kMostLanes};
  static constexpr ProgramKey key_of(Plan plan) { return {Collective::kAllReduce, plan.algo, plan.lanes, 0}; }

  Communicator(int rank, int n_ranks, const CommOptions& options, Algo forced);
  static Result<std::unique_ptr<Communicator>> create(Meeting& meeting, const CommOptions& options, Deadline deadline);
  Result<void> setup(Meeting& meeting, Deadline deadline);
  Result<void> meet(Meeting& meeting, std::vector<std::string> blobs, std::vector<Fd> control_fds, PriceList prices,
                    Deadline deadline);
  size_t descriptors_for_rank(int rank) const;
  size_t descriptors_for(const std::vector<int>& ranks_of_process, uint64_t group) const;
  Result<void> check_room(const std::vector<int>& ranks_of_process, size_t n_doors, uint64_t group) const;
  Result<void> add_program(const ProgramKey& key, Deadline deadline, const std::function<bool()>& gives_up = {});
  void keep_program(const ProgramKey& key, Program program);
  Result<Program*> find_program(const Call& call);

  Result<void> execute(const Operation& operation);
  struct Settled;
  Settled& place_of(const CallKey& key);
  void begin(Settled& settled, const void* caller, uint64_t created);
  [[gnu::noinline]] Repeated finish(Settled& settled, const void* input, void* output) noexcept;
  uint64_t planned_bytes(const Operation& operation) const;
  // Apart from execute(), whose usual way should save and check nothing for this one.
  [[gnu::noinline]] Result<void> settle(const Operation& operation);
  SmallRun::Turns turns() const {
    return wait_policy_.oversubscribed ? SmallRun::Turns{kYields, true} : SmallRun::Turns{kSpins, false};
  }
  Result<void> check_open();
  void keep_trace(const Error& reason);
  Result<void> drive_exchange(const Operation& operation);
  // All-reduce whose messages are quantised: every rank sums some blocks of all, and hands the sums to everybody.
  Result<void> drive_quantised(const Operation& operation);
  Result<void> pass_quantised(const Call& call, const std::vector<Message>& messages);
  struct Exchange;
  Result<void> drive_transfers(const Exchange& exchange, uint32_t first_channel, double timeout_seconds,
                               const Call* on_device);
  Result<void> make_links(Run& run, const Schedule& schedule, Deadline deadline, bool on_device);
  Call next_call(const Message& message);
  static Call to_recorded(const std::vector<Message>& messages);
  Result<void> end_with(Result<void> result);
  Result<void> drive_program(Program& program, const Call& call, const Operation& operation, size_t steps_done = 0);
  Result<void> has_driven(const Run& run, Result<void> result);
  Error root_cause(Error error);
  bool interrupted() override { return watch_->failed(); }
  Error interruption() override { return watch_->failure(); }
  int wake_fd() override { return watch_->wake_fd(); }
  const std::vector<Link*>& incoming() override { return links_->incoming(); }
  // For the GPU's side.
  int host_of(int rank) const override;
  Algo forced_algo() const override { return options_.deterministic ? Algo::kAuto : forced_; }
  Result<void> run_on_host(const Operation& operation) override { return run(turnstile_->take_ticket(), operation); }
  Result<void> check_direct(const void* memory, size_t bytes) override;
  void forget_direct() override;
  Result<void> connect_direct() override;
  Result<void> move_directly(const Operation& operation, const std::vector<Message>& messages) override;
  bool broken() override { return watch_->failed(); }
  Error breakage() override { return watch_->failure(); }
  void break_with(const Error& error) override { fail(error); }

  void housekeeping() override { links_->keep_up(); }
  Result<void> check_stalled(int64_t idle_ns) override;
  std::string why_waiting() override { return explain_wait(); }
  Error with_places(Error error) const;
  Standing standing(Standing::Doing doing) const;
  Standing stalled(int64_t idle_ns) const;

  const int rank_;
  const int n_ranks_;
  const CommOptions options_;
  const Algo forced_;
  std::shared_ptr<const Machine> machine_;  // as it was when this rank took its place
  std::optional<Planner> planner_;          // from the time on when all seats are known
  WaitPolicy wait_policy_;
  uint64_t stream_from_bytes_ = UINT64_MAX;
  MessageSizes sizes_;

  size_t descriptors_before_ = 0;  // of this process, when no rank of the group had connected

  Turnstile own_turnstile_;
  Turnstile* turnstile_ = &own_turnstile_;
  Turnstile reunions_;  // one at a time, in the order of their tickets
  std::unique_ptr<LinkPool> links_;
  Recorder recorder_;
  Comparison comparison_{rank_, n_ranks_, recorder_};
  Inquiry inquiry_{rank_, n_ranks_, recorder_};
  std::unique_ptr<PeerWatch> watch_;
  std::map<ProgramKey, Program> programs_;
  // What was worked out for operations that may come again, as in loops: each has one place where it may be.
  struct alignas(64) Settled {
    CallKey key;
    bool repeats = false;  // one is here, for others like it
    Program* program = nullptr;
    Call call;
    TagWords recorded;  // the call
    Buffers buffers;
    SmallRun small;
    bool is_for(const CallKey& other) const { return repeats && key == other; }
  };
  std::array<Settled, 64> settled_;
  std::atomic<size_t> scratch_bytes_{0};  // of programs_
  uint64_t sequence_ = 0;
  std::map<int, uint64_t> sent_to_, received_from_;  // point-to-point messages by peer
  std::vector<char> quantised_, sums_;               // of drive_quantised(), kept for the next one
  bool has_quantised_ = false;                       // so all ranks have agreed to
  uint64_t exchanges_ = 0;                           // in so many operations
  // What this rank is in, for check_stalled().
  Standing::Doing doing_ = Standing::Doing::kOther;
  const Exchange* passing_ = nullptr;
  const Run* driven_ = nullptr;
  int64_t next_look_ns_ = 0;  // of being idle
  bool finalized_ = false;
  std::unique_ptr<Metrics> metrics_;  // if somebody wants to know

  std::unique_ptr<cuda::Device> device_;  // ends before all that it stands on
};

}  // namespace tutti
