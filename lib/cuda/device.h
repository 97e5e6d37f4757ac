// This header: one rank's communicator on a GPU, on top of its communicator on the host, which finds the others,
// notices their loss and carries what cannot go from GPU to GPU.
//
// Threading: submit() and advance() from any thread; a submission is in the order of calls. drain() and settle() wait.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "cuda/port.h"
#include "cuda/progress.h"
#include "cuda/proxy.h"
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
  // Of the first way: tells the other ranks of a collective that another way takes, so that all compare what they call.
  // False where others are too far behind, then it is asked again.
  virtual Result<bool> tell(const Operation&) { return true; }
  // Whether its operations wait for other ranks without the communicator's knowing.
  virtual bool waits_unseen() const { return false; }
  // Before submit(): false where other ranks of this process have to call first, then it is asked again.
  virtual Result<bool> meet(const Operation&, const Turn&) { return true; }
  virtual Result<void> submit(const Operation& operation, const Turn& turn) = 0;
  // An event behind what was submitted last without being captured, if the way has recorded one.
  virtual EventRef end() const { return nullptr; }
  // Memory that the user promises to keep until it is closed. 0: that makes no difference.
  virtual uint64_t open_window(const void*, size_t) { return 0; }
  virtual void close_window(uint64_t) {}
  // Now and then: lets go of memory of other processes that they have closed. Waits for the device.
  virtual void forget_closed() {}
  // How many operations a rank has called; nothing if that is not known.
  virtual std::optional<uint64_t> called_by(int) const { return {}; }
  // Nothing in a stream waits for other ranks any more, and none will.
  virtual void release() {}
};

// Each has a file of its own, which says what it is; one more is in phases.h. All ranks of the group come with the same
// `name`, which no other group of this process has.
std::unique_ptr<Way> make_together(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Household> household,
                                   const std::string& name);
std::unique_ptr<Way> make_mail(Host& host, Port& port, const std::string& name);
// Collective. Null where some rank cannot: `why` says which and why. An error ends the creation.
Result<std::unique_ptr<Way>> make_direct(Host& host, Port& port, int device, const DeviceInfo& info,
                                         std::shared_ptr<Proxy> proxy, std::string* why);
// `may_wait`: in streams.
std::unique_ptr<Way> make_staged(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Proxy> proxy,
                                 bool may_wait);

class Device {
 public:
  // Collective. kInvalidUsage and kCudaError name the device and say what is wrong with it.
  static Result<std::unique_ptr<Device>> create(Host& host, int device);
  ~Device();

  // Gives the operation its turn; advance() puts it into its stream. True when all that was submitted is there; false
  // where other ranks of this process have to come first: theirs may be this thread's.
  Result<void> submit(const Operation& operation, StreamRef stream);
  Result<bool> advance();
  // Advances all until nothing is left.
  static Result<void> settle(const std::vector<Device*>& devices);
  // Waits until the GPU has done all that was submitted, or until the communicator is broken.
  void drain();

  // For people: the way that an operation takes, and what stands against a better one.
  std::string explain(const Operation& operation) const;
  // One sentence on which rank the GPU waits for, if it does. From any thread, at any time.
  std::optional<std::string> explain_wait() const { return progress_.explain_wait(); }

  // Of memory that the user has registered; 0: operations gain nothing by it.
  uint64_t open_window(const void* memory, size_t bytes);
  void close_window(uint64_t window);

 private:
  Device(Host& host, Port& port, int device)
      : host_(host), port_(port), device_(device), progress_(host.recorder(), host.operation_limit_seconds()) {}
  Result<void> setup();
  Result<void> add_ways();
  Result<void> add_direct(const std::string& why_not_mapped, const std::vector<Seat>& seats);
  std::shared_ptr<Household> household_of(const std::vector<Seat>& seats, const std::string& name);
  struct Pending {
    Operation operation;
    Turn turn;
    Way* way = nullptr;
    std::thread::id only_by;  // in whose calls alone the stream means the caller's; none: in all threads'
    bool has_begun = false, is_told = false;
  };
  Way& way_of(const Operation& operation) const;
  Result<bool> enqueue_all();
  Result<void> begin(Pending& pending);
  Result<bool> enqueue(Pending& pending);
  Result<void> mark_end(EventRef ways_end, const Turn& turn);
  Result<bool> is_done();
  Result<bool> has_reached_end();
  void keep_ways();
  void guard();
  void look_around();

  Host& host_;
  Port& port_;
  const int device_;
  DeviceInfo info_;
  std::shared_ptr<Proxy> proxy_;
  std::mutex mutex_;                            // all that follows
  std::vector<std::unique_ptr<Way>> ways_;      // by preference; the last one takes everything
  std::string obstacles_;                       // in the way of the better ones, if there are
  EventRef own_end_ = nullptr, end_ = nullptr;  // of what was submitted last: this one's or a way's; null before
  uint64_t end_stream_ = 0;                     // its id
  std::deque<Pending> pending_;
  Progress progress_;
  Fd stop_fd_;
  std::thread guard_;  // tells whom the GPU waits for, and frees what waits when the group breaks
};

}  // namespace tutti::cuda
