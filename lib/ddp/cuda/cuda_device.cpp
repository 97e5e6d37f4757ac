// A CUDA device, on the same narrow port to CUDA's runtime that communicators use.
#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "cuda/port.h"
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

// Resources to be released, but not while the GPU uses them.
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
  Result<void> make_event(bool timed, EventRef* event) {
    TUTTI_TRY_ASSIGN(*event, port.create_event(timed));
    events.push_back(*event);
    return {};
  }

  Port& port;
  const int device;
  StreamRef own = nullptr;
  EventRef end = nullptr;  // the last synchronize()'s point in the own stream
  std::vector<EventRef> events;
  std::vector<void*> memory;
};

// Resources whose release must wait: a broken communicator's streams may wait, and use them, until it is destroyed,
// which is after the averager. Never destroyed: other threads may outlive main.
class DeferredRelease {
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

DeferredRelease& deferred_release() {
  static auto* all = new DeferredRelease;
  return *all;
}

// Events at which parts of a step began and ended: the three of the step itself, then two for each bucket.
struct StepEvents {
  enum { kBegan, kCalled, kDone, kBuckets };
  std::vector<EventRef> at;
  bool has_begun = false;
  std::vector<bool> has_run;  // by bucket
  EventRef bucket(size_t b, bool ended) const { return at[kBuckets + 2 * b + (ended ? 1 : 0)]; }
};

// How long steps took, which is known once the GPU has finished them. Then a step's events are reused for another one.
class StepTimer {
 public:
  explicit StepTimer(Resources& resources) : resources_(resources) {}

  Result<void> begin_step(size_t n_buckets) {
    collect();
    step_ = {};
    if (!spare_.empty()) {
      step_ = std::move(spare_.back());
      spare_.pop_back();
    }
    step_.has_begun = false;
    step_.has_run.assign(n_buckets, false);
    while (step_.at.size() < StepEvents::kBuckets + 2 * n_buckets)
      TUTTI_TRY(resources_.make_event(true, &step_.at.emplace_back()));
    return {};
  }
  StepEvents& step() { return step_; }  // the step under way
  // Returns the kDone event, which the caller must record.
  EventRef end_step() {
    finished_.push_back(std::move(step_));
    return finished_.back().at[StepEvents::kDone];
  }

  const Times& times() {
    collect();
    return times_;
  }

 private:
  void collect() {
    for (; !finished_.empty(); finished_.pop_front()) {
      const auto reached = resources_.port.reached(finished_.front().at[StepEvents::kDone]);
      if (reached && !reached.value()) return;
      if (const auto times = times_of(finished_.front()); times) times_.add(times.value());
      spare_.push_back(std::move(finished_.front()));
    }
  }

  Result<Times::Sum> times_of(const StepEvents& step) const {
    Port& port = resources_.port;
    Times::Sum sum;
    if (step.has_begun) {
      TUTTI_TRY_ASSIGN(sum.backward, port.seconds_between(step.at[step.kBegan], step.at[step.kCalled]));
    }
    for (size_t b = 0; b < step.has_run.size(); b++) {
      if (!step.has_run[b]) continue;
      TUTTI_TRY_ASSIGN(const double seconds, port.seconds_between(step.bucket(b, false), step.bucket(b, true)));
      sum.comm += seconds;
    }
    TUTTI_TRY_ASSIGN(const double after, port.seconds_between(step.at[step.kCalled], step.at[step.kDone]));
    sum.exposed = std::clamp(after, 0.0, sum.comm);
    return sum;
  }

  Resources& resources_;
  StepEvents step_;
  std::deque<StepEvents> finished_;
  std::vector<StepEvents> spare_;
  Times times_;
};

// The results of look(): they lie on the device until collect() copies them to the places given to add().
class Findings {
 public:
  Findings(Resources& resources, size_t most) : resources_(resources), most_(most) {}

  // Returns where kernels in `stream` write `count` results, initially zero; collect() will copy them to `to`.
  Result<uint64_t*> add(Look what, size_t count, uint64_t* to, StreamRef stream) {
    Port& port = resources_.port;
    if (on_device_ == nullptr) {
      TUTTI_TRY_ASSIGN(void* const made, port.allocate(most_ * sizeof *on_device_));
      resources_.memory.push_back(made);
      on_device_ = static_cast<uint64_t*>(made);
    }
    uint64_t* const at = on_device_ + n_;
    looks_.push_back({what, count, to});
    n_ += count;
    TUTTI_TRY(port.zero(at, count * sizeof *at, stream));
    return at;
  }

  // The results of a step that ended with an error: nobody reads them, and their places may be gone.
  void forget() {
    n_ = 0;
    looks_.clear();
  }

  // Called when all streams have written their results.
  Result<void> collect() {
    std::vector<uint64_t> numbers(std::exchange(n_, 0));
    const std::vector<Pending> looks = std::exchange(looks_, {});
    if (looks.empty()) return {};
    Port& port = resources_.port;
    TUTTI_TRY_ASSIGN(const OnDevice on_device, OnDevice::enter(port, resources_.device));
    TUTTI_TRY(port.copy(numbers.data(), on_device_, numbers.size() * sizeof *on_device_, resources_.own));
    TUTTI_TRY(port.synchronize(resources_.own));
    const uint64_t* number = numbers.data();
    for (const Pending& look : looks)
      for (size_t i = 0; i < look.count; i++, number++) look.to[i] = look.what == Look::kNonFinite ? ~*number : *number;
    return {};
  }

 private:
  struct Pending {
    Look what;
    size_t count;
    uint64_t* to;
  };

  Resources& resources_;
  const size_t most_;
  uint64_t* on_device_ = nullptr;
  size_t n_ = 0;
  std::vector<Pending> looks_;
};

// Launches kernels on gradients in a stream, each with as many items as a kernel's argument holds.
class CudaKernels {
 public:
  CudaKernels(cuda::Port& port, uint32_t most_blocks, cuda::StreamRef stream)
      : port_(port), most_blocks_(most_blocks), stream_(stream) {}

  Result<void> convert(const Span& from, const Span& to) {
    const bool narrows = element_bytes(to.type) == sizeof(uint16_t);
    cuda::SpanCall call;
    call.step = narrows ? cuda::SpanStep::kNarrow : cuda::SpanStep::kWiden;
    call.wide = static_cast<DataType>(narrows ? from.type : to.type);
    call.small = static_cast<DataType>(narrows ? to.type : from.type);
    call.items[call.n_items++] = {from.at, to.at, from.count};
    return launch(call);
  }

  // `found` is on the device and zero; for kNonFinite the kernel stores the complement of the index.
  Result<void> look(Look what, const std::vector<Span>& spans, uint64_t* found) {
    cuda::SpanCall call;
    call.step = what == Look::kNonFinite ? cuda::SpanStep::kNonFinite : cuda::SpanStep::kDigest;
    for (const Span& span : spans) {
      const auto type = static_cast<DataType>(span.type);
      // A launch handles one type; a digest sees only bytes.
      if (call.n_items == cuda::kMaxSpans || (what == Look::kNonFinite && call.wide != type)) TUTTI_TRY(launch(call));
      call.wide = type;
      const uint64_t elems = what == Look::kNonFinite ? span.count : span.count * element_bytes(span.type);
      call.items[call.n_items++] = {span.at, found++, elems};
    }
    return launch(call);
  }

  Result<void> factor(FactorStep step, const std::vector<Factors>& matrices) {
    if (step == FactorStep::kProject) return factor_part(cuda::FactorPart::kProject, matrices);
    const bool finds = step == FactorStep::kFindQ;
    TUTTI_TRY(factor_part(finds ? cuda::FactorPart::kOrthonormalise : cuda::FactorPart::kRebuild, matrices));
    return factor_part(finds ? cuda::FactorPart::kFindQ : cuda::FactorPart::kKeepQ, matrices);
  }

 private:
  Result<void> factor_part(cuda::FactorPart part, const std::vector<Factors>& matrices) {
    cuda::FactorCall call;
    call.part = part;
    for (const Factors& m : matrices) {
      if (call.n_items == cuda::kMaxFactors) TUTTI_TRY(launch(call));
      call.items[call.n_items++] = {m.data, m.error, m.start,   m.p,
                                    m.q,    m.rows,  m.columns, static_cast<uint32_t>(m.rank)};
    }
    return launch(call);
  }

  // Launches the call, then empties it.
  template <class Call>
  Result<void> launch(Call& call) {
    auto ran = run_tiles(port_, call, most_blocks_, stream_);
    call.n_items = 0;
    return ran;
  }

  cuda::Port& port_;
  const uint32_t most_blocks_;
  const cuda::StreamRef stream_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(tuttiComm_t comm, int number, Port& port, size_t most_looks)
      : Device(number, comm),
        port_(port),
        resources_(std::make_unique<Resources>(port, number)),
        timer_(*resources_),
        findings_(*resources_, most_looks) {}

  ~CudaDevice() override {
    if (is_stuck_) deferred_release().add(std::move(resources_));
  }

  Status setup() {
    return on_device([&]() -> Result<void> {
      TUTTI_TRY_ASSIGN(const cuda::DeviceInfo info, port_.describe(number()));
      most_blocks_ = info.most_span_blocks();
      TUTTI_TRY_ASSIGN(resources_->own, port_.create_stream());
      for (EventRef* event : {&caller_end_, &resources_->end}) TUTTI_TRY(resources_->make_event(false, event));
      return {};
    });
  }

  tuttiStream_t stream(Queue queue) const override {
    return static_cast<tuttiStream_t>(queue == Queue::kCaller ? caller_ : resources_->own);
  }

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
    return on_device([&] { return port_.copy(to, from, bytes, stream(queue)); });
  }
  Status zero(void* at, size_t bytes) override {
    return on_device([&] { return port_.zero(at, bytes, caller_); });
  }
  Status convert(const Span& from, const Span& to) override {
    return on_device([&] { return launcher(Queue::kOwn).convert(from, to); });
  }
  Status factor(FactorStep step, const std::vector<Factors>& matrices) override {
    return on_device([&] { return launcher(Queue::kOwn).factor(step, matrices); });
  }

  Status look(Look what, const std::vector<Span>& spans, Queue queue, uint64_t* found) override {
    return on_device([&]() -> Result<void> {
      TUTTI_TRY_ASSIGN(uint64_t* const at, findings_.add(what, spans.size(), found, stream(queue)));
      return launcher(queue).look(what, spans, at);
    });
  }

  Status begin_step(size_t n_buckets) override {
    return on_device([&]() -> Result<void> {
      TUTTI_TRY(timer_.begin_step(n_buckets));
      while (filled_.size() < n_buckets) TUTTI_TRY(resources_->make_event(false, &filled_.emplace_back()));
      return {};
    });
  }

  Status begin_backward() override {
    timer_.step().has_begun = true;
    return on_device([&] { return port_.record(timer_.step().at[StepEvents::kBegan], caller_); });
  }
  Status mark_filled(size_t bucket) override {
    return on_device([&] { return port_.record(filled_[bucket], caller_); });
  }
  Status end_backward() override {
    return on_device([&] { return port_.record(timer_.step().at[StepEvents::kCalled], caller_); });
  }

  // Leaves the device set on the averager's thread, because a hook may need it.
  Status begin_bucket(size_t bucket) override {
    if (Status s = status_of(port_.use(number())); !s) return s;
    if (Status s = status_of(port_.wait(resources_->own, filled_[bucket])); !s) return s;
    return status_of(port_.record(timer_.step().bucket(bucket, false), resources_->own));
  }
  Status end_bucket(size_t bucket) override {
    timer_.step().has_run[bucket] = true;
    return status_of(port_.record(timer_.step().bucket(bucket, true), resources_->own));
  }

  Status end_step() override {
    return on_device([&]() -> Result<void> {
      const EventRef done = timer_.end_step();
      TUTTI_TRY(port_.record(done, resources_->own));
      return port_.wait(caller_, done);
    });
  }

  // Polls, because streams may wait for ranks that never come; then only the communicator learns of the error.
  Status synchronize() override {
    Status waited = on_device([&]() -> Result<void> {
      TUTTI_TRY(port_.record(caller_end_, caller_));
      return port_.record(resources_->end, resources_->own);
    });
    for (const EventRef event : {caller_end_, resources_->end})
      if (waited) waited = wait_for(event);
    is_stuck_ = !waited;
    if (!waited) findings_.forget();
    return waited ? status_of(findings_.collect()) : waited;
  }

  Times times() override { return timer_.times(); }

 private:
  CudaKernels launcher(Queue queue) const { return {port_, most_blocks_, stream(queue)}; }

  // Calls body() with this device as the thread's current device.
  template <class Body>
  Status on_device(Body&& body) {
    const auto entered = OnDevice::enter(port_, number());
    return entered ? status_of(body()) : status_of(entered);
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

  Port& port_;
  std::unique_ptr<Resources> resources_;
  StreamRef caller_ = nullptr;
  uint32_t most_blocks_ = 1;
  EventRef caller_end_ = nullptr;
  bool is_stuck_ = false;
  std::vector<EventRef> filled_;  // by bucket: the caller's stream has filled it
  StepTimer timer_;
  Findings findings_;
};

}  // namespace

Status make_cuda_device(tuttiComm_t comm, int device, size_t most_looks, std::unique_ptr<Device>* made) {
  Port* const port = cuda::port();
  if (port == nullptr) return invalid_usage("this library was built without CUDA");
  deferred_release().sweep();
  auto fresh = std::make_unique<CudaDevice>(comm, device, *port, most_looks);
  if (Status s = fresh->setup(); !s) return s;
  *made = std::move(fresh);
  return {};
}

}  // namespace tutti::ddp
