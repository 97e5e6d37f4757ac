#include "cuda/device.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/handshake.h"
#include "base/log.h"
#include "base/thread.h"
#include "cuda/household.h"
#include "cuda/phases.h"

namespace tutti::cuda {
namespace {

std::string random_name() {
  uint64_t words[2];
  random_bytes(words, sizeof words);
  return format("%016llx%016llx", static_cast<unsigned long long>(words[0]), static_cast<unsigned long long>(words[1]));
}

// Sixteen bytes that no other process has, nor this one's child.
std::string process_name() {
  static const auto* const once = new std::string(random_name());  // never destroyed: other threads may outlive main
  return format("%.16s%08x", once->c_str(), static_cast<unsigned>(getpid()));
}

std::string to_bytes(const Seat& seat, const std::string& name) {
  ByteWriter w;
  w.put_string(seat.process).put(static_cast<int32_t>(seat.device)).put(seat.info).put_string(name);
  return w.take();
}

}  // namespace

Result<std::vector<std::string>> tell_all(Host& host, const std::string& blob) {
  const auto n_ranks = static_cast<size_t>(host.n_ranks());
  std::string all(blob.size() * n_ranks, 0);
  Operation operation;
  operation.collective = Collective::kAllGather;
  operation.input = blob.data();
  operation.output = all.data();
  operation.count = blob.size();
  TUTTI_TRY(host.run_on_host(operation));
  std::vector<std::string> blobs;
  for (size_t r = 0; r < n_ranks; r++) blobs.push_back(all.substr(r * blob.size(), blob.size()));
  return blobs;
}

Result<std::string> agree(Host& host, const Result<void>& mine) {
  constexpr size_t kBytes = 240;
  std::string text = mine ? "" : mine.error().message;
  text.resize(kBytes);
  TUTTI_TRY_ASSIGN(const auto all, tell_all(host, text));
  for (size_t r = 0; r < all.size(); r++)
    if (all[r][0] != 0) return format("rank %zu: %s", r, all[r].c_str());
  return std::string();
}

Result<std::unique_ptr<Device>> Device::create(Host& host, int device) {
  Port* const found = port();
  if (found == nullptr) return Error{Code::kInvalidUsage, "this library was built without CUDA"};
  std::unique_ptr<Device> made(new Device(host, *found, device));
  TUTTI_TRY(made->setup());
  return made;
}

Result<void> Device::setup() {
  TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
  TUTTI_TRY_ASSIGN(info_, port_.describe(device_));
  TUTTI_TRY(port_.load_kernels());
  TUTTI_TRY_ASSIGN(own_end_, port_.create_event());
  TUTTI_TRY(add_ways());
  stop_fd_.reset(eventfd(0, EFD_CLOEXEC));
  if (!stop_fd_) return system_error("eventfd", errno);
  TUTTI_TRY_ASSIGN(guard_, start_thread("the thread of a CUDA communicator", [this] { guard(); }));
  return {};
}

// A broken group frees what its streams wait for, again and again, because there may be several waits in a row, and
// graphs that are launched later. Nobody has to call for that: who waits for a stream learns of the end.
void Device::guard() {
  constexpr int kLookMs = 250;
  pollfd fds[] = {{host_.wake_fd(), POLLIN, 0}, {stop_fd_.get(), POLLIN, 0}};
  log_set_thread_rank(host_.rank());
  // For all that follows: whatever a thread without a device asks of CUDA makes a context on device 0.
  const auto on_device = OnDevice::enter(port_, device_);
  for (int n = 0; n == 0 || (n < 0 && errno == EINTR); n = poll(fds, 2, kLookMs)) look_around();
  if (host_.broken()) progress_.fail(host_.breakage());
  constexpr int kTurnMs = 1;
  while (on_device && fds[1].revents == 0) {
    for (const auto& way : ways_) way->release();
    (void)poll(&fds[1], 1, kTurnMs);
  }
}

// A launch may wait for the GPU with the mutex held, but never this thread for that: it frees what waits.
void Device::look_around() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  const auto reached = has_reached_end();
  const bool is_idle = reached && reached.value();
  if (is_idle) ways_.front()->forget_closed();  // which waits for the device
  if (!progress_.is_under_way()) return;
  if (!reached) return host_.break_with(reached.error());  // perhaps nobody here calls any more
  if (is_idle && pending_.empty()) return progress_.end();
  const auto calls = [this](int rank) { return ways_.front()->called_by(rank); };
  if (auto looked = progress_.look(calls); !looked) host_.break_with(looked.error());
}

Result<void> Device::add_ways() {
  const Seat mine{process_name(), host_.host_of(host_.rank()), device_, info_};
  TUTTI_TRY_ASSIGN(const auto blobs, tell_all(host_, to_bytes(mine, random_name())));
  std::vector<Seat> seats;
  std::string name;
  for (size_t r = 0; r < blobs.size(); r++) {
    ByteReader reader(blobs[r]);
    Seat seat;
    seat.process = reader.get_string();
    seat.host = host_.host_of(static_cast<int>(r));
    seat.device = reader.get<int32_t>();
    seat.info = reader.get<DeviceInfo>();
    if (r == 0) name = reader.get_string();
    seats.push_back(seat);
  }
  const auto household = household_of(seats, name);
  TUTTI_TRY_ASSIGN(proxy_, Proxy::create(port_));
  if (household != nullptr && household->ranks().size() == seats.size()) {
    ways_.push_back(make_together(host_, port_, info_, household, name));
    ways_.push_back(make_mail(host_, port_, name));
    log(LogLevel::kInfo, "CUDA device %d: all %d ranks are in this process, one kernel serves them", device_,
        host_.n_ranks());
  } else {
    std::string why;
    TUTTI_TRY_ASSIGN(auto phases, make_phases(host_, port_, seats, household, name, &why));
    if (phases != nullptr) {
      ways_.push_back(std::move(phases));
      log(LogLevel::kInfo, "CUDA device %d: ranks map each other's memory", device_);
    } else {
      TUTTI_TRY(add_direct(why, seats));
    }
  }
  ways_.push_back(make_staged(host_, port_, info_, proxy_, household == nullptr));
  return {};
}

// Those of this process on this rank's GPU; null for a rank alone, unless it is the only one of all.
std::shared_ptr<Household> Device::household_of(const std::vector<Seat>& seats, const std::string& name) {
  std::vector<int> ranks;
  for (size_t r = 0; r < seats.size(); r++)
    if (seats[r].shares_gpu_with(seats[static_cast<size_t>(host_.rank())])) ranks.push_back(static_cast<int>(r));
  if (ranks.size() == 1 && seats.size() > 1) return nullptr;
  return find_shared<Household>(format("%s %d", name.c_str(), ranks[0]),
                                [&] { return std::make_shared<Household>(port_, ranks); });
}

// Without a network that does it, what is left is the slow way.
Result<void> Device::add_direct(const std::string& why_not_mapped, const std::vector<Seat>& seats) {
  std::string why = "ranks of one process share a GPU";
  std::unique_ptr<Way> direct;
  bool all_alone = true;
  for (size_t a = 0; a < seats.size(); a++)
    for (size_t b = 0; b < a; b++) all_alone = all_alone && !seats[a].shares_gpu_with(seats[b]);
  if (all_alone) {
    TUTTI_TRY_ASSIGN(direct, make_direct(host_, port_, device_, info_, proxy_, &why));
  }
  obstacles_ = why_not_mapped;
  if (direct == nullptr) {
    obstacles_ += "; and no network moves data from GPU to GPU (GPUDirect RDMA): " + why;
    log(LogLevel::kWarn, "CUDA device %d: data go through host memory, which is slow, because %s", device_,
        obstacles_.c_str());
  } else {
    ways_.push_back(std::move(direct));
  }
  return {};
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
    // Nobody can ask for the end of a graph's launch. Freeing memory waits for all that the device does, and while the
    // guard is there, what waits for ranks of a broken group ends.
    if (progress_.has_captured() && done && done.value())
      if (const auto some = port_.allocate(1)) port_.free(some.value());
    (void)eventfd_write(stop_fd_.get(), 1);
    guard_.join();
  }
  if (!done || !done.value()) keep_ways();
  ways_.clear();
  proxy_.reset();
  if (own_end_ != nullptr) port_.destroy_event(own_end_);
}

Result<void> Device::submit(const Operation& operation, StreamRef stream) {
  const std::lock_guard lock(mutex_);
  TUTTI_TRY(host_.check_open());
  const auto only_by = port_.is_per_thread(stream) ? std::this_thread::get_id() : std::thread::id();
  pending_.push_back({operation, {stream}, &way_of(operation), only_by});
  return {};
}

// Quantised sums are for networks that are slower than the way through host memory.
Way& Device::way_of(const Operation& operation) const {
  if (operation.collective == Collective::kAllReduceQuantized) return *ways_.back();
  return **std::find_if(ways_.begin(), ways_.end(), [&](const auto& way) { return way->takes(operation); });
}

// Since the creation nothing of it changes.
std::string Device::explain(const Operation& operation) const {
  std::string text = format("GPU %d: %s", device_, way_of(operation).name());
  return text + (obstacles_.empty() ? "\n" : ", because " + obstacles_ + "\n");
}

// What the GPU refuses, it refuses for good.
Result<bool> Device::advance() {
  const std::lock_guard lock(mutex_);
  auto all = enqueue_all();
  if (all && (all.value() || !host_.broken())) return all;
  if (!host_.broken()) host_.break_with(all.error());
  pending_.clear();
  return all ? Result<bool>(host_.breakage()) : all;
}

Result<bool> Device::enqueue_all() {
  if (pending_.empty()) return true;
  TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
  for (; !pending_.empty(); pending_.pop_front()) {
    const std::thread::id only_by = pending_.front().only_by;
    if (only_by != std::thread::id() && only_by != std::this_thread::get_id()) return false;  // it is about to
    TUTTI_TRY_ASSIGN(const bool is_in_stream, enqueue(pending_.front()));
    if (!is_in_stream) return false;
  }
  return true;
}

Result<void> Device::begin(Pending& pending) {
  pending.has_begun = true;
  Turn& turn = pending.turn;
  TUTTI_TRY_ASSIGN(turn.is_captured, port_.is_capturing(turn.stream));
  TUTTI_TRY_ASSIGN(turn.stream_id, port_.id_of(turn.stream, turn.is_captured));
  if (!turn.is_captured && pending.way->waits_unseen()) progress_.begin(pending.operation);
  if (turn.is_captured) progress_.note_captured();
  // The ways keep one place for all operations.
  if (!turn.is_captured && end_ != nullptr && turn.stream_id != end_stream_) return port_.wait(turn.stream, end_);
  return {};
}

Result<bool> Device::enqueue(Pending& pending) {
  if (!pending.has_begun) TUTTI_TRY(begin(pending));
  if (!pending.is_told && pending.way != ways_.front().get() && pending.operation.collective != Collective::kSendRecv) {
    TUTTI_TRY_ASSIGN(pending.is_told, ways_.front()->tell(pending.operation));
    if (!pending.is_told) return false;
  }
  TUTTI_TRY_ASSIGN(const bool has_met, pending.way->meet(pending.operation, pending.turn));
  if (!has_met) return false;
  const Call call = to_call(pending.operation);
  const ProfiledRange range(traits(call.collective).name, bytes_of(call));
  auto submitted = pending.way->submit(pending.operation, pending.turn);
  // Also of what could be submitted in part.
  if (!pending.turn.is_captured) TUTTI_TRY(mark_end(submitted ? pending.way->end() : nullptr, pending.turn));
  TUTTI_TRY(submitted);
  return true;
}

Result<void> Device::mark_end(EventRef ways_end, const Turn& turn) {
  if (ways_end == nullptr) TUTTI_TRY(port_.record(own_end_, turn.stream));
  end_ = ways_end == nullptr ? own_end_ : ways_end;
  end_stream_ = turn.stream_id;
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
  return on_device ? ways_.front()->open_window(memory, bytes) : 0;
}

void Device::close_window(uint64_t window) {
  const std::lock_guard lock(mutex_);
  ways_.front()->close_window(window);
}

// Whether the GPU still uses what they have is not known, so all of it stays.
void Device::keep_ways() {
  static auto* mutex = new std::mutex;  // never destroyed, as what is kept
  static auto* kept = new std::vector<std::unique_ptr<Way>>;
  if (proxy_ != nullptr) proxy_->only_answer();
  const std::lock_guard lock(*mutex);
  std::move(ways_.begin(), ways_.end(), std::back_inserter(*kept));
}

Result<bool> Device::is_done() {
  const std::lock_guard lock(mutex_);
  TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
  return has_reached_end();
}

Result<bool> Device::has_reached_end() {
  if (end_ == nullptr) return true;
  return port_.reached(end_);
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
