// Group calls: between tuttiGroupStart and tuttiGroupEnd a thread's calls are collected, and run together at the end.
#pragma once

#include <atomic>
#include <functional>

#include "api/handle.h"

namespace tutti::api {

// Runs the operation now (on the caller's thread, or in its place in the stream's order), or keeps it for the group.
Result<void> launch_later(tuttiComm_t handle, Use use, const Operation& operation, tuttiStream_t stream);
// Groups that are open on all threads. Asked for every call: where there is none, none needs its thread's own variable,
// which takes a function call. (At a fixed place of the thread's it would not, but then all such variables want one,
// and loaders keep too little room for libraries that are loaded late, as interpreters do.)
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

// Runs something that may wait for other ranks of this process: now, or at the group's end beside others of its kind.
// `handle`: the communicator that it is for, if there is one already.
Result<void> launch_blocking(tuttiComm_t handle, std::function<Result<void>()> work);

// Runs all at once, each on a thread of its own (the last on the caller's), and gives the first error. `begin` comes
// before, when there is memory for the rest. Where there can be no more threads `give_up` is called with the first that
// has none; without it others wait for them until their limit. Neither may throw.
Result<void> run_at_once(std::vector<std::function<Result<void>()>> all, const std::function<void()>& begin = nullptr,
                         const std::function<void(size_t)>& give_up = nullptr);

// Something goes on in the background: what its caller returns, and so does the end of the group that it is in.
Error in_background(const char* what);

// A call within a group failed: the group will not run, and its end says why.
void spoil_group(const Error& error);

// A communicator goes: so do the calls on it that this thread's group has collected.
void drop_from_group(tuttiComm_t handle);

// What a call comes to that may be within a group.
inline Result<void> in_group(Result<void> result) {
  if (!result && result.error().code != Code::kInProgress) spoil_group(result.error());
  return result;
}
// The body of an API function that may be called within a group. What there is no memory for spoils it, too.
template <class Body>
tuttiResult_t in_group(Body&& body) noexcept {
  return guarded([&] { return in_group(contained(body)); });
}

}  // namespace tutti::api
