#include "cuda/proxy.h"

#include "base/clock.h"
#include "base/thread.h"
#include "cuda/ways.h"
#include "exec/wait.h"

namespace tutti::cuda {

Result<std::unique_ptr<Proxy>> Proxy::create(Host& host, GpuMemory& memory) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  std::unique_ptr<Proxy> proxy(new Proxy(host, memory));
  TUTTI_TRY_ASSIGN(void* words, memory.allocate_host(4096));
  proxy->request_ = new (words) std::atomic<uint32_t>(0);
  proxy->answer_ = new (static_cast<char*>(words) + 2048) std::atomic<uint32_t>(0);
  TUTTI_TRY_ASSIGN(proxy->thread_,
                   start_thread("the thread of a CUDA communicator", [p = proxy.get()] { p->serve(); }));
  return proxy;
}

Proxy::~Proxy() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  lock.unlock();
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (request_ != nullptr) memory_.free_host(request_);
}

void Proxy::only_answer() {
  std::unique_lock lock(mutex_);
  only_answers_ = true;
  changed_.wait(lock, [this] { return !is_running_; });
}

uint32_t Proxy::announce(Task task, bool stays) {
  std::unique_lock lock(mutex_);
  uint32_t number;
  do number = ++last_number_;
  while (number == 0 || tasks_.contains(number));  // after 2^32 tasks: a graph may keep an early one
  tasks_[number] = {std::move(task), stays};
  lock.unlock();
  changed_.notify_all();
  return number;
}

// While tasks are under way, or a graph may request one, requests are only found by polling.
void Proxy::serve() {
  constexpr int64_t kSpinNs = 200'000, kSleepNs = 50'000;
  int64_t idle_since = now_ns();
  for (;;) {
    if (const uint32_t number = request_->exchange(0, std::memory_order_acq_rel); number != 0) {
      run(number);
      answer_->store(number, std::memory_order_release);
      idle_since = now_ns();
      continue;
    }
    if (now_ns() - idle_since < kSpinNs) {
      pause_cpu();
      continue;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;  // whoever destroys this has waited for the device
    changed_.wait_for(lock, std::chrono::nanoseconds(kSleepNs));
  }
}

// An error breaks the communicator, which tells all ranks, even an error that alone would not: a graph was launched
// after tuttiCommFinalize, or there is no memory.
void Proxy::run(uint32_t number) {
  std::map<uint32_t, Waiting>::node_type taken;
  std::unique_lock lock(mutex_);
  const auto found = tasks_.find(number);
  if (found == tasks_.end()) return;
  const Task& task = found->second.task;  // not copied, which takes memory
  if (!found->second.stays) taken = tasks_.extract(found);
  if (only_answers_) return;
  is_running_ = true;
  lock.unlock();
  const auto ran = contained(task);
  if (!ran && !host_.broken()) host_.break_with(ran.error());
  lock.lock();
  is_running_ = false;
  changed_.notify_all();
}

}  // namespace tutti::cuda
