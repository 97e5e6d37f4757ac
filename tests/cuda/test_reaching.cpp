// Ranks of one process on several made-up GPUs (fake.h): large operations work directly in the ranks' buffers.
#include <algorithm>
#include <string>

#include "cuda/device_group.h"
#include "cuda/phases.h"
#include "debug/recorder.h"
#include "gpu_ranks.h"
#include "sanitized.h"

using namespace tutti_test;

namespace {

constexpr size_t kBytes = (1 << 20) + 64;  // more than what is not done in place

// Memory of a made-up GPU.
class GpuMemory {
 public:
  GpuMemory(FakePort& port, size_t bytes) : port_(port), memory_(static_cast<char*>(port.allocate(bytes).value())) {}
  ~GpuMemory() { port_.free(memory_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  char* get() const { return memory_; }

 private:
  FakePort& port_;
  char* memory_;
};

// One operation in GPU memory, `shift` bytes into an allocation, and the same on the host.
void compare_there(FakePort& port, const Case& c, size_t shift, int rank, int n, tuttiComm_t on_gpu,
                   tuttiComm_t on_host, Outcome& outcome, uint32_t seed) {
  const Sizes sizes = sizes_of(c, n);
  const size_t out_bytes = sizes.out * kTypeBytes[c.type], in_bytes = sizes.in * kTypeBytes[c.type];
  const auto in = random_input(sizes.in, c.type, seed * 64 + static_cast<uint32_t>(rank));
  const GpuMemory gpu_in(port, in_bytes + shift), gpu_out(port, out_bytes + shift + 1);
  GpuStream stream(port);
  memcpy(gpu_in.get() + shift, in.data(), in_bytes);
  outcome.take(call(c, gpu_in.get() + shift, gpu_out.get() + shift, on_gpu, stream));
  stream.synchronize();
  std::vector<char> host(out_bytes + 1);
  outcome.take(call(c, in.data(), host.data(), on_host, nullptr));
  outcome.wrong += memcmp(gpu_out.get() + shift, host.data(), host.size()) != 0;
}

// A rank's host, among others that do and say the same as it does.
class AmongTwins final : public tutti::cuda::Host {
 public:
  explicit AmongTwins(int n_ranks, int rank = 0) : n_ranks_(n_ranks), rank_(rank) {}
  int rank() const override { return rank_; }
  int n_ranks() const override { return n_ranks_; }
  int host_of(int rank) const override { return rank; }
  tutti::Algo forced_algo() const override { return tutti::Algo::kRing; }
  tutti::Result<void> run_on_host(const tutti::Operation& all_gather) override {
    for (size_t r = 0; r < static_cast<size_t>(n_ranks_); r++)
      memcpy(static_cast<char*>(all_gather.output) + r * all_gather.count, all_gather.input, all_gather.count);
    return {};
  }
  tutti::Result<void> check_direct(const void*, size_t) override { return {}; }
  void forget_direct() override {}
  tutti::Result<void> connect_direct() override { return {}; }
  tutti::Result<void> move_directly(const tutti::Operation&, const std::vector<tutti::Message>&) override { return {}; }
  bool broken() override { return false; }
  int wake_fd() override { return -1; }
  tutti::Error breakage() override { return {}; }
  bool has_left(int) override { return false; }
  tutti::Result<void> check_open() override { return {}; }
  void break_with(const tutti::Error&) override {}
  const tutti::Recorder& recorder() override { return recorder_; }
  double operation_limit_seconds() override { return 1; }

 private:
  const int n_ranks_, rank_;
  tutti::Recorder recorder_;
};

}  // namespace

TEST_CASE("ranks on several hosts take no memory of their GPUs to see that they cannot map each other's") {
  FakePort port(1);
  for (const int n : {2, tutti::cuda::kMaxPlaces + 1}) {
    AmongTwins host(n);
    std::vector<tutti::cuda::Seat> seats;
    for (int r = 0; r < n; r++) seats.push_back({{static_cast<uint64_t>(r)}, n == 2 ? r : 0, 0, {}});
    std::string why;
    const auto way = tutti::cuda::make_phases(host, port, seats, nullptr, "group", &why);
    REQUIRE(way);
    CHECK(way.value() == nullptr);
    CHECK(why == (n == 2 ? "rank 1 is on another host than rank 0" : "there are more than 64 ranks"));
  }
  CHECK(port.allocated == 0);
}

TEST_CASE("large operations are done where the buffers lie, if all GPUs reach them") {
  FakePort port(5);
  for (const bool hides : {false, true})
    for (const int n : {2, kSanitized ? 3 : 5}) {
      if (tutti_test::is_slow() && (n == 2) != hides) continue;
      port.hides_memory = hides;
      const int before = port.runs;
      require_success(
          run_gpu_threads(port, n, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
            uint32_t seed = 1;
            for (int collective = 0; collective < kCollectiveCases; collective++) {
              const Case c{collective, kBytes / 4 + 3, tuttiFloat, tuttiSum, static_cast<int>(seed) % n};
              compare_there(port, c, 4 * (seed % 3), r, n, gpu, host, o, seed);
              seed++;
            }
          }));
      // One kernel per GPU and operation, except those in which a rank has nothing to do.
      const int most = n * kCollectiveCases;
      CHECK((port.runs - before <= most) == !hides);
    }
}

TEST_CASE("all types and operators where the buffers lie") {
  FakePort port(3);
  const int before = port.runs;
  // In slow runs one operator for each type is enough.
  const int step = tutti_test::is_slow() ? tuttiNumOps : 1;
  require_success(run_gpu_threads(port, 3, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    uint32_t seed = 1;
    for (int type = 0; type < tuttiNumTypes; type++)
      for (int op = type % step; op < tuttiNumOps; op += step) {
        const Case c{0, kBytes / kTypeBytes[type] + seed % 5, static_cast<tuttiDataType_t>(type),
                     static_cast<tuttiRedOp_t>(op), 0};
        compare_there(port, c, kTypeBytes[type] * (seed % 4) + seed % 2, r, 3, gpu, host, o, seed);
        seed++;
      }
  }));
  CHECK(port.runs - before == 3 * tuttiNumTypes * tuttiNumOps / step);
}

TEST_CASE("large sums of multiplied inputs have every rank's factor") {
  FakePort port(2);
  require_success(run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    constexpr size_t kCount = kBytes / sizeof(float);
    const GpuMemory memory(port, kBytes);
    auto* const data = reinterpret_cast<float*>(memory.get());
    std::fill_n(data, kCount, 2.0f);
    float factor = static_cast<float>(r + 1);
    tuttiRedOp_t op;
    o.take(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, tuttiScalarHostImmediate, gpu));
    GpuStream stream(port);
    o.take(tuttiAllReduce(data, data, kCount, tuttiFloat, op, gpu, stream));
    stream.synchronize();
    o.wrong += kCount - static_cast<size_t>(std::count(data, data + kCount, 6.0f));
    o.take(tuttiRedOpDestroy(op, gpu));
  }));
}

TEST_CASE("where one rank's buffer cannot be reached nobody's is") {
  FakePort port(2);
  const int before = port.runs;
  require_success(run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    const GpuMemory memory(port, kBytes);
    std::vector<int32_t> elsewhere(kBytes / 4);
    int32_t* const data = r == 0 ? reinterpret_cast<int32_t*>(memory.get()) : elsewhere.data();
    std::fill_n(data, elsewhere.size(), r + 1);
    GpuStream stream(port);
    o.take(tuttiAllReduce(data, data, elsewhere.size(), tuttiInt32, tuttiSum, gpu, stream));
    stream.synchronize();
    o.wrong += elsewhere.size() - static_cast<size_t>(std::count(data, data + elsewhere.size(), 3));
  }));
  CHECK(port.runs - before == 2 * 2);  // each rank puts and takes once
}

TEST_CASE("in place, replayed, and with two ranks on one of the GPUs") {
  FakePort port(2);
  constexpr int kRanks = 3;
  constexpr size_t kCount = kBytes / 4 + 1;
  tuttiComm_t comms[kRanks];
  const int devices[kRanks] = {0, 1, 1};
  REQUIRE(tuttiCommInitAll(comms, kRanks, devices) == tuttiSuccess);
  std::vector<std::unique_ptr<GpuStream>> streams;  // by device: ranks that share one are captured together
  std::vector<std::unique_ptr<GpuMemory>> memory;
  std::vector<int32_t*> data;
  for (int device = 0; device < 2; device++) streams.push_back(std::make_unique<GpuStream>(port));
  for (int r = 0; r < kRanks; r++) {
    memory.push_back(std::make_unique<GpuMemory>(port, kCount * 4));
    data.push_back(reinterpret_cast<int32_t*>(memory.back()->get()));
    std::fill_n(data.back(), kCount, r + 1);
  }
  std::vector<FakeGraph> graphs(streams.size());
  for (size_t d = 0; d < graphs.size(); d++) port.begin_capture(streams[d]->ref(), &graphs[d]);
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (size_t r = 0; r < kRanks; r++)
    REQUIRE(tuttiAllReduce(data[r], data[r], kCount, tuttiInt32, tuttiSum, comms[r],
                           *streams[static_cast<size_t>(devices[r])]) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  for (FakeGraph& graph : graphs) port.end_capture(&graph);
  for (int launch = 0; launch < 3; launch++)
    for (size_t d = 0; d < graphs.size(); d++) (void)port.launch(graphs[d], streams[d]->ref());
  for (auto& stream : streams) stream->synchronize();
  for (const int32_t* d : data)
    for (size_t i = 0; i < kCount; i++) REQUIRE(d[i] == 54);
  for (tuttiComm_t comm : comms) REQUIRE(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("one thread holds all ranks: operations of a group that take different ways keep their order") {
  FakePort port(2);
  constexpr int kRanks = 2;
  constexpr size_t kCount = kBytes / 4;
  for (const bool together : {false, true}) {
    tuttiComm_t comms[kRanks];
    const int devices[kRanks] = {0, together ? 0 : 1};
    REQUIRE(tuttiCommInitAll(comms, kRanks, devices) == tuttiSuccess);
    std::vector<std::unique_ptr<GpuStream>> streams;
    std::vector<std::unique_ptr<GpuMemory>> memory;
    for (int r = 0; r < kRanks; r++) {
      streams.push_back(std::make_unique<GpuStream>(port));
      memory.push_back(std::make_unique<GpuMemory>(port, 2 * kCount * 4));
      std::fill_n(reinterpret_cast<int32_t*>(memory.back()->get()), kCount, r + 1);
    }
    REQUIRE(tuttiGroupStart() == tuttiSuccess);
    for (int r = 0; r < kRanks; r++) {
      auto* large = reinterpret_cast<int32_t*>(memory[static_cast<size_t>(r)]->get());
      int32_t* copy = large + kCount;
      const tuttiStream_t stream = *streams[static_cast<size_t>(r)];
      REQUIRE(tuttiAllReduce(large, large, kCount, tuttiInt32, tuttiSum, comms[r], stream) == tuttiSuccess);
      REQUIRE(tuttiAllReduce(large, large, 100, tuttiInt32, tuttiSum, comms[r], stream) == tuttiSuccess);
      REQUIRE(tuttiAllGather(large, copy, kCount / 2, tuttiInt32, comms[r], stream) == tuttiSuccess);
      REQUIRE(tuttiSend(large, 100, tuttiInt32, 1 - r, comms[r], stream) == tuttiSuccess);
      REQUIRE(tuttiRecv(copy, 100, tuttiInt32, 1 - r, comms[r], stream) == tuttiSuccess);
      REQUIRE(tuttiAllReduce(copy, copy, kCount, tuttiInt32, tuttiMax, comms[r], stream) == tuttiSuccess);
    }
    REQUIRE(tuttiGroupEnd() == tuttiSuccess);
    for (auto& stream : streams) stream->synchronize();
    for (const auto& m : memory) {
      const auto* copy = reinterpret_cast<const int32_t*>(m->get()) + kCount;
      for (size_t i = 0; i < kCount; i++) REQUIRE(copy[i] == (i % (kCount / 2) < 100 ? 6 : 3));
    }
    for (tuttiComm_t comm : comms) REQUIRE(tuttiCommDestroy(comm) == tuttiSuccess);
  }
}

TEST_CASE("ranks on several GPUs that call different large things are told so") {
  FakePort port(3);
  const auto outcomes = run_gpu_threads(port, 3, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    const GpuMemory memory(port, kBytes * 2);
    GpuStream stream(port);
    const size_t count = r == 1 ? kBytes / 4 + 5 : kBytes / 4;
    o.take(tuttiAllReduce(memory.get(), memory.get(), count, tuttiFloat, tuttiSum, gpu, stream));
  });
  for (const Outcome& o : outcomes) {
    CHECK(o.code == tuttiInvalidUsage);
    CHECK(o.message.find("count=262165") != std::string::npos);
    CHECK(o.message.find("count=262160") != std::string::npos);
  }
}

TEST_CASE("blocks of unequal size: each rank has its own places for them, and all the same sizes") {
  constexpr size_t kBlock = kBytes / 4;
  FakePort port(3);
  for (const Seats seats : kAllSeats) {
    INFO(static_cast<int>(seats));
    const size_t counts[] = {kBlock, 1, kBlock + 7};
    require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      const size_t orders[3][3] = {{0, kBlock, kBlock + 1}, {kBlock + 8, kBlock + 7, 0}, {1, 0, kBlock + 1}};
      const GpuMemory in(port, (kBlock + 7) * 4), out(port, (2 * kBlock + 8) * 4);
      GpuStream stream(port);
      std::fill_n(reinterpret_cast<int32_t*>(in.get()), kBlock + 7, r + 1);
      o.take(tuttiAllGatherv(in.get(), out.get(), counts, orders[r], tuttiInt32, gpu, stream));
      stream.synchronize();
      for (size_t b = 0; b < 3; b++)
        for (size_t i = 0; i < counts[b]; i++)
          o.wrong += reinterpret_cast<int32_t*>(out.get())[orders[r][b] + i] != static_cast<int32_t>(b) + 1;
    }));
    const auto outcomes = run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      const size_t mine[] = {kBlock, r == 1 ? 2u : 1u, kBlock + (r == 1 ? 6 : 7)};
      const GpuMemory in(port, (2 * kBlock + 8) * 4), out(port, (kBlock + 8) * 4);
      GpuStream stream(port);
      o.take(tuttiReduceScatterv(in.get(), out.get(), mine, tuttiInt32, tuttiSum, gpu, stream));
      stream.synchronize();
    });
    for (const Outcome& o : outcomes) {
      INFO(o.message);
      CHECK(o.code == tuttiInvalidUsage);
      CHECK(o.message.find("recvcounts[1] is ") != std::string::npos);
    }
  }
}

TEST_CASE("an operation that a rank has dropped is enqueued for nobody on its GPU, unless all had come to it") {
  FakePort port(1);
  const auto make_group = [&] { return std::make_shared<tutti::cuda::DeviceGroup>(port, std::vector<int>{0, 1}); };
  const auto group = make_group(), next = make_group();
  tutti::cuda::DeviceGroupMember leader(group, 0), other(group, 1), next_leader(next, 0), next_other(next, 1);
  GpuStream stream(port);
  const tutti::cuda::Turn turn{stream.ref(), 1};
  const tutti::Operation operation{tutti::Collective::kBarrier};
  const tutti::Error why{tutti::Code::kRemoteError, "dropped"};
  int n_enqueued = 0;
  const auto enqueue = [&](const auto&...) { return n_enqueued++, tutti::Result<void>(); };
  const auto has_met = [&](auto& member) { return member.meet(operation, turn).value(); };

  CHECK(!has_met(other));  // all have come
  CHECK(has_met(leader));
  CHECK(!other.withdraw(why));
  CHECK(leader.enqueue(enqueue));
  CHECK(has_met(other));
  CHECK(other.enqueue(enqueue));
  CHECK(n_enqueued == 1);

  CHECK(!has_met(other));  // all have come, but the leader cannot go on
  CHECK(has_met(leader));
  CHECK(leader.withdraw(why));
  CHECK(has_met(other));
  CHECK(!other.enqueue(enqueue));

  CHECK(!has_met(next_other));
  CHECK(next_other.withdraw(why));
  const auto late = next_leader.meet(operation, turn);
  REQUIRE(!late);
  CHECK(late.error().message == "dropped");
  CHECK(n_enqueued == 1);
}

TEST_CASE("a message that its sender has dropped is not taken from its buffer") {
  FakePort port(1);
  AmongTwins hosts[] = {AmongTwins(2, 0), AmongTwins(2, 1)};
  const auto receiver = tutti::cuda::make_mail(hosts[0], port, "a group");
  const auto sender = tutti::cuda::make_mail(hosts[1], port, "a group");
  GpuStream stream(port);
  int32_t data[2] = {};
  const auto message = [&](bool sends) {
    tutti::Operation operation{tutti::Collective::kSendRecv};
    operation.messages = std::make_shared<std::vector<tutti::Message>>(
        1, tutti::Message{sends, sends ? 0 : 1, &data[sends], 1, tutti::DataType::kInt32});
    return operation;
  };
  CHECK(!sender->meet(message(true), {stream.ref(), 1}).value());
  CHECK(sender->withdraw({}));
  CHECK(!receiver->meet(message(false), {stream.ref(), 1}).value());
  CHECK(port.copies == 0);
}

namespace {

// What cannot be copied, for lack of memory.
struct Uncopied {
  Uncopied() = default;
  Uncopied(Uncopied&&) noexcept {}
  Uncopied(const Uncopied&) { throw std::bad_alloc(); }
};

}  // namespace

TEST_CASE("a task that a stream asks for takes no more memory then") {
  FakePort port(1);
  AmongTwins host(1);
  for (const bool stays : {false, true}) {
    std::atomic<int> n_run{0};
    const auto proxy = std::move(tutti::cuda::Proxy::create(host, port).value());
    auto run = [&n_run, held = Uncopied()]() -> tutti::Result<void> { return n_run++, tutti::Result<void>(); };
    const uint32_t number = proxy->announce(std::move(run), stays);
    proxy->ask(number);
    for (int i = 0; i < 10'000 && !proxy->take_answer(number); i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(n_run == 1);
  }
}
