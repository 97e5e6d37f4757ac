// Averagers of gradients on a made-up GPU (cuda/fake.h): what their streams wait for, and what they leave behind.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "cuda/gpu_ranks.h"
#include "ddp/model.h"

using namespace tutti_test;

namespace {

// Blocks everything that comes after it in a stream.
struct Gate {
  uint32_t word = 0;
  void stand_in(FakePort& port, GpuStream& stream) {
    const tutti::cuda::WordOperation waits{&word, 1, true};
    (void)port.words(&waits, 1, stream.ref());
  }
  void open() { __atomic_store_n(&word, 1, __ATOMIC_RELEASE); }
};

tuttiComm_t single_rank() {
  const int device = 0;
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, &device) == tuttiSuccess);
  return comm;
}

}  // namespace

TEST_CASE("a stream that is set comes after what the one before has to do") {
  FakePort port(1);
  const tuttiComm_t comm = single_rank();
  Model model({100});
  model.tensor(0).device = 0;
  REQUIRE(model.create(comm) == tuttiSuccess);
  const std::vector<float> fresh(100, 3);
  std::vector<float> seen(100);
  Gate gate;
  {
    GpuStream first(port), second(port);
    REQUIRE(tuttiDdpSetStream(model.ddp, first) == tuttiSuccess);
    REQUIRE(tuttiDdpBegin(model.ddp) == tuttiSuccess);
    gate.stand_in(port, first);
    (void)port.copy(model.grad(0), fresh.data(), fresh.size() * sizeof fresh[0], first.ref());
    REQUIRE(tuttiDdpMarkReady(model.ddp, 0) == tuttiSuccess);
    REQUIRE(tuttiDdpWait(model.ddp) == tuttiSuccess);
    REQUIRE(tuttiDdpSetStream(model.ddp, second) == tuttiSuccess);
    (void)port.copy(seen.data(), model.grad(0), seen.size() * sizeof seen[0], second.ref());
    // Time for the copy to run if it does not wait; the result does not depend on it.
    for (int ms = 0; ms < 10 && !port.has_ended(second.ref()).value(); ms++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gate.open();
    second.synchronize();
    CHECK(seen == fresh);
    REQUIRE(tuttiDdpSetStream(model.ddp, nullptr) == tuttiSuccess);  // before the streams are destroyed
  }
  CHECK(tuttiDdpDestroy(model.ddp) == tuttiSuccess);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a communicator on a GPU that works in the background averages gradients") {
  FakePort port(1);
  tuttiConfig_t config = first_gpu();
  config.blocking = 0;
  tuttiComm_t comm = nullptr;
  tuttiResult_t state = tuttiCommInitRankConfig(&comm, 1, new_id(), 0, &config);
  while (state == tuttiInProgress) REQUIRE(tuttiCommGetAsyncError(comm, &state) == tuttiSuccess);
  REQUIRE(state == tuttiSuccess);
  Model model({100});
  model.tensor(0).device = 0;
  Outcome outcome;
  take(outcome, model.create(comm));
  INFO(outcome.message);
  REQUIRE(outcome.code == tuttiSuccess);
  model.step(0, 0, outcome);
  (void)port.synchronize(nullptr);
  CHECK(model.wrong_averages(1, 0) == 0);
  take(outcome, tuttiDdpDestroy(model.ddp));
  CHECK(outcome.code == tuttiSuccess);
  (void)tuttiCommDestroy(comm);
}

TEST_CASE("what a GPU still used when its communicator broke is freed with the next averager") {
  FakePort port(1);
  const tuttiComm_t broken = single_rank(), whole = single_rank();
  Gate gate;
  GpuStream stream(port);
  Model model({100});
  model.tensor(0).device = 0;
  REQUIRE(model.create(broken) == tuttiSuccess);
  REQUIRE(tuttiDdpSetStream(model.ddp, stream) == tuttiSuccess);
  REQUIRE(tuttiDdpBegin(model.ddp) == tuttiSuccess);
  gate.stand_in(port, stream);
  REQUIRE(tuttiDdpMarkReady(model.ddp, 0) == tuttiSuccess);
  REQUIRE(tuttiDdpWait(model.ddp) == tuttiSuccess);
  REQUIRE(tuttiCommRevoke(broken, 0) == tuttiSuccess);
  CHECK(tuttiDdpDestroy(model.ddp) == tuttiSuccess);
  CHECK(port.allocations() > 0);
  gate.open();
  stream.synchronize();
  std::atomic<int> failed{0};
  std::thread([&] {
    for (int turn = 0; turn < 1000 && port.allocations() > 0; turn++) {
      Model next({1});
      next.tensor(0).device = 0;
      failed += next.create(whole) != tuttiSuccess || tuttiDdpDestroy(next.ddp) != tuttiSuccess;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }).join();
  CHECK(failed == 0);
  CHECK(port.allocations() == 0);
  CHECK(port.strays == 0);
  (void)tuttiCommDestroy(broken);
  CHECK(tuttiCommDestroy(whole) == tuttiSuccess);
}
