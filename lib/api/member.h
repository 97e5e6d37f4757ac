// What a handle stands for: this rank's communicator, which may still be on its way, and what the program made for it.
// All functions from any thread. A non-blocking creation or finalization runs on a thread of its own, which shares the
// ownership; where nobody joins it, at the program's end, it runs on.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "api/operators.h"
#include "api/registrations.h"
#include "comm/communicator.h"

namespace tutti::api {

class Member : public std::enable_shared_from_this<Member> {
 public:
  using Creation = std::function<Result<std::unique_ptr<Communicator>>(Deadline)>;

  Member() = default;  // create() follows
  ~Member();
  explicit Member(std::unique_ptr<Communicator> comm) : blocking_(true), comm_(std::move(comm)), usable_(comm_.get()) {}

  // Starts the creation; abort() cuts its deadline short. `begin` runs on the caller's thread, once nothing can keep
  // the creation from running.
  Result<void> create(Creation creation, const Deadline& deadline, std::function<void()> begin);
  Result<void> finalize();
  // Before anybody uses it: where its operations queue.
  void queue_at(TicketLock& ticket_lock);

  // The communicator, unless it is not there yet or at the disposal of something in the background.
  Communicator* usable() const { return usable_.load(std::memory_order_acquire); }
  // Why usable() has none.
  Error why_unusable() const;
  // kInProgress, or the error that ended it all.
  Result<void> state() const;
  bool blocking() const { return blocking_; }
  void abort();
  // Set by abort(): ends what is made from this one, which has to need nothing that works of it.
  const std::shared_ptr<std::atomic<bool>>& aborted() const { return aborted_; }
  // Until nothing runs in the background any more, after abort() soon: nothing there reads the environment then. Of a
  // creation from another communicator nothing is waited for.
  void join();

  Operators operators;
  Registrations registrations;

 private:
  Result<void> start(const char* what, bool joinable, const std::function<void()>& begin,
                     std::function<Result<void>()> work);
  void finish(const Result<void>& result);

  const bool blocking_ = false;
  mutable std::mutex mutex_;  // all that follows
  std::unique_ptr<Communicator> comm_;
  std::atomic<Communicator*> usable_{nullptr};
  TicketLock* ticket_lock_ = nullptr;
  const char* under_way_ = nullptr;  // what runs in the background
  std::optional<Error> failure_;     // how it ended
  std::thread thread_;               // where it runs
  const std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tutti::api
