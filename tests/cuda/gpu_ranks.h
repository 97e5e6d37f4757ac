// Ranks with communicators on made-up GPUs (fake.h), and operations that are compared with those on host memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "comm/ranks.h"
#include "fake.h"

namespace tutti_test {

inline constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// How the ranks of a test are placed.
enum class Seats { kTogether, kOwnGpus, kStaged, kPairs, kStagedPairs };
inline constexpr Seats kAllSeats[] = {Seats::kTogether, Seats::kOwnGpus, Seats::kStaged};

struct Case {
  int collective = 0;  // see call()
  size_t count = 0;
  tuttiDataType_t type = tuttiFloat;
  tuttiRedOp_t op = tuttiSum;
  int root = 0;
};
inline constexpr int kCollectiveCases = 8;

struct Sizes {
  size_t in, out;  // elements
};
inline Sizes sizes_of(const Case& c, int n) {
  const size_t all = c.count * static_cast<size_t>(n);
  switch (c.collective) {
    case 3: return {c.count, all};
    case 4: return {all, c.count};
    case 5: return {all, all};
    case 6: return {c.count, all};
    case 7: return {all, c.count};
    default: return {c.count, c.count};
  }
}

inline tuttiResult_t call(const Case& c, const void* in, void* out, tuttiComm_t comm, tuttiStream_t stream) {
  switch (c.collective) {
    case 0: return tuttiAllReduce(in, out, c.count, c.type, c.op, comm, stream);
    case 1: return tuttiBroadcast(in, out, c.count, c.type, c.root, comm, stream);
    case 2: return tuttiReduce(in, out, c.count, c.type, c.op, c.root, comm, stream);
    case 3: return tuttiAllGather(in, out, c.count, c.type, comm, stream);
    case 4: return tuttiReduceScatter(in, out, c.count, c.type, c.op, comm, stream);
    case 5: return tuttiAlltoAll(in, out, c.count, c.type, comm, stream);
    case 6: return tuttiGather(in, out, c.count, c.type, c.root, comm, stream);
    default: return tuttiScatter(in, out, c.count, c.type, c.root, comm, stream);
  }
}

// Random with a period long enough that no two chunks, slots or blocks begin alike; then it repeats, as generating
// millions of numbers would take longer than the test.
inline void make_random(std::vector<char>& data, size_t elems, tuttiDataType_t type, uint32_t seed) {
  constexpr size_t kPeriod = 4099;
  std::mt19937 random(seed);
  data.resize(elems * kTypeBytes[type] + 1);
  for (size_t i = 0; i < std::min(elems, kPeriod); i++) {
    char* at = data.data() + i * kTypeBytes[type];
    const int value = static_cast<int>(random() % 2001) - 1000;
    const float f = static_cast<float>(value) / 7;
    const double d = value / 7.0;
    const auto upper = static_cast<uint16_t>(0x3c00 + random() % 0x400);  // 1 to 2 as half, small as bfloat16
    if (type == tuttiFloat)
      memcpy(at, &f, 4);
    else if (type == tuttiDouble)
      memcpy(at, &d, 8);
    else if (kTypeBytes[type] == 2)
      memcpy(at, &upper, 2);
    else if (kTypeBytes[type] == 1)
      *at = static_cast<char>(random() % 0x78);  // never NaN
    else {
      const int64_t wide = static_cast<int64_t>(random()) << 20 | value;
      memcpy(at, &wide, kTypeBytes[type]);
    }
  }
  const size_t period_bytes = kPeriod * kTypeBytes[type], bytes = elems * kTypeBytes[type];
  for (size_t at = period_bytes; at < bytes; at += period_bytes)
    memcpy(data.data() + at, data.data(), std::min(period_bytes, bytes - at));
}
inline std::vector<char> random_input(size_t elems, tuttiDataType_t type, uint32_t seed) {
  std::vector<char> data;
  make_random(data, elems, type, seed);
  return data;
}

inline int device_of(Seats seats, int rank) {
  if (seats == Seats::kPairs || seats == Seats::kStagedPairs) return rank / 2;
  return seats == Seats::kTogether ? 0 : rank;
}
inline bool is_staged(Seats seats) {
  return seats == Seats::kStaged || seats == Seats::kStagedPairs;
}

inline tuttiConfig_t config_of(Seats seats, int rank) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = device_of(seats, rank);
  config.deterministic = 1;  // for staging through the host
  return config;
}

inline tuttiStream_t as_tutti(tutti::cuda::StreamRef stream) {
  return reinterpret_cast<tuttiStream_t>(stream);
}

class GpuStream {
 public:
  explicit GpuStream(FakePort& port) : port_(port), stream_(port.create_stream().value()) {}
  ~GpuStream() { port_.destroy_stream(stream_); }
  void synchronize() { (void)port_.synchronize(stream_); }
  operator tuttiStream_t() const { return as_tutti(stream_); }
  tutti::cuda::StreamRef ref() const { return stream_; }

 private:
  FakePort& port_;
  tutti::cuda::StreamRef stream_;
};

// For ranks that are processes, which have met in `host`. Null if it fails.
inline tuttiComm_t create_on_own_gpu(int rank, tuttiComm_t host, Outcome& o, int n_ranks = 2) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = rank;
  tuttiUniqueId id = {};
  if (rank == 0) o.take(tuttiGetUniqueId(&id));
  o.take(tuttiBcast(&id, sizeof id, tuttiInt8, 0, host, nullptr));
  tuttiComm_t comm = nullptr;
  o.take(tuttiCommInitRankConfig(&comm, n_ranks, id, rank, &config));
  return comm;
}

// Ranks as threads, each with a communicator on its GPU and one in host memory that adds up in the order of
// ranks.
template <class Body>
std::vector<Outcome> run_gpu_threads(FakePort& port, int n, Seats seats, Body&& body) {
  port.refuses_peers = is_staged(seats);
  const tuttiUniqueId gpu_id = new_id(), host_id = new_id();
  std::vector<Outcome> outcomes(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; r++)
    threads.emplace_back([&, r] {
      Outcome& outcome = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t gpu = config_of(seats, r), host = TUTTI_CONFIG_INITIALIZER;
      host.deterministic = 1;
      tuttiComm_t on_gpu = nullptr, on_host = nullptr;
      outcome.take(tuttiCommInitRankConfig(&on_gpu, n, gpu_id, r, &gpu));
      outcome.take(tuttiCommInitRankConfig(&on_host, n, host_id, r, &host));
      if (on_gpu == nullptr || on_host == nullptr) return;
      body(r, on_gpu, on_host, outcome);
      outcome.take(tuttiCommFinalize(on_gpu));
      outcome.take(tuttiCommDestroy(on_gpu));
      outcome.take(tuttiCommDestroy(on_host));
    });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

// Runs one operation on the GPU and on the host with the same data; counts bytes that differ. The memory is reused:
// allocating large buffers each time costs a tenth of the time under ThreadSanitizer.
inline void compare(const Case& c, int rank, int n, tuttiComm_t on_gpu, tuttiComm_t on_host, GpuStream& stream,
                    Outcome& outcome, uint32_t seed) {
  const Sizes sizes = sizes_of(c, n);
  thread_local std::vector<char> in, gpu, host;
  make_random(in, sizes.in, c.type, seed * 64 + static_cast<uint32_t>(rank));
  gpu.assign(sizes.out * kTypeBytes[c.type] + 1, 1);
  host = gpu;
  outcome.take(call(c, in.data(), gpu.data(), on_gpu, stream));
  stream.synchronize();
  outcome.take(call(c, in.data(), host.data(), on_host, nullptr));
  outcome.wrong += memcmp(gpu.data(), host.data(), gpu.size()) != 0 ? 1 : 0;
}

// Rank 0 aborts after several operations that rank 1 never calls: all-gathers by phases, or all-reduces.
inline void require_abort_frees(FakePort& port, Seats seats, int n_calls, bool gathers = false) {
  port.refuses_peers = seats == Seats::kStaged;
  const tuttiUniqueId id = new_id();
  std::vector<std::thread> threads;
  std::vector<Outcome> outcomes(2);
  std::atomic<bool> over{false};
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(seats, r);
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      std::vector<float> data(1000);
      GpuStream stream(port);
      if (r == 0) {
        for (int i = 0; i < n_calls; i++)
          o.take(call({gathers ? 3 : 0, gathers ? 500u : 1000u}, data.data(), data.data(), comm, stream));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        o.take(tuttiCommAbort(comm));
        stream.synchronize();
        over = true;
      } else {
        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        (void)tuttiCommDestroy(comm);
      }
    });
  for (auto& thread : threads) thread.join();
  require_success(outcomes);
}

inline tuttiConfig_t first_gpu() {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = 0;
  return config;
}

// Ranks 0 and 2 on GPUs, whose rank 1 died.
inline void check_gpu_survivors(const std::vector<Outcome>& outcomes) {
  for (const size_t r : {0, 2}) {
    INFO(outcomes[r].message);
    CHECK((outcomes[r].code == tuttiSuccess || outcomes[r].code == tuttiRemoteError));
    CHECK(outcomes[r].wrong == 0);
  }
}

}  // namespace tutti_test
