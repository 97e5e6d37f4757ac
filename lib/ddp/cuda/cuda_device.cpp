// A CUDA device, on the same narrow port to CUDA's runtime that communicators stand on.
#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>

#include "cuda/port.h"
#include "ddp/cuda/cuda_kernels.h"
#include "ddp/device.h"
#include "ddp/tensor.h"

namespace tutti::ddp {
namespace {

using cuda::EventRef;
using cuda::OnDevice;
using cuda::Port;
using cuda::StreamRef;

template <class T>
Status status_of(const Result<T>& result) {
  if (result) return {};
  return Error{static_cast<tuttiResult_t>(result.error().code), result.error().message};
}

// What has to be given back, but not while the GPU uses it.
struct Resources {
  Resources(Port& p, int d) : port(p), device(d) {}
  Resources(const Resources&) = delete;
  Resources& operator=(const Resources&) = delete;
  ~Resources() {
    const auto on_device = OnDevice::enter(port, device);
    for (void* at : memory) port.free(at);
    if (own != nullptr) port.destroy_stream(own);
    for (const EventRef event : events) port.destroy_event(event);
  }

  Port& port;
  const int device;
  StreamRef own = nullptr;
  EventRef end = nullptr;  // of the own stream
  std::vector<EventRef> events;
  std::vector<void*> memory;
};

// Streams of a communicator that broke may wait until it is destroyed, which is later than what they use is given up.
// Never destroyed: other threads may outlive main.
class LeftBehind {
 public:
  void add(std::unique_ptr<Resources> resources) {
    const std::lock_guard lock(mutex_);
    left_.push_back(std::move(resources));
  }
  void sweep() {
    const std::lock_guard lock(mutex_);
    std::erase_if(left_, [](const auto& r) {
      const auto reached = r->port.reached(r->end);
      return reached && reached.value();
    });
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Resources>> left_;
};

LeftBehind& left_behind() {
  static auto* all = new LeftBehind;
  return *all;
}

// When a step's parts began and ended.
struct StepTimers {
  EventRef began = nullptr, called = nullptr, done = nullptr;
  bool has_begun = false;
  std::vector<std::array<EventRef, 2>> buckets;
  std::vector<bool> has_run;  // by bucket
};

class CudaDevice final : public Device {
 public:
  CudaDevice(tuttiComm_t comm, int number, Port& port, size_t most_looks)
      : Device(number, comm),
        port_(port),
        most_looks_(most_looks),
        resources_(std::make_unique<Resources>(port, number)) {}

  ~CudaDevice() override {
    if (is_stuck_) left_behind().add(std::move(resources_));
  }

  Status setup() {
    return on_device([&]() -> Result<void> {
      TUTTI_TRY_ASSIGN(const cuda::DeviceInfo info, port_.describe(number()));
      most_blocks_ = info.most_span_blocks();
      TUTTI_TRY_ASSIGN(resources_->own, port_.create_stream());
      for (EventRef* event : {&caller_end_, &resources_->end}) TUTTI_TRY(make_event(false, event));
      return {};
    });
  }

  tuttiStream_t stream(Queue queue) const override { return static_cast<tuttiStream_t>(stream_of(queue)); }

  Status set_stream(tuttiStream_t stream) override {
    return on_device([&]() -> Result<void> {
      TUTTI_TRY(port_.record(caller_end_, caller_));
      TUTTI_TRY(port_.wait(stream, caller_end_));
      caller_ = stream;
      return {};
    });
  }

  Status allocate(void** at, size_t bytes) override {
    return on_device([&]() -> Result<void> {
      TUTTI_TRY_ASSIGN(*at, port_.allocate(bytes));
      return {};
    });
  }

  void free(void* at) override {
    if (is_stuck_) return resources_->memory.push_back(at);
    const auto on_device = OnDevice::enter(port_, number());
    port_.free(at);
  }

  Status copy(void* to, const void* from, size_t bytes, Queue queue) override {
    return on_device([&] { return port_.copy(to, from, bytes, stream_of(queue)); });
  }
  Status zero(void* at, size_t bytes, Queue queue) override {
    return on_device([&] { return port_.zero(at, bytes, stream_of(queue)); });
  }
  Status narrow(const Span& wide, const Span& small) override {
    return on_device([&] { return launcher(Queue::kOwn).convert(cuda::SpanStep::kNarrow, wide, small); });
  }
  Status widen(const Span& small, const Span& wide) override {
    return on_device([&] { return launcher(Queue::kOwn).convert(cuda::SpanStep::kWiden, wide, small); });
  }
  Status factor(FactorStep step, const std::vector<Factors>& matrices) override {
    return on_device([&] { return launcher(Queue::kOwn).factor(step, matrices); });
  }

  Status look(Look what, const std::vector<Span>& spans, Queue queue, uint64_t* found) override {
    return on_device([&]() -> Result<void> {
      if (found_ == nullptr) {
        TUTTI_TRY_ASSIGN(void* const made, port_.allocate(most_looks_ * sizeof *found_));
        resources_->memory.push_back(made);
        found_ = static_cast<uint64_t*>(made);
      }
      uint64_t* const at = found_ + n_looks_;
      looks_.push_back({what, n_looks_, spans.size(), found});
      n_looks_ += spans.size();
      TUTTI_TRY(port_.zero(at, spans.size() * sizeof *at, stream_of(queue)));
      return launcher(queue).look(what, spans, at);
    });
  }

  Status begin_step(size_t n_buckets) override {
    return on_device([&]() -> Result<void> {
      collect_times();
      if (spare_.empty()) {
        auto fresh = std::make_unique<StepTimers>();
        for (EventRef* event : {&fresh->began, &fresh->called, &fresh->done}) TUTTI_TRY(make_event(true, event));
        spare_.push_back(std::move(fresh));
      }
      step_ = std::move(spare_.back());
      spare_.pop_back();
      step_->has_begun = false;
      step_->has_run.assign(n_buckets, false);
      while (step_->buckets.size() < n_buckets) {
        step_->buckets.emplace_back();
        for (EventRef& event : step_->buckets.back()) TUTTI_TRY(make_event(true, &event));
      }
      while (filled_.size() < n_buckets) TUTTI_TRY(make_event(false, &filled_.emplace_back()));
      return {};
    });
  }

  Status begin_backward() override {
    step_->has_begun = true;
    return on_device([&] { return port_.record(step_->began, caller_); });
  }
  Status mark_filled(size_t bucket) override {
    return on_device([&] { return port_.record(filled_[bucket], caller_); });
  }
  Status end_backward() override {
    return on_device([&] { return port_.record(step_->called, caller_); });
  }

  // The averager's thread keeps the device: a hook may want it.
  Status begin_bucket(size_t bucket) override {
    if (Status s = status_of(port_.use(number())); !s) return s;
    if (Status s = status_of(port_.wait(resources_->own, filled_[bucket])); !s) return s;
    return status_of(port_.record(step_->buckets[bucket][0], resources_->own));
  }
  Status end_bucket(size_t bucket) override {
    step_->has_run[bucket] = true;
    return status_of(port_.record(step_->buckets[bucket][1], resources_->own));
  }

  Status end_step() override {
    return on_device([&]() -> Result<void> {
      const EventRef done = step_->done;
      finished_.push_back(std::move(step_));
      TUTTI_TRY(port_.record(done, resources_->own));
      return port_.wait(caller_, done);
    });
  }

  // Polls, because what streams wait for may never come, which the communicator gets to know.
  Status synchronize() override {
    Status waited = on_device([&]() -> Result<void> {
      TUTTI_TRY(port_.record(caller_end_, caller_));
      return port_.record(resources_->end, resources_->own);
    });
    for (const EventRef event : {caller_end_, resources_->end})
      if (waited) waited = wait_for(event);
    is_stuck_ = !waited;
    return waited ? collect_looks() : waited;
  }

  Times times() override {
    collect_times();
    return times_;
  }

 private:
  // What was looked for, in the order of found_.
  struct PendingLook {
    Look what;
    size_t first, count;
    uint64_t* to;
  };

  StreamRef stream_of(Queue queue) const { return queue == Queue::kCaller ? caller_ : resources_->own; }
  CudaKernels launcher(Queue queue) const { return {port_, most_blocks_, stream_of(queue)}; }

  // Calls body() with the device being the thread's.
  template <class Body>
  Status on_device(Body&& body) {
    const auto entered = OnDevice::enter(port_, number());
    return entered ? status_of(body()) : status_of(entered);
  }

  Result<void> make_event(bool timed, EventRef* event) {
    TUTTI_TRY_ASSIGN(*event, port_.create_event(timed));
    resources_->events.push_back(*event);
    return {};
  }

  Status wait_for(EventRef event) {
    constexpr int kYields = 1000;
    for (int turn = 0;; turn++) {
      const auto reached = port_.reached(event);
      if (!reached) return status_of(reached);
      if (reached.value()) return {};
      tuttiResult_t state = tuttiSuccess;
      if (Status s = library(tuttiCommGetAsyncError(comm(), &state)); !s) return s;
      if (state != tuttiSuccess) return Error{state, tuttiGetLastError(comm())};
      if (turn < kYields)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Status collect_looks() {
    if (looks_.empty()) return {};
    std::vector<uint64_t> numbers(n_looks_);
    const Status copied = on_device([&]() -> Result<void> {
      TUTTI_TRY(port_.copy(numbers.data(), found_, n_looks_ * sizeof *found_, resources_->own));
      return port_.synchronize(resources_->own);
    });
    for (const PendingLook& look : looks_)
      for (size_t i = 0; i < look.count; i++) {
        const uint64_t number = numbers[look.first + i];
        look.to[i] = look.what == Look::kNonFinite ? ~number : number;
      }
    looks_.clear();
    n_looks_ = 0;
    return copied;
  }

  void collect_times() {
    for (; !finished_.empty(); finished_.pop_front()) {
      const auto reached = port_.reached(finished_.front()->done);
      if (reached && !reached.value()) return;
      if (const auto times = times_of(*finished_.front()); times) times_.add(times.value());
      spare_.push_back(std::move(finished_.front()));
    }
  }

  Result<Times::Sum> times_of(const StepTimers& step) {
    Times::Sum sum;
    if (step.has_begun) {
      TUTTI_TRY_ASSIGN(sum.backward, port_.seconds_between(step.began, step.called));
    }
    for (size_t b = 0; b < step.has_run.size(); b++) {
      if (!step.has_run[b]) continue;
      TUTTI_TRY_ASSIGN(const double seconds, port_.seconds_between(step.buckets[b][0], step.buckets[b][1]));
      sum.comm += seconds;
    }
    TUTTI_TRY_ASSIGN(const double after, port_.seconds_between(step.called, step.done));
    sum.exposed = std::clamp(after, 0.0, sum.comm);
    return sum;
  }

  Port& port_;
  const size_t most_looks_;
  std::unique_ptr<Resources> resources_;
  StreamRef caller_ = nullptr;
  uint32_t most_blocks_ = 1;
  EventRef caller_end_ = nullptr;
  bool is_stuck_ = false;

  std::vector<EventRef> filled_;      // by bucket: the caller has put its gradients there
  std::unique_ptr<StepTimers> step_;  // under way
  std::deque<std::unique_ptr<StepTimers>> finished_;
  std::vector<std::unique_ptr<StepTimers>> spare_;
  Times times_;

  uint64_t* found_ = nullptr;  // on the device
  size_t n_looks_ = 0;
  std::vector<PendingLook> looks_;
};

}  // namespace

Status make_cuda_device(tuttiComm_t comm, int device, size_t most_looks, std::unique_ptr<Device>* made) {
  Port* const port = cuda::port();
  if (port == nullptr) return invalid_usage("this library was built without CUDA");
  left_behind().sweep();
  auto fresh = std::make_unique<CudaDevice>(comm, device, *port, most_looks);
  if (Status s = fresh->setup(); !s) return s;
  *made = std::move(fresh);
  return {};
}

}  // namespace tutti::ddp
