#include "comm/communicator.h"

namespace tutti {

// The services of a communicator to its GPU side. Any thread: calls that use links wait for their turn.
class GpuHost final : public cuda::Host {
 public:
  explicit GpuHost(Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int n_ranks() const override { return comm_.n_ranks(); }
  int host_of(int rank) const override { return comm_.me_.layout().host_of(rank); }
  Algo forced_algo() const override { return comm_.me_.options.deterministic ? Algo::kAuto : comm_.me_.options.algo; }
  bool broken() override { return comm_.monitor_.failed(); }
  int wake_fd() override { return comm_.monitor_.watch().ending().wake_fd(); }
  Error breakage() override { return comm_.monitor_.watch().ending().failure(); }
  bool has_left(int rank) override { return comm_.monitor_.watch().departed(rank).has_value(); }
  Result<void> check_open() override { return comm_.check_open(); }
  void break_with(const Error& error) override {
    comm_.monitor_.watch().ending().fail_also_after_goodbye(error);  // a graph may be launched after tuttiCommFinalize
  }
  const Recorder& recorder() override { return comm_.monitor_.recorder(); }
  double operation_limit_seconds() override { return comm_.me_.options.op_timeout_seconds; }

  Result<void> run_on_host(const Operation& operation) override { return comm_.run(take_ticket(), operation); }
  Result<void> check_direct(const void* memory, size_t bytes) override {
    const TicketLock::Turn turn(*comm_.ticket_lock_, take_ticket());
    return check_delivery(comm_.links_.endpoints(), comm_.me_, memory, bytes);
  }
  void forget_direct() override {
    const TicketLock::Turn turn(*comm_.ticket_lock_, take_ticket());
    for (Endpoint& endpoint : comm_.links_.endpoints())  // drop what they kept of ended registrations
      if (endpoint.delivers()) (void)endpoint.registers(nullptr, 0);
  }
  Result<void> connect_direct() override {
    const TicketLock::Turn turn(*comm_.ticket_lock_, take_ticket());
    return carry_out(comm_.monitor_, [&] { return comm_.messages_.connect_gpus(); });
  }
  Result<void> move_directly(const Operation& operation, const std::vector<Message>& messages) override {
    const TicketLock::Turn turn(*comm_.ticket_lock_, take_ticket());
    TUTTI_TRY(comm_.check_open());
    return carry_out(comm_.monitor_, [&] { return comm_.messages_.pass_between_gpus(operation, messages); });
  }

 private:
  uint64_t take_ticket() { return comm_.ticket_lock_->take_ticket(); }

  Communicator& comm_;
};

std::unique_ptr<cuda::Host> gpu_host_of(Communicator& comm) {
  return std::make_unique<GpuHost>(comm);
}

}  // namespace tutti
