// This header: the ways that a rank's operations on its GPU may take, what these need of the communicator on the host,
// and which of them a communicator has.
//
// Threading: what a way may be asked for from which thread is its caller's business (device.h).
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

// What a communicator on the host does for its GPU's side.
class Host {
 public:
  virtual ~Host() = default;
  virtual int rank() const = 0;
  virtual int n_ranks() const = 0;
  virtual int host_of(int rank) const = 0;                           // any number that ranks of the same host share
  virtual Algo forced_algo() const = 0;                              // kAuto: none
  virtual Result<void> run_on_host(const Operation& operation) = 0;  // buffers in host memory; waits
  // Between registered memory of devices, past the CPU. Whether that can be done with this memory, to all ranks.
  virtual Result<void> check_direct(const void* memory, size_t bytes) = 0;
  // Gives up what the network has kept of memory that is registered no longer; before that is freed.
  virtual void forget_direct() = 0;
  virtual Result<void> connect_direct() = 0;  // collective, before the first move
  // Collective, but for kSendRecv: messages for the sake of an operation, all at once. Waits.
  virtual Result<void> move_directly(const Operation& operation, const std::vector<Message>& messages) = 0;
  virtual bool broken() = 0;
  virtual int wake_fd() = 0;  // readable once broken
  virtual Error breakage() = 0;
  virtual Result<void> check_open() = 0;            // neither broken nor finalized
  virtual void break_with(const Error& error) = 0;  // for all ranks
  // For who asks why a job hangs.
  virtual const Recorder& recorder() = 0;
  virtual double operation_limit_seconds() = 0;
};

class Attendee;
class Board;
class Household;
struct Seat;

// Everybody's blob, in the order of ranks; each gives one of the same length.
Result<std::vector<std::string>> tell_all(Host& host, const std::string& blob);
// All ranks come to the same: nothing, or the first rank's reason.
Result<std::string> agree(Host& host, const Result<void>& mine);

// Gives a rank's operations their place in a stream. Calls come one at a time, in the same order on all ranks.
class Way {
 public:
  virtual ~Way() = default;
  virtual const char* name() const = 0;  // for people
  virtual bool takes(const Operation& operation) const = 0;
  // Of the first way: how ranks learn what the others call, also of what another way takes. Null: they do not.
  virtual Attendee* others() { return nullptr; }
  // Whether its operations wait for other ranks without the communicator's knowing.
  virtual bool waits_unseen() const { return false; }
  // Before submit(): false where other ranks of this process have to call first, then it is asked again.
  virtual Result<bool> meet(const Operation&, const Turn&) { return true; }
  virtual Result<void> submit(const Operation& operation, const Turn& turn) = 0;
  // An event behind what was submitted last without being captured, if the way has recorded one.
  virtual EventRef end() const { return nullptr; }
  // Of the first way, too: nothing in a stream waits for other ranks any more, and none will.
  virtual void release() {}
};

// Each has a file of its own, which says what it is; one more is in phases.h.
std::unique_ptr<Way> make_together(Host& host, Port& port, const DeviceInfo& info,
                                   std::shared_ptr<Household> household);
// All ranks of the group come with the same `name`, which no other group of this process has.
std::unique_ptr<Way> make_mail(Host& host, Port& port, const std::string& name);
// Collective. Null where some rank cannot: `why` says which and why. An error ends the creation.
Result<std::unique_ptr<Way>> make_direct(Host& host, Port& port, int device, const DeviceInfo& info,
                                         std::shared_ptr<Proxy> proxy, std::string* why);
// `may_wait`: in streams.
std::unique_ptr<Way> make_staged(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Proxy> proxy,
                                 bool may_wait);

// The ways of one communicator, by preference. After the creation nothing of them changes.
class Ways {
 public:
  // Collective. `device` is the calling thread's. An error ends the creation.
  static Result<std::unique_ptr<Ways>> create(Host& host, Port& port, int device);
  // Those whose memory the GPU may still use: all of it stays.
  static void keep(std::unique_ptr<Ways> ways);

  Way& first() const { return *all_.front(); }
  Way& of(const Operation& operation) const;
  // For people: the way that an operation takes, and what stands against a better one.
  std::string explain(const Operation& operation) const;

 private:
  Ways(Host& host, Port& port, int device) : host_(host), port_(port), device_(device) {}
  Result<void> add_all();
  Result<void> add_direct(const std::string& why_not_mapped, const std::vector<Seat>& seats);
  std::shared_ptr<Household> household_of(const std::vector<Seat>& seats, const std::string& name) const;

  Host& host_;
  Port& port_;
  const int device_;
  DeviceInfo info_;
  std::shared_ptr<Proxy> proxy_;
  std::vector<std::unique_ptr<Way>> all_;  // the last one takes everything
  std::string obstacles_;                  // in the way of the better ones, if there are
};

}  // namespace tutti::cuda
