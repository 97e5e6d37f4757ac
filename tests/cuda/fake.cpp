#include "fake.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "cuda/programs.h"
#include "cuda/ways.h"
#include "twins.h"

namespace tutti_test {

using namespace tutti;
using namespace tutti::cuda;

namespace {

thread_local int t_device = 0, t_refusal = 1;
thread_local bool t_has_device = false;
std::atomic<uint64_t> g_threads{0}, g_streams{0};
thread_local const uint64_t t_thread = ++g_threads;

Kernels* g_kernels = nullptr;

// A page after each allocation has the number of mappings in other processes.
constexpr size_t kPageBytes = 4096;
off_t users_at(size_t bytes) {
  return static_cast<off_t>((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

struct HandleBytes {
  int32_t pid, fd;
  uint64_t bytes;
};

template <class T>
std::unique_ptr<T> take_last(std::vector<std::unique_ptr<T>>* old) {
  if (old->empty()) return std::make_unique<T>();
  auto last = std::move(old->back());
  old->pop_back();
  return last;
}

void wait_until(FakeProgress& progress, uint64_t last) {
  std::unique_lock lock(progress.mutex);
  progress.changed.wait(lock, [&] { return progress.done >= last; });
}

}  // namespace

Error refuse(const std::string& message, int code) {
  t_refusal = code;
  return {Code::kCudaError, message};
}
int last_refusal() {
  return t_refusal;
}
bool has_device() {
  return t_has_device;
}

void Kernels::run(const JobList& list) {
  run_jobs_on_host(list);
}
void Kernels::run(const ProgramCall& call) {
  run_program_on_host(call);
}
void Kernels::run(const LineCall& call) {
  run_lines_on_host(call);
}
void Kernels::run(const SpanCall& call, uint32_t n_blocks) {
  run_spans_on_host(call, n_blocks);
}
void Kernels::run(const FactorCall& call, uint32_t n_blocks) {
  run_factors_on_host(call, n_blocks);
}

Kernels& kernels() {
  static Kernels twins;
  return g_kernels == nullptr ? twins : *g_kernels;
}

void use_kernels(Kernels* others) {
  g_kernels = others;
}

// What is released goes on until its stream has come to its end, even if all communicators are gone.
FakePort::~FakePort() {
  for (int i = 0; i < 20'000 && Ways::releasing().use_count() > 2; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  set_port(nullptr);
}

Result<DeviceInfo> FakePort::describe(int device) {
  DeviceInfo info;
  info.uuid[0] = static_cast<char>(device + 1);
  info.multiprocessors = kLineMultiprocessors;
  info.waits_in_streams = !has_no_words;
  return info;
}

Result<int> FakePort::use(int device) {
  if (device < 0 || device >= n_devices_) return refuse(format("there is no device %d", device));
  t_has_device = true;
  return std::exchange(t_device, device);
}

Result<void*> FakePort::enter(int fd, size_t bytes, bool is_own) {
  const int sharing = corrupts_maps && !is_own ? MAP_PRIVATE : MAP_SHARED;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing, fd, 0);
  void* users = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, users_at(bytes));
  if (memory == MAP_FAILED || users == MAP_FAILED)
    return refuse(format("mmap of %zu bytes: %s", bytes, strerror(errno)));
  const std::lock_guard lock(mutex_);
  blocks_[memory] = {fd, bytes, is_own, static_cast<std::atomic<int>*>(users)};
  kernels().know(memory, bytes);
  return memory;
}

Result<void*> FakePort::allocate(size_t bytes) {
  allocated++;
  const int fd = memfd_create("device", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, users_at(bytes) + static_cast<off_t>(kPageBytes)) != 0) return refuse("out of memory");
  return enter(fd, bytes, true);
}

Result<void*> FakePort::allocate_host(size_t bytes) {
  if (fails_host_memory > 0 && --fails_host_memory == 0) return refuse("out of memory", 2);
  return memset(operator new(bytes), 0, bytes);
}

void FakePort::leave(void* memory) {
  const std::lock_guard lock(mutex_);
  const Block block = blocks_.at(memory);
  blocks_.erase(memory);
  kernels().forget(memory);
  if (block.is_own)
    early_frees += *block.users > 0;
  else
    --*block.users;
  // The address range stays reserved, so that any further use of it is found.
  (void)mmap(memory, block.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  munmap(block.users, kPageBytes);
  close(block.fd);
}

size_t FakePort::allocations() {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

void FakePort::free(void* memory) {
  leave(memory);
}

void FakePort::free_host(void* memory) {
  host_frees++;
  operator delete(memory);
}

Result<IpcHandle> FakePort::share(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(memory);
  if (block == blocks_.end()) return refuse("not the beginning of an allocation");
  const HandleBytes bytes{getpid(), block->second.fd, block->second.bytes};
  IpcHandle handle;
  memcpy(handle.bytes.data(), &bytes, sizeof bytes);
  return handle;
}

Result<void*> FakePort::map(const IpcHandle& handle) {
  HandleBytes bytes;
  memcpy(&bytes, handle.bytes.data(), sizeof bytes);
  if (refuses_maps) return refuse("invalid resource handle");
  if (bytes.pid == getpid()) return refuse("a process cannot open its own handle");
  const std::string path = "/proc/" + std::to_string(bytes.pid) + "/fd/" + std::to_string(bytes.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return refuse(path + ": " + strerror(errno));
  TUTTI_TRY_ASSIGN(void* memory, enter(fd, bytes.bytes, false));
  const std::lock_guard lock(mutex_);
  ++*blocks_.at(memory).users;
  return memory;
}

void FakePort::unmap(void* memory) {
  for (int turn = 0; turn < 1000 && is_busy(); turn++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stuck_unmaps += is_busy();
  leave(memory);
}

bool FakePort::is_far(const void* memory) {
  const auto found = allocation_of(memory);
  const std::lock_guard lock(mutex_);
  return found && !blocks_.at(found.value().memory).is_own;
}

bool FakePort::is_busy() {
  const std::lock_guard lock(mutex_);
  return std::any_of(progress_.begin(), progress_.end(), [](const auto& its) {
    const std::lock_guard progress_lock(its.second->mutex);
    return its.first == t_device && its.second->done < its.second->given;
  });
}

Result<Fd> FakePort::dmabuf_of(void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(memory);
  if (has_no_dmabufs) return refuse("this GPU has no dmabufs");
  if (block == blocks_.end() || bytes > block->second.bytes) return refuse("not one allocation");
  return Fd(fcntl(block->second.fd, F_DUPFD_CLOEXEC, 3));
}

Result<void> FakePort::flush_remote_writes() {
  if (fails_flushes > 0 && --fails_flushes == 0) return refuse("an illegal memory access was encountered");
  flushes++;
  return {};
}

Result<void> FakePort::reach(int other_device) {
  if (other_device == t_device) return refuse("a device does not reach itself");
  if (refuses_peers) return refuse("peer access is not supported between these two devices", 217);
  return {};
}

Result<Allocation> FakePort::allocation_of(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto after = blocks_.upper_bound(const_cast<void*>(memory));
  if (after == blocks_.begin()) return refuse("not memory of a device");
  const auto& [begin, block] = *std::prev(after);
  if (static_cast<const char*>(memory) >= static_cast<const char*>(begin) + block.bytes)
    return refuse("not memory of a device");
  return Allocation{begin, block.bytes};
}

bool FakePort::is_reachable(const void* memory) {
  return !hides_memory && allocation_of(memory);
}

FakeStream& FakePort::stream_of(StreamRef stream) {
  if (stream != nullptr && stream != kStreamPerThread) return *static_cast<FakeStream*>(stream);
  const std::lock_guard lock(mutex_);
  auto& found = stream == kStreamPerThread ? streams_of_threads_[t_thread] : default_streams_[t_device];
  if (found != nullptr) return *found;
  begin((found = std::make_unique<FakeStream>()).get(), false);
  if (stream == kStreamPerThread) found->is_blocking = blocking_streams_.insert(found.get()).second;
  return *found;
}

void FakePort::begin(FakeStream* stream, bool is_urgent) {
  *stream = {queue_for(is_urgent), std::make_shared<FakeProgress>(), ++g_streams, t_device};
  progress_.emplace_back(t_device, stream->progress);
}

std::shared_ptr<Stream> FakePort::queue_for(bool is_urgent) {
  if (n_queues == 0) return std::move(Stream::create().value());
  Queues& queues = queues_[{t_device, is_urgent}];
  const size_t number = queues.n_streams++ % static_cast<size_t>(n_queues);
  if (number == queues.all.size()) queues.all.push_back(std::move(Stream::create().value()));
  return queues.all[number];
}

FakePort::Awaited FakePort::awaited_by(const FakeStream& stream) {
  const std::lock_guard lock(mutex_);
  const auto given = [](const FakeStream& other) {
    const std::lock_guard progress_lock(other.progress->mutex);
    return std::pair(other.progress, other.progress->given);
  };
  Awaited all;
  const auto legacy = default_streams_.find(stream.device);
  if (legacy == default_streams_.end()) return all;
  if (stream.is_blocking) all.push_back(given(*legacy->second));
  for (const FakeStream* other : blocking_streams_)
    if (&stream == legacy->second.get() && other->device == stream.device) all.push_back(given(*other));
  return all;
}

Result<void> FakePort::enqueue(StreamRef stream, std::function<void()> work) {
  TUTTI_TRY(check_use(stream));
  FakeStream& s = stream_of(stream);
  calls++;
  if (s.capture != nullptr) {
    s.past.insert(s.capture->graph->works.size());
    s.capture->graph->works.push_back(std::move(work));
    return {};
  }
  Awaited awaited = awaited_by(s);
  {
    // As CUDA, which holds up who launches into a stream that has some 1,000 works.
    constexpr uint64_t kMostWorks = 1024;
    std::unique_lock lock(s.progress->mutex);
    s.progress->changed.wait(lock, [&] { return s.progress->given - s.progress->done < kMostWorks; });
    s.progress->given++;
  }
  s.queue->enqueue([work = std::move(work), progress = s.progress, awaited = std::move(awaited)]() -> Result<void> {
    for (const auto& [other, last] : awaited) wait_until(*other, last);
    work();
    const std::lock_guard lock(progress->mutex);
    progress->done++;
    progress->changed.notify_all();
    return {};
  });
  return {};
}

Result<void> FakePort::copy(void* to, const void* from, size_t bytes, StreamRef stream) {
  copies++;
  return enqueue(stream, [=] { memcpy(to, from, bytes); });
}

Result<void> FakePort::words(const WordOperation* operations, int n, StreamRef stream) {
  word_batches++;
  const std::vector<WordOperation> all(operations, operations + n);
  const bool has_far =
      refuses_far_words && std::any_of(all.begin(), all.end(), [&](const auto& o) { return is_far(o.at); });
  if (has_no_words || has_far) return refuse("operation not supported", 801);
  return enqueue(stream, [this, all] {
    for (const WordOperation& o : all) {
      if (!o.waits) __atomic_store_n(o.at, o.value, __ATOMIC_RELEASE);
      while (o.waits && !gives_up_waiting && __atomic_load_n(o.at, __ATOMIC_ACQUIRE) != o.value)
        std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  });
}

Result<void> FakePort::load_kernels() {
  if (loads) TUTTI_TRY(loads(t_device));
  const std::lock_guard lock(mutex_);
  loaded_.insert(t_device);
  return {};
}

void FakePort::note_launch() {
  const std::lock_guard lock(mutex_);
  if (!loaded_.contains(t_device)) late_launches++;
}

Result<void> FakePort::run(const JobList& list, StreamRef stream) {
  if (tiles_of(list) == 0) return refuse("invalid configuration argument");
  if (fails_runs > 0 && --fails_runs == 0) return refuse("an illegal memory access was encountered");
  if (throws_in_runs > 0 && --throws_in_runs == 0) throw std::bad_alloc();
  runs++;
  note_launch();
  return enqueue(stream, [list] { kernels().run(list); });
}

Result<void> FakePort::run(const ProgramCall& call, StreamRef stream) {
  if (blocks_of(call) > kLineMultiprocessors * kProgramBlocksPerMultiprocessor)
    return refuse("too many blocks in cooperative launch");
  programs++;
  note_launch();
  return enqueue(stream, [call] { kernels().run(call); });
}

Result<void> FakePort::run(const LineCall& call, StreamRef stream) {
  lines++;
  note_launch();
  return enqueue(stream, [call] { kernels().run(call); });
}

Result<void> FakePort::run(const SpanCall& call, uint32_t n_blocks, StreamRef stream) {
  if (n_blocks == 0) return refuse("invalid configuration argument");
  spans++;
  note_launch();
  return enqueue(stream, [call, n_blocks] { kernels().run(call, n_blocks); });
}

Result<void> FakePort::run(const FactorCall& call, uint32_t n_blocks, StreamRef stream) {
  if (n_blocks == 0) return refuse("invalid configuration argument");
  factors++;
  note_launch();
  return enqueue(stream, [call, n_blocks] { kernels().run(call, n_blocks); });
}

Result<void> FakePort::zero(void* memory, size_t bytes, StreamRef stream) {
  return enqueue(stream, [=] { memset(memory, 0, bytes); });
}

Result<StreamRef> FakePort::create_stream(bool is_urgent) {
  const std::lock_guard lock(mutex_);
  auto made = take_last(&old_streams_);
  begin(made.get(), is_urgent);
  return StreamRef{made.release()};
}

Result<StreamRef> FakePort::create_blocking_stream() {
  TUTTI_TRY_ASSIGN(const StreamRef made, create_stream(false));
  const std::lock_guard lock(mutex_);
  static_cast<FakeStream*>(made)->is_blocking = true;
  blocking_streams_.insert(static_cast<FakeStream*>(made));
  return made;
}

// Work that it still has goes on.
void FakePort::destroy_stream(StreamRef stream) {
  const std::lock_guard lock(mutex_);
  blocking_streams_.erase(static_cast<FakeStream*>(stream));
  auto& queue = old_streams_.emplace_back(static_cast<FakeStream*>(stream))->queue;
  if (const auto state = queue->query(); !state && state.error().code == Code::kInProgress)
    last_works_.push_back(std::move(queue));
  queue.reset();
}

Result<EventRef> FakePort::create_event(bool) {
  const std::lock_guard lock(mutex_);
  auto made = take_last(&old_events_);
  made->point = {};
  made->captured_in.reset();
  return EventRef{made.release()};
}

void FakePort::destroy_event(EventRef event) {
  const std::lock_guard lock(mutex_);
  old_events_.emplace_back(static_cast<FakeEvent*>(event));
}

Result<void> FakePort::synchronize(StreamRef stream) {
  TUTTI_TRY(check_question(stream));
  finish(stream);
  return {};
}

void FakePort::finish(StreamRef stream) {
  const auto progress = stream_of(stream).progress;
  uint64_t last = 0;
  {
    const std::lock_guard lock(progress->mutex);
    last = progress->given;
  }
  wait_until(*progress, last);
}

Result<bool> FakePort::has_ended(StreamRef stream) {
  TUTTI_TRY(check_question(stream));
  const auto progress = stream_of(stream).progress;
  const std::lock_guard lock(progress->mutex);
  return progress->done == progress->given;
}

}  // namespace tutti_test
