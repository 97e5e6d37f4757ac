// Failures of communicators on GPUs, and how they end. Streams are destroyed before the buffers that they may still
// use: destroying a stream waits for its work.
#include <barrier>
#include <string>

#include "gpu_ranks.h"

using namespace tutti_test;

TEST_CASE("ranks of one GPU that call different things are told so") {
  FakePort port(1);
  const auto outcomes =
      run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
        std::vector<float> data(100);
        GpuStream stream(port);
        o.take(tuttiAllReduce(data.data(), data.data(), r == 0 ? 100 : 99, tuttiFloat, tuttiSum, gpu, stream));
        tuttiResult_t state = tuttiSuccess;
        (void)tuttiCommGetAsyncError(gpu, &state);
        o.wrong += state != tuttiInvalidUsage;
      });
  for (const Outcome& o : outcomes) {
    CHECK(o.code == tuttiInvalidUsage);
    CHECK(contains(o.message, "rank 0 called AllReduce(count=100,"));
    CHECK(contains(o.message, "rank 1 called AllReduce(count=99,"));
    CHECK(!contains(o.message, "as operation 0"));
    CHECK(o.wrong == 0);
  }
}

TEST_CASE("operations on GPUs are refused after finalizing, whatever way they take") {
  FakePort port(2);
  for (const Seats seats : kAllSeats)
    require_success(run_gpu_threads(port, 2, seats, [&](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      std::vector<int32_t> data(100, 1), again(100, -1);
      GpuStream stream(port);
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, gpu, stream));
      stream.synchronize();
      o.take(tuttiCommFinalize(gpu));
      o.wrong += tuttiAllReduce(data.data(), again.data(), data.size(), tuttiInt32, tuttiSum, gpu, stream) !=
                 tuttiInvalidUsage;
      o.wrong += !contains(tuttiGetLastError(nullptr), "was finalized");
      stream.synchronize();
      for (const int32_t value : again) o.wrong += value != -1;
    }));
}

TEST_CASE("ranks of one GPU are told both calls also where one of them goes through the host") {
  FakePort port(1);
  setenv("TUTTI_OP_TIMEOUT", "10", 1);  // for the rank that waits
  const auto outcomes =
      run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
        std::vector<float> data(100);
        GpuStream stream(port);
        if (r == 0)
          o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, stream));
        else
          o.take(tuttiAllReduceQuantized(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, tuttiInt8, 64,
                                         nullptr, gpu, stream));
        stream.synchronize();
      });
  unsetenv("TUTTI_OP_TIMEOUT");
  for (const Outcome& o : outcomes) {
    INFO(o.message);
    CHECK(o.code == tuttiInvalidUsage);
    CHECK(contains(o.message, "rank 0 called AllReduce(count=100,"));
    CHECK(contains(o.message, "rank 1 called AllReduceQuantized(count=100,"));
  }
}

TEST_CASE("ranks of one process on several GPUs that call different things are told so, whatever way these take") {
  FakePort port(3);
  for (const size_t count : {size_t{99}, size_t{20'000}, size_t{300'000}})
    for (const bool gathers : {false, true}) {
      INFO(count << (gathers ? " gathered" : ""));
      const auto outcomes =
          run_gpu_threads(port, 3, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
            std::vector<float> data(1'000'000);
            GpuStream stream(port);
            tuttiResult_t state = tuttiSuccess;
            if (r != 1)
              state = tuttiAllReduce(data.data(), data.data(), 100, tuttiFloat, tuttiSum, gpu, stream);
            else if (gathers)
              state = tuttiAllGather(data.data() + count, data.data(), count, tuttiFloat, gpu, stream);
            else
              state = tuttiAllReduce(data.data(), data.data(), count, tuttiFloat, tuttiSum, gpu, stream);
            for (int i = 0; i < 30'000 && state == tuttiSuccess; i++) {
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
              (void)tuttiCommGetAsyncError(gpu, &state);
            }
            o.code = state;
            o.message = tuttiGetLastError(gpu);
            (void)tuttiCommAbort(gpu);  // before the stream is destroyed, which otherwise waits for the other ranks
          });
      for (const Outcome& o : outcomes) {
        CHECK(o.code == tuttiInvalidUsage);
        CHECK(o.message.find("count=100") != std::string::npos);
        CHECK(o.message.find("count=" + std::to_string(count)) != std::string::npos);
      }
    }
}

// Kernels that run while a communicator breaks read what others write at the same time; the data are never used, but
// ThreadSanitizer cannot know that.
#ifndef TUTTI_TEST_TSAN
TEST_CASE("a kernel that the GPU refuses breaks the communicator on all ranks") {
  FakePort port(2);
  port.fails_runs = 3;
  const auto outcomes = run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    std::vector<float> data(300'000);  // too many for one kernel
    GpuStream stream(port);
    tuttiResult_t state = tuttiSuccess;
    for (int i = 0; i < 1000 && state == tuttiSuccess; i++) {
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, stream));
      (void)tuttiCommGetAsyncError(gpu, &state);
    }
    if (o.code == tuttiSuccess) o.code = state;  // the other rank failed first
    (void)tuttiCommDestroy(gpu);                 // before the stream, which otherwise waits for the other rank
  });
  for (const Outcome& o : outcomes) {
    CHECK(o.code == tuttiUnhandledCudaError);
    CHECK(o.wrong == 0);
  }
}
#endif

TEST_CASE("what a GPU reports while nobody calls breaks the communicator on all ranks") {
  FakePort port(2);
  const Seats seats = GENERATE(Seats::kOwnGpus, Seats::kStaged);
  const auto outcomes = run_gpu_threads(port, 2, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    std::vector<float> data(1000);
    GpuStream stream(port);
    if (r == 0) {
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, stream));
      port.refuses_queries = true;
    }
    tuttiResult_t state = tuttiSuccess;
    for (int i = 0; i < 30'000 && state == tuttiSuccess; i++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      (void)tuttiCommGetAsyncError(gpu, &state);
    }
    o.wrong += state != tuttiUnhandledCudaError;
    if (r == 0) port.refuses_queries = false;
    (void)tuttiCommAbort(gpu);  // before the stream, which otherwise waits for the other rank
  });
  for (const Outcome& o : outcomes) CHECK(o.wrong == 0);
}

TEST_CASE("aborting frees a stream that waits for a rank that never calls") {
  FakePort port(2);
  for (const int n_calls : {1, 5}) require_abort_frees(port, Seats::kOwnGpus, n_calls);
}

TEST_CASE("a process that dies frees the others' streams") {
  FakePort port(1);
  const tuttiConfig_t config = first_gpu();
  Processes processes(
      3,
      [&](int r, tuttiComm_t comm, Outcome& o) {
        if (r == 1) kill(getpid(), SIGKILL);
        std::vector<float> data(100);
        GpuStream stream(port);
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
  check_gpu_survivors(processes.wait());
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

TEST_CASE("a group does the operations of communicators that work beside one that is broken") {
  FakePort port(1);
  const int device = 0;
  tuttiComm_t broken = nullptr, whole = nullptr;
  REQUIRE(tuttiCommInitAll(&broken, 1, &device) == tuttiSuccess);
  REQUIRE(tuttiCommInitAll(&whole, 1, &device) == tuttiSuccess);
  CHECK(tuttiCommRevoke(broken, 0) == tuttiSuccess);
  for (const bool broken_first : {true, false}) {
    const int32_t in = 7;
    int32_t out = -1, other = 0;
    GpuStream stream(port);
    CHECK(tuttiGroupStart() == tuttiSuccess);
    for (const bool turn : {true, false})
      if (turn == broken_first)
        CHECK(tuttiAllReduce(&other, &other, 1, tuttiInt32, tuttiSum, broken, stream) == tuttiSuccess);
      else
        CHECK(tuttiAllReduce(&in, &out, 1, tuttiInt32, tuttiSum, whole, stream) == tuttiSuccess);
    CHECK(tuttiGroupEnd() == tuttiInvalidUsage);
    stream.synchronize();
    CHECK(out == 7);
  }
  (void)tuttiCommDestroy(broken);
  CHECK(tuttiCommDestroy(whole) == tuttiSuccess);
}

TEST_CASE("a finalization in the background that waits for the GPU can be asked for, and ended") {
  FakePort port(2);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  std::barrier all(2);
  std::atomic<bool> over{false};
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(Seats::kOwnGpus, r);
      config.blocking = 0;
      tuttiComm_t comm = nullptr;
      tuttiResult_t state = tuttiInProgress;
      o.wrong += tuttiCommInitRankConfig(&comm, 2, id, r, &config) != tuttiInProgress;
      while (state == tuttiInProgress) o.take(tuttiCommGetAsyncError(comm, &state));
      o.take(state);
      all.arrive_and_wait();
      std::vector<float> data(1000);
      GpuStream stream(port);
      if (r == 0) {
        o.take(call({0, 1000u}, data.data(), data.data(), comm, stream));
        o.wrong += tuttiCommFinalize(comm) != tuttiInProgress;
        o.take(tuttiCommGetAsyncError(comm, &state));
        o.wrong += state != tuttiInProgress;
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

namespace {

// Two ranks that create a communicator; `body` gets what became of it.
template <class Body>
std::vector<Outcome> create_two(Seats seats, bool blocks, Body&& body) {
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(seats, r);
      config.blocking = blocks ? 1 : 0;
      config.initTimeoutSeconds = blocks ? 1 : 60;
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      body(r, comm, o);
    });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

}  // namespace

TEST_CASE("a creation that fails on one rank's GPU fails on all ranks with that rank's reason") {
  FakePort port(2);
  const bool at_the_end = GENERATE(false, true);  // by then the other rank needs nothing more from this one
  if (at_the_end)
    port.fails_host_memory = 1;
  else
    port.loads = [](int device) { return device == 1 ? refuse("out of memory") : tutti::Result<void>(); };
  const auto outcomes = create_two(at_the_end ? Seats::kTogether : Seats::kOwnGpus, true,
                                   [](int, tuttiComm_t comm, Outcome& o) { o.wrong += comm != nullptr; });
  for (const Outcome& o : outcomes) {
    INFO(o.message);
    CHECK(o.code == tuttiUnhandledCudaError);
    CHECK(contains(o.message, "out of memory"));
    CHECK(o.wrong == 0);
  }
}

TEST_CASE("a creation that waits for another rank's GPU ends at its limit, and when it is aborted") {
  FakePort port(2);
  const bool aborts = GENERATE(false, true);
  std::promise<void> end, waiting;
  port.loads = [&, over = std::make_shared<std::future<void>>(end.get_future())](int device) -> tutti::Result<void> {
    if (device == 0) return {};
    waiting.set_value();
    over->wait_for(std::chrono::seconds(20));
    return {};
  };
  const auto outcomes = create_two(Seats::kOwnGpus, !aborts, [&](int r, tuttiComm_t comm, Outcome& o) {
    if (r == 1 && comm == nullptr) return;
    if (r == 0 && aborts) waiting.get_future().wait();
    if (aborts && r == 0) o.wrong += tuttiCommAbort(comm) != tuttiSuccess;
    if (r == 0) end.set_value();
    if (aborts && r == 1) {
      for (int i = 0; i < 20'000 && o.code == tuttiInProgress; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        (void)tuttiCommGetAsyncError(comm, &o.code);
      }
      o.message = tuttiGetLastError(comm);
      (void)tuttiCommDestroy(comm);
    }
  });
  INFO(outcomes[0].message << "; " << outcomes[1].message);
  CHECK(outcomes[0].code == (aborts ? tuttiInProgress : tuttiTimeout));
  CHECK(outcomes[1].code == tuttiTimeout);
  CHECK(contains(outcomes[1].message, "TUTTI_INIT_TIMEOUT"));
  CHECK(outcomes[0].wrong == 0);
}

#ifndef TUTTI_TEST_TSAN  // see above
TEST_CASE("memory that lacks in an operation on a GPU, or in what watches it, ends no process") {
  FakePort port(2);
  const Seats seats = GENERATE(Seats::kTogether, Seats::kOwnGpus);
  const bool in_call = GENERATE(true, false);
  const auto outcomes = run_gpu_threads(port, 2, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    std::vector<float> data(300'000);  // too many for one kernel
    {
      GpuStream stream(port);
      if (r == 0) (in_call ? port.throws_in_runs : port.throws_in_queries) = 1;
      (void)tuttiBarrier(host, nullptr);
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, stream));
      for (int i = 0; i < 5'000 && o.code == tuttiSuccess && (in_call || port.throws_in_queries > 0); i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        (void)tuttiCommGetAsyncError(gpu, &o.code);
      }
      if (in_call) (void)tuttiCommRevoke(gpu, 0);  // before the stream, which otherwise waits for the other rank
      stream.synchronize();
    }
    o.wrong += port.throws_in_queries > 0;
    if (in_call) o.wrong += tuttiAllReduce(data.data(), data.data(), 1, tuttiFloat, tuttiSum, gpu, nullptr) != o.code;
  });
  for (const Outcome& o : outcomes) {
    INFO(o.message);
    CHECK(o.code == (in_call ? tuttiSystemError : tuttiSuccess));
    CHECK(o.wrong == 0);
  }
}
#endif

TEST_CASE("of two operations that wait in two threads, an abort ends both with its error") {
  FakePort port(1);
  const auto outcomes =
      run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
        const auto add_up = [&](Outcome& its) {
          float data = 1;
          GpuStream stream(port);
          its.take(tuttiAllReduce(&data, &data, 1, tuttiFloat, tuttiSum, gpu, stream));
        };
        if (r == 0) {
          Outcome other;
          std::thread thread([&] { add_up(other); });
          std::thread revoker([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));  // by then both wait, most likely
            (void)tuttiCommRevoke(gpu, 0);
          });
          add_up(o);
          thread.join();
          revoker.join();
          for (const Outcome& its : {o, other}) o.wrong += its.code != tuttiInvalidUsage;
        }
        (void)tuttiBarrier(host, nullptr);
      });
  CHECK(outcomes[0].wrong == 0);
}

TEST_CASE("a group begins its operations on host memory before it has settled those on GPUs") {
  FakePort port(1);
  for (const int groups : {0, 1})
    require_success(
        run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
          int32_t there = 1, here = 1;
          GpuStream stream(port);
          const auto on_gpu = [&] { o.take(tuttiAllReduce(&there, &there, 1, tuttiInt32, tuttiSum, gpu, stream)); };
          const auto on_host = [&] { o.take(tuttiAllReduce(&here, &here, 1, tuttiInt32, tuttiSum, host, nullptr)); };
          if (r == groups) o.take(tuttiGroupStart());
          if (r == groups) on_gpu();
          on_host();
          if (r != groups) on_gpu();
          if (r == groups) o.take(tuttiGroupEnd());
          stream.synchronize();
          o.wrong += there != 2 || here != 2;
        }));
}
