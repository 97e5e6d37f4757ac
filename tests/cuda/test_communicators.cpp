// Communicators on GPUs that are made up (fake.h): every way that data may take, against communicators on host memory,
// bit by bit.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "fake.h"

using namespace tutti_test;

namespace {

constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// How the ranks of a test sit.
enum class Seats { kTogether, kOwnGpus, kStaged };
constexpr Seats kAllSeats[] = {Seats::kTogether, Seats::kOwnGpus, Seats::kStaged};

struct Case {
  int collective = 0;  // see call()
  size_t count = 0;
  tuttiDataType_t type = tuttiFloat;
  tuttiRedOp_t op = tuttiSum;
  int root = 0;
};
constexpr int kCollectives = 8;

struct Sizes {
  size_t in, out;  // elements
};
Sizes sizes_of(const Case& c, int n) {
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

tuttiResult_t call(const Case& c, const void* in, void* out, tuttiComm_t comm, tuttiStream_t stream) {
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

std::vector<char> random_input(size_t elems, tuttiDataType_t type, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<char> data(elems * kTypeBytes[type] + 1);
  for (size_t i = 0; i < elems; i++) {
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
  return data;
}

tuttiConfig_t config_of(Seats seats, int rank) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = seats == Seats::kTogether ? 0 : rank;
  config.deterministic = 1;  // for the way through the host
  return config;
}

tuttiStream_t as_tutti(tutti::cuda::StreamRef stream) {
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

// Threads that are ranks, each with a communicator on its GPU and one in host memory that adds up in the order of
// ranks.
template <class Body>
std::vector<Outcome> run_gpu_threads(FakePort& port, int n, Seats seats, Body&& body) {
  port.has_no_words = seats == Seats::kStaged;
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

// One operation on the GPU and on the host with the same data; counts bytes that differ.
void compare(const Case& c, int rank, int n, tuttiComm_t on_gpu, tuttiComm_t on_host, GpuStream& stream,
             Outcome& outcome, uint32_t seed) {
  const Sizes sizes = sizes_of(c, n);
  const auto in = random_input(sizes.in, c.type, seed * 64 + static_cast<uint32_t>(rank));
  std::vector<char> gpu(sizes.out * kTypeBytes[c.type] + 1, 1), host(gpu);
  outcome.take(call(c, in.data(), gpu.data(), on_gpu, stream));
  stream.synchronize();
  outcome.take(call(c, in.data(), host.data(), on_host, nullptr));
  outcome.wrong += memcmp(gpu.data(), host.data(), gpu.size()) != 0 ? 1 : 0;
}

}  // namespace

TEST_CASE("all collectives on GPUs give the host's results, whatever way the data take") {
  FakePort port(8);
  for (const Seats seats : kAllSeats)
    for (const int n : {1, 2, 3, 8}) {
      INFO("seats " << static_cast<int>(seats) << ", " << n << " ranks");
      const auto outcomes = run_gpu_threads(port, n, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
        GpuStream stream(port);
        uint32_t seed = 1;
        for (int collective = 0; collective < kCollectives; collective++)
          for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{70'001}}) {
            const Case c{collective, count, tuttiFloat, tuttiSum, static_cast<int>(seed) % n};
            compare(c, r, n, gpu, host, stream, o, seed++);
          }
      });
      require_success(outcomes);
    }
}

TEST_CASE("all types and operators on GPUs give the host's bits") {
  FakePort port(4);
  for (const Seats seats : {Seats::kTogether, Seats::kOwnGpus})
    require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
      GpuStream stream(port);
      uint32_t seed = 1;
      for (int type = 0; type < tuttiNumTypes; type++)
        for (int op = 0; op < tuttiNumOps; op++)
          for (const int collective : {0, 2, 4}) {
            const Case c{collective, 777, static_cast<tuttiDataType_t>(type), static_cast<tuttiRedOp_t>(op), 1};
            compare(c, r, 3, gpu, host, stream, o, seed++);
          }
    }));
}

TEST_CASE("all-reduces that take several pieces, in place") {
  FakePort port(4);
  constexpr size_t kCount = (70 << 20) / 4 + 3;
  require_success(run_gpu_threads(port, 3, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    GpuStream stream(port);
    std::vector<uint32_t> data(kCount);
    for (size_t i = 0; i < kCount; i++) data[i] = static_cast<uint32_t>(i * 3 + static_cast<size_t>(r));
    o.take(tuttiAllReduce(data.data(), data.data(), kCount, tuttiUint32, tuttiSum, gpu, stream));
    stream.synchronize();
    for (size_t i = 0; i < kCount; i++) o.wrong += data[i] != static_cast<uint32_t>(i * 9 + 3);
  }));
}

TEST_CASE("ranks that are processes and share a GPU") {
  for (const bool broken : {false, true})
    for (const int n : {2, 4}) {
      FakePort port(1);
      port.corrupts_maps = broken;
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.cudaDevice = 0;
      Processes processes(
          n,
          [&](int r, tuttiComm_t comm, Outcome& o) {
            GpuStream stream(port);
            for (const size_t count : {size_t{1}, size_t{5000}, size_t{300'000}}) {
              std::vector<int32_t> data(count);
              for (size_t i = 0; i < count; i++) data[i] = static_cast<int32_t>(i) + r;
              for (int turn = 0; turn < 5; turn++)
                o.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, tuttiMax, comm, stream));
              stream.synchronize();
              for (size_t i = 0; i < count; i++) o.wrong += data[i] != static_cast<int32_t>(i) + n - 1;
            }
            // Data that do not arrive are noticed when the communicator is made, and go through the host then.
            o.wrong += broken == (port.copies < 3 * 2 * 5) ? 1 : 0;
            o.take(tuttiCommFinalize(comm));
            o.take(tuttiCommDestroy(comm));
          },
          &config);
      require_success(processes.wait());
    }
}

TEST_CASE("one thread holds all ranks, in a group") {
  FakePort port(2);
  constexpr int kRanks = 4;
  tuttiComm_t comms[kRanks];
  const int devices[kRanks] = {1, 1, 1, 1};
  REQUIRE(tuttiCommInitAll(comms, kRanks, devices) == tuttiSuccess);
  int device = -1;
  REQUIRE(tuttiCommCuDevice(comms[2], &device) == tuttiSuccess);
  REQUIRE(device == 1);
  std::vector<std::unique_ptr<GpuStream>> streams;
  std::vector<std::vector<int64_t>> data(kRanks, std::vector<int64_t>(1000));
  for (int r = 0; r < kRanks; r++) {
    streams.push_back(std::make_unique<GpuStream>(port));
    for (size_t i = 0; i < 1000; i++) data[static_cast<size_t>(r)][i] = static_cast<int64_t>(i) * (r + 1);
  }
  const int runs = port.runs;
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < kRanks; r++) {
    auto& d = data[static_cast<size_t>(r)];
    REQUIRE(tuttiAllReduce(d.data(), d.data(), d.size(), tuttiInt64, tuttiSum, comms[r],
                           *streams[static_cast<size_t>(r)]) == tuttiSuccess);
  }
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  CHECK(port.runs == runs + 1);  // one kernel for all
  for (auto& stream : streams) stream->synchronize();
  for (const auto& d : data)
    for (size_t i = 0; i < d.size(); i++) REQUIRE(d[i] == static_cast<int64_t>(i) * 10);
  for (tuttiComm_t comm : comms) REQUIRE(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("an algorithm that is asked for is run as a schedule, by one launch for all ranks") {
  FakePort port(1);
  for (const char* algo : {"ring", "tree", "halving"}) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.cudaDevice = 0;
    config.algo = algo;
    const int before = port.programs;
    require_success(run_threads(2, &config, [&](int r, tuttiComm_t comm, Outcome& o) {
      GpuStream stream(port);
      for (const size_t count : {size_t{0}, size_t{1}, size_t{100'000}}) {
        std::vector<int32_t> data(count, r + 1);
        for (int turn = 0; turn < 3; turn++)
          o.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, tuttiSum, comm, stream));
        stream.synchronize();
        for (const int32_t value : data) o.wrong += value != 12;
      }
    }));
    CHECK(port.programs == before + 6);
  }
}

TEST_CASE("small all-reduces between GPUs are one kernel on each, whatever sizes follow each other") {
  FakePort port(5);
  require_success(run_gpu_threads(port, 5, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    GpuStream stream(port);
    uint32_t seed = 1;
    for (int turn = 0; turn < 4; turn++)
      for (const size_t count : {1, 8192, 3, 2049, 8192, 8193, 511, 5000})
        compare({0, count, tuttiFloat, turn % 2 == 0 ? tuttiAvg : tuttiMin, 0}, r, 5, gpu, host, stream, o, seed++);
  }));
  CHECK(port.lines == 5 * 4 * 7);  // one size is too large
  CHECK(port.open_ranges == 0);
}

TEST_CASE("messages between ranks on GPUs") {
  FakePort port(4);
  for (const Seats seats : {Seats::kTogether, Seats::kOwnGpus})
    require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      GpuStream stream(port);
      std::vector<int32_t> out(5000, r), in(5000, -1);
      for (int turn = 0; turn < 3; turn++) {
        o.take(tuttiGroupStart());
        o.take(tuttiSend(out.data(), out.size(), tuttiInt32, (r + 1) % 3, gpu, stream));
        o.take(tuttiRecv(in.data(), in.size(), tuttiInt32, (r + 2) % 3, gpu, stream));
        o.take(tuttiGroupEnd());
        o.take(tuttiAllReduce(in.data(), out.data(), in.size(), tuttiInt32, tuttiSum, gpu, stream));
        stream.synchronize();
        for (const int32_t value : in) o.wrong += turn == 0 && value != (r + 2) % 3;
        for (int32_t& value : out) {
          o.wrong += turn == 0 && value != 3;
          value = r;
        }
      }
    }));
}

TEST_CASE("graphs: what was captured is done again at every launch") {
  FakePort port(4);
  for (const Seats seats : kAllSeats) {
    if (seats == Seats::kTogether) continue;  // of one process: see the next test
    require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      GpuStream stream(port);
      std::vector<int64_t> data(2000, 1), gathered(6000);
      o.take(tuttiBarrier(gpu, stream));
      FakeGraph graph;
      port.begin_capture(stream.ref(), &graph);
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt64, tuttiSum, gpu, stream));
      o.take(tuttiAllGather(data.data(), gathered.data(), data.size(), tuttiInt64, gpu, stream));
      port.end_capture(&graph);
      o.wrong += data[0] != 1;  // nothing has run yet
      for (int launch = 0; launch < 6; launch++) port.launch(graph, stream.ref());
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt64, tuttiSum, gpu, stream));
      stream.synchronize();
      for (const int64_t value : data) o.wrong += value != 2187;
      for (const int64_t value : gathered) o.wrong += value != 729;
      (void)r;
    }));
  }
}

TEST_CASE("graphs: ranks of one process that share a GPU are captured together") {
  FakePort port(1);
  constexpr int kRanks = 3;
  tuttiComm_t comms[kRanks];
  const int devices[kRanks] = {0, 0, 0};
  REQUIRE(tuttiCommInitAll(comms, kRanks, devices) == tuttiSuccess);
  GpuStream stream(port);
  std::vector<std::vector<int32_t>> data(kRanks, std::vector<int32_t>(100, 2));
  FakeGraph graph;
  port.begin_capture(stream.ref(), &graph);
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < kRanks; r++) {
    auto& d = data[static_cast<size_t>(r)];
    REQUIRE(tuttiAllReduce(d.data(), d.data(), d.size(), tuttiInt32, tuttiSum, comms[r], stream) == tuttiSuccess);
  }
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  port.end_capture(&graph);
  for (int launch = 0; launch < 3; launch++) port.launch(graph, stream.ref());
  stream.synchronize();
  for (const auto& d : data)
    for (const int32_t value : d) REQUIRE(value == 54);
  for (tuttiComm_t comm : comms) REQUIRE(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("an operation on another stream comes after those before it") {
  FakePort port(4);
  for (const Seats seats : kAllSeats) {
    require_success(run_gpu_threads(port, 2, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      GpuStream first(port), second(port);
      std::vector<int32_t> a(100'000, r + 1), b(100'000, 10 * (r + 1));
      for (int turn = 0; turn < 10; turn++) {
        o.take(tuttiAllReduce(a.data(), a.data(), a.size(), tuttiInt32, tuttiMax, gpu, first));
        o.take(tuttiAllReduce(b.data(), b.data(), b.size(), tuttiInt32, tuttiMax, gpu, second));
      }
      first.synchronize();
      second.synchronize();
      for (size_t i = 0; i < a.size(); i++) o.wrong += a[i] != 2 || b[i] != 20;
    }));
  }
}

TEST_CASE("sums of multiplied inputs, with the factor on the GPU and given now") {
  FakePort port(4);
  for (const Seats seats : kAllSeats) {
    require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      GpuStream stream(port);
      for (const auto residence : {tuttiScalarDevice, tuttiScalarHostImmediate}) {
        float factor = static_cast<float>(r + 1);
        tuttiRedOp_t op;
        o.take(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, residence, gpu));
        std::vector<float> data(3000, 2.0f);
        o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, op, gpu, stream));
        stream.synchronize();
        for (const float value : data) o.wrong += value != 12.0f;
        o.take(tuttiRedOpDestroy(op, gpu));
      }
    }));
  }
}

TEST_CASE("ranks of one GPU that call different things are told so") {
  FakePort port(1);
  const auto outcomes =
      run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
        GpuStream stream(port);
        std::vector<float> data(100);
        o.take(tuttiAllReduce(data.data(), data.data(), r == 0 ? 100 : 99, tuttiFloat, tuttiSum, gpu, stream));
        tuttiResult_t state = tuttiSuccess;
        (void)tuttiCommGetAsyncError(gpu, &state);
        o.wrong += state != tuttiInvalidUsage;
      });
  for (const Outcome& o : outcomes) {
    CHECK(o.code == tuttiInvalidUsage);
    CHECK(o.message.find("count=99") != std::string::npos);
    CHECK(o.wrong == 0);
  }
}

TEST_CASE("a kernel that the GPU refuses breaks the communicator on all ranks") {
  FakePort port(2);
  port.fails_runs = 3;
  const auto outcomes = run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    GpuStream stream(port);
    std::vector<float> data(20'000);
    tuttiResult_t state = tuttiSuccess;
    for (int i = 0; i < 1000 && state == tuttiSuccess; i++) {
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, stream));
      (void)tuttiCommGetAsyncError(gpu, &state);
    }
    if (o.code == tuttiSuccess) o.code = state;  // the other rank was the first
    (void)tuttiCommDestroy(gpu);                 // before the stream, which waits for the other rank until then
  });
  for (const Outcome& o : outcomes) {
    CHECK(o.code == tuttiUnhandledCudaError);
    CHECK(o.wrong == 0);
  }
}

TEST_CASE("aborting frees a stream that waits for a rank that never calls") {
  FakePort port(2);
  for (const bool replays : {false, true}) {
    const tuttiUniqueId id = new_id();
    std::vector<std::thread> threads;
    std::vector<Outcome> outcomes(2);
    std::atomic<bool> over{false};
    for (int r = 0; r < 2; r++)
      threads.emplace_back([&, r] {
        Outcome& o = outcomes[static_cast<size_t>(r)];
        tuttiConfig_t config = config_of(Seats::kOwnGpus, r);
        tuttiComm_t comm = nullptr;
        o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
        GpuStream stream(port);
        std::vector<float> data(100);
        if (r == 0) {
          for (int i = 0; i < (replays ? 5 : 1); i++)
            o.take(tuttiAllReduce(data.data(), data.data(), 100, tuttiFloat, tuttiSum, comm, stream));
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
}

TEST_CASE("a process that dies frees the others' streams") {
  FakePort port(1);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = 0;
  Processes processes(
      3,
      [&](int r, tuttiComm_t comm, Outcome& o) {
        if (r == 1) kill(getpid(), SIGKILL);
        GpuStream stream(port);
        std::vector<float> data(100);
        o.take(tuttiAllReduce(data.data(), data.data(), 100, tuttiFloat, tuttiSum, comm, stream));
        tuttiResult_t state = tuttiSuccess;
        for (int i = 0; i < 30'000 && state == tuttiSuccess; i++) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          (void)tuttiCommGetAsyncError(comm, &state);
        }
        o.wrong += state != tuttiRemoteError;
        o.take(tuttiCommAbort(comm));
        stream.synchronize();
      },
      &config);
  const auto outcomes = processes.wait();
  for (const size_t r : {0, 2}) {
    INFO(outcomes[r].message);
    CHECK((outcomes[r].code == tuttiSuccess || outcomes[r].code == tuttiRemoteError));
    CHECK(outcomes[r].wrong == 0);
  }
}

TEST_CASE("ranks on GPUs and ranks in host memory do not mix") {
  FakePort port(1);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      if (r == 0) config.cudaDevice = 0;
      tuttiComm_t comm = nullptr;
      outcomes[static_cast<size_t>(r)].take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
    });
  for (auto& thread : threads) thread.join();
  for (const Outcome& o : outcomes) {
    CHECK(o.code != tuttiSuccess);
    CHECK(o.message.find("cudaDevice") != std::string::npos);
  }
}
