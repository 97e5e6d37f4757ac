// comm: a rank's membership in a group, from meeting the others to leaving them, and the operations in between.
// Threading: run() and finalize() may be called from several threads; operations are carried out one at a time in the
// order of their tickets (see TicketLock). async_error() and abort() from any thread at any time. The destructor leaves
// the group in good order, without waiting for peers; no other call may be under way.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/collectives.h"
#include "comm/link_pool.h"
#include "comm/membership.h"
#include "comm/messages.h"
#include "comm/monitor.h"
#include "comm/quantised.h"
#include "comm/ticket_lock.h"
#include "cuda/device.h"
#include "exec/operation.h"
#include "group/bootstrap.h"

namespace tutti {

class Communicator final {
 public:
  // `other`: as Bootstrap::join().
  static Result<std::unique_ptr<Communicator>> create(const UniqueId& id, int rank, int n_ranks,
                                                      const CommOptions& options, Deadline deadline,
                                                      const UniqueId* other = nullptr);

  int rank() const { return me_.rank; }
  int n_ranks() const { return me_.n_ranks; }
  const Membership& membership() const { return me_; }
  // What this rank did last, whom it waits for, and how the group fares.
  Monitor& monitor() { return monitor_; }

  // Operations run in the order of their tickets, so an asynchronous caller takes the ticket when the user calls.
  // On a GPU's communicator that waits for what the GPU has yet to do, some of which may take tickets.
  uint64_t take_ticket() {
    if (device_ != nullptr) device_->drain();
    return ticket_lock_->take_ticket();
  }
  // Where to queue from now on, before the first operation; it outlives this.
  void queue_at(TicketLock& ticket_lock) { ticket_lock_ = &ticket_lock; }
  Result<void> run(uint64_t ticket, const Operation& operation);
  // The same in fewer instructions, for a small operation that repeats an earlier one, by the only caller.
  // kNo: nothing was done, perhaps because something is wrong with the buffers; kFailed: async_error() has the reason.
  using Repeated = Collectives::Repeated;
  Repeated repeat(const CallKey& key, const void* input, void* output, const void* caller) noexcept {
    return collectives_.repeat(key, input, output, caller);
  }

  // Whether it is one on a GPU; also while its device comes to be, or ends beside the device's own threads.
  bool is_on_gpu() const { return me_.is_on_gpu(); }
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
  void abort(const char* function = "tuttiCommAbort") { monitor_.abort(function); }
  Result<void> async_error() const { return monitor_.async_error(); }
  std::string explain_wait() const;

  // What an operation of this kind takes now, and why. Waits for the operations that were called before.
  std::string explain(const Operation& operation);
  // How long it should take now. Waits likewise.
  double estimate_ns(const Operation& operation);
  // For people: through what this rank reaches another and why: "tcp, because shm: it is on another host".
  std::string route(int peer) { return route_to(links_.endpoints(), (*me_.roster)[peer].addresses); }

  // What this rank holds for the group, besides one thread. From any thread.
  struct Holdings {
    size_t links, link_bytes, scratch_bytes, descriptors;
  };
  Holdings holdings() const;

 private:
  Communicator(int rank, int n_ranks, const CommOptions& options, Algo forced) : me_{rank, n_ranks, options, forced} {}
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
  QuantisedSums quantised_{me_, monitor_, collectives_, messages_};
  std::atomic<bool> finalized_ = false;   // a GPU asks when it is called, before its turn
  std::unique_ptr<cuda::Host> gpu_host_;  // of a communicator on a GPU
  std::unique_ptr<cuda::Device> device_;  // ends before all that it stands on
};

// In place of create(), where this rank cannot come: who waits there is told why. Takes some seconds at most. Returns
// `why`.
Error call_off(const UniqueId& id, int rank, int n_ranks, const CommOptions& options, const Deadline& deadline,
               const Error& why);

// What it does for its GPU's side.
std::unique_ptr<cuda::Host> gpu_host_of(Communicator& comm);

}  // namespace tutti
