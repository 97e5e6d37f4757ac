// What tuttiStream_t is for host memory. All functions from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/result.h"

namespace tutti {

// A queue of work with a thread of its own.
class Stream {
 public:
  using Work = std::function<Result<void>()>;

  static Result<std::unique_ptr<Stream>> create();
  ~Stream();  // finishes what is queued

  // Work, its owner, if it has one, and its number in the order of that owner.
  struct Item {
    Work work;
    const void* of = nullptr;
    uint64_t nth = 0;
  };
  void enqueue(Work work);
  // The same without taking memory: the caller brings the list node. `first` is called just before, while the queue is
  // locked, and returns the number.
  void enqueue(std::list<Item> one, const std::function<uint64_t()>& first);
  // Moves the queued works of `of` to *taken, by their numbers, and leaves `instead` in their places. A work for which
  // there is no memory stays.
  void take_out(const void* of, const Work& instead, std::map<uint64_t, Work>* taken);
  // Waits for all that was queued before; returns the first error since the last call.
  Result<void> synchronize();
  // kInProgress, success, or the first error (which stays until synchronize).
  Result<void> query();
  // The same for the stream's own work: not kInProgress.
  Result<void> so_far();

 private:
  Stream() = default;
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Item> queue_;
  uint64_t queued_ = 0, done_ = 0;
  bool stopping_ = false;
  std::optional<Error> error_;
  std::thread thread_;
};

}  // namespace tutti
