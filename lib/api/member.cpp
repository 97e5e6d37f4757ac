#include "api/member.h"

#include "base/places.h"
#include "base/thread.h"

namespace tutti::api {

Member::~Member() {
  if (thread_.joinable()) thread_.detach();
}

Result<void> Member::create(Creation creation, const Deadline& deadline, std::function<void()> begin) {
  // If it takes a turn on another communicator, it may wait there for ranks that aborting this one does not affect.
  const bool joinable = !begin;
  return start("the creation of comm", joinable, begin,
               [this, creation = std::move(creation),
                until = deadline.or_when([by = aborted_] { return by->load(); })]() -> Result<void> {
                 TUTTI_TRY_ASSIGN(auto made, creation(until));
                 const std::lock_guard lock(mutex_);
                 comm_ = std::move(made);
                 if (ticket_lock_ != nullptr) comm_->queue_at(*ticket_lock_);
                 return {};
               });
}

void Member::queue_at(TicketLock& ticket_lock) {
  const std::lock_guard lock(mutex_);
  ticket_lock_ = &ticket_lock;
  if (comm_) comm_->queue_at(ticket_lock);
}

Result<void> Member::finalize(bool alone) {
  const auto ticket = std::make_shared<uint64_t>();
  // On a GPU, taking it waits for pending GPU work, perhaps for other ranks, and abort() must be able to end that.
  const bool takes_later = comm_->is_on_gpu();
  const auto take_ticket = [this, ticket] { *ticket = comm_->take_ticket(); };
  return start("tuttiCommFinalize", true, takes_later ? std::function<void()>() : take_ticket,
               [this, ticket, take_ticket, takes_later, alone, place = place_of_thread()] {
                 set_place(place);
                 if (takes_later && !alone) announce(*comm_, {Collective::kFinalize});
                 if (takes_later) take_ticket();
                 return comm_->finalize(*ticket, alone);
               });
}

// The thread first takes the lock, so its work runs after `begin`.
Result<void> Member::start(const char* what, bool joinable, const std::function<void()>& begin,
                           std::function<Result<void>()> work) {
  const std::lock_guard lock(mutex_);
  if (under_way_ != nullptr) return Error{Code::kInvalidUsage, format("%s is under way already", under_way_)};
  if (thread_.joinable()) thread_.join();  // its work is done, and it will not take the lock again
  TUTTI_TRY_ASSIGN(thread_, start_thread("a thread", [self = shared_from_this(), work = std::move(work)] {
                     { const std::lock_guard begun(self->mutex_); }
                     self->finish(contained(work));
                   }));
  if (!joinable) thread_.detach();
  under_way_ = what;
  usable_.store(nullptr, std::memory_order_release);
  if (begin) begin();
  return {};
}

void Member::finish(const Result<void>& result) {
  const std::lock_guard lock(mutex_);
  under_way_ = nullptr;
  if (!result) failure_ = result.error();
  if (*aborted_) failure_ = Error{Code::kInvalidUsage, "tuttiCommAbort or tuttiCommDestroy was called on this rank"};
  if (*aborted_ && comm_) comm_->abort();
  usable_.store(comm_.get(), std::memory_order_release);
}

Error Member::why_unusable() const {
  const std::lock_guard lock(mutex_);
  if (failure_ && !comm_) return *failure_;
  return {Code::kInvalidUsage,
          format("%s is still in progress: wait until tuttiCommGetAsyncError no longer says tuttiInProgress",
                 under_way_ == nullptr ? "something in the background" : under_way_)};
}

Result<void> Member::state() const {
  const std::lock_guard lock(mutex_);
  if (under_way_ != nullptr) return Error{Code::kInProgress, format("%s is under way", under_way_)};
  if (failure_) return *failure_;
  return comm_ ? comm_->async_error() : Result<void>();
}

void Member::abort() {
  const std::lock_guard lock(mutex_);
  *aborted_ = true;
  if (comm_) comm_->abort();
}

void Member::join() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace tutti::api
