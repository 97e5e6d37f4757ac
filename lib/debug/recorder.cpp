#include "debug/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "base/at_fork.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/socket.h"
#include "debug/trace_files.h"

namespace tutti {
namespace {

// Never destroyed: other threads may outlive main.
struct Registry {
  std::mutex mutex;
  std::vector<Recorder*> all;
  uint64_t files = 0;
};
Registry* make_registry();
Registry& registry() {
  static auto* const all = make_registry();
  return *all;
}

// A program that ends in good order leaves no files, though it may not have destroyed its communicators. What a
// communicator was in when it broke is left for who asks why.
void remove_files() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const Recorder* recorder : all.all)
    if (!recorder->path().empty() && !is_evidence(*recorder)) unlink(recorder->path().c_str());
}

Registry* make_registry() {
  auto* fresh = new Registry;
  hold_while_forking(fresh->mutex);
  do_in_children([] { registry().all.clear(); });
  atexit(remove_files);
  return fresh;
}

void* map_private() {
  void* const memory =
      mmap(nullptr, Recorder::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

// All of it is there from the start: a file system that is full would end the process in the middle of an operation.
Result<void*> map_file(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return system_error("open " + path, errno);
  const NoWriteSignal quiet;
  int reason = posix_fallocate(file.get(), 0, Recorder::kBytes);
  void* memory = MAP_FAILED;
  if (reason == 0) {
    memory = mmap(nullptr, Recorder::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    reason = errno;
  }
  if (memory != MAP_FAILED) return memory;
  unlink(path.c_str());
  return system_error("making " + path, reason);
}

void say_private(const Error& error) {
  static std::once_flag once;
  std::call_once(once, [&] {
    log(LogLevel::kWarn,
        "the flight recorder cannot be read from outside, only by tuttiDumpTrace: %s; set TUTTI_TRACE_DIR to a folder "
        "with room for %zu KiB for each communicator",
        error.message.c_str(), Recorder::kBytes >> 10);
  });
}

std::string text_of_place(const TraceSlot& slot) {
  return in_parentheses(place_name(to_place(reinterpret_cast<const void*>(slot.caller.load()))));
}

// Whether this CPU's counter can stand for time: the kernel itself takes it for that.
bool cpu_counts_time() {
  static const bool counts = [] {
#if defined(__x86_64__)
    return first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource") == "tsc";
#else
    return true;
#endif
  }();
  return counts;
}

}  // namespace

Recorder::Recorder() : by_cpu_(cpu_counts_time()) {
  attach_profiler();
  use(map_private());
  const std::lock_guard lock(registry().mutex);
  registry().all.push_back(this);
}

Recorder::~Recorder() {
  {
    const std::lock_guard lock(registry().mutex);
    std::erase(registry().all, this);
  }
  if (!path_.empty() && header_->pid == getpid()) unlink(path_.c_str());
  munmap(header_, kBytes);
}

void Recorder::use(void* memory) {
  if (header_ != nullptr) munmap(header_, kBytes);
  header_ = new (memory) TraceHeader{};
  slots_ = reinterpret_cast<TraceSlot*>(static_cast<char*>(memory) + kHeaderBytes);
  places_ = reinterpret_cast<TracePlace*>(slots_ + kOperations);
  header_->rank = -1;
  header_->by_cpu = by_cpu_;
  header_->pid = getpid();
  header_->made_ticks = now();
  header_->made_ns = now_ns();
  header_->made_real_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Recorder::share(int rank, int n_ranks, uint64_t group, bool sweeps) {
  static std::atomic<int> swept_by{0};  // a forked child does it again
  const std::string folder = trace_folder();
  const ProcessId me = this_process();
  if (sweeps && swept_by.exchange(me.pid) != me.pid) sweep_trace_files(folder);
  const std::lock_guard lock(registry().mutex);  // for who visits them
  const std::string path = folder + "/" + trace_file_name(me, ++registry().files);
  auto memory = map_file(path);
  if (memory)
    use(memory.value());
  else
    say_private(memory.error());
  if (memory) path_ = path;
  header_->rank = rank;
  header_->n_ranks = n_ranks;
  header_->group = group;
  header_->process_start = me.start;
  header_->pid_namespace = me.pid_namespace;
  snprintf(header_->host, sizeof header_->host, "%s", host_name().c_str());
  snprintf(header_->program, sizeof header_->program, "%s", first_line("/proc/self/comm").c_str());
  std::atomic_ref(header_->magic).store(TraceHeader::kMagic, std::memory_order_release);
}

void Recorder::end(bool well) {
  TraceSlot& slot = slots_[begun_ % kOperations];
  if (begun_ == 0 || slot.finished.load(std::memory_order_relaxed) != 0) return;
  finish(slot, well);
}

void Recorder::waits(int64_t idle_ns, std::span<const Awaited> awaited) {
  const size_t n = std::min(awaited.size(), TraceHeader::kMostAwaited);
  header_->waiting_nth.store(0, std::memory_order_release);
  for (size_t i = 0; i < n; i++)
    header_->awaited[i].store(static_cast<uint32_t>(awaited[i].rank) * 2 + (awaited[i].takes ? 1 : 0),
                              std::memory_order_release);
  header_->n_awaited.store(n, std::memory_order_release);
  header_->waiting_since_ns.store(static_cast<uint64_t>(now_ns() - idle_ns), std::memory_order_release);
  header_->waiting_nth.store(begun_, std::memory_order_release);
}

void Recorder::finds(const std::string& why) {
  header_->found_nth.store(0, std::memory_order_release);
  snprintf(header_->found, sizeof header_->found, "%s", why.c_str());
  header_->found_nth.store(begun_, std::memory_order_release);
}

void Recorder::tell_lateness(uint64_t asked, const std::string& sentence) {
  snprintf(header_->lateness, sizeof header_->lateness, "%s", sentence.c_str());
  header_->lateness_answered.store(asked, std::memory_order_release);
}

bool Recorder::fail(const std::string& message) {
  static constexpr uint64_t kNo = 0, kBeingTold = 1, kYes = 2;
  uint64_t was = kNo;
  if (!header_->has_failed.compare_exchange_strong(was, kBeingTold)) return false;
  snprintf(header_->error, sizeof header_->error, "%s", message.c_str());
  header_->has_failed.store(kYes, std::memory_order_release);
  return true;
}

// Null, or what may be overwritten by now.
const TraceSlot* Recorder::slot_of(uint64_t sequence) const {
  const uint64_t last = header_->begun.load(std::memory_order_acquire);
  for (uint64_t nth = last; nth > 0 && last - nth < kOperations; nth--) {
    const TraceSlot& slot = slots_[nth % kOperations];
    if (static_cast<Collective>(slot.kinds & 0xff) == Collective::kSendRecv) continue;
    if (slot.sequence == sequence) return &slot;
    if (slot.sequence < sequence) break;
  }
  return nullptr;
}

Call Recorder::find(uint64_t sequence) const {
  const TraceSlot* const slot = slot_of(sequence);
  if (slot == nullptr) return {};
  const uint64_t nth = slot->nth;
  const Call call = from_tag({slot->sequence, slot->count, slot->kinds, slot->blocks & 0xffffffff});
  return nth != 0 && slot->nth == nth && call.sequence == sequence ? call : Call{};
}

std::string Recorder::place_text(uint64_t sequence) const {
  const TraceSlot* const slot = slot_of(sequence);
  return slot == nullptr ? "" : text_of_place(*slot);
}

std::string Recorder::last_place_text() const {
  return text_of_place(slots_[header_->begun.load(std::memory_order_acquire) % kOperations]);
}

void Recorder::keep_place(uint64_t place) {
  TracePlace& to = places_[place % kPlaces];
  to.number.store(0, std::memory_order_release);
  snprintf(to.name, sizeof to.name, "%s", place_name(place).c_str());
  to.number.store(place, std::memory_order_release);
}

bool Recorder::is_past(uint64_t sequence) const {
  for (uint64_t nth = begun_; nth > 0 && begun_ - nth < kOperations; nth--) {
    const TraceSlot& slot = slots_[nth % kOperations];
    if (static_cast<Collective>(slot.kinds & 0xff) != Collective::kSendRecv) return slot.sequence > sequence;
  }
  return false;
}

void for_each_recorder(const std::function<void(const Recorder&)>& visit) {
  const std::lock_guard lock(registry().mutex);
  for (const Recorder* recorder : registry().all) visit(*recorder);
}

Call counterpart(const Call& mine, const Call& theirs, const Recorder& recorder) {
  const Call same_number = recorder.find(theirs.sequence);
  return same_number.sequence != 0 ? same_number : mine;
}

Error mismatch_error(int my_rank, const Call& mine, int peer, const Call& theirs, const Recorder& recorder) {
  if (is_point_to_point(mine) && is_point_to_point(theirs))
    return {
        Code::kInvalidUsage,
        format("rank %d sends %llu x %s as its message %llu to rank %d, which receives %llu x %s as message %llu: "
               "count and type must be the same on both sides",
               peer, static_cast<unsigned long long>(theirs.count), dtype_name(theirs.dtype),
               static_cast<unsigned long long>(theirs.sequence), my_rank, static_cast<unsigned long long>(mine.count),
               dtype_name(mine.dtype), static_cast<unsigned long long>(mine.sequence)),
        peer};
  const Call same = counterpart(mine, theirs, recorder);
  return disagreement({my_rank, same, {}, recorder.place_text(same.sequence)}, {peer, theirs});
}

}  // namespace tutti
