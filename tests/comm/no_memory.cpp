// Operations that find no memory: who waits for them is told, and those behind them have their turns all the same.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

static std::atomic<bool> g_lacks{false};
static thread_local bool t_lacks = false;
void* operator new(size_t bytes) {
  void* const memory = (g_lacks || t_lacks) && bytes >= size_t{1} << 20 ? nullptr : malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  free(memory);
}

constexpr size_t kCount = 4 << 20;

// Makes room for what travels.
static tuttiResult_t sum(std::vector<float>& data, tuttiComm_t comm) {
  return tuttiAllReduceQuantized(data.data(), data.data(), kCount, tuttiFloat, tuttiSum, tuttiInt8, 256, nullptr, comm,
                                 nullptr);
}

// One rank alone has none: the other one does not wait for it, and it cannot go on as if nothing had been.
static bool one_rank_lacks() {
  tuttiComm_t comms[2];
  if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
  std::vector<float> data[2] = {std::vector<float>(kCount), std::vector<float>(kCount)};
  tuttiResult_t other = tuttiSuccess;
  std::thread thread([&] { other = sum(data[1], comms[1]); });
  t_lacks = true;
  const tuttiResult_t mine = sum(data[0], comms[0]);
  t_lacks = false;
  thread.join();
  const tuttiResult_t again = tuttiBarrier(comms[0], nullptr);
  for (tuttiComm_t comm : comms) (void)tuttiCommAbort(comm);
  return mine == tuttiSystemError && other == tuttiSystemError && again == tuttiSystemError;
}

// A group that lacks one of its calls does not run.
static bool a_call_lacks() {
  tuttiComm_t comm;
  if (tuttiCommInitAll(&comm, 1, nullptr) != tuttiSuccess) return false;
  float value = 1;
  int refused = 0;
  t_lacks = true;
  tuttiGroupStart();
  for (int i = 0; i < 10'000; i++)  // the list of calls gets longer than 1 MiB
    refused += tuttiAllReduce(&value, &value, 1, tuttiFloat, tuttiMax, comm, nullptr) != tuttiSuccess;
  t_lacks = false;
  const tuttiResult_t ended = tuttiGroupEnd(), again = tuttiBarrier(comm, nullptr);
  (void)tuttiCommAbort(comm);
  return refused > 0 && ended == tuttiSystemError && again == tuttiSuccess;
}

int main() {
  alarm(60);
  if (!one_rank_lacks()) return 4;
  if (!a_call_lacks()) return 5;
  tuttiComm_t comms[2];
  if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return 1;
  std::vector<float> data[2] = {std::vector<float>(kCount), std::vector<float>(kCount)};
  const auto barriers = [&] {
    for (tuttiComm_t comm : comms) (void)tuttiBarrier(comm, nullptr);
  };
  g_lacks = true;
  tuttiGroupStart();
  for (int r = 0; r < 2; r++) (void)sum(data[r], comms[r]);
  barriers();
  if (tuttiGroupEnd() != tuttiSystemError) return 2;
  g_lacks = false;
  tuttiGroupStart();
  barriers();
  return tuttiGroupEnd() == tuttiSystemError ? 0 : 3;  // broken, but nobody waits
}
