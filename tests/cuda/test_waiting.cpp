// GPUs that wait for a rank that has not called: the GPUs cannot report it, but the ranks do.
#include <array>
#include <string>

#include "gpu_ranks.h"
#include "tutti/trace.h"

using namespace tutti_test;

namespace {

bool says(tuttiComm_t comm, const std::string& what) {
  std::array<char, 4096> text{};
  for (int i = 0; i < 3000; i++) {
    size_t bytes = text.size();
    if (tuttiCommExplainWait(comm, text.data(), &bytes) != tuttiSuccess) return false;
    if (std::string(text.data()).find(what) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("a rank whose GPU waits for one that has not called says which, and goes on when that calls") {
  FakePort port(2);
  for (const Seats seats : {Seats::kOwnGpus, Seats::kTogether})
    for (const size_t count : {size_t{1000}, size_t{300'000}}) {
      std::array<std::atomic<tuttiComm_t>, 2> comms{};
      require_success(run_gpu_threads(port, 2, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
        std::vector<int32_t> data(count, r + 1);
        GpuStream stream(port);
        const auto add_up = [&] {
          o.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, tuttiSum, gpu, stream));
        };
        add_up();
        stream.synchronize();
        comms[static_cast<size_t>(r)] = gpu;
        while (comms[0] == nullptr) std::this_thread::yield();
        const std::string call = "AllReduce(count=" + std::to_string(count) + ", int32, sum) as operation ";
        if (r == 1) {
          o.wrong += !says(comms[0], "rank 0 waits for rank 1 (in " + call + "2");
          o.wrong += !says(comms[0], "rank 1 has not called it yet: it is after " + call + "1");
        }
        add_up();
        stream.synchronize();
        o.wrong += data[0] != 6 || data[count - 1] != 6;
      }));
    }
}

TEST_CASE("who looks how far a GPU is has chosen it before") {
  FakePort port(2);
  std::atomic<tuttiComm_t> waits{};
  require_success(run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    std::vector<int32_t> data(1000, 1);
    GpuStream stream(port);
    if (r == 0) waits = gpu;
    while (waits == nullptr) std::this_thread::yield();
    if (r == 1) o.wrong += !says(waits, "rank 0 waits for rank 1");
    o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, gpu, stream));
    stream.synchronize();
  }));
  CHECK(port.strays == 0);
}

TEST_CASE(
    "a GPU that waits for a rank that never calls is let go after the limit of operations, with that rank's name") {
  FakePort port(2);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  std::atomic<bool> is_over{false};
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(Seats::kOwnGpus, r);
      config.opTimeoutSeconds = 1;
      tuttiComm_t comm = nullptr;
      if (tuttiCommInitRankConfig(&comm, 2, id, r, &config) != tuttiSuccess) return;
      std::vector<float> data(1000);
      GpuStream stream(port);
      if (r == 0) {
        (void)tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, comm, stream);
        stream.synchronize();
        is_over = true;
      }
      while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      // The other rank is told a moment later.
      for (int i = 0; i < 30'000 && o.code == tuttiSuccess; i++) {
        (void)tuttiCommGetAsyncError(comm, &o.code);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      o.message = tuttiGetLastError(comm);
      (void)tuttiCommAbort(comm);
    });
  for (auto& thread : threads) thread.join();
  CHECK(outcomes[0].code == tuttiTimeout);
  CHECK(outcomes[0].message.find("TUTTI_OP_TIMEOUT") != std::string::npos);
  for (const Outcome& o : outcomes) {
    INFO(o.message);
    CHECK(o.code != tuttiSuccess);
    CHECK(o.message.find("rank 1 has not called it yet: it is yet to call its first operation") != std::string::npos);
  }
}

TEST_CASE("a rank that is behind but goes on is waited for, however long it takes in all") {
  FakePort port(2);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(Seats::kOwnGpus, r);
      config.opTimeoutSeconds = 1;
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      if (comm == nullptr) return;
      std::vector<int32_t> data(1000, 1);
      GpuStream stream(port);
      for (int turn = 0; turn < 5; turn++) {
        if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
        o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, comm, stream));
      }
      stream.synchronize();
      o.wrong += data[0] != 32;
      o.take(tuttiCommDestroy(comm));
    });
  for (auto& thread : threads) thread.join();
  require_success(outcomes);
}

TEST_CASE("a message whose other side never comes ends after the limit, on the GPU of both, with that rank's name") {
  FakePort port(1);
  setenv("TUTTI_OP_TIMEOUT", "1", 1);
  std::atomic<bool> is_over{false};
  const auto outcomes =
      run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
        int32_t data = 0;
        GpuStream stream(port);
        if (r == 0) {
          o.take(tuttiRecv(&data, 1, tuttiInt32, 1, gpu, stream));
          is_over = true;
        }
        for (int i = 0; i < 10'000 && !is_over; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        (void)tuttiCommAbort(gpu);  // else the receiver would wait for ever
      });
  unsetenv("TUTTI_OP_TIMEOUT");
  INFO(outcomes[0].message);
  CHECK(outcomes[0].code == tuttiTimeout);
  CHECK(contains(outcomes[0].message, "TUTTI_OP_TIMEOUT"));
  CHECK(contains(outcomes[0].message, "rank 1, which has not made"));
}

TEST_CASE("also without a folder for recorders a GPU that waits for a rank is let go after the limit") {
  FakePort port(2);
  setenv("TUTTI_TRACE_DIR", "/nowhere", 1);
  setenv("TUTTI_OP_TIMEOUT", "1", 1);
  for (const Seats seats : {Seats::kTogether, Seats::kOwnGpus}) {
    std::atomic<bool> is_over{false};
    const auto outcomes = run_gpu_threads(port, 2, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      std::vector<float> data(1000);
      GpuStream stream(port);
      if (r == 0) {
        o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, stream));
        stream.synchronize();
        if (o.code == tuttiSuccess) (void)tuttiCommGetAsyncError(gpu, &o.code);
        o.message = tuttiGetLastError(gpu);
        is_over = true;
      }
      for (int i = 0; i < 10'000 && !is_over; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      (void)tuttiCommAbort(gpu);  // else the other rank would wait for ever
    });
    INFO(outcomes[0].message);
    CHECK(outcomes[0].code == tuttiTimeout);
    CHECK(contains(outcomes[0].message, "rank 1"));
  }
  unsetenv("TUTTI_TRACE_DIR");
  unsetenv("TUTTI_OP_TIMEOUT");
}

namespace {

// Ranks of two threads: rank 1 leaves, or calls something else on the host, while rank 0's GPU waits for it.
template <class Rank0, class Rank1>
std::vector<Outcome> meet_in_vain(FakePort& port, Seats seats, Rank0&& rank0, Rank1&& rank1, bool blocks = true) {
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(seats, r);
      config.blocking = blocks ? 1 : 0;
      tuttiComm_t comm = nullptr;
      tuttiResult_t state = tuttiCommInitRankConfig(&comm, 2, id, r, &config);
      while (state == tuttiInProgress) o.take(tuttiCommGetAsyncError(comm, &state));
      o.take(state);
      if (comm == nullptr) return;
      GpuStream stream(port);
      std::vector<float> data(1000);
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, comm, stream));
      stream.synchronize();
      if (r == 1) return rank1(comm, o);
      rank0(comm, stream, data, o);
      stream.synchronize();
      (void)tuttiCommAbort(comm);
    });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

void await_error(tuttiComm_t comm, Outcome& o) {
  if (o.code != tuttiSuccess) return;
  for (int i = 0; i < 20'000 && (o.code == tuttiSuccess || o.code == tuttiInProgress); i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (void)tuttiCommGetAsyncError(comm, &o.code);
  }
  o.message = tuttiGetLastError(comm);
}

}  // namespace

TEST_CASE("a rank whose GPU waits for one that leaves in good order is told, however that leaves") {
  FakePort port(2);
  for (const Seats seats : {Seats::kOwnGpus, Seats::kTogether})
    for (const bool finalizes : {false, true})
      for (const bool receives : {false, true}) {
        if (receives && seats == Seats::kOwnGpus) continue;  // goes through the host, which knows
        INFO(static_cast<int>(seats) << finalizes << receives);
        std::atomic<bool> is_over{false};
        const auto outcomes = meet_in_vain(
            port, seats,
            [&](tuttiComm_t comm, GpuStream& stream, std::vector<float>& data, Outcome& o) {
              o.take(receives ? tuttiRecv(data.data(), 1, tuttiFloat, 1, comm, stream)
                              : tuttiAllReduce(data.data(), data.data(), 1000, tuttiFloat, tuttiSum, comm, stream));
              await_error(comm, o);
              is_over = true;
            },
            [&](tuttiComm_t comm, Outcome& o) {
              o.take(finalizes ? tuttiCommFinalizeLocal(comm) : tuttiCommDestroy(comm));
              while (finalizes && !is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
              if (finalizes) o.take(tuttiCommDestroy(comm));
            });
        INFO(outcomes[0].message << outcomes[1].message);
        CHECK(outcomes[0].code == tuttiRemoteError);
        CHECK(contains(outcomes[0].message, "rank 1 destroyed or finalized its communicator"));
        CHECK(outcomes[1].code == tuttiSuccess);
      }
}

TEST_CASE("a rank whose GPU waits for a message of one that has left is told, if they are no neighbours, too") {
  constexpr int n = 5, kLeaves = 3;  // no neighbour of rank 0, in the ring or in the tree
  FakePort port(1);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(n);
  std::vector<std::thread> threads;
  std::atomic<bool> is_over{false};
  for (int r = 0; r < n; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(Seats::kTogether, r);
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, n, id, r, &config));
      if (comm == nullptr || r == kLeaves) return o.take(tuttiCommDestroy(comm));
      GpuStream stream(port);
      float value = 0;
      if (r == 0) o.take(tuttiRecv(&value, 1, tuttiFloat, kLeaves, comm, stream));
      if (r == 0) is_over = true;
      while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      (void)tuttiCommAbort(comm);
    });
  for (auto& thread : threads) thread.join();
  INFO(outcomes[0].message);
  CHECK(outcomes[0].code == tuttiRemoteError);
  CHECK(contains(outcomes[0].message, "rank 3 destroyed or finalized its communicator"));
}

TEST_CASE("a rank that finalizes, splits or grows while another one's GPU waits for it is told both calls") {
  FakePort port(2);
  enum Call { kFinalizes, kFinalizesInBackground, kSplits, kGrows };
  const char* const calls[] = {"Finalize", "Finalize", "CommSplit as operation", "CommGrow as operation"};
  for (const Seats seats : {Seats::kOwnGpus, Seats::kTogether})
    for (const Call what : {kFinalizes, kFinalizesInBackground, kSplits, kGrows}) {
      INFO(static_cast<int>(seats) << what);
      const auto outcomes = meet_in_vain(
          port, seats,
          [&](tuttiComm_t comm, GpuStream& stream, std::vector<float>& data, Outcome& o) {
            o.take(tuttiAllReduce(data.data(), data.data(), 1000, tuttiFloat, tuttiSum, comm, stream));
            (void)tuttiCommFinalize(comm);
            await_error(comm, o);
          },
          [&](tuttiComm_t comm, Outcome& o) {
            tuttiComm_t other = nullptr;
            if (what == kSplits)
              o.take(tuttiCommSplit(comm, 0, 0, &other, nullptr));
            else if (what == kGrows)
              o.take(tuttiCommGrow(comm, 3, nullptr, -1, &other, nullptr));
            else
              (void)tuttiCommFinalize(comm);
            await_error(comm, o);
            (void)tuttiCommAbort(comm);
          },
          what != kFinalizesInBackground);
      for (const Outcome& o : outcomes) {
        INFO(o.message);
        CHECK(o.code == tuttiInvalidUsage);
        CHECK(contains(o.message, "rank 0 called AllReduce(count=1000,"));
        CHECK(contains(o.message, std::string("rank 1 called ") + calls[what]));
      }
    }
}
