#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "floor.h"

namespace bench {
namespace {

constexpr size_t kPieceBytes = 64 << 10, kPieceElems = kPieceBytes / sizeof(float);
constexpr size_t kSmallBytes = 8 << 10;      // up to this size everything is one piece, with any floor
constexpr size_t kPastCacheBytes = 4 << 20;  // from this size on results are written past the cache
constexpr uint64_t kSlots = 4;
constexpr size_t kLineBytes = 56;  // a payload in the same cache line as its flag

struct alignas(kApart) Counter {
  std::atomic<uint64_t> value;
};
// A piece's number, and its data if it is small.
struct alignas(kApart) Line {
  std::atomic<uint64_t> number;
  char data[kLineBytes];
  Counter reduced;  // the piece whose part that this rank reduces is in its slot
};
struct alignas(kApart) Buffers {
  const float* in;
  float* out;
  pid_t pid;
};

struct Board {
  Line lines[kSlots][kMaxRanks];
  Counter done[kMaxRanks];  // the last piece that a rank has read completely
  Counter arrivals[kMaxRanks];
  Buffers buffers[kMaxRanks];
  alignas(4096) char pieces[kSlots][kMaxRanks][kPieceBytes];
};

void* map_shared(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(std::string("mmap: ") + strerror(errno));
  return memory;
}

// Pieces go through `kSlots` slots of each rank: a rank puts a piece, the others read it from there. All ranks count
// the same pieces, even ranks that put nothing.
class Bounce : public Library {
 public:
  Bounce(Board& board, int rank, int n_ranks)
      : board_(board), rank_(rank), n_ranks_(n_ranks), waiter_(n_ranks), known_done_(static_cast<size_t>(n_ranks)) {}

  void barrier() override { meet(); }
  void copy(const float* in, float* out, size_t elems) override { memcpy(out, in, elems * sizeof(float)); }

  void all_reduce(const float* in, float* out, size_t elems) override {
    const size_t bytes = elems * sizeof(float);
    for (size_t from = 0; from < elems; from += kPieceElems) {
      const size_t n = std::min(kPieceElems, elems - from);
      begin_piece();
      if (bytes <= kSmallBytes) {
        put(in + from, n);
        add_up(in + from, out + from, n, false);
      } else {
        reduce_in_parts(in + from, out + from, n, bytes >= kPastCacheBytes);
      }
      end_piece();
    }
  }

  void broadcast(float* data, size_t elems) override {
    for (size_t from = 0; from < elems; from += kPieceElems) {
      const size_t n = std::min(kPieceElems, elems - from);
      begin_piece();
      if (rank_ == 0) put(data + from, n);
      if (rank_ != 0) memcpy(data + from, get(0, n), n * sizeof(float));
      end_piece();
    }
  }

  void all_gather(const float* in, float* out, size_t elems_per_rank) override {
    for (size_t from = 0; from < elems_per_rank; from += kPieceElems) {
      const size_t n = std::min(kPieceElems, elems_per_rank - from);
      begin_piece();
      put(in + from, n);
      for (int i = 0; i < n_ranks_; i++) {
        const int peer = neighbour(i);
        memcpy(out + elems_per_rank * static_cast<size_t>(peer) + from, i == 0 ? in + from : get(peer, n),
               n * sizeof(float));
      }
      end_piece();
    }
  }

  void reduce_scatter(const float* in, float* out, size_t elems_per_rank) override {
    for (int owner = 0; owner < n_ranks_; owner++)
      reduce_to(owner, in + elems_per_rank * static_cast<size_t>(owner), out, elems_per_rank);
  }

  void reduce(const float* in, float* out, size_t elems) override { reduce_to(0, in, out, elems); }

  // In rounds: in each round every rank has a piece for one other rank.
  void all_to_all(const float* in, float* out, size_t elems_per_rank) override {
    const auto block = [&](int peer) { return elems_per_rank * static_cast<size_t>(peer); };
    std::copy_n(in + block(rank_), elems_per_rank, out + block(rank_));
    for (size_t from = 0; from < elems_per_rank; from += kPieceElems) {
      const size_t n = std::min(kPieceElems, elems_per_rank - from);
      for (int i = 1; i < n_ranks_; i++) {
        const int source = neighbour(n_ranks_ - i);
        begin_piece();
        put(in + block(neighbour(i)) + from, n);
        std::copy_n(get(source, n), n, out + block(source) + from);
        end_piece();
      }
    }
  }

 protected:
  int neighbour(int distance) const { return (rank_ + distance) % n_ranks_; }

  void meet() {
    arrivals_++;
    board_.arrivals[rank_].value.store(arrivals_, std::memory_order_release);
    for (int i = 1; i < n_ranks_; i++) waiter_.reach(board_.arrivals[neighbour(i)].value, arrivals_);
  }

  Board& board_;
  int rank_;
  int n_ranks_;

 private:
  // Waits until all ranks have read the slot's last piece. Remembers their counters' values, to read them less often.
  void begin_piece() {
    number_++;
    for (int i = 1; i < n_ranks_; i++) {
      const int peer = neighbour(i);
      uint64_t& known = known_done_[static_cast<size_t>(peer)];
      if (known + kSlots >= number_) continue;
      waiter_.reach(board_.done[peer].value, number_ - kSlots);
      known = board_.done[peer].value.load(std::memory_order_acquire);
    }
  }

  void put(const float* data, size_t elems) {
    Line& line = board_.lines[number_ % kSlots][rank_];
    const size_t bytes = elems * sizeof(float);
    memcpy(bytes <= kLineBytes ? line.data : board_.pieces[number_ % kSlots][rank_], data, bytes);
    line.number.store(number_, std::memory_order_release);
  }

  const float* get(int peer, size_t elems) {
    Line& line = board_.lines[number_ % kSlots][peer];
    waiter_.reach(line.number, number_);
    const size_t bytes = elems * sizeof(float);
    return reinterpret_cast<const float*>(bytes <= kLineBytes ? line.data : board_.pieces[number_ % kSlots][peer]);
  }

  void end_piece() { board_.done[rank_].value.store(number_, std::memory_order_release); }

  void reduce_to(int root, const float* in, float* out, size_t elems) {
    const bool past_cache = elems * sizeof(float) >= kPastCacheBytes;
    for (size_t from = 0; from < elems; from += kPieceElems) {
      const size_t n = std::min(kPieceElems, elems - from);
      begin_piece();
      if (rank_ != root) put(in + from, n);
      if (rank_ == root) add_up(in + from, out + from, n, past_cache);
      end_piece();
    }
  }

  void add_up(const float* mine, float* out, size_t elems, bool past_cache) {
    const float* ins[kMaxRanks] = {mine};
    for (int i = 1; i < n_ranks_; i++) ins[i] = get(neighbour(i), elems);
    add(&out, 1, ins, n_ranks_, elems, past_cache);
  }

  // Each rank reduces a part of the piece into its slot, from where all ranks read it. Its own input needs no copy.
  void reduce_in_parts(const float* in, float* out, size_t elems, bool past_cache) {
    const uint64_t slot = number_ % kSlots;
    const auto piece = [&](int rank) { return reinterpret_cast<float*>(board_.pieces[slot][rank]); };
    const auto begin = [&](int rank) { return slice_begin(elems, rank, n_ranks_); };
    const auto size = [&](int rank) { return begin(rank + 1) - begin(rank); };
    for (int i = 1; i < n_ranks_; i++) {
      const int part = neighbour(i);
      memcpy(piece(rank_) + begin(part), in + begin(part), size(part) * sizeof(float));
    }
    board_.lines[slot][rank_].number.store(number_, std::memory_order_release);
    const float* ins[kMaxRanks] = {in + begin(rank_)};
    for (int i = 1; i < n_ranks_; i++) {
      waiter_.reach(board_.lines[slot][neighbour(i)].number, number_);
      ins[i] = piece(neighbour(i)) + begin(rank_);
    }
    float* reduced = piece(rank_) + begin(rank_);
    add(&reduced, 1, ins, n_ranks_, size(rank_), false);
    board_.lines[slot][rank_].reduced.value.store(number_, std::memory_order_release);
    for (int i = 0; i < n_ranks_; i++) {
      const int part = neighbour(i);
      waiter_.reach(board_.lines[slot][part].reduced.value, number_);
      const float* from = piece(part) + begin(part);
      float* to = out + begin(part);
      add(&to, 1, &from, 1, size(part), past_cache);
    }
  }

  Waiter waiter_;
  uint64_t arrivals_ = 0;
  uint64_t number_ = 0;
  std::vector<uint64_t> known_done_;
};

// The others' buffers are read directly: mapped, or by the kernel. Small data go as pieces.
class Direct : public Bounce {
 public:
  Direct(Board& board, int rank, int n_ranks, bool mapped)
      : Bounce(board, rank, n_ranks),
        mapped_(mapped),
        scratch_(mapped ? 0 : kPieceElems * static_cast<size_t>(n_ranks)) {
    // Where only a parent may read a process's memory, this allows it to all; elsewhere it fails, and does not matter.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  }

  void all_reduce(const float* in, float* out, size_t elems) override {
    if (is_small(elems)) return Bounce::all_reduce(in, out, elems);
    reduce_in_slices(in, out, elems, n_ranks_);
  }

  void reduce(const float* in, float* out, size_t elems) override {
    if (is_small(elems)) return Bounce::reduce(in, out, elems);
    reduce_in_slices(in, out, elems, 1);
  }

  void broadcast(float* data, size_t elems) override {
    if (is_small(elems)) return Bounce::broadcast(data, elems);
    publish(data, data);
    if (rank_ != 0) fetch(0, data, board_.buffers[0].in, elems);
    meet();
  }

  void all_gather(const float* in, float* out, size_t elems_per_rank) override {
    if (is_small(elems_per_rank)) return Bounce::all_gather(in, out, elems_per_rank);
    publish(in, out);
    for (int i = 0; i < n_ranks_; i++) {
      const int peer = neighbour(i);
      fetch(peer, out + elems_per_rank * static_cast<size_t>(peer), board_.buffers[peer].in, elems_per_rank);
    }
    meet();
  }

  void reduce_scatter(const float* in, float* out, size_t elems_per_rank) override {
    if (is_small(elems_per_rank)) return Bounce::reduce_scatter(in, out, elems_per_rank);
    publish(in, out);
    reduce_from(elems_per_rank * static_cast<size_t>(rank_), elems_per_rank, out,
                elems_per_rank * sizeof(float) >= kPastCacheBytes);
    meet();
  }

  void all_to_all(const float* in, float* out, size_t elems_per_rank) override {
    if (is_small(elems_per_rank)) return Bounce::all_to_all(in, out, elems_per_rank);
    publish(in, out);
    for (int i = 0; i < n_ranks_; i++) {
      const int peer = neighbour(i);
      fetch(peer, out + elems_per_rank * static_cast<size_t>(peer),
            board_.buffers[peer].in + elems_per_rank * static_cast<size_t>(rank_), elems_per_rank);
    }
    meet();
  }

 private:
  static bool is_small(size_t elems) { return elems * sizeof(float) <= kSmallBytes; }

  void publish(const float* in, float* out) {
    board_.buffers[rank_] = {in, out, getpid()};
    meet();
  }

  void fetch(int peer, float* to, const float* from, size_t elems) {
    if (mapped_ || peer == rank_) {
      memcpy(to, from, elems * sizeof(float));
      return;
    }
    // A call moves at most 2 GiB less a page.
    for (size_t done = 0; done < elems * sizeof(float);) {
      const size_t bytes = elems * sizeof(float) - done;
      const iovec here = {reinterpret_cast<char*>(to) + done, bytes};
      const iovec there = {reinterpret_cast<char*>(const_cast<float*>(from)) + done, bytes};
      const ssize_t moved = process_vm_readv(board_.buffers[peer].pid, &here, 1, &there, 1, 0);
      if (moved <= 0) fail(std::string("process_vm_readv: ") + strerror(errno));
      done += static_cast<size_t>(moved);
    }
  }

  // Each rank reduces a slice, and writes the sum to the first `n_outs` ranks.
  void reduce_in_slices(const float* in, float* out, size_t elems, int n_outs) {
    publish(in, out);
    const size_t from = slice_begin(elems, rank_, n_ranks_), to = slice_begin(elems, rank_ + 1, n_ranks_);
    if (mapped_) {
      store_sum(from, to - from, n_outs, elems * sizeof(float) >= kPastCacheBytes);
    } else {
      reduce_from(from, to - from, out + from, false);
      meet();
      for (int i = 1; i < n_ranks_ && rank_ < n_outs; i++) {
        const int peer = neighbour(i);
        const size_t begin = slice_begin(elems, peer, n_ranks_), end = slice_begin(elems, peer + 1, n_ranks_);
        fetch(peer, out + begin, board_.buffers[peer].out + begin, end - begin);
      }
    }
    meet();
  }

  void store_sum(size_t from, size_t elems, int n_outs, bool past_cache) {
    const float* ins[kMaxRanks];
    float* outs[kMaxRanks];
    for (int i = 0; i < n_ranks_; i++) ins[i] = board_.buffers[neighbour(i)].in + from;
    for (int i = 0; i < n_outs; i++) outs[i] = board_.buffers[(rank_ + i) % n_outs].out + from;
    add(outs, n_outs, ins, n_ranks_, elems, past_cache);
  }

  // out = the sum of all ranks' inputs, starting at `from`.
  void reduce_from(size_t from, size_t elems, float* out, bool past_cache) {
    for (size_t at = 0; at < elems; at += kPieceElems) {
      const size_t n = std::min(kPieceElems, elems - at);
      const float* ins[kMaxRanks];
      for (int i = 0; i < n_ranks_; i++) {
        ins[i] = board_.buffers[neighbour(i)].in + from + at;
        if (mapped_ || i == 0) continue;
        float* copy_of_it = scratch_.data() + kPieceElems * static_cast<size_t>(i);
        fetch(neighbour(i), copy_of_it, ins[i], n);
        ins[i] = copy_of_it;
      }
      float* to = out + at;
      add(&to, 1, ins, n_ranks_, n, past_cache);
    }
  }

  bool mapped_;
  std::vector<float> scratch_;
};

// Ranks that are forked later have the arena at the same address, so pointers into it are valid on all of them.
class Mapped : public Direct {
 public:
  Mapped(Board& board, int rank, int n_ranks, char* memory) : Direct(board, rank, n_ranks, true), memory_(memory) {}
  float* allocate(size_t bytes) override {
    float* begin = reinterpret_cast<float*>(memory_);
    memory_ += (bytes + 4095) / 4096 * 4096;
    return begin;
  }

 private:
  char* memory_;
};

class Memory : public Shared {
 public:
  Memory(const std::string& how, const Settings& settings) : how_(how), n_ranks_(settings.n_ranks) {
    if (how != "mapped" && how != "cma" && how != "bounce") fail("--variant: there is no floor '" + how + "'");
    board_ = new (map_shared(sizeof(Board))) Board;
    const size_t largest = *std::max_element(settings.sizes_bytes.begin(), settings.sizes_bytes.end());
    arena_bytes_ = 2 * ((largest + 4095) / 4096 * 4096);
    if (how == "mapped") arena_ = static_cast<char*>(map_shared(arena_bytes_ * static_cast<size_t>(n_ranks_)));
  }

  std::unique_ptr<Library> library_of(int rank) override {
    if (how_ == "bounce") return std::make_unique<Bounce>(*board_, rank, n_ranks_);
    if (how_ == "cma") return std::make_unique<Direct>(*board_, rank, n_ranks_, false);
    return std::make_unique<Mapped>(*board_, rank, n_ranks_, arena_ + arena_bytes_ * static_cast<size_t>(rank));
  }

 private:
  std::string how_;
  int n_ranks_;
  Board* board_;
  char* arena_ = nullptr;
  size_t arena_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Shared> share_memory(const std::string& how, const Settings& settings) {
  return std::make_unique<Memory>(how, settings);
}

}  // namespace bench
