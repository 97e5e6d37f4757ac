// Group calls: between tuttiGroupStart and tuttiGroupEnd a thread's calls are collected, and run together at the end.
#pragma once

#include "api/handle.h"

namespace tutti::api {

// Runs the operation now (on the caller's thread, or at its turn in the stream), or collects it for the group.
Result<void> launch_later(tuttiComm_t handle, Use use, const Operation& operation, tuttiStream_t stream);
// Number of open groups on all threads. Every call reads it: if it is 0, no call needs its thread-local variable, whose
// access takes a function call. (The initial-exec TLS model would avoid that, but every such variable would need it,
// and loaders reserve too little static TLS for libraries that are loaded late, as by interpreters.)
extern std::atomic<int> g_open_groups;
bool is_in_group();
void open_group();
inline bool a_group_is_open() {
  return g_open_groups.load(std::memory_order_relaxed) != 0;
}
inline Result<void> launch(tuttiComm_t handle, Use use, const Operation& operation, tuttiStream_t stream) {
  const bool is_single = !a_group_is_open() || !is_in_group();
  if (stream == nullptr && is_single && use->device() == nullptr && operation.collective != Collective::kSendRecv)
    return use->run(use->take_ticket(), operation);
  return launch_later(handle, std::move(use), operation, stream);
}

// Runs work that may wait for other ranks of this process: now, or at the group's end concurrently with other such
// work. `handle`: the communicator that the work is for, if it exists already.
Result<void> launch_blocking(tuttiComm_t handle, std::function<Result<void>()> work);

// Runs all works concurrently, each on a thread of its own (the last on the caller's), and returns the first error.
// They may wait for each other, so none begins, nor does `begin`, which runs before them and may not throw, until all
// threads have started.
Result<void> run_at_once(std::vector<std::function<Result<void>()>> all, const std::function<void()>& begin = nullptr);

// The kInProgress error for work that continues in the background: returned by its call and by the end of its group.
Error in_background(const char* what);

// A call within a group failed: the group will not run, and tuttiGroupEnd says why.
void spoil_group(const Error& error);

// A communicator is destroyed: drops the calls on it that this thread's group has collected.
void drop_from_group(tuttiComm_t handle);

// Passes on the result of a call that may be within a group; an error spoils the group.
inline Result<void> in_group(Result<void> result) {
  if (!result && result.error().code != Code::kInProgress) spoil_group(result.error());
  return result;
}
// Runs the body of an API function that may be called within a group. Running out of memory spoils the group, too.
template <class Body>
tuttiResult_t in_group(Body&& body) noexcept {
  return guarded([&] { return in_group(contained(body)); });
}

}  // namespace tutti::api
