#include "exec/stream.h"

#include "base/result.h"
#include "base/thread.h"

namespace tutti {

Result<std::unique_ptr<Stream>> Stream::create() {
  std::unique_ptr<Stream> stream(new Stream);
  TUTTI_TRY_ASSIGN(stream->thread_, start_thread("a stream's thread", [s = stream.get()] { s->serve(); }));
  return stream;
}

Stream::~Stream() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::enqueue(Work work) {
  std::list<Item> one;
  one.push_back({std::move(work)});
  enqueue(std::move(one), nullptr);
}

void Stream::enqueue(std::list<Item> one, const std::function<uint64_t()>& first) {
  {
    const std::lock_guard lock(mutex_);
    if (first) one.front().nth = first();
    queue_.splice(queue_.end(), one);
    queued_++;
  }
  changed_.notify_all();
}

void Stream::take_out(const void* of, const Work& instead, std::map<uint64_t, Work>* taken) {
  const std::lock_guard lock(mutex_);
  for (Item& item : queue_) {
    if (item.of != of) continue;
    Work stands_in = instead;
    std::swap((*taken)[item.nth], item.work);
    item = {std::move(stands_in), nullptr, 0};
  }
}

Result<void> Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, last = queued_] { return done_ >= last; });
  if (!error_) return {};
  Error error = std::move(*error_);
  error_.reset();
  return error;
}

Result<void> Stream::so_far() {
  const std::lock_guard lock(mutex_);
  return error_ ? Result<void>(*error_) : Result<void>();
}

Result<void> Stream::query() {
  const std::lock_guard lock(mutex_);
  if (error_) return *error_;
  if (done_ < queued_) return Error{Code::kInProgress, "operations of this stream are still running"};
  return {};
}

void Stream::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Work work = std::move(queue_.front().work);
    queue_.pop_front();
    lock.unlock();
    auto result = contained(work);
    lock.lock();
    done_++;
    if (!result && !error_) error_ = std::move(result).error();
    changed_.notify_all();
  }
}

}  // namespace tutti
