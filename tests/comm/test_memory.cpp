// Registered memory: operations between processes that read each other's buffers directly.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

constexpr size_t kCount = kSanitized ? 100001 : 300001;  // several chunks, and a partial one
constexpr size_t kFewCopied = 8203;                      // copied in advance where it cannot be exposed

// A buffer for kCount + 1 integers, allocated in one of the possible ways.
struct Buffer {
  enum Kind { kAllocated, kMemfd, kPrivate };

  Buffer(Kind kind, tuttiComm_t comm, Outcome& outcome) : kind_(kind), comm_(comm) {
    if (kind == kAllocated) {
      outcome.take(tuttiMemAlloc(&memory, kBytes));
      return;
    }
    const int fd = kind == kMemfd ? memfd_create("user", 0) : -1;
    if (fd >= 0 && ftruncate(fd, kBytes) != 0) outcome.wrong++;
    const int shared = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, shared, fd, 0);
    outcome.take(tuttiCommRegister(comm, memory, kBytes, &handle_));
    outcome.wrong += handle_ == nullptr;
    if (fd >= 0) close(fd);  // a registration does not need it
  }
  void free(Outcome& outcome) {
    if (kind_ == kAllocated) return outcome.take(tuttiMemFree(memory));
    outcome.take(tuttiCommDeregister(comm_, handle_));
    munmap(memory, kBytes);
  }
  int32_t* data() const { return static_cast<int32_t*>(memory); }

  static constexpr size_t kBytes = (kCount + 1) * sizeof(int32_t);
  void* memory = nullptr;

 private:
  Kind kind_;
  tuttiComm_t comm_;
  void* handle_ = nullptr;
};

int32_t value(int rank, size_t i) {
  return static_cast<int32_t>(i % 1009) * (rank + 1);
}

void fill(int32_t* data, size_t count, int rank) {
  for (size_t i = 0; i < count; i++) data[i] = value(rank, i);
}

size_t count_wrong(const int32_t* data, size_t count, int factor) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; i++) wrong += data[i] != static_cast<int32_t>(i % 1009) * factor;
  return wrong;
}

void check_operations(const Buffer& in, const Buffer& out, size_t count, int rank, int n, tuttiComm_t comm,
                      Outcome& outcome) {
  const int sum = n * (n + 1) / 2;
  fill(in.data(), count, rank);
  outcome.take(tuttiAllReduce(in.data(), out.data(), count, tuttiInt32, tuttiSum, comm, nullptr));
  outcome.wrong += count_wrong(out.data(), count, sum) + count_wrong(in.data(), count, rank + 1);
  // The buffer may be overwritten at once: nobody reads it any more.
  fill(in.data(), count, rank);
  outcome.take(tuttiAllReduce(in.data(), in.data(), count, tuttiInt32, tuttiSum, comm, nullptr));
  outcome.wrong += count_wrong(in.data(), count, sum);
  fill(in.data(), count, rank);
  outcome.take(tuttiBroadcast(in.data(), out.data(), count, tuttiInt32, n - 1, comm, nullptr));
  memset(in.data(), 0, count * sizeof(int32_t));
  outcome.wrong += count_wrong(out.data(), count, n);
  fill(in.data(), count, rank);
  const size_t block = count / static_cast<size_t>(n);
  outcome.take(tuttiAllGather(in.data(), out.data(), block, tuttiInt32, comm, nullptr));
  for (size_t i = 0; i < block * static_cast<size_t>(n); i++)
    outcome.wrong += out.data()[i] != value(static_cast<int>(i / block), i % block);
  outcome.take(tuttiReduceScatter(in.data(), out.data(), block, tuttiInt32, tuttiSum, comm, nullptr));
  for (size_t i = 0; i < block; i++)
    outcome.wrong += out.data()[i] != static_cast<int32_t>((static_cast<size_t>(rank) * block + i) % 1009) * sum;
  outcome.take(tuttiAlltoAll(in.data(), out.data(), block, tuttiInt32, comm, nullptr));
  for (size_t i = 0; i < block * static_cast<size_t>(n); i++)
    outcome.wrong += out.data()[i] != value(static_cast<int>(i / block), static_cast<size_t>(rank) * block + i % block);
  outcome.take(tuttiGroupStart());
  outcome.take(tuttiSend(in.data(), count, tuttiInt32, (rank + 1) % n, comm, nullptr));
  outcome.take(tuttiRecv(out.data(), count, tuttiInt32, (rank + n - 1) % n, comm, nullptr));
  outcome.take(tuttiGroupEnd());
  outcome.wrong += count_wrong(out.data(), count, (rank + n - 1) % n + 1);
}

}  // namespace

TEST_CASE("operations on memory of every kind, between processes", "[long]") {
  const int n = GENERATE(2, 3, 5);
  if (kSanitized && n == 5) return;
  const char* algo = GENERATE("", "ring", "tree", "direct");
  INFO(n << " ranks, algorithm '" << algo << "'");
  setenv("TUTTI_ALGO", algo, 1);
  Processes ranks(n, [n](int rank, tuttiComm_t comm, Outcome& outcome) {
    const Buffer::Kind kinds[] = {Buffer::kAllocated, Buffer::kMemfd, Buffer::kPrivate};
    for (const auto in_kind : kinds)
      for (const auto out_kind : kinds) {
        // Kinds may differ between ranks.
        Buffer in(rank == 1 ? out_kind : in_kind, comm, outcome), out(out_kind, comm, outcome);
        for (const size_t count : {kCount, kFewCopied}) check_operations(in, out, count, rank, n, comm, outcome);
        in.free(outcome);
        out.free(outcome);
      }
    tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
    outcome.take(tuttiCommMemStats(comm, &stats));
    outcome.wrong += stats.registeredBytes;
    outcome.take(tuttiCommDestroy(comm));
  });
  unsetenv("TUTTI_ALGO");
  require_success(ranks.wait());
}

TEST_CASE("results that go past the cache, to more places than a kernel writes at a time", "[processes]") {
  const int n = GENERATE(2, 4, 10);
  if (kSanitized && n == 10) return;
  INFO(n << " ranks");
  setenv("TUTTI_ALGO", "direct", 1);
  setenv("TUTTI_NT_BYTES", "1", 1);
  Processes ranks(n, [n](int rank, tuttiComm_t comm, Outcome& outcome) {
    Buffer in(Buffer::kAllocated, comm, outcome), out(Buffer::kAllocated, comm, outcome);
    check_operations(in, out, kCount, rank, n, comm, outcome);
    in.free(outcome);
    out.free(outcome);
    outcome.take(tuttiCommDestroy(comm));
  });
  for (const char* name : {"TUTTI_ALGO", "TUTTI_NT_BYTES"}) unsetenv(name);
  require_success(ranks.wait());
}

TEST_CASE("registering: what cannot be is refused with the reason") {
  require_success(run_threads(1, nullptr, [&](int, tuttiComm_t comm, Outcome& outcome) {
    char byte = 0;
    void* handle = nullptr;
    const auto refused = [&](tuttiResult_t result, const std::string& part) {
      const bool said =
          result == tuttiInvalidArgument && std::string(tuttiGetLastError(nullptr)).find(part) != std::string::npos;
      outcome.wrong += !said;
    };
    refused(tuttiCommRegister(comm, nullptr, 1, &handle), "buff is NULL");
    refused(tuttiCommRegister(comm, &byte, 0, &handle), "size=0");
    refused(tuttiCommRegister(comm, &byte, 1, nullptr), "handle is NULL");
    refused(tuttiCommRegister(comm, &byte, SIZE_MAX, &handle), "overflows");
    refused(tuttiCommRegister(nullptr, &byte, 1, &handle), "comm is NULL");
    refused(tuttiCommRegister(comm, reinterpret_cast<void*>(4096), 1, &handle), "not mapped");
    refused(tuttiCommDeregister(comm, reinterpret_cast<void*>(77)), "not a live registration");
    outcome.take(tuttiCommDeregister(comm, nullptr));
#ifndef TUTTI_TEST_TSAN  // it reports a race on a descriptor that another thread closes
    // A shared mapping whose file others cannot open: no effect, as with shared memory that has no file.
    const int fd = open("/proc/self/exe", O_RDONLY);
    void* const unopened = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    outcome.take(tuttiCommRegister(comm, unopened, 4096, &handle));
    outcome.take(tuttiCommDeregister(comm, handle));
    munmap(unopened, 4096);
#endif
    outcome.take(tuttiCommRegister(comm, &byte, 1, &handle));  // private memory: no effect
    tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
    outcome.take(tuttiCommMemStats(comm, &stats));
    outcome.wrong += stats.registeredBytes != 1;
    outcome.take(tuttiCommDeregister(comm, handle));
    refused(tuttiCommDeregister(comm, handle), "not a live registration");
  }));
  CHECK(tuttiMemFree(reinterpret_cast<void*>(4096)) == tuttiInvalidArgument);
  void* memory = nullptr;
  CHECK(tuttiMemAlloc(&memory, size_t{1} << 50) == tuttiSystemError);
  CHECK(memory == nullptr);
  CHECK(tuttiMemAlloc(nullptr, 1) == tuttiInvalidArgument);
  CHECK(tuttiMemAlloc(&memory, 0) == tuttiSuccess);
  CHECK(memory == nullptr);
}

TEST_CASE("memory is zero when it is allocated, also where memory that was freed has been written") {
  constexpr size_t kBytes = 1 << 20;
  for (int i = 0; i < 3; i++) {
    void* memory = nullptr;
    REQUIRE(tuttiMemAlloc(&memory, kBytes) == tuttiSuccess);
    auto* const bytes = static_cast<unsigned char*>(memory);
    CHECK(std::all_of(bytes, bytes + kBytes, [](unsigned char byte) { return byte == 0; }));
    memset(memory, 1, kBytes);
    CHECK(tuttiMemFree(memory) == tuttiSuccess);
  }
}
