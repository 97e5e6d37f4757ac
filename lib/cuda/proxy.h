// This header: a thread that does for a device's streams what only the host can. A stream requests a task by writing
// its number to host memory, and waits there for the answer. All of this is the same every time, so a captured graph
// can be replayed. Threading: announce() from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda/port.h"

namespace tutti::cuda {

class Host;

class Proxy {
 public:
  using Task = std::function<Result<void>()>;  // an error breaks the communicator

  static Result<std::unique_ptr<Proxy>> create(Host& host, GpuMemory& memory);
  // By then no stream may ask for anything.
  ~Proxy();
  // From now on tasks are answered without being run. Waits for a task that is running.
  void only_answer();

  // Returns the task's number. With `stays` it may be asked for again and again: it is in a graph.
  uint32_t announce(Task task, bool stays);
  // What a stream writes to ask for a task, and what it then waits for. One task at a time.
  WordOperation request(uint32_t number) const { return {reinterpret_cast<uint32_t*>(request_), number}; }
  WordOperation answer(uint32_t number) const { return {reinterpret_cast<uint32_t*>(answer_), number, true}; }
  WordOperation take_back_answer() const { return {reinterpret_cast<uint32_t*>(answer_), 0}; }
  // The same for a caller on the host.
  void ask(uint32_t number) { request_->store(number, std::memory_order_release); }
  bool take_answer(uint32_t number) { return answer_->compare_exchange_strong(number, 0, std::memory_order_acq_rel); }

 private:
  Proxy(Host& host, GpuMemory& memory) : host_(host), memory_(memory) {}
  void serve();
  void run(uint32_t number);

  Host& host_;
  GpuMemory& memory_;
  // In host memory that streams write and wait for: the number of the task to run, and of the task that has run; 0 if
  // there is none.
  std::atomic<uint32_t>* request_ = nullptr;
  std::atomic<uint32_t>* answer_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Waiting {
    Task task;
    bool stays;
  };
  std::map<uint32_t, Waiting> tasks_;
  uint32_t last_number_ = 0;
  bool stopping_ = false, only_answers_ = false, is_running_ = false;
  std::thread thread_;
};

}  // namespace tutti::cuda
