#include "meet.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <vector>

#include "bench.h"

namespace bench {

namespace {

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// The usable CPUs without those that share a core with an earlier one.
std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> first_cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return first_cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &set)) continue;
    std::ifstream siblings("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    int first = cpu;
    siblings >> first;  // "0,4" or "0-1"; unchanged if there is no such file
    if (!siblings || first == cpu || !CPU_ISSET(first, &set)) first_cpus.push_back(cpu);
  }
  return first_cpus;
}

}  // namespace

// Some 2 us. Even with a CPU for each rank there may be other threads: a library's, or other processes, because of
// which two ranks share a CPU.
Waiter::Waiter(int n_ranks) : spins_(n_ranks > usable_cpus() ? 20 : 100) {}

void Waiter::pause(int tries) const {
  if (tries >= spins_) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void pin_to_core(int rank, int n_ranks) {
  const std::vector<int> cores = usable_cores();
  if (cores.size() < static_cast<size_t>(n_ranks)) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[static_cast<size_t>(rank)], &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) fail(std::string("sched_setaffinity: ") + strerror(errno));
}

Meet::Meet(const std::string& path, int rank, int n_ranks) : rank_(rank), n_ranks_(n_ranks), waiter_(n_ranks) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  if (fd < 0) fail("--meet " + path + ": " + strerror(errno));
  if (ftruncate(fd, sizeof(Page)) != 0) fail("--meet " + path + ": ftruncate: " + strerror(errno));
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("--meet " + path + ": mmap: " + strerror(errno));
  close(fd);
  page_ = static_cast<Page*>(memory);
}

void Meet::barrier() {
  arrivals_++;
  page_->seats[rank_].arrivals.store(arrivals_, std::memory_order_release);
  for (int i = 1; i < n_ranks_; i++) waiter_.reach(page_->seats[(rank_ + i) % n_ranks_].arrivals, arrivals_);
}

double Meet::exchange_us() {
  constexpr int kTimes = 500;
  barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; i++) barrier();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kTimes;
}

double Meet::max(double value) {
  page_->seats[rank_].value = value;
  barrier();
  double largest = value;
  for (int i = 0; i < n_ranks_; i++) largest = std::max(largest, page_->seats[i].value);
  barrier();
  return largest;
}

void Meet::share(void* data, size_t bytes) {
  if (bytes > sizeof page_->shared) fail("Meet::share: at most 256 bytes");
  if (rank_ == 0) memcpy(page_->shared, data, bytes);
  barrier();
  memcpy(data, page_->shared, bytes);
  barrier();
}

}  // namespace bench
