// api: the only C boundary. Checks arguments, turns results into codes and sentences, lets no exception out, and keeps
// dead handles harmless. This header: what the functions of tutti.h share.
//
// A communicator's handle is reused only after a thousand others; streams, events and operators have numbers that are
// given out once. So using a dead handle is an error that names it, not a crash.
#pragma once

#include <cstdint>
#include <string>

#include "api/member.h"
#include "base/result.h"
#include "exec/stream.h"
#include "tutti/tutti.h"

// What a handle points to. Never freed, so that a dead handle is recognised. The member can be used while its pointer
// is set here, and is not destroyed while anyone uses it.
struct tuttiComm {
  static constexpr uint32_t kMagic = 0x7475636d, kOfParent = 0x7475706d;
  uint32_t magic = kMagic;  // kOfParent: created in the parent, before the fork
  tutti::TicketLock ticket_lock;
  std::atomic<tutti::api::Member*> member{nullptr};
  std::shared_ptr<tutti::api::Member> owner;  // of `member`; used by make_handle and by whoever clears `member`
  tuttiComm* older = nullptr;                 // list of all handles ever made
};

namespace tutti::api {

// Called by the last user: wakes a thread that waits to destroy the handle.
inline void wake_destroyer(tuttiComm_t handle) {
  if (handle->member.load() == nullptr) handle->ticket_lock.wake_who_waits_until_left();
}

// Keeps a communicator alive for the duration of a call. False if the handle has no usable communicator.
class Use {
 public:
  explicit Use(tuttiComm_t handle);
  explicit operator bool() const { return comm_ != nullptr; }
  Communicator* operator->() const { return comm_; }
  // A live handle has no communicator while its creation is under way, and if that failed.
  bool is_live() const { return member_ != nullptr; }
  Member& member() const { return *member_; }

 private:
  struct Leave {
    void operator()(tuttiComm_t handle) const {
      if (handle->ticket_lock.leave()) wake_destroyer(handle);
    }
  };
  std::unique_ptr<tuttiComm, Leave> handle_;
  Member* member_ = nullptr;
  Communicator* comm_ = nullptr;
};

// The same with the turn for an operation that runs at once. False without a usable communicator, or if others use it.
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
    if (handle_ != nullptr && handle_->ticket_lock.leave_alone(entry_)) wake_destroyer(handle_);
  }
  explicit operator bool() const { return comm_ != nullptr; }
  Communicator* operator->() const { return comm_; }

 private:
  tuttiComm_t handle_ = nullptr;
  TicketLock::Entry entry_ = TicketLock::Entry::kNone;
  Communicator* comm_ = nullptr;
};

// Why the handle has no usable communicator.
Error not_a_comm(tuttiComm_t handle);
// A usable communicator, or why there is none.
Result<Use> use_of(tuttiComm_t handle);
// A handle of any kind that belongs to the process that this one was forked from. `name`: as in "comm".
Error is_of_parent(const char* name, const void* handle);
tuttiComm_t make_handle(std::shared_ptr<Member> member);
// Takes the member out of its handle: further uses fail. Null if another thread was first.
std::shared_ptr<Member> detach(tuttiComm_t handle);
void wait_until_unused(tuttiComm_t handle);

Result<std::shared_ptr<Stream>> find_stream(tuttiStream_t handle);
// Refuses, at once, the operations of an aborted communicator that wait on streams: whatever is queued before them may
// take as long as it likes. Needs memory for each; those for which there is none end when their streams reach them.
void end_queued(tuttiComm_t comm);

// Remembers the error for tuttiGetLastError and returns its code.
tuttiResult_t finish(const Error& error);

inline tuttiResult_t finish(const Result<void>& result) {
  return result ? tuttiSuccess : finish(result.error());
}

// Runs the body of an API function. Allocation failures and other exceptions become codes here.
template <class Body>
tuttiResult_t guarded(Body&& body) noexcept {
  return finish(contained(body));
}

inline Error invalid_argument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

}  // namespace tutti::api
