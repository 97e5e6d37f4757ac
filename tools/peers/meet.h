// A page of shared memory in which the ranks of a benchmark meet without using the library under test.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace bench {

constexpr int kMaxRanks = 64;
// Two cache lines apart, because lines are fetched in pairs.
constexpr size_t kApart = 128;

// Waits for an atomic to reach a value: spins for a while, then yields the CPU; yields at once if ranks outnumber
// CPUs.
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
  // Maps the file, which it makes if it does not exist.
  Meet(const std::string& path, int rank, int n_ranks);

  int rank() const { return rank_; }
  int n_ranks() const { return n_ranks_; }

  // Returns when all ranks have come.
  void barrier();

  // How long all ranks now take to see each other's flags, in microseconds. On a virtual machine this changes during a
  // measurement, when its CPUs start or stop sharing a core, and everything else changes with it.
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

// Pins the calling thread to the first CPU of its own core; does nothing if there are fewer cores than ranks.
void pin_to_core(int rank, int n_ranks);

}  // namespace bench
