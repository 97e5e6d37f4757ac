// Where the ranks of a benchmark meet besides the library under test: a page of memory that they share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace bench {

constexpr int kMaxRanks = 64;
// Apart by two cache lines, because lines are fetched in pairs.
constexpr size_t kApart = 128;

// Waits for an atomic to reach a value: spins for a while, then offers the CPU to others, and at once where ranks
// outnumber CPUs.
class Waiter {
 public:
  explicit Waiter(int n_ranks);
  void reach(const std::atomic<uint64_t>& atomic, uint64_t value) const {
    for (int tries = 0; atomic.load(std::memory_order_acquire) < value; tries++) pause(tries);
  }
  void pause(int tries) const;

 private:
  int spins_;
};

class Meet {
 public:
  // Maps the file and makes it if it is not there.
  Meet(const std::string& path, int rank, int n_ranks);

  int rank() const { return rank_; }
  int n_ranks() const { return n_ranks_; }

  // Returns when all ranks have come.
  void barrier();

  // How long all ranks take now to see each other's flags, in microseconds. On a virtual machine this changes while one
  // measures, when its CPUs come to share a core or no longer do, and everything changes with it.
  double exchange_us();

  // The largest of the ranks' values, on every rank.
  double max(double value);

  // Rank 0's `bytes` (at most 256), on every rank.
  void share(void* data, size_t bytes);

 private:
  struct alignas(kApart) Seat {
    std::atomic<uint64_t> arrivals;
    double value;
  };
  struct Page {
    Seat seats[kMaxRanks];
    char shared[256];
  };

  Page* page_;
  int rank_;
  int n_ranks_;
  Waiter waiter_;
  uint64_t arrivals_ = 0;
};

// Keeps the calling thread on the first CPU of a core of its own; does nothing if there are fewer cores than ranks.
void pin_to_core(int rank, int n_ranks);

}  // namespace bench
