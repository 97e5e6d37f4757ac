// What communicators take while they live, and that they give it back. A separate program, so that nothing else comes
// and goes while it counts.
#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <sys/mman.h>

#include <cstdlib>
#include <fstream>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

size_t entries_of(const char* directory) {
  size_t n = 0;
  DIR* d = opendir(directory);
  REQUIRE(d != nullptr);
  while (const dirent* entry = readdir(d)) n += entry->d_name[0] != '.';
  closedir(d);
  return n;
}

struct Census {
  size_t descriptors = entries_of("/proc/self/fd");
  size_t threads = entries_of("/proc/self/task");
};

// Threads that have finished their work disappear a little later.
void require_census(size_t descriptors, size_t threads) {
  Census now;
  for (const double end = now_seconds() + 30; now_seconds() < end; poll(nullptr, 0, 5)) {
    if (now.descriptors == descriptors && now.threads == threads) return;
    now = Census();
  }
  REQUIRE(now.descriptors == descriptors);
  REQUIRE(now.threads == threads);
}

struct Memory {
  size_t heap_bytes = 0, resident_bytes = 0, mappings = 0;

  Memory() {
#ifndef TUTTI_TEST_SANITIZED  // sanitizers have their own allocator, which keeps freed memory
    const struct mallinfo2 heap = mallinfo2();
    heap_bytes = heap.uordblks + heap.hblkhd;
    std::ifstream statm("/proc/self/statm");
    statm >> resident_bytes >> resident_bytes;
    resident_bytes *= static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) mappings++;
#endif
  }
};

// Two ranks, their split, and one of everything that can be made for them.
void live_once() {
  tuttiComm_t comms[2];
  REQUIRE(tuttiCommInitAll(comms, 2, nullptr) == tuttiSuccess);
  Outcome outcomes[2];
  const auto live = [&](int rank) {
    Outcome& outcome = outcomes[rank];
    tuttiComm_t comm = comms[rank], part = nullptr;
    tuttiStream_t stream = nullptr;
    tuttiEvent_t event = nullptr;
    float data[2] = {1, 2}, factor = 2;
    tuttiRedOp_t op = tuttiSum;
    outcome.take(tuttiCommSplit(comm, 0, -rank, &part, nullptr));
    outcome.take(tuttiStreamCreate(&stream));
    outcome.take(tuttiEventCreate(&event));
    outcome.take(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, tuttiScalarHostImmediate, part));
    outcome.take(tuttiAllReduce(data, data, 2, tuttiFloat, op, part, stream));
    outcome.take(tuttiEventRecord(event, stream));
    outcome.take(tuttiEventSynchronize(event));
    outcome.take(tuttiBroadcast(data, data, 2, tuttiFloat, 1, comm, nullptr));
    outcome.wrong += data[0] != 4 || data[1] != 8;
    outcome.take(tuttiEventDestroy(event));
    outcome.take(tuttiStreamDestroy(stream));
    outcome.take(tuttiCommFinalize(part));
    outcome.take(tuttiCommFinalize(comm));
    outcome.take(tuttiCommDestroy(part));
    outcome.take(tuttiCommDestroy(comm));
  };
  std::thread other(live, 1);
  live(0);
  other.join();
  require_success({outcomes[0], outcomes[1]});
}

}  // namespace

TEST_CASE("a communicator holds what it says that it holds") {
  constexpr int n = 3;
  live_once();  // a sanitizer starts its own thread with our first one
  const Census before;
  std::vector<tuttiComm_t> comms(n);
  REQUIRE(tuttiCommInitAll(comms.data(), n, nullptr) == tuttiSuccess);
  const auto check = [&] {
    tuttiCommMemStats_t sum = TUTTI_COMM_MEM_STATS_INITIALIZER;
    for (tuttiComm_t comm : comms) {
      tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
      REQUIRE(tuttiCommMemStats(comm, &stats) == tuttiSuccess);
      CHECK(stats.size == sizeof stats);
      CHECK(stats.linkBytes >= stats.links * 64);
      sum.links += stats.links;
      sum.descriptors += stats.descriptors;
      CHECK(stats.threads == 1);
    }
    CHECK(sum.links % 2 == 0);                                                     // both ends count
    require_census(before.descriptors + sum.descriptors + 2, before.threads + 1);  // one thread watches for all
    return sum.links;
  };
  const size_t links_at_first = check();
  tuttiGroupStart();
  std::vector<float> from(3 * n), to(3 * n);
  for (size_t r = 0; r < n; r++) {
    CHECK(tuttiGather(&from[r], r == 2 ? to.data() : nullptr, 1, tuttiFloat, 2, comms[r], nullptr) == tuttiSuccess);
    CHECK(tuttiSend(&from[r], 1, tuttiFloat, (static_cast<int>(r) + 1) % n, comms[r], nullptr) == tuttiSuccess);
    CHECK(tuttiRecv(&to[n + r], 1, tuttiFloat, (static_cast<int>(r) + 2) % n, comms[r], nullptr) == tuttiSuccess);
  }
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  CHECK(check() > links_at_first);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  require_census(before.descriptors, before.threads);
}

// Otherwise its descriptor would stay open, and the memory mapped.
TEST_CASE("a communicator takes back what is still registered with it") {
  live_once();  // a sanitizer starts its own thread with our first one
  const Census before;
  constexpr size_t kBytes = 1 << 16;
  const int fd = memfd_create("user", 0);
  REQUIRE(fd >= 0);
  REQUIRE(ftruncate(fd, kBytes) == 0);
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REQUIRE(memory != MAP_FAILED);
  tuttiComm_t comm = nullptr;
  void* handle = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  CHECK(tuttiCommRegister(comm, memory, kBytes, &handle) == tuttiSuccess);
  close(fd);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  munmap(memory, kBytes);
  require_census(before.descriptors, before.threads);
}

TEST_CASE("links have the slots that the environment says") {
  setenv("TUTTI_SLOTS", "3", 1);
  setenv("TUTTI_SLOT_BYTES", "100", 1);
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    int32_t value = 1;
    outcome.take(tuttiAllReduce(&value, &value, 1, tuttiInt32, tuttiSum, comm, nullptr));
    tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
    outcome.take(tuttiCommMemStats(comm, &stats));
    outcome.wrong += stats.links == 0 || stats.linkBytes != stats.links * 3 * 128;  // rounded up to cache lines
  }));
  unsetenv("TUTTI_SLOTS");
  unsetenv("TUTTI_SLOT_BYTES");
}

TEST_CASE("wrong arguments of the statistics are named") {
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
  const auto said = [](const char* part) {
    return std::string(tuttiGetLastError(nullptr)).find(part) != std::string::npos;
  };
  CHECK(tuttiCommMemStats(comm, nullptr) == tuttiInvalidArgument);
  CHECK(said("stats is NULL"));
  CHECK(tuttiCommMemStats(nullptr, &stats) == tuttiInvalidArgument);
  CHECK(said("comm is NULL"));
  // The library leaves fields of a longer struct that it does not know unchanged.
  struct {
    tuttiCommMemStats_t known;
    size_t unknown;
  } longer = {TUTTI_COMM_MEM_STATS_INITIALIZER, 77};
  longer.known.size = sizeof longer;
  CHECK(tuttiCommMemStats(comm, &longer.known) == tuttiSuccess);
  CHECK(longer.known.threads == 1);
  CHECK(longer.unknown == 77);
  stats.size = 8;
  CHECK(tuttiCommMemStats(comm, &stats) == tuttiInvalidArgument);
  CHECK(said("stats.size=8"));
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a thousand communicators give back all that they took") {
#ifdef TUTTI_TEST_SANITIZED
  constexpr int kRounds = 40;
#else
  constexpr int kRounds = 250;
#endif
  for (int i = 0; i < 20; i++) live_once();
  const Census before;
  const Memory memory_before;
  for (int i = 0; i < kRounds; i++) live_once();  // four communicators each
  require_census(before.descriptors, before.threads);
  const Memory memory;
  // A thousand dead handles stay, with less than 100 bytes each; the rest is slack for the allocator.
  CHECK(memory.heap_bytes < memory_before.heap_bytes + (192u << 10));
  CHECK(memory.resident_bytes < memory_before.resident_bytes + (4u << 20));
  CHECK(memory.mappings < memory_before.mappings + 100);
}

TEST_CASE("creations that come to nothing give back all that they took") {
  const Census before;
  setenv("TUTTI_INIT_TIMEOUT", "1", 1);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  const tuttiUniqueId id = new_id();
  for (int i = 0; i < 20; i++) {
    tuttiComm_t comm = nullptr;
    REQUIRE(tuttiCommInitRankConfig(&comm, 2, id, i % 2, &config) == tuttiInProgress);
    CHECK(tuttiCommAbort(comm) == tuttiSuccess);
  }
  config.blocking = 1;
  tuttiComm_t none = nullptr;  // if none of those has reached the id, which waits for its first rank longer
  CHECK(tuttiCommInitRankConfig(&none, 2, id, 0, &config) != tuttiSuccess);
  for (int rank : {0, 1}) {
    tuttiComm_t comm = nullptr;
    CHECK(tuttiCommInitRankConfig(&comm, 2, new_id(), rank, &config) == tuttiTimeout);
    CHECK(comm == nullptr);
  }
  unsetenv("TUTTI_INIT_TIMEOUT");
  require_census(before.descriptors, before.threads);
}
