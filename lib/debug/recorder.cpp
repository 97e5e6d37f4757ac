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
#include "base/env.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/socket.h"
#include "debug/trace.h"
#include "debug/trace_files.h"

namespace tutti {
namespace {

// Never destroyed: other threads may outlive main.
struct Registry {
  Registry();
  MutexAcrossForks mutex;
  std::vector<Recorder*> all;
  uint64_t files = 0;
};
Registry& g_registry = *new Registry;

// From when on this process sweeps again: every few minutes; and a second after a communicator has failed, as other
// ranks may have died. Not at once, because these may still be ending, and a sweep looks at all processes' files.
constexpr int64_t kSweepAgainNs = 300'000'000'000, kEndingNs = 1'000'000'000;
constinit std::atomic<int64_t> g_sweep_from_ns{0};

bool is_time_to_sweep() {
  const int64_t now = now_ns();
  int64_t from = g_sweep_from_ns;
  return now >= from && g_sweep_from_ns.compare_exchange_strong(from, now + kSweepAgainNs);
}

// A program that exits normally leaves no files, even if it has not destroyed its communicators. Only the files of
// communicators that failed or are in an operation are left, for people who ask why. The end of a GPU's operation may
// not have been seen yet, unless it is known what it waits for.
void remove_files() {
  const std::lock_guard lock(g_registry.mutex);
  for (const Recorder* recorder : g_registry.all) {
    const Trace trace = read_trace(*recorder);
    const bool is_evidence =
        recorder->is_on_gpu() && trace.wait.awaited.empty() ? trace.has_failed() : trace.is_evidence();
    if (!recorder->path().empty() && !is_evidence) unlink(recorder->path().c_str());
  }
}

Registry::Registry() {
  do_in_children([] {
    g_registry.all.clear();
    g_sweep_from_ns = 0;
  });
  atexit(remove_files);
}

void* map_private() {
  void* const memory =
      mmap(nullptr, sizeof(TraceMemory), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

// All of it is allocated from the start: a full file system would kill the process in the middle of an operation.
Result<void*> map_file(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return system_error("open " + path, errno);
  const NoWriteSignal quiet;
  int reason = EINTR;  // a profiler's signals interrupt it
  while (reason == EINTR) reason = posix_fallocate(file.get(), 0, sizeof(TraceMemory));
  void* memory = MAP_FAILED;
  if (reason == 0) {
    memory = mmap(nullptr, sizeof(TraceMemory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    reason = errno;
  }
  if (memory != MAP_FAILED) return memory;
  unlink(path.c_str());
  return system_error("creating " + path, reason);
}

void say_private(const Error& error) {
  static std::once_flag once;
  std::call_once(once, [&] {
    log(LogLevel::kWarn,
        "the flight recorder cannot be read from outside, only by tuttiDumpTrace: %s; set TUTTI_TRACE_DIR to a folder "
        "with room for %zu KiB for each communicator",
        error.message.c_str(), sizeof(TraceMemory) >> 10);
  });
}

std::string text_of_place(const TraceSlot& slot) {
  return in_parentheses(place_name(to_place(slot.place_or_caller())));
}

// Whether this CPU's counter can be used as a clock: on x86, if the kernel itself uses it.
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

// Of two tuttiAlltoAllv with different collectives before them. Only the rank that is ahead knows what it called where
// the other called its own.
Error misplaced(int my_rank, const Call& mine, int peer, const Call& theirs, const Recorder& recorder) {
  const bool is_ahead = mine.blocks > theirs.blocks;
  const uint64_t number = std::min(mine.blocks, theirs.blocks);
  const Call call = is_ahead ? recorder.memory().find(number) : Call{};
  const std::string other = call.sequence == 0 ? format("something else as operation %lu", number)
                                               : to_text(call) + recorder.memory().place_text(number);
  return {
      Code::kInvalidUsage,
      format("the ranks disagree: rank %d called %s, rank %d AlltoAllv%s; all ranks of a communicator must call the "
             "same operations in the same order",
             is_ahead ? my_rank : peer, other.c_str(), is_ahead ? peer : my_rank,
             is_ahead ? "" : recorder.memory().last_place_text().c_str()),
      peer};
}

}  // namespace

Recorder::Recorder(bool on_gpu) : by_cpu_(cpu_counts_time()), on_gpu_(on_gpu) {
  attach_profiler();
  use(map_private());
  const std::lock_guard lock(g_registry.mutex);
  g_registry.all.push_back(this);
}

Recorder::~Recorder() {
  {
    const std::lock_guard lock(g_registry.mutex);
    std::erase(g_registry.all, this);
  }
  if (!path_.empty() && header().pid == getpid()) unlink(path_.c_str());
  munmap(memory_, sizeof(TraceMemory));
}

void Recorder::use(void* memory) {
  if (memory_ != nullptr) munmap(memory_, sizeof(TraceMemory));
  TraceHeader& header = *new (memory) TraceHeader{};  // the rest is zero, as mapped
  memory_ = static_cast<TraceMemory*>(memory);
  slots_ = memory_->slots;
  header.rank = -1;
  header.by_cpu = by_cpu_;
  header.pid = getpid();
  header.made_ticks = now();
  header.made_ns = now_ns();
  header.made_real_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Recorder::share(int rank, int n_ranks, uint64_t group, bool sweeps, const std::string& trace_file) {
  const std::string folder = env_path("TUTTI_TRACE_DIR");
  const ProcessId me = this_process();
  if (sweeps && is_time_to_sweep()) sweep_trace_files(folder);
  const std::lock_guard lock(g_registry.mutex);  // against for_each_recorder()
  trace_file_ = trace_file;
  const std::string path = folder + "/" + trace_file_name(me, ++g_registry.files);
  if (const auto memory = map_file(path)) {
    use(memory.value());
    path_ = path;
  } else {
    say_private(memory.error());
  }
  TraceHeader& header = memory_->header;
  header.rank = rank;
  header.n_ranks = n_ranks;
  header.group = group;
  header.process_start = me.start;
  header.pid_namespace = me.pid_namespace;
  snprintf(header.host, sizeof header.host, "%s", host_name().c_str());
  snprintf(header.program, sizeof header.program, "%s", first_line("/proc/self/comm").c_str());
  std::atomic_ref(header.magic).store(TraceHeader::kMagic, std::memory_order_release);
}

void Recorder::end(bool well) {
  TraceSlot& slot = slots_[begun_ % TraceMemory::kOperations];
  if (begun_ == 0 || slot.finished.load(std::memory_order_relaxed) != 0) return;
  finish(slot, well);
}

void Recorder::record_wait(int64_t idle_ns, std::span<const int> ranks) {
  TraceHeader& header = memory_->header;
  const size_t n = std::min(ranks.size(), TraceHeader::kMostAwaited);
  header.waiting_nth.store(0, std::memory_order_release);
  for (size_t i = 0; i < n; i++) header.awaited[i].store(ranks[i], std::memory_order_release);
  header.n_awaited.store(n, std::memory_order_release);
  header.waiting_since_ns.store(static_cast<uint64_t>(now_ns() - idle_ns), std::memory_order_release);
  header.waiting_nth.store(begun_, std::memory_order_release);
}

void Recorder::record_reason(const std::string& why) {
  TraceHeader& header = memory_->header;
  header.found_nth.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // as in keep(); the reader is read_trace()
  snprintf(header.found, sizeof header.found, "%s", why.c_str());
  header.found_nth.store(begun_, std::memory_order_release);
}

void Recorder::tell_lateness(uint64_t asked, const std::string& sentence) {
  TraceHeader& header = memory_->header;
  snprintf(header.lateness, sizeof header.lateness, "%s", sentence.c_str());
  header.lateness_answered.store(asked, std::memory_order_release);
}

bool Recorder::fail(const std::string& message) {
  TraceHeader& header = memory_->header;
  static constexpr uint64_t kNo = 0, kBeingTold = 1, kYes = 2;
  uint64_t was = kNo;
  if (!header.has_failed.compare_exchange_strong(was, kBeingTold)) return false;
  snprintf(header.error, sizeof header.error, "%s", message.c_str());
  header.has_failed.store(kYes, std::memory_order_release);
  g_sweep_from_ns = std::min(g_sweep_from_ns.load(), now_ns() + kEndingNs);
  return true;
}

Call TraceSlot::call() const {
  constexpr auto kOrder = std::memory_order_acquire;
  return from_tag({sequence.load(kOrder), count.load(kOrder), kinds.load(kOrder), blocks.load(kOrder) & 0xffffffff});
}

bool TraceSlot::is_message() const {
  return static_cast<Collective>(kinds & 0xff) == Collective::kSendRecv;
}

void TracePlace::keep(uint64_t place) {
  number.store(0, std::memory_order_relaxed);
  // Whoever reads part of the new name then sees the 0: pairs with the fence in read().
  std::atomic_thread_fence(std::memory_order_release);
  snprintf(name, sizeof name, "%s", place_name(place).c_str());
  number.store(place, std::memory_order_release);
}

std::string TracePlace::read(uint64_t place) const {
  if (number.load(std::memory_order_acquire) != place) return "";
  std::string text(name, strnlen(name, sizeof name));
  std::atomic_thread_fence(std::memory_order_acquire);
  return number.load(std::memory_order_relaxed) == place ? text : "";
}

// The last collective up to this number. Null if it is too long ago; the slot may have been overwritten since.
const TraceSlot* TraceMemory::last_up_to(uint64_t sequence) const {
  const uint64_t last = header.begun.load(std::memory_order_acquire);
  for (uint64_t nth = last; nth > 0 && last - nth < kOperations; nth--) {
    const TraceSlot& slot = slots[nth % kOperations];
    if (!slot.is_message() && slot.sequence <= sequence) return &slot;
  }
  return nullptr;
}

Call TraceMemory::find(uint64_t sequence) const {
  const TraceSlot* const slot = last_up_to(sequence);
  if (slot == nullptr) return {};
  const uint64_t nth = slot->nth;
  const Call call = slot->call();
  return nth != 0 && slot->nth == nth && call.sequence == sequence ? call : Call{};
}

bool TraceMemory::is_past(uint64_t sequence) const {
  const TraceSlot* const last = last_up_to(UINT64_MAX);
  return last != nullptr && last->sequence > sequence;
}

std::string TraceMemory::place_text(uint64_t sequence) const {
  const TraceSlot* const slot = last_up_to(sequence);
  return slot == nullptr || slot->sequence != sequence ? "" : text_of_place(*slot);
}

std::string TraceMemory::last_place_text() const {
  return text_of_place(slots[header.begun.load(std::memory_order_acquire) % kOperations]);
}

void for_each_recorder(const std::function<void(const Recorder&)>& visit) {
  const std::lock_guard lock(g_registry.mutex);
  for (const Recorder* recorder : g_registry.all) visit(*recorder);
}

Call counterpart(const Call& mine, const Call& theirs, const Recorder& recorder) {
  const Call same_number = recorder.memory().find(theirs.sequence);
  return same_number.sequence != 0 ? same_number : mine;
}

Error mismatch_error(int my_rank, const Call& mine, int peer, const Call& theirs, const Recorder& recorder) {
  const bool are_messages = is_point_to_point(mine) && is_point_to_point(theirs);
  if (are_messages && mine.blocks != 0 && theirs.blocks != 0 && mine.blocks != theirs.blocks)
    return misplaced(my_rank, mine, peer, theirs, recorder);
  if (are_messages)
    return {Code::kInvalidUsage,
            format("rank %d sends %lu x %s as its message %lu to rank %d, which receives %lu x %s as message %lu: "
                   "count and type must be the same on both sides",
                   peer, theirs.count, dtype_name(theirs.dtype), theirs.sequence, my_rank, mine.count,
                   dtype_name(mine.dtype), mine.sequence),
            peer};
  const Call same = counterpart(mine, theirs, recorder);
  return disagreement({my_rank, same, {}, recorder.memory().place_text(same.sequence)}, {peer, theirs});
}

}  // namespace tutti
