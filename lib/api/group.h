// Group calls: between tuttiGroupStart and tuttiGroupEnd a thread's calls are collected, and run together at the end.
#pragma once

#include <functional>

#include "api/handle.h"

namespace tutti::api {

// Runs the operation now (on the caller's thread, or in its place in the stream's order), or keeps it for the group.
Result<void> launch(tuttiComm_t handle, Use use, const Operation& operation, tuttiStream_t stream);

// Runs something that may wait for other ranks of this process: now, or at the group's end beside its likes.
Result<void> launch_blocking(std::function<Result<void>()> work);

// Runs all at once, each on a thread of its own (the last on the caller's), and gives the first error.
Result<void> run_at_once(std::vector<std::function<Result<void>()>> all);

// A call within a group failed: the group will not run, and its end says why.
void spoil_group(const Error& error);

// The body of an API function that may be called within a group.
template <class Body>
tuttiResult_t in_group(Body&& body) noexcept {
  return guarded([&]() -> Result<void> {
    Result<void> result = body();
    if (!result) spoil_group(result.error());
    return result;
  });
}

}  // namespace tutti::api
