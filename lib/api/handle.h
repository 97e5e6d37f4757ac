// api: the only C boundary. Checks arguments, turns results into codes and sentences, lets no exception out, and keeps
// dead handles from doing harm. This header: what the functions of tutti.h share.
//
// A communicator's handle is used again only after a thousand others; streams, events and operators have numbers that
// are given out once. So using a dead handle is an error that names it, not a crash.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "api/member.h"
#include "base/contained.h"
#include "base/result.h"
#include "comm/communicator.h"
#include "comm/ticket_lock.h"
#include "exec/stream.h"
#include "tutti/tutti.h"

// What a handle points to. Never freed, so that a dead handle is recognised; a member is reachable while it is set here
// and is not destroyed while anyone uses it.
struct tuttiComm {
  static constexpr uint32_t kMagic = 0x7475636d, kOfParent = 0x7475706d;
  uint32_t magic = kMagic;  // kOfParent: this process was forked from the one that has made it
  tutti::TicketLock ticket_lock;
  std::atomic<tutti::api::Member*> member{nullptr};
  std::shared_ptr<tutti::api::Member> owner;  // of `member`; for make_handle and for who clears that
  tuttiComm* older = nullptr;                 // all that were ever made are a list
};

namespace tutti::api {

// By the last user: somebody may be waiting to destroy it.
inline void left_last(tuttiComm_t handle) {
  if (handle->member.load() == nullptr) handle->ticket_lock.wake_who_waits_until_left();
}

// Keeps a communicator alive for the length of a call. False if the handle has none to be used.
class Use {
 public:
  explicit Use(tuttiComm_t handle);
  explicit operator bool() const { return comm_ != nullptr; }
  Communicator* operator->() const { return comm_; }
  Communicator& operator*() const { return *comm_; }
  // There is one without a communicator while the creation is under way, and when it failed.
  bool is_live() const { return member_ != nullptr; }
  Member& member() const { return *member_; }

 private:
  struct Leave {
    void operator()(tuttiComm_t handle) const {
      if (handle->ticket_lock.leave()) left_last(handle);
    }
  };
  std::unique_ptr<tuttiComm, Leave> handle_;
  Member* member_ = nullptr;
  Communicator* comm_ = nullptr;
};

// The same for an operation that runs at once, where nobody else uses the handle: with its turn. False without a
// communicator, and where there is somebody.
class Alone {
 public:
  explicit Alone(tuttiComm_t handle) {
    if (handle == nullptr || handle->magic != tuttiComm::kMagic) return;
    entry_ = handle->ticket_lock.enter_alone();
    if (entry_ == TicketLock::Entry::kNone) return;
    handle_ = handle;
    if (const Member* const member = handle->member.load()) comm_ = member->usable();
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  ~Alone() {
    if (handle_ != nullptr && handle_->ticket_lock.leave_alone(entry_)) left_last(handle_);
  }
  explicit operator bool() const { return comm_ != nullptr; }
  Communicator* operator->() const { return comm_; }

 private:
  tuttiComm_t handle_ = nullptr;
  TicketLock::Entry entry_ = TicketLock::Entry::kNone;
  Communicator* comm_ = nullptr;
};

// Why there is none to be used.
Error not_a_comm(tuttiComm_t handle);
// One to be used, or why not.
Result<Use> use_of(tuttiComm_t handle);
// Of any kind: it belongs to the process that this one was forked from. `name`: as in "comm".
Error is_of_parent(const char* name, const void* handle);
tuttiComm_t make_handle(std::shared_ptr<Member> member);
// Takes the member out of its handle: further uses fail. Null if somebody else was first.
std::shared_ptr<Member> detach(tuttiComm_t handle);
void wait_until_unused(tuttiComm_t handle);

Result<std::shared_ptr<Stream>> find_stream(tuttiStream_t handle);
// Refuses the operations of a communicator that was aborted which wait on streams, now: what is before them there may
// take as long as it likes.
void end_queued(tuttiComm_t comm);

// Remembers the error for tuttiGetLastError and gives its code.
tuttiResult_t finish(const Error& error);

inline tuttiResult_t finish(const Result<void>& result) {
  return result ? tuttiSuccess : finish(result.error());
}

// Runs the body of an API function. Allocation failures and other surprises become codes here.
template <class Body>
tuttiResult_t guarded(Body&& body) noexcept {
  return finish(contained(body));
}

inline Error invalid_argument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

}  // namespace tutti::api
