#include "cuda/board.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/handshake.h"
#include "base/log.h"
#include "base/shared_memory.h"

namespace tutti::cuda {
namespace {

constexpr uint64_t kRounds = 1024;  // how far a rank may be ahead of another
constexpr size_t kWindows = 256;    // per rank, at a time

// At the beginning of the memory, so that a descriptor of another PID namespace is not taken for ours.
using Cookie = std::array<uint64_t, 2>;
constexpr size_t kHeaderBytes = 4096;

// A window as its owner announces it.
struct Window {
  std::atomic<uint64_t> number{0};    // 0: no window; written last (release), so a reader of it (acquire) sees the rest
  std::atomic<uint32_t> mappings{0};  // by other ranks, of this window or an earlier one in its place
  uint64_t allocation = 0;            // its address in the owner's process
  uint64_t begin = 0, bytes = 0;      // in the owner's process
  IpcHandle handle;
};

Result<Fd> make_memory(size_t bytes, const Cookie& cookie) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share them");
  TUTTI_TRY_ASSIGN(Fd made, sealed_memory("tutti-board", bytes));
  if (pwrite(made.get(), &cookie, sizeof cookie, 0) != sizeof cookie) return system_error("writing a memfd", errno);
  return made;
}

}  // namespace

// A buffer in a window: the window's place in the owner's list, from 1, and the offset in its allocation. 0: no bytes.
struct Board::Place {
  uint64_t window = 0, offset = 0;
};

// What a rank has called.
struct Board::Notice {
  TagWords tag{};
  Place input, output;
  bool is_in_windows = false;
  uint32_t places = 0;  // a hash of where unequal blocks go
};

// One rank's part, which only that rank writes, except `mappings`. A notice is written before `called` (release) and
// read after it (acquire), until the reader stores `done`, which the writer reads (acquire) before it overwrites the
// notice. `called` is sequentially consistent, so that of two ranks at least one sees the other's call. A verdict stays
// until all ranks have called the next round, which they do after they have read it.
struct Board::Page {
  alignas(128) std::atomic<uint64_t> called{0};   // rounds
  alignas(128) std::atomic<uint64_t> done{0};     // likewise
  alignas(128) std::atomic<uint64_t> verdict{0};  // twice the round, plus one if all buffers are mapped
  alignas(128) std::atomic<uint32_t> has_left{0};
  alignas(128) Window windows[kWindows];
  Notice notices[kRounds];
};

Board::Page& Board::page(int rank) const {
  return reinterpret_cast<Page*>(memory_.get() + kHeaderBytes)[rank];
}

Board::Notice& Board::notice(int rank) const {
  return page(rank).notices[round_ % kRounds];
}

// `where`: rank 0's path to the memory, and the cookie.
Result<void> Board::map(const std::string& where) {
  ByteReader reader(where);
  const std::string path = reader.get_string().c_str();  // without the padding
  const auto cookie = reader.get<Cookie>();
  const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return system_error(path, errno);
  struct stat info;
  Cookie found{};
  if (fstat(fd.get(), &info) != 0 || static_cast<size_t>(info.st_size) != bytes_ ||
      pread(fd.get(), &found, sizeof found, 0) != sizeof found || found != cookie)
    return Error{Code::kSystemError, path + " is not rank 0's memory: the processes are in different PID namespaces"};
  memory_ = map_shared(fd, 0, bytes_, true);
  if (!memory_) return system_error(format("mmap of %zu bytes", bytes_), errno);
  return {};
}

Result<std::unique_ptr<Board>> Board::create(Host& host, Port& port, const std::vector<Seat>& seats, std::string* why) {
  std::unique_ptr<Board> board(new Board(host, port, seats));
  board->bytes_ = kHeaderBytes + seats.size() * sizeof(Page);
  Cookie cookie;
  random_bytes(&cookie, sizeof cookie);
  const auto made = host.rank() == 0 ? make_memory(board->bytes_, cookie) : Fd();  // kept until all have opened it
  std::string path = made ? format("/proc/%d/fd/%d", static_cast<int>(getpid()), made.value().get()) : "";
  path.resize(64);
  TUTTI_TRY_ASSIGN(const auto blobs, tell_all(host, ByteWriter().put_string(path).put(cookie).take()));
  TUTTI_TRY_ASSIGN(*why, agree(host, made ? board->map(blobs[0]) : made.error()));
  if (!why->empty()) return std::unique_ptr<Board>();
  return board;
}

Board::~Board() {
  forget(Which::kAll);
}

// ---- calls

// False where another rank is too far behind.
Result<bool> Board::call(const Operation& operation, const Notice& notice) {
  Page& mine = page(host_.rank());
  if (round_ + 1 >= slowest_ + kRounds) {
    slowest_ = round_;
    for (int r = 0; r < host_.n_ranks(); r++)
      slowest_ = std::min(slowest_, page(r).done.load(std::memory_order_acquire));
    if (round_ + 1 >= slowest_ + kRounds) return false;
  }
  round_++;
  Call call = to_call(operation);
  call.sequence = round_;
  this->notice(host_.rank()) = notice;
  this->notice(host_.rank()).tag = to_tag(call);
  mine.called.store(round_);
  TUTTI_TRY(compare());
  return true;
}

// Compares this rank's call with those of the ranks that have called.
Result<void> Board::compare() const {
  const int me = host_.rank();
  const TagWords& mine = notice(me).tag;
  for (int r = 0; r < host_.n_ranks(); r++)
    if (page(r).called.load() >= round_ && notice(r).tag != mine)
      return disagreement({me, from_tag(mine)}, {r, from_tag(notice(r).tag)});
  return {};
}

bool Board::all_have_called() const {
  for (int r = 0; r < host_.n_ranks(); r++)
    if (page(r).called.load(std::memory_order_acquire) < round_) return false;
  return true;
}

uint64_t Board::called_by(int rank) const {
  return page(rank).called.load(std::memory_order_acquire);
}

bool Board::all_are_in_windows() const {
  for (int r = 0; r < host_.n_ranks(); r++)
    if (!notice(r).is_in_windows || notice(r).places != notice(0).places) return false;
  return true;
}

bool Board::finish(bool is_reachable) {
  for (Arrival& arrival : arrivals_) arrival.is_reachable = is_reachable;
  everyone_ = std::make_shared<const Arrivals>(arrivals_);
  page(host_.rank()).done.store(round_, std::memory_order_release);
  stage_ = Stage::kIdle;
  return true;
}

Result<bool> Board::pass(const Operation& operation) {
  TUTTI_TRY_ASSIGN(const bool called, call(operation, {}));
  if (called) page(host_.rank()).done.store(round_, std::memory_order_release);
  return called;
}

Result<bool> Board::come(const Operation& operation, bool) {
  const int me = host_.rank(), n_ranks = host_.n_ranks();
  if (stage_ == Stage::kIdle) {
    Notice mine;
    const Extent extent = extent_of(operation, me, n_ranks);
    const uint64_t elem_bytes = dtype_bytes(operation.dtype);
    mine.is_in_windows = find_place(operation.input, extent.input * elem_bytes, &mine.input) &&
                         find_place(operation.output, extent.output * elem_bytes, &mine.output);
    if (operation.unequal != nullptr) mine.places = hash_of(operation.unequal->at);
    TUTTI_TRY_ASSIGN(const bool called, call(operation, mine));
    if (!called) return false;
    arrivals_.assign(static_cast<size_t>(n_ranks), {operation, false});
    if (!mine.is_in_windows) return finish(false);
    stage_ = Stage::kCalled;
  }
  if (stage_ == Stage::kCalled) {
    TUTTI_TRY(compare());
    if (!all_have_called()) return false;
    if (!all_are_in_windows()) return finish(false);
    // All ranks' operations before this one are enqueued, so mapping may wait for the device.
    const bool found = find_buffers(operation);
    page(me).verdict.store(2 * round_ + (found ? 1 : 0), std::memory_order_release);
    stage_ = Stage::kJudged;
  }
  bool all_found = true;
  for (int r = 0; r < n_ranks; r++) {
    const uint64_t verdict = page(r).verdict.load(std::memory_order_acquire);
    if (verdict < 2 * round_) return false;
    all_found = all_found && verdict % 2 == 1;
  }
  return finish(all_found);
}

// ---- windows

Result<uint64_t> Board::open_window(const void* memory, size_t bytes) {
  Window* const begin = page(host_.rank()).windows;
  Window* const free = std::find_if(begin, begin + kWindows, [](const Window& w) { return w.number == 0; });
  if (free == begin + kWindows)
    return Error{Code::kSystemError, format("at most %zu registrations at a time are possible on a GPU", kWindows)};
  TUTTI_TRY_ASSIGN(const Allocation allocation, port_.allocation_of(memory));
  const auto at = reinterpret_cast<uintptr_t>(memory), base = reinterpret_cast<uintptr_t>(allocation.memory);
  if (bytes > allocation.bytes - (at - base))
    return Error{Code::kInvalidArgument, format("%zu bytes at %p reach beyond their allocation", bytes, memory)};
  TUTTI_TRY_ASSIGN(const IpcHandle handle, port_.share(allocation.memory));
  free->allocation = base;
  free->begin = at;
  free->bytes = bytes;
  free->handle = handle;
  free->number.store(++last_window_, std::memory_order_release);
  return last_window_;
}

void Board::close_window(uint64_t number, const std::function<bool()>& is_idle) {
  const Window* const begin = page(rank_).windows;
  const Window* const window =
      std::find_if(begin, begin + kWindows, [&](const Window& w) { return w.number == number; });
  if (window != begin + kWindows) take_back(static_cast<size_t>(window - begin), 1, is_idle);
}

// Their owner may free the memory next, which CUDA allows only when nobody else has it mapped. Ranks that wait for each
// other here keep unmapping meanwhile, but only while their GPUs are idle: unmapping waits for them, and so perhaps for
// an operation that the other rank calls only after this.
void Board::take_back(size_t place, size_t n, const std::function<bool()>& is_idle) {
  constexpr int kTurns = 2000;  // of 1 ms: mostly enough: others look four times a second, or deregister something, too
  Window* const begin = page(rank_).windows + place;
  std::for_each(begin, begin + n, [](Window& w) { w.number.store(0, std::memory_order_release); });
  const auto is_mapped = [&] {
    return std::any_of(begin, begin + n, [](Window& w) { return w.mappings.load(std::memory_order_acquire) > 0; });
  };
  for (int turn = 0; is_mapped() && turn < kTurns && !host_.broken(); turn++) {
    if (is_idle()) forget(Which::kClosed);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (is_idle()) forget(Which::kClosed);  // who has unmapped it, or has never mapped it, may wait for this rank, too
  if (is_mapped())
    log(LogLevel::kWarn,
        "CUDA: another rank still maps memory that this rank has deregistered: its GPU waits for an operation that "
        "this rank has not called yet, it has captured operations and deregisters nothing itself, or it is stopped or "
        "lost");
}

// Unmaps other ranks' windows.
void Board::forget(Which which) {
  for (auto it = mapped_.begin(); it != mapped_.end();) {
    const auto& [place, mapped] = *it;
    Window& window = page(place.first).windows[place.second - 1];
    if (which == Which::kClosed && window.number.load(std::memory_order_acquire) == mapped.number) {
      ++it;
      continue;
    }
    if (mapped.memory != nullptr) {
      const auto on_device = OnDevice::enter(port_, seats_[static_cast<size_t>(rank_)].device);
      port_.unmap(mapped.memory);
      window.mappings.fetch_sub(1, std::memory_order_release);
    }
    it = mapped_.erase(it);
  }
}

bool Board::leave() {
  forget(Which::kAll);
  take_back(0, kWindows, [] { return false; });
  page(rank_).has_left.store(1, std::memory_order_release);
  return true;  // they still have it mapped
}

bool Board::all_have_left() const {
  for (size_t r = 0; r < seats_.size(); r++)
    if (page(static_cast<int>(r)).has_left.load(std::memory_order_acquire) == 0) return false;
  return true;
}

bool Board::find_place(const void* memory, uint64_t bytes, Place* place) const {
  if (bytes == 0) return true;
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const Window* const windows = page(host_.rank()).windows;
  for (size_t i = 0; i < kWindows; i++) {
    const Window& w = windows[i];
    if (w.number == 0 || at < w.begin || at - w.begin > w.bytes || bytes > w.bytes - (at - w.begin)) continue;
    *place = {i + 1, at - w.allocation};
    return true;
  }
  return false;
}

bool Board::find_buffers(const Operation& operation) {
  forget(Which::kClosed);
  for (int r = 0; r < host_.n_ranks(); r++) {
    Operation& its = arrivals_[static_cast<size_t>(r)].operation;
    if (r == host_.rank()) continue;
    its = operation;
    char *input = nullptr, *output = nullptr;
    if (!find_address(r, notice(r).input, &input) || !find_address(r, notice(r).output, &output)) return false;
    its.input = input;
    its.output = output;
  }
  return true;
}

// Memory of other processes stays mapped until its owner has closed the window. Arenas has verified with data that the
// GPUs reach each other; what is mapped here lies on the same GPUs.
bool Board::find_address(int rank, const Place& place, char** address) {
  if (place.window == 0) return true;
  Window& window = page(rank).windows[place.window - 1];
  if (seats_[static_cast<size_t>(rank)].process == seats_[static_cast<size_t>(host_.rank())].process) {
    *address = reinterpret_cast<char*>(window.allocation) + place.offset;
    return true;
  }
  Mapped& mapped = mapped_[{rank, place.window}];
  if (mapped.number == 0) {
    const auto memory = port_.map(window.handle);
    mapped = {window.number.load(std::memory_order_acquire), memory ? memory.value() : nullptr};
    if (memory)
      window.mappings.fetch_add(1, std::memory_order_relaxed);
    else
      log(LogLevel::kWarn,
          "CUDA: memory that rank %d has registered cannot be mapped, so operations on it make copies: %s", rank,
          memory.error().message.c_str());
  }
  if (mapped.memory == nullptr) return false;
  *address = static_cast<char*>(mapped.memory) + place.offset;
  return true;
}

}  // namespace tutti::cuda
