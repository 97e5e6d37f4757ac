// Streams that share hardware queues (CUDA_DEVICE_MAX_CONNECTIONS): a waiting one holds up others.
#include <algorithm>
#include <barrier>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "gpu_ranks.h"

using namespace tutti_test;

namespace {

// Releases what hangs, and counts that as a failure.
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
  // Two messages between the same ranks stay in order, and one goes to the rank itself.
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

// Blocks of unequal size from four ranks, placed differently by each rank.
void gather_unequal(int r, tuttiComm_t gpu, GpuStream& stream, Outcome& o) {
  constexpr size_t kCounts[] = {700, 1, 33, 5};
  std::vector<size_t> at(4);
  size_t next = 0;
  for (size_t b = 0; b < 4; b++) {
    const size_t block = (b + static_cast<size_t>(r)) % 4;
    at[block] = next;
    next += kCounts[block] + static_cast<size_t>(r);
  }
  std::vector<int32_t> mine(kCounts[r], r), all(next, -1);
  o.take(tuttiAllGatherv(mine.data(), all.data(), kCounts, at.data(), tuttiInt32, gpu, stream));
  stream.synchronize();
  for (size_t b = 0; b < 4; b++)
    for (size_t i = 0; i < kCounts[b]; i++) o.wrong += all[at[b] + i] != static_cast<int32_t>(b);
  const auto untouched = static_cast<int>(std::count(all.begin(), all.end(), -1));
  o.wrong += untouched != 4 * r;  // the gaps between the blocks
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

// Rank 2 sends to rank 0 only after a message that rank 1 sends after its own to rank 0.
TEST_CASE("a rank that receives several messages at once does not hold up who sends one after another") {
  for (const Seats seats : {Seats::kTogether, Seats::kOwnGpus}) {
    FakePort port(3);
    Patience patience(port);
    require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      (void)port.use(seats == Seats::kTogether ? 0 : r);
      GpuStream stream(port);
      int32_t in[2] = {-1, -1};
      const int32_t out = r;
      if (r == 0) {
        o.take(tuttiGroupStart());
        for (const int peer : {1, 2}) o.take(tuttiRecv(&in[peer - 1], 1, tuttiInt32, peer, gpu, stream));
        o.take(tuttiGroupEnd());
      }
      if (r == 1)
        for (const int peer : {0, 2}) o.take(tuttiSend(&out, 1, tuttiInt32, peer, gpu, stream));
      if (r == 2) {
        o.take(tuttiRecv(&in[0], 1, tuttiInt32, 1, gpu, stream));
        o.take(tuttiSend(&out, 1, tuttiInt32, 0, gpu, stream));
      }
      stream.synchronize();
      if (r == 0) o.wrong += in[0] != 1 || in[1] != 2;
      if (r == 2) o.wrong += in[0] != 1;
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

TEST_CASE("a message of another type than its receiver's is refused on one GPU") {
  FakePort port(1);
  tuttiComm_t comms[2];
  const int devices[2] = {0, 0};
  REQUIRE(tuttiCommInitAll(comms, 2, devices) == tuttiSuccess);
  int32_t sent[2] = {1, 2};
  float received[2] = {};
  {
    GpuStream streams[2] = {GpuStream(port), GpuStream(port)};
    REQUIRE(tuttiGroupStart() == tuttiSuccess);
    REQUIRE(tuttiSend(sent, 2, tuttiInt32, 1, comms[0], streams[0]) == tuttiSuccess);
    REQUIRE(tuttiRecv(received, 2, tuttiFloat, 0, comms[1], streams[1]) == tuttiSuccess);
    CHECK(tuttiGroupEnd() == tuttiInvalidUsage);
    CHECK(contains(tuttiGetLastError(nullptr), "rank 0 sends 2 x int32 to rank 1, which receives 2 x float"));
    for (GpuStream& stream : streams) stream.synchronize();
  }
  for (tuttiComm_t comm : comms) (void)tuttiCommAbort(comm);
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

TEST_CASE("ranks that share a GPU beside others on another one, whose streams share hardware queues") {
  for (const int n_queues : {1, 8})
    for (const Seats seats : {Seats::kPairs, Seats::kStagedPairs}) {
      INFO(n_queues << " queues");
      FakePort port(2);
      port.n_queues = n_queues;
      Patience patience(port);
      constexpr int kRanks = 4;
      require_success(run_gpu_threads(port, kRanks, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
        (void)port.use(device_of(seats, r));
        GpuStream first(port), second(port);
        uint32_t seed = 1;
        for (int collective = 0; collective < kCollectiveCases; collective++)
          for (GpuStream* stream : {&first, &second})
            for (const size_t count : {1, 1000, kSanitized ? 20'000 : 100'000})
              compare({collective, count, tuttiFloat, tuttiSum, 1}, r, kRanks, gpu, host, *stream, o, seed++);
        if (!is_slow()) compare({0, 1'000'003, tuttiBfloat16, tuttiAvg, 0}, r, kRanks, gpu, host, first, o, seed);
        std::vector<int32_t> out(5000, r), in(5000, -1);
        gather_unequal(r, gpu, first, o);
        for (GpuStream* stream : {&first, &second})
          for (int distance = 1; distance < kRanks; distance++) {
            o.take(tuttiGroupStart());
            o.take(tuttiSend(out.data(), out.size(), tuttiInt32, (r + distance) % kRanks, gpu, *stream));
            o.take(tuttiRecv(in.data(), in.size(), tuttiInt32, (r + kRanks - distance) % kRanks, gpu, *stream));
            o.take(tuttiGroupEnd());
            o.take(tuttiBarrier(gpu, *stream));
            stream->synchronize();
            for (const int32_t value : in) o.wrong += value != (r + kRanks - distance) % kRanks;
          }
      }));
      CHECK(patience.end());
    }
}

TEST_CASE("one thread's ranks that share two GPUs in pairs, captured together and not") {
  FakePort port(2);
  port.n_queues = 1;
  Patience patience(port);
  constexpr int kRanks = 4;
  tuttiComm_t comms[kRanks];
  const int devices[kRanks] = {0, 0, 1, 1};
  REQUIRE(tuttiCommInitAll(comms, kRanks, devices) == tuttiSuccess);
  {
    std::vector<std::unique_ptr<GpuStream>> streams;
    for (const int device : {0, 1}) {
      (void)port.use(device);
      streams.push_back(std::make_unique<GpuStream>(port));
    }
    std::vector<std::vector<int32_t>> data(kRanks, std::vector<int32_t>(100, 2));
    const auto add_up = [&] {
      REQUIRE(tuttiGroupStart() == tuttiSuccess);
      for (size_t r = 0; r < kRanks; r++)
        REQUIRE(tuttiAllReduce(data[r].data(), data[r].data(), 100, tuttiInt32, tuttiSum, comms[r], *streams[r / 2]) ==
                tuttiSuccess);
      REQUIRE(tuttiGroupEnd() == tuttiSuccess);
    };
    add_up();
    FakeGraph graphs[2];
    for (size_t d = 0; d < 2; d++) port.begin_capture(streams[d]->ref(), &graphs[d]);
    add_up();
    for (FakeGraph& graph : graphs) port.end_capture(&graph);
    for (int launch = 0; launch < 2; launch++)
      for (size_t d = 0; d < 2; d++) (void)port.launch(graphs[d], streams[d]->ref());
    for (auto& stream : streams) stream->synchronize();
    for (const auto& d : data)
      for (const int32_t value : d) REQUIRE(value == 128);
  }
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  CHECK(patience.end());
}

TEST_CASE("what cannot be captured is told, and ranks that are not captured together are") {
  FakePort port(2);
  for (const bool staged : {true, false}) {
    const Seats seats = staged ? Seats::kStagedPairs : Seats::kTogether;
    const auto outcomes =
        run_gpu_threads(port, staged ? 4 : 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
          (void)port.use(device_of(seats, r));
          GpuStream stream(port);
          std::vector<float> data(100);
          FakeGraph graph;
          if (staged || r == 0) port.begin_capture(stream.ref(), &graph);
          o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, stream));
          port.end_capture(&graph);
        });
    bool told = false;
    for (const Outcome& o : outcomes) {
      CHECK(o.code != tuttiSuccess);
      told = told || contains(o.message, staged ? "cannot be captured"
                                                : "rank 0's stream is captured and rank 1's is not: ranks of a process "
                                                  "that share a GPU must be captured together");
    }
    CHECK(told);
  }
}

TEST_CASE("eight ranks on one GPU make few calls for a small operation") {
  FakePort port(1);
  constexpr int kRanks = 8;
  std::barrier all(kRanks);
  require_success(run_gpu_threads(port, kRanks, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    GpuStream stream(port);
    int64_t number = r;
    for (int turn = 0; turn < 5; turn++) {
      all.arrive_and_wait();
      if (r == 0) port.calls = 0;
      all.arrive_and_wait();
      o.take(tuttiAllReduce(&number, &number, 1, tuttiInt64, tuttiSum, gpu, stream));
      all.arrive_and_wait();
      // The eighth stream waits for an event in each of the seven others, launches and records one; they wait for it.
      o.wrong += port.calls != 7 + 7 + 1 + 1 + 7;
      stream.synchronize();
    }
  }));
  tuttiComm_t comms[kRanks];
  const int devices[kRanks] = {};
  REQUIRE(tuttiCommInitAll(comms, kRanks, devices) == tuttiSuccess);
  int64_t numbers[kRanks] = {};
  GpuStream stream(port);
  port.calls = 0;
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < kRanks; r++)
    REQUIRE(tuttiAllReduce(&numbers[r], &numbers[r], 1, tuttiInt64, tuttiSum, comms[r], stream) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  CHECK(port.calls == 2);  // all in one stream: one kernel and one event
  stream.synchronize();
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("aborting frees a stream that waits in a queue, also where what frees it would wait behind it") {
  FakePort port(2);
  port.n_queues = 1;
  Patience patience(port);
  require_abort_frees(port, Seats::kOwnGpus, 2, true);
  CHECK(patience.end());
}

TEST_CASE("a thread with several GPUs may group more operations than CUDA takes in a stream") {
  FakePort port(2);
  const int devices[] = {0, 1};
  tuttiComm_t comms[2];
  REQUIRE(tuttiCommInitAll(comms, 2, devices) == tuttiSuccess);
  GpuStream streams[] = {GpuStream(port), GpuStream(port)};
  std::vector<int32_t> data[] = {{1, 2}, {3, 1}};
  tuttiGroupStart();
  for (int i = 0; i < 1000; i++)
    for (size_t r = 0; r < 2; r++)
      CHECK(tuttiAllReduce(data[r].data(), data[r].data(), 2, tuttiInt32, tuttiMax, comms[r], streams[r]) ==
            tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  for (GpuStream& stream : streams) stream.synchronize();
  for (const auto& one : data) CHECK(one == std::vector<int32_t>{3, 2});
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}
