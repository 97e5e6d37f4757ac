#include "api/handle.h"

#include <deque>
#include <mutex>

#include "base/at_fork.h"
#include "base/thread.h"

namespace tutti::api {
namespace {

struct LastError {
  std::string sentence;
};
std::string& last_error() {
  return own_of_thread<LastError>().sentence;
}

// Dead handles are reused only after this many others, so that a stale one is recognised for a long time.
constexpr size_t kRetiredHandles = 1024;
// Never destroyed: other threads may outlive main.
struct Handles {
  MutexAcrossForks mutex;
  tuttiComm* newest = nullptr;
  std::deque<tuttiComm*> retired;
};
Handles& g_handles = *new Handles;

// A forked child has neither the threads nor the sockets behind its parent's handles.
void disown_handles() {
  for (tuttiComm* handle = g_handles.newest; handle != nullptr; handle = handle->older)
    handle->magic = tuttiComm::kOfParent;
  g_handles.retired.clear();
}
[[maybe_unused]] const bool g_handles_are_disowned = do_in_children(disown_handles);

void enter_handle(tuttiComm* handle) {
  const std::lock_guard lock(g_handles.mutex);
  handle->older = g_handles.newest;
  g_handles.newest = handle;
}

}  // namespace

Error is_of_parent(const char* name, const void* handle) {
  return {Code::kInvalidUsage,
          format("%s=%p belongs to the parent process, where it still works: a forked child has to make its own", name,
                 handle)};
}

Use::Use(tuttiComm_t handle) {
  if (handle == nullptr || handle->magic != tuttiComm::kMagic) return;
  // Counts, then reads `member`; detach() clears `member`, then its caller waits for the count (all sequentially
  // consistent): so any thread that finds the communicator here is waited for.
  handle->ticket_lock.enter();
  handle_.reset(handle);
  member_ = handle->member.load();
  if (member_ != nullptr) comm_ = member_->usable();
}

Error not_a_comm(tuttiComm_t handle) {
  if (handle == nullptr) return invalid_argument("comm is NULL");
  if (handle->magic == tuttiComm::kOfParent) return is_of_parent("comm", handle);
  if (const Use use(handle); use.is_live()) return use.member().why_unusable();
  return invalid_argument(
      format("comm=%p is not a live communicator: it was destroyed or never created", static_cast<void*>(handle)));
}

Result<Use> use_of(tuttiComm_t handle) {
  Use use(handle);
  if (!use) return not_a_comm(handle);
  return use;
}

tuttiComm_t make_handle(std::shared_ptr<Member> member) {
  tuttiComm* handle = nullptr;
  {
    const std::lock_guard lock(g_handles.mutex);
    auto& retired = g_handles.retired;
    // Background work may still hold a ticket.
    if (retired.size() > kRetiredHandles && retired.front()->ticket_lock.is_idle()) {
      handle = retired.front();
      retired.pop_front();
    }
  }
  if (handle == nullptr) enter_handle(handle = new tuttiComm);
  member->queue_at(handle->ticket_lock);
  handle->owner = std::move(member);
  handle->member.store(handle->owner.get());
  return handle;
}

std::shared_ptr<Member> detach(tuttiComm_t handle) {
  if (handle == nullptr || handle->magic != tuttiComm::kMagic) return nullptr;
  if (handle->member.exchange(nullptr) == nullptr) return nullptr;
  return std::move(handle->owner);
}

void wait_until_unused(tuttiComm_t handle) {
  handle->ticket_lock.wait_until_left();
  const std::lock_guard lock(g_handles.mutex);
  g_handles.retired.push_back(handle);
}

tuttiResult_t finish(const Error& error) {
  try {
    last_error() = error.message;
  } catch (...) {  // no memory for the sentence: the code still says what happened
    last_error().clear();
  }
  return static_cast<tuttiResult_t>(error.code);
}

}  // namespace tutti::api

using tutti::Code;
using tutti::api::finish;

static_assert(tuttiSystemError == static_cast<int>(Code::kSystemError) &&
              tuttiInternalError == static_cast<int>(Code::kInternalError) &&
              tuttiInvalidArgument == static_cast<int>(Code::kInvalidArgument) &&
              tuttiInvalidUsage == static_cast<int>(Code::kInvalidUsage) &&
              tuttiRemoteError == static_cast<int>(Code::kRemoteError) &&
              tuttiInProgress == static_cast<int>(Code::kInProgress) &&
              tuttiTimeout == static_cast<int>(Code::kTimeout));

extern "C" {

tuttiResult_t tuttiGetVersion(int* version) {
  if (version == nullptr) return finish(tutti::api::invalid_argument("version is NULL"));
  *version = TUTTI_VERSION_CODE;
  return tuttiSuccess;
}

const char* tuttiGetErrorString(tuttiResult_t result) {
  switch (result) {
    case tuttiSuccess: return "success";
    case tuttiUnhandledCudaError: return "CUDA error";
    case tuttiSystemError: return "system error";
    case tuttiInternalError: return "internal error";
    case tuttiInvalidArgument: return "invalid argument";
    case tuttiInvalidUsage: return "invalid usage";
    case tuttiRemoteError: return "remote error";
    case tuttiInProgress: return "in progress";
    case tuttiTimeout: return "timeout";
    case tuttiNumResults: break;
  }
  return "unknown result";
}

const char* tuttiGetLastError(tuttiComm_t comm) {
  if (comm != nullptr)
    if (tutti::api::Use use(comm); use.is_live())
      if (const auto state = use.member().state(); !state && state.error().code != tutti::Code::kInProgress)
        finish(state.error());
  return tutti::api::last_error().c_str();
}

}  // extern "C"
