#include "cuda/device.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "cuda/board.h"

namespace tutti::cuda {
namespace {

// An operation that only keeps the order: what precedes it in its stream comes before what is called after it.
bool joins_streams(const Operation& operation) {
  return operation.messages != nullptr && operation.messages->empty();
}

}  // namespace

Result<std::unique_ptr<Device>> Device::create(Host& host, int device) {
  Port* const found = port();
  if (found == nullptr) return Error{Code::kInvalidUsage, "this library was built without CUDA"};
  std::unique_ptr<Device> made(new Device(host, *found, device));
  TUTTI_TRY(made->setup());
  return made;
}

Result<void> Device::setup() {
  TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter_primary(port_, device_));
  TUTTI_TRY(port_.load_kernels());
  TUTTI_TRY_ASSIGN(own_end_, port_.create_event());
  TUTTI_TRY_ASSIGN(ways_, Ways::create(host_, port_, device_));
  stop_fd_.reset(eventfd(0, EFD_CLOEXEC));
  if (!stop_fd_) return system_error("eventfd", errno);
  TUTTI_TRY_ASSIGN(guard_, start_thread("the thread of a CUDA communicator", [this] { guard(); }));
  TUTTI_TRY(tell_all(host_, "made"));  // what fails here must not look like success elsewhere
  return {};
}

// Releases what the streams of a broken group wait for, again and again, because there may be several waits in a row,
// and graphs that are launched later. No call is needed for that: a thread that waits for a stream sees its end.
void Device::guard() {
  constexpr int kLookMs = 250;
  pollfd fds[] = {{host_.wake_fd(), POLLIN, 0}, {stop_fd_.get(), POLLIN, 0}};
  log_set_thread_rank(host_.rank());
  // For all that follows: any CUDA call of a thread without a device would create a context on device 0.
  const auto on_device = OnDevice::enter(port_, device_);
  const auto try_to = [&](auto&& what) { (void)contained([&] { return what(), Result<void>(); }); };  // may lack memory
  for (int n = 0; n == 0 || (n < 0 && errno == EINTR); n = poll(fds, 2, kLookMs)) try_to([this] { look_around(); });
  if (host_.broken()) try_to([this] { progress_.fail(host_.breakage()); });
  constexpr int kTurnMs = 1;
  while (on_device && fds[1].revents == 0) {
    try_to([this] { ways_->first().release(); });
    (void)poll(&fds[1], 1, kTurnMs);
  }
}

// A launch may hold the mutex while it waits for the GPU, whose queue is full. This thread must not wait for that,
// since it ends such waits.
void Device::look_around() {
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
    const auto reached = has_reached_end();
    if (!reached) return host_.break_with(reached.error());  // perhaps this rank makes no more calls
    // The end of a graph's launch cannot be queried.
    const bool is_idle = reached.value() && !progress_.has_captured();
    if (Board* const others = board(); others != nullptr && is_idle)
      others->forget_closed();  // unmapping waits for the device
    if (reached.value() && pending_.empty()) return progress_.end();
  }
  if (auto looked = progress_.look(ways_->first().others()); !looked) host_.break_with(looked.error());
}

Device::~Device() {
  auto on_device = OnDevice::enter(port_, device_);
  if (!host_.broken()) drain();
  constexpr double kPatienceSeconds = 10;
  const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
  Result<bool> done = false;
  while (on_device && (done = is_done()) && !done.value() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (guard_.joinable()) {
    // The end of a graph's launch cannot be queried. Freeing memory waits for all that the device does, and while the
    // guard runs, waits for ranks of a broken group end.
    if (progress_.has_captured() && done && done.value())
      if (const auto some = port_.allocate(1)) port_.free(some.value());
    (void)eventfd_write(stop_fd_.get(), 1);
    guard_.join();
  }
  if (ways_ != nullptr && (!done || !done.value())) {
    Ways::keep(std::move(ways_), done ? end_.event : nullptr);
  } else {
    ways_.reset();
    if (own_end_ != nullptr) port_.destroy_event(own_end_);
  }
}

Result<void> Device::submit(const Operation& operation, StreamRef stream) {
  const std::lock_guard lock(mutex_);
  TUTTI_TRY(host_.check_open());
  const auto is_captured = [&]() -> Result<bool> {
    TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
    return port_.is_capturing(stream);
  }();
  if (!is_captured) {
    if (is_captured.error().code != Code::kInvalidUsage) host_.break_with(is_captured.error());
    return is_captured.error();
  }
  if (is_captured.value() && joins_streams(operation))
    return Error{Code::kInvalidUsage, "a group's messages on several streams cannot be captured: use one stream"};
  const auto only_by = port_.is_per_thread(stream) ? std::this_thread::get_id() : std::thread::id();
  pending_.push_back(
      {operation, {.stream = stream, .is_captured = is_captured.value()}, &ways_->of(operation), only_by});
  return {};
}

void Device::announce(const Operation& operation) {
  {
    const std::lock_guard lock(mutex_);
    if (!host_.check_open()) return;
    pending_.push_back({operation});
  }
  (void)advance();  // if that is not enough, those do it whose operations are before it
}

// An error of the GPU is final, so it breaks the communicator.
Result<bool> Device::advance() {
  const std::lock_guard lock(mutex_);
  auto all = contained([this] { return enqueue_all(); });
  if (all && (!host_.broken() || (all.value() && !has_dropped_))) return all;
  if (!host_.broken()) host_.break_with(all.error());
  if (!drop_pending()) return false;
  return all ? Result<bool>(host_.breakage()) : all;
}

// Of a broken communicator. False where another rank is about to use the first one's stream and buffers, or only
// another thread can drop it: to be called again. What it has in its stream already still uses the ways' memory.
bool Device::drop_pending() {
  if (pending_.empty()) return true;
  const Pending& first = pending_.front();
  if (first.has_begun) {
    const Error why = host_.breakage();
    const std::string what =
        format("rank %d has dropped its operation and reports: %s", host_.rank(), why.message.c_str());
    if (!first.is_of_this_thread() || !first.way->withdraw({Code::kRemoteError, what, why.culprit_rank})) return false;
    const auto on_device = OnDevice::enter(port_, device_);
    if (on_device && !first.turn.is_captured) (void)mark_end(nullptr, first.turn);
  }
  has_dropped_ = true;
  pending_.clear();
  return true;
}

Result<bool> Device::enqueue_all() {
  if (pending_.empty()) return true;
  TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
  // CUDA blocks who enqueues into a stream that has some 1,000 works. These may wait for other ranks of this very
  // thread, so all of them take turns.
  constexpr int kMost = 16;
  for (int n = 0; !pending_.empty(); pending_.pop_front(), n++) {
    if (n == kMost) return false;
    if (!pending_.front().is_of_this_thread()) return false;  // its own thread will
    TUTTI_TRY_ASSIGN(const bool is_in_stream, enqueue(pending_.front()));
    if (!is_in_stream) return false;
  }
  return true;
}

Result<void> Device::begin(Pending& pending) {
  pending.has_begun = true;
  Turn& turn = pending.turn;
  TUTTI_TRY_ASSIGN(turn.stream_id, port_.id_of(turn.stream, turn.is_captured));
  if (!turn.is_captured && pending.way->waits_unseen() && !joins_streams(pending.operation))
    progress_.begin(pending.operation);
  if (turn.is_captured) progress_.note_captured();
  // The ways use the same memory for all operations.
  if (!turn.is_captured && end_.event != nullptr && turn.stream_id != end_.stream_id)
    return port_.wait(turn.stream, end_.event);
  return {};
}

Result<bool> Device::enqueue(Pending& pending) {
  if (pending.way != nullptr && !pending.has_begun) TUTTI_TRY(begin(pending));
  Attendee* const others = pending.way == &ways_->first() ? nullptr : ways_->first().others();
  if (others != nullptr && !pending.is_told && pending.operation.collective != Collective::kSendRecv) {
    TUTTI_TRY_ASSIGN(pending.is_told, others->pass(pending.operation));
    if (!pending.is_told) return false;
  }
  if (pending.way == nullptr) return true;
  if (joins_streams(pending.operation)) {
    TUTTI_TRY(mark_end(nullptr, pending.turn));
    return true;
  }
  TUTTI_TRY_ASSIGN(const bool has_met, pending.way->meet(pending.operation, pending.turn));
  if (!has_met) return false;
  const Call call = to_call(pending.operation);
  const ProfiledRange range(traits(call.collective).name, bytes_of(call));
  auto submitted = pending.way->submit(pending.operation, pending.turn);
  // Even after an operation that could only be submitted in part.
  if (!pending.turn.is_captured) TUTTI_TRY(mark_end(submitted ? pending.way->end() : nullptr, pending.turn));
  TUTTI_TRY(submitted);
  return true;
}

Result<void> Device::mark_end(EventRef ways_end, const Turn& turn) {
  if (ways_end == nullptr) TUTTI_TRY(port_.record(own_end_, turn.stream));
  end_ = {ways_end == nullptr ? own_end_ : ways_end, turn.stream_id};
  return {};
}

Result<void> Device::settle(const std::vector<Device*>& devices) {
  Result<void> outcome;
  for (Pause pause;; pause.wait()) {
    bool all = true;
    for (Device* device : devices) {
      auto advanced = device->advance();
      if (!advanced && outcome) outcome = std::move(advanced).error();
      all = all && (!advanced || advanced.value());
    }
    if (all) return outcome;
  }
}

uint64_t Device::open_window(const void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto on_device = OnDevice::enter(port_, device_);
  Board* const others = board();
  if (!on_device || others == nullptr) return 0;  // ranks of one process reach each other's memory anyway
  const auto window = others->open_window(memory, bytes);
  if (window) return window.value();
  log(LogLevel::kWarn, "CUDA: registering %zu bytes at %p has no effect: %s", bytes, memory,
      window.error().message.c_str());
  return 0;
}

void Device::close_window(uint64_t window) {
  const std::lock_guard lock(mutex_);
  const auto on_device = OnDevice::enter(port_, device_);
  board()->close_window(window, [&] {
    const auto reached = on_device ? has_reached_end() : Result<bool>(false);
    return reached && reached.value();
  });
}

Board* Device::board() const {
  Attendee* const others = ways_->first().others();
  return others == nullptr ? nullptr : others->board();
}

Result<bool> Device::is_done() {
  const std::lock_guard lock(mutex_);
  TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
  return has_reached_end();
}

Result<bool> Device::has_reached_end() {
  if (end_.event == nullptr) return true;
  auto reached = port_.reached(end_.event);
  if (reached && reached.value()) end_.event = nullptr;
  return reached;
}

void Device::drain() {
  while (!host_.broken()) {
    const auto done = is_done();
    if (!done) return host_.break_with(done.error());
    if (done.value()) return;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace tutti::cuda
