// A queue of work with a thread of its own: what tuttiStream_t stands for on host memory. All functions from any
// thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/result.h"

namespace tutti {

class Stream {
 public:
  using Work = std::function<Result<void>()>;

  static Result<std::unique_ptr<Stream>> create();
  ~Stream();  // works off what is queued

  void enqueue(Work work);
  // Waits for all that was queued before; the first error since the last call.
  Result<void> synchronize();
  // kInProgress, success, or the first error (which stays until synchronize).
  Result<void> query();
  // The error that synchronize would report now. Does not wait.
  std::optional<Error> first_error();

 private:
  Stream() = default;
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint64_t queued_ = 0, done_ = 0;
  bool stopping_ = false;
  std::optional<Error> error_;
  std::thread thread_;
};

}  // namespace tutti
