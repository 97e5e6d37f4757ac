#include "comm/communicator.h"

#include "base/log.h"
#include "kernels/kernels.h"

namespace tutti {

Error report_cannot_join(const UniqueId& id, int rank, int n_ranks, const CommOptions& options,
                         const Deadline& deadline, const Error& why) {
  constexpr double kLimitSeconds = 5;
  auto bootstrap = Bootstrap::join(id, rank, n_ranks, deadline.within_seconds(kLimitSeconds), options.encrypt);
  if (bootstrap) (void)bootstrap.value().conclude(why);
  return why;
}

Result<std::unique_ptr<Communicator>> Communicator::create(const UniqueId& id, int rank, int n_ranks,
                                                           const CommOptions& options, Deadline deadline,
                                                           const UniqueId* other) {
  log_set_thread_rank(rank);
  TUTTI_TRY_ASSIGN(Bootstrap bootstrap, Bootstrap::join(id, rank, n_ranks, deadline, options.encrypt, other));
  return create(bootstrap, options, deadline);
}

Result<std::unique_ptr<Communicator>> Communicator::create(Rendezvous& rendezvous, const CommOptions& options,
                                                           Deadline deadline) {
  log_set_thread_rank(rendezvous.rank());
  std::unique_ptr<Communicator> comm(new Communicator(rendezvous.rank(), rendezvous.n_ranks(), options));
  // No rank starts before all are connected; if one fails, all are told why.
  const auto set_up = [&] { return comm->setup(rendezvous, deadline); };
  TUTTI_TRY(rendezvous.conclude(contained(set_up)));
  log(LogLevel::kInfo, "communicator of %d ranks is ready: kernels %s, %s", comm->n_ranks(), kernels().isa,
      comm->me_.shares_cpus ? "more ranks than CPUs here" : "a CPU for every rank here");
  comm->monitor_.start_metrics(comm->links_);
  if (!comm->is_on_gpu()) return comm;
  comm->gpu_host_ = gpu_host_of(*comm);
  comm->monitor_.begun().limit = deadline;
  const auto on_gpu = contained([&]() -> Result<void> {
    TUTTI_TRY_ASSIGN(comm->device_, cuda::Device::create(*comm->gpu_host_, options.cuda_device));
    return {};
  });
  comm->monitor_.begun().limit = Deadline::never();
  if (!on_gpu) return comm->monitor_.end_with(on_gpu.error());
  return comm;
}

Result<void> Communicator::check_open() {
  TUTTI_TRY(monitor_.check_alive());
  if (finalized_)
    return Error{Code::kInvalidUsage,
                 "this communicator was finalized: only tuttiCommDestroy and tuttiCommAbort may follow"};
  return {};
}

Result<void> Communicator::run(uint64_t ticket, const Operation& operation) {
  const TicketLock::Turn turn(*ticket_lock_, ticket);
  TUTTI_TRY(check_open());
  return carry_out(monitor_, [&] {
    if (operation.collective == Collective::kSendRecv) return messages_.run(operation);
    if (operation.collective == Collective::kAllReduceQuantized)
      return messages_.sum_quantised(operation, collectives_);
    return collectives_.run(operation);
  });
}

Result<void> Communicator::pass_notes(uint64_t ticket, const std::function<std::vector<Message>()>& notes,
                                      double timeout_seconds, const std::string& purpose) {
  const TicketLock::Turn turn(*ticket_lock_, ticket);
  TUTTI_TRY(check_open());
  return carry_out(monitor_, [&] { return messages_.pass_notes(notes(), timeout_seconds, purpose); });
}

Result<void> Communicator::finalize(uint64_t ticket, bool alone) {
  const TicketLock::Turn turn(*ticket_lock_, ticket);
  if (finalized_) return async_error();  // the first call's result
  const Operation operation{.collective = Collective::kFinalize, .caller = caller_or_place(nullptr)};
  TUTTI_TRY(monitor_.check_alive());
  auto result = alone ? Result<void>() : carry_out(monitor_, [&] { return collectives_.run(operation); });
  finalized_ = true;
  links_.count_resent();
  if (result) monitor_.leave();
  collectives_.forget_operations();
  return result;
}

double Communicator::estimate_ns(const Operation& operation) {
  const TicketLock::Turn turn(*ticket_lock_, take_ticket());
  if (operation.collective == Collective::kSendRecv) {
    std::vector<Planner::Transfer> transfers;
    for (const Message& m : *operation.messages) transfers.push_back({m.peer, m.sends, m.count * dtype_bytes(m.dtype)});
    return me_.planner->estimate_ns(transfers);
  }
  return me_.planner->estimate_ns(to_call(operation), collectives_.planned_bytes(operation));
}

std::string Communicator::explain(const Operation& operation) {
  const TicketLock::Turn turn(*ticket_lock_, take_ticket());
  const std::string text = collectives_.explain(to_call(operation));
  return device_ == nullptr ? text : device_->explain(operation) + text;
}

std::string Communicator::explain_wait() const {
  if (device_ != nullptr)
    if (const auto on_gpu = device_->explain_wait()) return *on_gpu;
  return monitor_.explain_wait();
}

Communicator::Holdings Communicator::holdings() const {
  return {links_.links(), links_.link_bytes(), collectives_.scratch_bytes() + messages_.scratch_bytes(),
          links_.descriptors() + monitor_.watch().descriptors()};
}

}  // namespace tutti
