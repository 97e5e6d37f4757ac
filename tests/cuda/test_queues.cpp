// Streams that share hardware queues, as CUDA_DEVICE_MAX_CONNECTIONS says: what waits holds up others.
#include <condition_variable>
#include <mutex>

#include "gpu_ranks.h"

using namespace tutti_test;

namespace {

// What hangs is let go, and counts as failed.
class Patience {
 public:
  explicit Patience(FakePort& port) : thread_([this, &port] { wait(port); }) {}
  ~Patience() { end(); }
  bool end() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    return was_enough_;
  }

 private:
  void wait(FakePort& port) {
    std::unique_lock lock(mutex_);
    was_enough_ = changed_.wait_for(lock, std::chrono::seconds(60), [this] { return is_over_; });
    if (!was_enough_) port.gives_up_waiting = true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false, was_enough_ = true;
  std::thread thread_;
};

void exchange(int r, tuttiComm_t gpu, GpuStream& stream, Outcome& o) {
  std::vector<int32_t> out(5000, r), in(5000, -1), from_both(10'000, -1);
  o.take(tuttiGroupStart());
  o.take(tuttiSend(out.data(), out.size(), tuttiInt32, (r + 1) % 3, gpu, stream));
  o.take(tuttiRecv(in.data(), in.size(), tuttiInt32, (r + 2) % 3, gpu, stream));
  o.take(tuttiGroupEnd());
  // Two messages between the same ranks keep their order, and one goes to the rank itself.
  o.take(tuttiGroupStart());
  if (r == 0) o.take(tuttiSend(out.data(), 100, tuttiInt32, 0, gpu, stream));
  if (r == 0) o.take(tuttiRecv(from_both.data() + 100, 100, tuttiInt32, 0, gpu, stream));
  if (r == 1) o.take(tuttiSend(out.data(), 50, tuttiInt32, 0, gpu, stream));
  if (r == 1) o.take(tuttiSend(in.data(), 50, tuttiInt32, 0, gpu, stream));
  for (int i = 0; i < 2 && r == 0; i++) o.take(tuttiRecv(from_both.data() + 50 * i, 50, tuttiInt32, 1, gpu, stream));
  o.take(tuttiGroupEnd());
  o.take(tuttiAllReduce(in.data(), out.data(), in.size(), tuttiInt32, tuttiSum, gpu, stream));
  stream.synchronize();
  for (const int32_t value : in) o.wrong += value != (r + 2) % 3;
  for (const int32_t value : out) o.wrong += value != 3;
  for (size_t i = 0; i < 200 && r == 0; i++) o.wrong += from_both[i] != (i < 50 ? 1 : 0);
}

}  // namespace

TEST_CASE("messages between ranks whose streams share hardware queues") {
  for (const int n_queues : {1, 2, 8})
    for (const Seats seats : {Seats::kTogether, Seats::kOwnGpus}) {
      INFO(n_queues << " queues");
      FakePort port(3);
      port.n_queues = n_queues;
      Patience patience(port);
      require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
        (void)port.use(seats == Seats::kTogether ? 0 : r);
        GpuStream first(port), second(port);
        for (GpuStream* stream : {&first, &second, &first}) exchange(r, gpu, *stream, o);
      }));
      CHECK(patience.end());
    }
}

TEST_CASE("messages of one thread's ranks, and messages that do not fit each other, on one GPU") {
  FakePort port(1);
  port.n_queues = 1;
  Patience patience(port);
  tuttiComm_t comms[2];
  const int devices[2] = {0, 0};
  REQUIRE(tuttiCommInitAll(comms, 2, devices) == tuttiSuccess);
  {
    GpuStream streams[2] = {GpuStream(port), GpuStream(port)};
    int32_t data[2][3] = {{1, 2, 3}, {0, 0, 0}};
    REQUIRE(tuttiGroupStart() == tuttiSuccess);
    REQUIRE(tuttiSend(data[0], 3, tuttiInt32, 1, comms[0], streams[0]) == tuttiSuccess);
    REQUIRE(tuttiRecv(data[1], 3, tuttiInt32, 0, comms[1], streams[1]) == tuttiSuccess);
    REQUIRE(tuttiGroupEnd() == tuttiSuccess);
    streams[1].synchronize();
    CHECK(memcmp(data[0], data[1], sizeof data[0]) == 0);
    REQUIRE(tuttiGroupStart() == tuttiSuccess);
    REQUIRE(tuttiSend(data[0], 3, tuttiInt32, 1, comms[0], streams[0]) == tuttiSuccess);
    REQUIRE(tuttiRecv(data[1], 2, tuttiInt32, 0, comms[1], streams[1]) == tuttiSuccess);
    CHECK(tuttiGroupEnd() == tuttiInvalidUsage);
    CHECK(std::string(tuttiGetLastError(nullptr)).find("rank 0 sends 3 x int32 to rank 1, which receives 2 x int32") !=
          std::string::npos);
  }
  for (tuttiComm_t comm : comms) (void)tuttiCommAbort(comm);
  CHECK(patience.end());
}

TEST_CASE("all collectives where each GPU's streams share one hardware queue") {
  FakePort port(3);
  port.n_queues = 1;
  for (const Seats seats : kAllSeats) {
    Patience patience(port);
    require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
      (void)port.use(seats == Seats::kTogether ? 0 : r);
      GpuStream first(port), second(port);
      for (int collective = 0; collective < kCollectiveCases; collective++)
        for (GpuStream* stream : {&first, &second})
          compare({collective, 1000, tuttiFloat, tuttiSum, 1}, r, 3, gpu, host, *stream, o, 7);
    }));
    CHECK(patience.end());
  }
}

TEST_CASE("aborting frees a stream that waits in a queue, also where what frees it would wait behind it") {
  FakePort port(2);
  port.n_queues = 1;
  Patience patience(port);
  require_abort_frees(port, Seats::kOwnGpus, 2, true);
  CHECK(patience.end());
}
