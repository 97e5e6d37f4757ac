// New communicators created from ones on made-up GPUs (fake.h): they are on the same GPUs, and work.
#include <vector>

#include "comm/ranks.h"
#include "fake.h"

using namespace tutti_test;

namespace {

// Checks that the communicator is on this GPU and adds up there.
void check_on_gpu(FakePort& port, tuttiComm_t comm, int want_device, int want_ranks, Outcome& outcome) {
  int device = -1, count = 0;
  outcome.take(tuttiCommCuDevice(comm, &device));
  outcome.take(tuttiCommCount(comm, &count));
  outcome.wrong += device != want_device || count != want_ranks;
  constexpr size_t kCount = 1001;
  auto* data = static_cast<int32_t*>(port.allocate(kCount * sizeof(int32_t)).value());
  const auto stream = port.create_stream().value();
  for (size_t i = 0; i < kCount; i++) data[i] = static_cast<int32_t>(i);
  outcome.take(tuttiAllReduce(data, data, kCount, tuttiInt32, tuttiSum, comm, static_cast<tuttiStream_t>(stream)));
  (void)port.synchronize(stream);
  for (size_t i = 0; i < kCount; i++) outcome.wrong += data[i] != want_ranks * static_cast<int32_t>(i);
  port.destroy_stream(stream);
  port.free(data);
}

}  // namespace

TEST_CASE("what is split off or left of a communicator on GPUs is on the same GPUs") {
  constexpr int n = 3;
  const bool together = GENERATE(true, false);
  const int flags = GENERATE(TUTTI_SHRINK_DEFAULT, TUTTI_SHRINK_ABORT);
  FakePort port(n);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; rank++)
    threads.emplace_back([&, rank] {
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.cudaDevice = together ? 0 : rank;
      tuttiComm_t comm = nullptr, part = nullptr, left = nullptr;
      outcome.take(tuttiCommInitRankConfig(&comm, n, id, rank, &config));
      if (comm == nullptr) return;
      check_on_gpu(port, comm, config.cudaDevice, n, outcome);
      outcome.take(tuttiCommSplit(comm, rank == 0, 0, &part, nullptr));
      if (part != nullptr) {
        check_on_gpu(port, part, config.cudaDevice, rank == 0 ? 1 : 2, outcome);
        outcome.take(tuttiCommDestroy(part));
      }
      int excluded[] = {1};
      if (rank != 1) outcome.take(tuttiCommShrink(comm, excluded, 1, &left, nullptr, flags));
      if (left != nullptr) {
        check_on_gpu(port, left, config.cudaDevice, 2, outcome);
        outcome.take(tuttiCommDestroy(left));
      }
      const tuttiResult_t end = tuttiCommDestroy(comm);  // an aborted communicator fails here
      outcome.wrong += flags == TUTTI_SHRINK_DEFAULT && end != tuttiSuccess;
    });
  for (auto& thread : threads) thread.join();
  require_success(outcomes);
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("when a process with a GPU was killed the others shrink and go on") {
  const bool together = GENERATE(true, false);
  Processes ranks(4, [&](int rank, tuttiComm_t host, Outcome& outcome) {
    static auto* port = new FakePort(4);
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.cudaDevice = together ? 0 : rank;
    tuttiUniqueId id = {};
    if (rank == 0) outcome.take(tuttiGetUniqueId(&id));
    outcome.take(tuttiBcast(&id, sizeof id, tuttiInt8, 0, host, nullptr));
    tuttiComm_t comm = nullptr, left = nullptr;
    outcome.take(tuttiCommInitRankConfig(&comm, 4, id, rank, &config));
    if (comm == nullptr) return;
    check_on_gpu(*port, comm, config.cudaDevice, 4, outcome);
    tuttiBarrier(host, nullptr);  // the others have finished all that must not fail; they may see the loss here
    if (rank == 1) raise(SIGKILL);
    tuttiResult_t state = tuttiSuccess;
    while (state == tuttiSuccess && outcome.code == tuttiSuccess) {
      outcome.take(tuttiCommGetAsyncError(comm, &state));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    outcome.wrong += state != tuttiRemoteError;
    int excluded[] = {1};
    outcome.take(tuttiCommShrink(comm, excluded, 1, &left, nullptr, TUTTI_SHRINK_ABORT));
    if (left == nullptr) return;
    check_on_gpu(*port, left, config.cudaDevice, 3, outcome);
    outcome.take(tuttiCommFinalize(left));
    outcome.take(tuttiCommDestroy(left));
  });
  const auto outcomes = ranks.wait();
  for (size_t r = 0; r < outcomes.size(); r++) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == (r == 1 ? tuttiNumResults : tuttiSuccess));
    CHECK(outcomes[r].wrong == 0);
  }
}
#endif
