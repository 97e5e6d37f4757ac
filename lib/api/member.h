// What a handle stands for: this rank's communicator, which may still be in creation, and the operators and
// registrations made for it. All functions from any thread. A non-blocking creation or finalization runs on a thread of
// its own, which shares ownership of this object; if nobody joins the thread before the program ends, it keeps running.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/dtype.h"
#include "base/shared_memory.h"
#include "comm/communicator.h"

namespace tutti::api {

// What a program has made for one communicator, by the numbers that it knows it by.
template <class Number, class Thing>
class Table {
 public:
  // Takes the first of next()'s numbers that is free.
  Number add(Thing thing, Number (*next)()) {
    const std::lock_guard lock(mutex_);
    for (;;)
      if (const auto [place, is_new] = things_.try_emplace(next(), std::move(thing)); is_new) return place->first;
  }
  std::optional<Thing> find(Number number) const {
    const std::lock_guard lock(mutex_);
    const auto found = things_.find(number);
    return found == things_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<Thing> remove(Number number) {
    const std::lock_guard lock(mutex_);
    auto found = things_.extract(number);
    return found ? std::optional(std::move(found.mapped())) : std::nullopt;
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, thing] : things_) visit(thing);
  }

 private:
  mutable std::mutex mutex_;
  std::map<Number, Thing> things_;
};

// A sum whose inputs each rank multiplies first.
struct PreMulSum {
  DataType dtype = DataType::kInt8;
  std::array<char, 8> scalar{};     // the factor, one element of dtype
  const void* scalar_at = nullptr;  // or where to read it when an operation runs
};
using Operators = Table<int, PreMulSum>;

// A buffer that the program has registered.
struct Registration {
  size_t bytes = 0;
  uint64_t block = 0;   // its id in SharedMemory's table, which it is in while this exists; 0: not in it
  uint64_t window = 0;  // the number of GPU memory on its device, or 0

  ~Registration() { SharedMemory::remove(block); }  // no effect if tuttiMemFree came first
};

class Member : public std::enable_shared_from_this<Member> {
 public:
  using Creation = std::function<Result<std::unique_ptr<Communicator>>(Deadline)>;

  Member() = default;  // create() follows
  ~Member();
  explicit Member(std::unique_ptr<Communicator> comm) : blocking_(true), comm_(std::move(comm)), usable_(comm_.get()) {}

  // Starts the creation; abort() cuts its deadline short. `begin` runs on the caller's thread, once nothing can prevent
  // the creation from running.
  Result<void> create(Creation creation, const Deadline& deadline, std::function<void()> begin);
  Result<void> finalize(bool alone);
  // Sets where its operations queue; called before anybody uses it.
  void queue_at(TicketLock& ticket_lock);

  // The communicator; null while it is not created yet or background work owns it.
  Communicator* usable() const { return usable_.load(std::memory_order_acquire); }
  // Why usable() is null.
  Error why_unusable() const;
  // kInProgress, or the error that broke the communicator or its creation.
  Result<void> state() const;
  bool blocking() const { return blocking_; }
  void abort();
  // Set by abort(): ends creations from this communicator, even where they depend on nothing that abort() breaks.
  const std::shared_ptr<std::atomic<bool>>& aborted() const { return aborted_; }
  // Waits until nothing runs in the background, which is soon after abort(); then nothing there reads the environment.
  // Does not wait for a creation from another communicator.
  void join();

  Operators operators;
  Table<uintptr_t, std::unique_ptr<Registration>> registrations;

 private:
  Result<void> start(const char* what, bool joinable, const std::function<void()>& begin,
                     std::function<Result<void>()> work);
  void finish(const Result<void>& result);

  const bool blocking_ = false;
  mutable std::mutex mutex_;  // guards the members below
  std::unique_ptr<Communicator> comm_;
  std::atomic<Communicator*> usable_{nullptr};
  TicketLock* ticket_lock_ = nullptr;
  const char* under_way_ = nullptr;  // what runs in the background
  std::optional<Error> failure_;     // its error, if it failed
  std::thread thread_;               // runs it
  const std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tutti::api
