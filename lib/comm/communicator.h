// comm: a rank's membership in a group, from meeting the others to leaving them, and the operations in between.
// Threading: run() and finalize() may be called from several threads; operations are carried out one at a time in the
// order of their tickets (see TicketLock). async_error() and abort() from any thread at any time. The destructor leaves
// the group in an orderly way, without waiting for peers; no other call may be in progress.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/collectives.h"
#include "comm/link_pool.h"
#include "comm/membership.h"
#include "comm/messages.h"
#include "comm/monitor.h"
#include "comm/ticket_lock.h"
#include "cuda/device.h"
#include "exec/operation.h"
#include "group/bootstrap.h"

namespace tutti {

class Communicator final {
 public:
  // `other`: see Bootstrap::join().
  static Result<std::unique_ptr<Communicator>> create(const UniqueId& id, int rank, int n_ranks,
                                                      const CommOptions& options, Deadline deadline,
                                                      const UniqueId* other = nullptr);

  int rank() const { return me_.rank; }
  int n_ranks() const { return me_.n_ranks; }
  const Membership& membership() const { return me_; }
  // What this rank did last, which ranks it waits for, and the state of the group.
  Monitor& monitor() { return monitor_; }

  // Operations run in the order of their tickets, so an asynchronous caller takes the ticket when the user calls.
  // On a GPU communicator this waits for the GPU's pending work, some of which may take tickets.
  uint64_t take_ticket() {
    if (device_ != nullptr) device_->drain();
    return ticket_lock_->take_ticket();
  }
  // Replaces the ticket lock, before the first operation; the new one must outlive this object.
  void queue_at(TicketLock& ticket_lock) { ticket_lock_ = &ticket_lock; }
  Result<void> run(uint64_t ticket, const Operation& operation);
  // A faster run() for a small operation that repeats an earlier one; the caller must be alone. Null: done.
  // &Collectives::kNotRepeated: nothing was done, perhaps because the buffers are invalid. Else why it failed, valid as
  // long as the caller is alone.
  using Repeated = Collectives::Repeated;
  Repeated repeat(const CallKey& key, const void* input, void* output, const void* caller) noexcept {
    return collectives_.repeat(key, input, output, caller);
  }

  // True for a GPU communicator, even while its device is being created or being destroyed beside its own threads.
  bool is_on_gpu() const { return me_.is_on_gpu(); }
  // Null unless on a GPU. If set, operations go there, and the functions above are for host memory.
  cuda::Device* device() const { return device_.get(); }

  // Small messages between some of the ranks, kept apart from those of kSendRecv; they are made in this call's turn.
  // `purpose` is for error messages.
  Result<void> pass_notes(uint64_t ticket, const std::function<std::vector<Message>()>& notes, double timeout_seconds,
                          const std::string& purpose);

  // A new communicator of the surviving ranks without `excluded` (in rising order); only its members call this. Works
  // even if this group is broken. If `excluded` is not empty, all other ranks are needed: it fails when one is lost.
  Result<std::unique_ptr<Communicator>> shrink(uint64_t ticket, const std::vector<int>& excluded,
                                               const CommOptions& options, const Deadline& deadline);

  // Collective: every rank has called this after the same number of operations. `alone`: waits for no other rank.
  Result<void> finalize(uint64_t ticket, bool alone = false);
  void abort(const char* function = "tuttiCommAbort") { monitor_.abort(function); }
  Result<void> async_error() const { return monitor_.async_error(); }
  std::string explain_wait() const;

  // Which algorithm and links such an operation would use now, and why. Waits for the operations called before.
  std::string explain(const Operation& operation);
  // How long it should take now. Waits in the same way.
  double estimate_ns(const Operation& operation);
  // For people: the transport to another rank, and why: "tcp, because shm: it is on another host".
  std::string route(int peer) { return route_to(links_.endpoints(), (*me_.roster)[peer].addresses); }

  // The resources that this rank holds for the group, besides one thread. Any thread.
  struct Holdings {
    size_t links, link_bytes, scratch_bytes, descriptors;
  };
  Holdings holdings() const;

 private:
  Communicator(int rank, int n_ranks, const CommOptions& options) : me_{rank, n_ranks, options} {}
  static Result<std::unique_ptr<Communicator>> create(Rendezvous& rendezvous, const CommOptions& options,
                                                      Deadline deadline);
  Result<void> setup(Rendezvous& rendezvous, Deadline deadline);
  Result<void> check_open();
  friend class GpuHost;

  Membership me_;
  TicketLock own_ticket_lock_;
  TicketLock* ticket_lock_ = &own_ticket_lock_;
  TicketLock shrinks_;  // one at a time, in the order of their tickets
  LinkPool links_{me_};
  Monitor monitor_{me_};
  Collectives collectives_{me_, monitor_, links_};
  Messages messages_{me_, monitor_, links_};
  std::atomic<bool> finalized_ = false;   // atomic: a GPU call reads it before its turn
  std::unique_ptr<cuda::Host> gpu_host_;  // null unless on a GPU
  std::unique_ptr<cuda::Device> device_;  // destroyed before everything that it uses
};

// Before the ticket of a collective on host memory: breaks a GPU communicator where others have called something else.
inline void announce(const Communicator& comm, const Operation& collective) {
  if (comm.device() != nullptr) comm.device()->announce(collective);
}

// Called instead of create() if this rank cannot join: tells the ranks that wait there why. Takes a few seconds at
// most. Returns `why`.
Error report_cannot_join(const UniqueId& id, int rank, int n_ranks, const CommOptions& options,
                         const Deadline& deadline, const Error& why);

// The services of a communicator to its GPU side.
std::unique_ptr<cuda::Host> gpu_host_of(Communicator& comm);

}  // namespace tutti
