// A group one of whose operations finds no memory: those behind it have their turns all the same.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "tutti/tutti.h"

static std::atomic<bool> g_lacks{false};
void* operator new(size_t bytes) {
  void* const memory = g_lacks && bytes >= size_t{1} << 20 ? nullptr : malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  free(memory);
}

int main() {
  alarm(60);
  constexpr size_t kCount = 4 << 20;
  tuttiComm_t comms[2];
  if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return 1;
  std::vector<float> data[2] = {std::vector<float>(kCount), std::vector<float>(kCount)};
  const auto barriers = [&] {
    for (tuttiComm_t comm : comms) (void)tuttiBarrier(comm, nullptr);
  };
  g_lacks = true;
  tuttiGroupStart();
  for (int r = 0; r < 2; r++)  // makes room for what travels, in both ranks
    (void)tuttiAllReduceQuantized(data[r].data(), data[r].data(), kCount, tuttiFloat, tuttiSum, tuttiInt8, 256, nullptr,
                                  comms[r], nullptr);
  barriers();
  if (tuttiGroupEnd() != tuttiSystemError) return 2;
  g_lacks = false;
  tuttiGroupStart();
  barriers();
  return tuttiGroupEnd() == tuttiSuccess ? 0 : 3;
}
