// The library over a CUDA runtime that is as strict as the real one (cudart/cudart.h): calls that invalidate captures,
// a default stream that all blocking streams wait for, memory freed and kernels loaded only when the device is idle.
#include <cuda_runtime_api.h>
#include <tutti/tutti.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.h"

namespace {

constexpr int kRanks = 2;  // each on its own device

tuttiStream_t as_tutti(cudaStream_t stream) {
  return reinterpret_cast<tuttiStream_t>(stream);
}

tuttiUniqueId made_id() {
  tuttiUniqueId id;
  REQUIRE(tuttiGetUniqueId(&id) == tuttiSuccess);
  return id;
}

// One rank's communicator, stream and data; failures are counted, because this runs in threads.
class Rank {
 public:
  Rank(const tuttiUniqueId& id, int rank, const char* algo = nullptr) : rank_(rank) {
    need(cudaSetDevice(rank) == cudaSuccess);
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.cudaDevice = rank;
    config.algo = algo;
    need(tuttiCommInitRankConfig(&comm, kRanks, id, rank, &config) == tuttiSuccess);
    need(cudaStreamCreate(&stream) == cudaSuccess);
    need(cudaMalloc(reinterpret_cast<void**>(&data), kBytes) == cudaSuccess);
  }
  ~Rank() {
    leave();
    (void)cudaFree(data);
    (void)cudaStreamDestroy(stream);
  }
  Rank(const Rank&) = delete;

  void need(bool holds) { wrong += holds ? 0 : 1; }
  void leave() {
    if (comm != nullptr) need(tuttiCommDestroy(std::exchange(comm, nullptr)) == tuttiSuccess);
  }
  void fill(int32_t value, size_t count) {
    const std::vector<int32_t> from(count, value);
    need(cudaMemcpyAsync(data, from.data(), count * sizeof value, cudaMemcpyDefault, stream) == cudaSuccess);
    need(cudaStreamSynchronize(stream) == cudaSuccess);
  }
  void add_up(size_t count) {
    need(tuttiAllReduce(data, data, count, tuttiInt32, tuttiSum, comm, as_tutti(stream)) == tuttiSuccess);
  }
  void expect(int32_t value, size_t count) {
    std::vector<int32_t> to(count);
    need(cudaMemcpyAsync(to.data(), data, count * sizeof value, cudaMemcpyDefault, stream) == cudaSuccess);
    need(cudaStreamSynchronize(stream) == cudaSuccess);
    for (const int32_t number : to) need(number == value);
  }

  static constexpr size_t kBytes = 4 << 20;
  tuttiComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  int32_t* data = nullptr;
  size_t wrong = 0;

 private:
  const int rank_;
};

// Runs body(rank) in one thread per rank.
template <class Body>
void run_ranks(Body&& body, const char* algo = nullptr) {
  const tuttiUniqueId id = made_id();
  std::vector<size_t> wrong(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; r++)
    threads.emplace_back([&, r] {
      Rank rank(id, r, algo);
      body(r, rank);
      rank.leave();
      wrong[static_cast<size_t>(r)] = rank.wrong;
    });
  for (auto& thread : threads) thread.join();
  for (const size_t n : wrong) CHECK(n == 0);
}

// Two non-blocking streams, a blocking one, and what can be done with them.
class Captures {
 public:
  Captures() {
    for (cudaStream_t& stream : streams)
      REQUIRE(cudaStreamCreateWithFlags(&stream, &stream == &streams[2] ? cudaStreamDefault : cudaStreamNonBlocking) ==
              cudaSuccess);
    for (cudaEvent_t& event : events) REQUIRE(cudaEventCreate(&event) == cudaSuccess);
    REQUIRE(cudaMalloc(&memory_, 100) == cudaSuccess);
  }
  ~Captures() {
    (void)cudaFree(memory_);
    for (cudaEvent_t event : events) (void)cudaEventDestroy(event);
    for (cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
  }
  Captures(const Captures&) = delete;

  void begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed) {
    REQUIRE(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
  }
  cudaError_t use(cudaStream_t stream) { return cudaMemsetAsync(memory_, 0, 100, stream); }
  void join(cudaStream_t stream, cudaEvent_t event, cudaStream_t captured) {
    REQUIRE(cudaEventRecord(event, captured) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(stream, event, 0) == cudaSuccess);
  }
  static cudaError_t end(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    const cudaError_t code = cudaStreamEndCapture(stream, &graph);
    CHECK((graph != nullptr) == (code == cudaSuccess));
    if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    return code;
  }

  cudaStream_t streams[3] = {};
  cudaEvent_t events[2] = {};

 private:
  void* memory_ = nullptr;
};

}  // namespace

// CUDA's reference on errors 900 to 908, and the programming guide on captures: breaking a rule invalidates a capture.
TEST_CASE("captures break CUDA's rules with CUDA's errors, and are spoilt") {
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  Captures all;
  const cudaStream_t one = all.streams[0], other = all.streams[1], blocking = all.streams[2];
  const cudaEvent_t event = all.events[0], second = all.events[1];
  void* memory = nullptr;
  SECTION("900: allocations of a thread that captures, and questions about what is captured") {
    all.begin(one, cudaStreamCaptureModeGlobal);
    CHECK(cudaMalloc(&memory, 100) == cudaErrorStreamCaptureUnsupported);
    CHECK(all.end(one) == cudaErrorStreamCaptureInvalidated);
    all.begin(one, cudaStreamCaptureModeThreadLocal);
    CHECK(cudaStreamSynchronize(other) == cudaErrorStreamCaptureUnsupported);
    CHECK(all.end(one) == cudaErrorStreamCaptureInvalidated);
    for (const auto ask : {cudaStreamSynchronize, cudaStreamQuery}) {
      all.begin(one);
      CHECK(ask(one) == cudaErrorStreamCaptureUnsupported);
      CHECK(all.end(one) == cudaErrorStreamCaptureInvalidated);
    }
    CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) == cudaErrorStreamCaptureUnsupported);
  }
  SECTION("901: use of a capture that was spoilt") {
    all.begin(one);
    REQUIRE(cudaEventRecord(event, one) == cudaSuccess);
    REQUIRE(cudaStreamQuery(one) == cudaErrorStreamCaptureUnsupported);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CHECK(cudaStreamIsCapturing(one, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    CHECK(all.use(one) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaEventRecord(second, one) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamWaitEvent(other, event, 0) == cudaErrorStreamCaptureInvalidated);
    CHECK(all.end(one) == cudaErrorStreamCaptureInvalidated);
    CHECK(all.use(one) == cudaSuccess);
  }
  SECTION("902: two captures that would become one") {
    all.begin(one);
    all.begin(other);
    REQUIRE(cudaEventRecord(event, one) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(other, event, 0) == cudaErrorStreamCaptureMerge);
    for (const cudaStream_t stream : {one, other}) CHECK(all.end(stream) == cudaErrorStreamCaptureInvalidated);
  }
  SECTION("903: an end in a stream that has only joined") {
    all.begin(one);
    all.join(other, event, one);
    CHECK(all.end(other) == cudaErrorStreamCaptureUnmatched);
    CHECK(all.end(one) == cudaErrorStreamCaptureInvalidated);
    CHECK(all.end(other) == cudaErrorIllegalState);
  }
  SECTION("904: work of a stream that was not joined again") {
    for (const bool joins : {false, true}) {
      all.begin(one);
      all.join(other, event, one);
      CHECK(all.use(other) == cudaSuccess);
      if (joins) all.join(one, second, other);
      CHECK(all.use(one) == cudaSuccess);
      CHECK(all.end(one) == (joins ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
      CHECK(all.use(other) == cudaSuccess);
    }
  }
  SECTION("905: a captured stream that would wait for what is not captured") {
    REQUIRE(cudaEventRecord(event, other) == cudaSuccess);
    all.begin(one);
    CHECK(cudaStreamWaitEvent(one, event, 0) == cudaErrorStreamCaptureIsolation);
    CHECK(all.end(one) == cudaErrorStreamCaptureInvalidated);
  }
  SECTION("906: the default stream beside the capture of a blocking one") {
    cudaStreamCaptureStatus status;
    all.begin(blocking);
    CHECK(cudaStreamIsCapturing(nullptr, &status) == cudaErrorStreamCaptureImplicit);
    CHECK(all.use(one) == cudaSuccess);
    CHECK(all.end(blocking) == cudaSuccess);
    for (const cudaStream_t name : {static_cast<cudaStream_t>(nullptr), cudaStreamLegacy}) {
      all.begin(blocking);
      CHECK(all.use(name) == cudaErrorStreamCaptureImplicit);
      CHECK(all.end(blocking) == cudaErrorStreamCaptureInvalidated);
    }
    all.begin(one);
    CHECK(all.use(nullptr) == cudaSuccess);
    CHECK(all.end(one) == cudaSuccess);
  }
  SECTION("907: questions about an event that was captured") {
    all.begin(one);
    REQUIRE(cudaEventRecord(event, one) == cudaSuccess);
    CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent);
    CHECK(all.end(one) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
    CHECK(cudaStreamWaitEvent(other, event, 0) == cudaErrorCapturedEvent);
    REQUIRE(cudaEventRecord(event, one) == cudaSuccess);
    CHECK(cudaEventSynchronize(event) == cudaSuccess);
  }
  SECTION("908: another thread's end, unless the capture is relaxed") {
    for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
      all.begin(one, mode);
      cudaError_t code = cudaSuccess;
      std::thread([&] { code = all.end(one); }).join();
      const bool is_relaxed = mode == cudaStreamCaptureModeRelaxed;
      CHECK(code == (is_relaxed ? cudaSuccess : cudaErrorStreamCaptureWrongThread));
      if (!is_relaxed) CHECK(all.end(one) == cudaSuccess);
    }
  }
  SECTION("none: allocations of a thread that captures in the relaxed way") {
    all.begin(one);
    CHECK(cudaMalloc(&memory, 100) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(all.end(one) == cudaSuccess);
  }
}

TEST_CASE("ranks come, work and go beside a capture of somebody else, which they do not spoil") {
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  const tuttiUniqueId id = made_id();
  std::vector<std::thread> threads;
  std::vector<tuttiResult_t> results(kRanks, tuttiSuccess);
  for (int r = 0; r < kRanks; r++)
    threads.emplace_back([&, r] {
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.cudaDevice = r;
      tuttiComm_t comm = nullptr;
      cudaStream_t own = nullptr;
      tuttiResult_t& result = results[static_cast<size_t>(r)];
      result = tuttiCommInitRankConfig(&comm, kRanks, id, r, &config);
      (void)cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
      if (result == tuttiSuccess) result = tuttiBarrier(comm, as_tutti(own));
      if (comm != nullptr && tuttiCommFinalize(comm) != tuttiSuccess) result = tuttiInternalError;
      if (comm != nullptr && tuttiCommDestroy(comm) != tuttiSuccess) result = tuttiInternalError;
    });
  for (auto& thread : threads) thread.join();
  for (const tuttiResult_t result : results) CHECK(result == tuttiSuccess);
  cudaGraph_t graph;
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("operations that are captured as strictly as CUDA allows") {
  for (const char* algo : {static_cast<const char*>(nullptr), "ring"})
    run_ranks(
        [](int, Rank& rank) {
          rank.fill(1, 300'000);
          cudaGraph_t graph = nullptr;
          cudaGraphExec_t launchable = nullptr;
          rank.need(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
          for (const size_t count : {10, 20'000, 300'000}) rank.add_up(count);
          rank.need(cudaStreamEndCapture(rank.stream, &graph) == cudaSuccess);
          if (graph == nullptr) return;
          rank.need(cudaGraphInstantiate(&launchable, graph, 0) == cudaSuccess);
          for (int turn = 0; turn < 2; turn++) rank.need(cudaGraphLaunch(launchable, rank.stream) == cudaSuccess);
          rank.expect(64, 10);
          (void)cudaGraphExecDestroy(launchable);
          (void)cudaGraphDestroy(graph);
        },
        algo);
}

TEST_CASE("a graph that waits for a rank which never launches its own comes to its end when it is aborted") {
  std::atomic<bool> is_over{false};
  std::barrier all(kRanks);
  run_ranks([&](int r, Rank& rank) {
    const auto work = [&] {
      for (int turn = 0; turn < 3; turn++) {
        rank.need(tuttiAllGather(rank.data, rank.data + 10, 10, tuttiInt32, rank.comm, as_tutti(rank.stream)) ==
                  tuttiSuccess);
        rank.add_up(10);
      }
    };
    rank.fill(1, 30);
    work();
    rank.need(cudaStreamSynchronize(rank.stream) == cudaSuccess);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t launchable = nullptr;
    rank.need(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    work();
    rank.need(cudaStreamEndCapture(rank.stream, &graph) == cudaSuccess);
    rank.need(cudaGraphInstantiate(&launchable, graph, 0) == cudaSuccess);
    all.arrive_and_wait();  // a broken communicator cannot be captured any more
    if (r == 0) {
      rank.need(cudaGraphLaunch(launchable, rank.stream) == cudaSuccess);
      rank.need(tuttiCommAbort(std::exchange(rank.comm, nullptr)) == tuttiSuccess);
      rank.need(cudaStreamSynchronize(rank.stream) == cudaSuccess);
      is_over = true;
    }
    while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (r == 1) (void)tuttiCommAbort(std::exchange(rank.comm, nullptr));
    (void)cudaGraphExecDestroy(launchable);
    (void)cudaGraphDestroy(graph);
  });
}

// A rank's host calls must not wait for its streams, which wait for the other rank, and that one comes later.
TEST_CASE("nobody's creation waits for blocking streams, in which operations wait for others") {
  std::barrier all(kRanks);
  const tuttiUniqueId second = made_id();
  run_ranks([&](int r, Rank& rank) {
    rank.fill(r + 1, 1000);
    all.arrive_and_wait();
    int32_t* gathered = rank.data + 1000;
    const auto gather = [&] {
      rank.need(tuttiAllGather(rank.data, gathered, 1000, tuttiInt32, rank.comm, as_tutti(rank.stream)) ==
                tuttiSuccess);
    };
    if (r == 0) gather();
    {
      Rank other(second, r);
      if (r == 1) gather();
      other.fill(1, 100);
      other.add_up(100);
      other.expect(2, 100);
      rank.need(cudaStreamSynchronize(rank.stream) == cudaSuccess);
      rank.wrong += other.wrong;
    }
    rank.expect(r + 1, 1000);
  });
}

TEST_CASE("nobody's end waits for another rank's device, in which operations may wait for who ends") {
  std::barrier all(kRanks);
  const tuttiUniqueId second = made_id();
  run_ranks([&](int r, Rank& rank) {
    Rank other(second, r);
    rank.fill(r + 1, 1000);
    const auto end_other = [&] { other.leave(); };
    const auto gather = [&] {
      rank.need(tuttiAllGather(rank.data, rank.data + 1000, 1000, tuttiInt32, rank.comm, as_tutti(rank.stream)) ==
                tuttiSuccess);
    };
    if (r == 0) end_other();
    if (r == 0) gather();
    all.arrive_and_wait();
    if (r == 1) end_other();
    if (r == 1) gather();
    rank.expect(r + 1, 1000);
    rank.wrong += other.wrong;
  });
}

TEST_CASE("operations in the default stream come after and before those of blocking streams") {
  run_ranks([](int, Rank& rank) {
    rank.fill(1, 1000);
    rank.add_up(1000);  // 2
    rank.need(tuttiAllReduce(rank.data, rank.data, 1000, tuttiInt32, tuttiSum, rank.comm, nullptr) == tuttiSuccess);
    rank.add_up(1000);  // 8
    rank.expect(8, 1000);
  });
}

TEST_CASE("a second communicator on the same GPUs reaches their memory, though that has been enabled before") {
  const tuttiUniqueId second = made_id();
  run_ranks([&](int r, Rank& rank) {
    Rank other(second, r);
    for (const Rank* one : {&rank, &other}) {
      char text[8192];
      size_t bytes = sizeof text;
      rank.need(tuttiExplain("tuttiAllReduce", 1000, tuttiInt32, tuttiSum, one->comm, text, &bytes) == tuttiSuccess);
      rank.need(std::string(text).find("by kernels that read the other ranks' memory") != std::string::npos);
    }
    rank.wrong += other.wrong;
  });
}

TEST_CASE("the caller's thread stays on its device, whichever the communicator is on") {
  for (int own = 0; own < 2; own++) {
    CAPTURE(own);
    const auto stays = [own] {
      int device = -1;
      return cudaGetDevice(&device) == cudaSuccess && device == own;
    };
    const int other = 1 - own;
    REQUIRE(cudaSetDevice(other) == cudaSuccess);
    cudaStream_t stream = nullptr;
    float* numbers = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&numbers), 1 << 20) == cudaSuccess);
    REQUIRE(cudaSetDevice(own) == cudaSuccess);
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.cudaDevice = other;
    tuttiComm_t comm = nullptr;
    REQUIRE(tuttiCommInitRankConfig(&comm, 1, made_id(), 0, &config) == tuttiSuccess);
    CHECK(stays());
    CHECK(tuttiAllReduce(numbers, numbers, 1 << 18, tuttiFloat, tuttiSum, comm, as_tutti(stream)) == tuttiSuccess);
    CHECK(stays());
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(tuttiBarrier(comm, as_tutti(stream)) == tuttiSuccess);
    CHECK(stays());
    CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
    CHECK(stays());
    (void)cudaFree(numbers);
    (void)cudaStreamDestroy(stream);
  }
}
