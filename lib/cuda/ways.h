// This header: the ways in which a rank's operations on its GPU may run, what these need from the host communicator,
// and which of them a communicator has.
//
// Threading: which thread may call what is the responsibility of the ways' owner (device.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cuda/port.h"
#include "cuda/proxy.h"
#include "debug/recorder.h"
#include "exec/operation.h"

namespace tutti::cuda {

// What a communicator on the host does for the GPU's side.
class Host {
 public:
  virtual ~Host() = default;
  virtual int rank() const = 0;
  virtual int n_ranks() const = 0;
  virtual int host_of(int rank) const = 0;                           // a number that tells hosts apart
  virtual Algo forced_algo() const = 0;                              // kAuto: none
  virtual Result<void> run_on_host(const Operation& operation) = 0;  // buffers in host memory; waits
  // Whether this registered device memory can be moved to and from all ranks, bypassing the CPU.
  virtual Result<void> check_direct(const void* memory, size_t bytes) = 0;
  // Drops what the network keeps of memory that is no longer registered. To be called before that memory is freed.
  virtual void forget_direct() = 0;
  virtual Result<void> connect_direct() = 0;  // collective, before the first move
  // Exchanges an operation's messages, all at once. Collective, except for kSendRecv. Waits.
  virtual Result<void> move_directly(const Operation& operation, const std::vector<Message>& messages) = 0;
  virtual bool broken() = 0;
  virtual int wake_fd() = 0;  // readable once broken
  virtual Error breakage() = 0;
  virtual bool has_left(int rank) = 0;              // has finalized or destroyed its communicator; only of a neighbour
  virtual Result<void> check_open() = 0;            // neither broken nor finalized
  virtual void break_with(const Error& error) = 0;  // for all ranks
  // For diagnosing why a job hangs.
  virtual const Recorder& recorder() = 0;
  virtual double operation_limit_seconds() = 0;
};

class Attendee;
class DeviceGroup;
struct Seat;

// All ranks' blobs, by rank. All must have the same length.
Result<std::vector<std::string>> tell_all(Host& host, const std::string& blob);
// All ranks get the same answer: an empty string, or the reason of the first rank that failed.
Result<std::string> agree(Host& host, const Result<void>& mine);

// Enqueues a rank's operations in streams. Calls come one at a time, in the same order on all ranks.
class Way {
 public:
  virtual ~Way() = default;
  virtual const char* name() const = 0;  // for people
  virtual bool takes(const Operation& operation) const = 0;
  // Of the first way: how ranks learn what the others call, including what another way takes. Null: they do not.
  virtual Attendee* others() { return nullptr; }
  // Whether its operations wait for other ranks without the host communicator's knowledge.
  virtual bool waits_unseen() const { return false; }
  // Called before submit(). False where other ranks of this process have to call first: it is then called again.
  virtual Result<bool> meet(const Operation&, const Turn&) { return true; }
  // Of a broken communicator: the operation that was to meet() the others' is dropped, and no other rank uses its
  // buffers and stream from now on. False where one is about to: the operation has to meet() again.
  virtual bool withdraw(const Error& /*why*/) { return true; }
  virtual Result<void> submit(const Operation& operation, const Turn& turn) = 0;
  // An event after the last operation that was not captured, if the way has recorded one.
  virtual EventRef end() const { return nullptr; }
  // Of the first way only, too: releases everything in streams that waits for other ranks now. Uses no host, which may
  // be gone.
  virtual void release() {}
};

// Each has its own file, which describes it; one more is in phases.h.
std::unique_ptr<Way> make_together(Host& host, Port& port, const DeviceInfo& info,
                                   std::shared_ptr<DeviceGroup> device_group);
// All ranks of the group pass the same `name`, which no other group of this process has.
std::unique_ptr<Way> make_mail(Host& host, Port& port, const std::string& name);
// Collective. Null where some rank cannot use it: `why` says which and why. An error ends the creation.
Result<std::unique_ptr<Way>> make_direct(Host& host, Port& port, int device, const DeviceInfo& info,
                                         std::shared_ptr<Proxy> proxy, std::string* why);
// `may_wait`: whether streams can wait for memory without holding up another rank's.
std::unique_ptr<Way> make_staged(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Proxy> proxy,
                                 bool may_wait);

// The ways of one communicator, best first. They do not change after the creation.
class Ways {
 public:
  // Collective. `device` is the calling thread's. An error ends the creation.
  static Result<std::unique_ptr<Ways>> create(Host& host, Port& port, int device);
  // Leaks ways whose memory the GPU may still use, and goes on to release it until it reaches `end`; null: it cannot be
  // asked.
  static void keep(std::unique_ptr<Ways> ways, EventRef end);
  // Has one more user for each thread that does so, for tests that take the port away.
  static std::shared_ptr<void> releasing();

  Way& first() const { return *all_.front(); }
  Way& of(const Operation& operation) const;
  // For people: the way that an operation takes, and what rules out a better one.
  std::string explain(const Operation& operation) const;

 private:
  Ways(Host& host, Port& port, int device) : host_(host), port_(port), device_(device) {}
  Result<void> add_all();
  Result<void> release_until(EventRef end);
  Result<void> add_direct(const std::string& why_not_mapped, const std::vector<Seat>& seats);
  std::shared_ptr<DeviceGroup> device_group_of(const std::vector<Seat>& seats, const std::string& name) const;

  Host& host_;
  Port& port_;
  const int device_;
  DeviceInfo info_;
  std::shared_ptr<Proxy> proxy_;
  std::vector<std::unique_ptr<Way>> all_;  // the last one takes everything
  std::string obstacles_;                  // why there is no better way; empty if this is the best
};

}  // namespace tutti::cuda
