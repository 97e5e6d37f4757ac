#include "cuda/ways.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/bytes.h"
#include "base/handshake.h"
#include "base/log.h"
#include "base/thread.h"
#include "cuda/device_group.h"
#include "cuda/phases.h"

namespace tutti::cuda {
namespace {

unsigned long long random_word() {
  unsigned long long word;
  random_bytes(&word, sizeof word);
  return word;
}

ProcessName process_name() {
  static const uint64_t once = random_word();
  return {once, static_cast<uint64_t>(getpid())};
}

// Whether no two ranks of a process share a GPU.
bool are_alone(const std::vector<Seat>& seats) {
  for (size_t a = 0; a < seats.size(); a++)
    for (size_t b = 0; b < a; b++)
      if (seats[a].shares_gpu_with(seats[b])) return false;
  return true;
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

Result<std::unique_ptr<Ways>> Ways::create(Host& host, Port& port, int device) {
  std::unique_ptr<Ways> ways(new Ways(host, port, device));
  TUTTI_TRY(ways->add_all());
  return ways;
}

Result<void> Ways::add_all() {
  TUTTI_TRY_ASSIGN(info_, port_.describe(device_));
  const Seat mine{process_name(), host_.host_of(host_.rank()), device_, info_};
  const std::string my_name = format("%016llx%016llx", random_word(), random_word());
  TUTTI_TRY_ASSIGN(const auto blobs, tell_all(host_, ByteWriter().put(mine).put_string(my_name).take()));
  std::vector<Seat> seats;
  std::string name;
  for (size_t r = 0; r < blobs.size(); r++) {
    ByteReader reader(blobs[r]);
    seats.push_back(reader.get<Seat>());
    if (r == 0) name = reader.get_string();
  }
  const auto device_group = device_group_of(seats, name);
  TUTTI_TRY_ASSIGN(proxy_, Proxy::create(host_, port_));
  if (device_group != nullptr && device_group->ranks().size() == seats.size()) {
    all_.push_back(make_together(host_, port_, info_, device_group));
    all_.push_back(make_mail(host_, port_, name));
    log(LogLevel::kInfo, "CUDA device %d: all %d ranks are in this process, one kernel serves them", device_,
        host_.n_ranks());
  } else {
    std::string why;
    TUTTI_TRY_ASSIGN(auto phases, make_phases(host_, port_, seats, device_group, name, &why));
    if (phases != nullptr) {
      all_.push_back(std::move(phases));
      log(LogLevel::kInfo, "CUDA device %d: ranks map each other's memory", device_);
    } else {
      TUTTI_TRY(add_direct(why, seats));
    }
  }
  // All ranks do the same, because those that wait in streams divide operations differently.
  const auto waits = [](const Seat& seat) { return seat.info.waits_in_streams; };
  const bool may_wait = are_alone(seats) && std::all_of(seats.begin(), seats.end(), waits);
  all_.push_back(make_staged(host_, port_, info_, proxy_, may_wait));
  return {};
}

// The ranks of this process on this rank's GPU. Null for a rank alone there, unless the group has no other rank.
std::shared_ptr<DeviceGroup> Ways::device_group_of(const std::vector<Seat>& seats, const std::string& name) const {
  std::vector<int> ranks;
  for (size_t r = 0; r < seats.size(); r++)
    if (seats[r].shares_gpu_with(seats[static_cast<size_t>(host_.rank())])) ranks.push_back(static_cast<int>(r));
  if (ranks.size() == 1 && seats.size() > 1) return nullptr;
  return find_shared<DeviceGroup>(format("%s %d", name.c_str(), ranks[0]),
                                  [&] { return std::make_shared<DeviceGroup>(port_, ranks); });
}

// Without a network that can do it, only the slow way is left.
Result<void> Ways::add_direct(const std::string& why_not_mapped, const std::vector<Seat>& seats) {
  std::string why = "ranks of one process share a GPU";
  std::unique_ptr<Way> direct;
  if (are_alone(seats)) {
    TUTTI_TRY_ASSIGN(direct, make_direct(host_, port_, device_, info_, proxy_, &why));
  }
  obstacles_ = why_not_mapped;
  if (direct == nullptr) {
    obstacles_ += "; and no network moves data from GPU to GPU (GPUDirect RDMA): " + why;
    log(LogLevel::kWarn, "CUDA device %d: data go through host memory, which is slow, because %s", device_,
        obstacles_.c_str());
  } else {
    all_.push_back(std::move(direct));
  }
  return {};
}

// Quantised sums are for networks that are slower than copies through host memory.
Way& Ways::of(const Operation& operation) const {
  if (operation.collective == Collective::kAllReduceQuantized) return *all_.back();
  return **std::find_if(all_.begin(), all_.end(), [&](const auto& way) { return way->takes(operation); });
}

std::string Ways::explain(const Operation& operation) const {
  std::string text = format("GPU %d: %s", device_, of(operation).name());
  return text + (obstacles_.empty() ? "\n" : ", because " + obstacles_ + "\n");
}

std::shared_ptr<void> Ways::releasing() {
  static auto* const all = new std::shared_ptr<void>(std::make_shared<int>());
  return *all;
}

// A stream that is held up by something else comes to its waits later.
void Ways::keep(std::unique_ptr<Ways> ways, EventRef end) {
  static auto* mutex = new std::mutex;  // never destroyed, like the ways that are kept
  static auto* kept = new std::vector<std::unique_ptr<Ways>>;
  ways->proxy_->only_answer();
  if (end != nullptr)
    if (auto thread =
            start_thread("a thread", [w = ways.get(), end, counted = releasing()] { (void)w->release_until(end); }))
      thread.value().detach();
  const std::lock_guard lock(*mutex);
  kept->push_back(std::move(ways));
}

Result<void> Ways::release_until(EventRef end) {
  TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    TUTTI_TRY_ASSIGN(const bool done, port_.reached(end));
    if (done) return {};
    (void)contained([this] { return first().release(), Result<void>(); });  // may lack memory
  }
}

}  // namespace tutti::cuda
