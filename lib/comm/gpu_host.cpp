#include "comm/gpu_host.h"

#include "comm/communicator.h"

namespace tutti {

int GpuHost::rank() const {
  return comm_.rank();
}
int GpuHost::n_ranks() const {
  return comm_.n_ranks();
}
int GpuHost::host_of(int rank) const {
  return comm_.me_.host_of(rank);
}
Algo GpuHost::forced_algo() const {
  return comm_.me_.options.deterministic ? Algo::kAuto : comm_.me_.forced;
}
bool GpuHost::broken() {
  return comm_.monitor_.failed();
}
int GpuHost::wake_fd() {
  return comm_.monitor_.watch().wake_fd();
}
Error GpuHost::breakage() {
  return comm_.monitor_.watch().failure();
}
Result<void> GpuHost::check_open() {
  return comm_.check_open();
}
void GpuHost::break_with(const Error& error) {
  comm_.monitor_.watch().fail_also_after_goodbye(error);  // a graph may be launched after tuttiCommFinalize
}
const Recorder& GpuHost::recorder() {
  return comm_.monitor_.recorder();
}
double GpuHost::operation_limit_seconds() {
  return comm_.me_.options.op_timeout_seconds;
}

Result<void> GpuHost::run_on_host(const Operation& operation) {
  return comm_.run(comm_.ticket_lock_->take_ticket(), operation);
}

Result<void> GpuHost::check_direct(const void* memory, size_t bytes) {
  const TicketLock::Turn turn(*comm_.ticket_lock_, comm_.ticket_lock_->take_ticket());
  return comm_.links_.check_delivery(memory, bytes);
}

void GpuHost::forget_direct() {
  const TicketLock::Turn turn(*comm_.ticket_lock_, comm_.ticket_lock_->take_ticket());
  comm_.links_.forget_delivery();
}

Result<void> GpuHost::connect_direct() {
  const TicketLock::Turn turn(*comm_.ticket_lock_, comm_.ticket_lock_->take_ticket());
  return comm_.messages_.connect_gpus();
}

Result<void> GpuHost::move_directly(const Operation& operation, const std::vector<Message>& messages) {
  const TicketLock::Turn turn(*comm_.ticket_lock_, comm_.ticket_lock_->take_ticket());
  TUTTI_TRY(comm_.check_open());
  return comm_.messages_.pass_between_gpus(operation, messages);
}

}  // namespace tutti
