// Communicators on made-up GPUs (fake.h): every way that data can take, compared with communicators on host memory, bit
// by bit.
#include <string>

#include "gpu_ranks.h"

using namespace tutti_test;

namespace {

struct QuantisedCase {
  size_t count, block_elems;
  tuttiDataType_t wire;
  tuttiRedOp_t op;
  bool in_place, feeds_back;
};

// One rank's input, and its result and errors after three rounds.
struct QuantisedSide {
  std::vector<char> in, out, errors;

  QuantisedSide(const QuantisedCase& c, int rank)
      : in(random_input(c.count + 1, tuttiFloat, static_cast<uint32_t>(rank) + 5)),
        out((c.count + 1) * 4),
        errors((c.count + 1) * 4) {}

  // Out of place, the input is at an odd address.
  void run(const QuantisedCase& c, tuttiComm_t comm, tuttiStream_t stream, Outcome& o) {
    char* const from = in.data() + (c.in_place ? 0 : 1);
    for (int round = 0; round < 3; round++)
      o.take(tuttiAllReduceQuantized(from, c.in_place ? from : out.data() + 1, c.count, tuttiFloat, c.op, c.wire,
                                     c.block_elems, c.feeds_back ? errors.data() : nullptr, comm, stream));
  }
};

void compare_quantised(const QuantisedCase& c, int rank, tuttiComm_t on_gpu, tuttiComm_t on_host, GpuStream& stream,
                       Outcome& o) {
  QuantisedSide gpu(c, rank), host(c, rank);
  gpu.run(c, on_gpu, stream, o);
  stream.synchronize();
  host.run(c, on_host, nullptr, o);
  o.wrong += gpu.in != host.in || gpu.out != host.out || gpu.errors != host.errors;
}

}  // namespace

TEST_CASE("all collectives on GPUs give the host's results, whatever way the data take") {
  FakePort port(8);
  for (const Seats seats : kAllSeats)
    for (const int n : {1, 2, 3, 8}) {
      if (kSanitized && n == 2) continue;
      INFO("seats " << static_cast<int>(seats) << ", " << n << " ranks");
      const auto outcomes = run_gpu_threads(port, n, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
        GpuStream stream(port);
        uint32_t seed = 1;
        for (int collective = 0; collective < kCollectiveCases; collective++)
          for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{kSanitized ? 20'001 : 70'001}}) {
            const Case c{collective, count, tuttiFloat, tuttiSum, static_cast<int>(seed) % n};
            compare(c, r, n, gpu, host, stream, o, seed++);
          }
      });
      require_success(outcomes);
    }
  CHECK(port.late_launches == 0);
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

TEST_CASE("operations that take several pieces, by phases and through the host, in place and rooted") {
  FakePort port(4);
  const Seats seats = GENERATE(Seats::kOwnGpus, Seats::kStaged);
  require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    constexpr size_t kCount = (13 << 20) / 8 + 5;  // staged in four pieces
    GpuStream stream(port);
    std::vector<uint64_t> data(kCount), sums(kCount, 7);
    for (size_t i = 0; i < kCount; i++) data[i] = i + static_cast<size_t>(r);
    for (int turn = 0; turn < 2; turn++) {
      o.take(tuttiReduce(data.data(), r == 1 ? sums.data() : nullptr, kCount, tuttiUint64, tuttiSum, 1, gpu, stream));
      o.take(tuttiBroadcast(sums.data(), sums.data(), kCount, tuttiUint64, 1, gpu, stream));
      o.take(tuttiAllReduce(sums.data(), sums.data(), kCount, tuttiUint64, tuttiMax, gpu, stream));
      stream.synchronize();
      for (size_t i = 0; i < kCount; i++) o.wrong += sums[i] != i * 3 + 3;
    }
  }));
}

TEST_CASE("all-reduces that take several pieces, in place") {
  FakePort port(4);
  constexpr size_t kCount = (70 << 20) / 8 + 3;
  require_success(run_gpu_threads(port, 3, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    GpuStream stream(port);
    std::vector<uint64_t> data(kCount);
    for (size_t i = 0; i < kCount; i++) data[i] = i * 3 + static_cast<size_t>(r);
    o.take(tuttiAllReduce(data.data(), data.data(), kCount, tuttiUint64, tuttiSum, gpu, stream));
    stream.synchronize();
    for (size_t i = 0; i < kCount; i++) o.wrong += data[i] != i * 9 + 3;
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
            for (const size_t count : {size_t{1}, size_t{5000}, size_t{300'000}, size_t{900'000}}) {
              std::vector<int32_t> data(count);
              const int copies = port.copies;
              for (size_t i = 0; i < count; i++) data[i] = static_cast<int32_t>(i) + r;
              for (int turn = 0; turn < 5; turn++)
                o.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, tuttiMax, comm, stream));
              stream.synchronize();
              for (size_t i = 0; i < count; i++) o.wrong += data[i] != static_cast<int32_t>(i) + n - 1;
              // If data do not arrive, this is noticed when the communicator is made, and they are staged. Data that
              // are not large are staged anyway: a turn on the GPU for each process takes longer.
              const bool is_small = count * 4 <= static_cast<size_t>(n - 1) * (768 << 10);
              o.wrong += port.copies - copies != (broken || is_small ? 2 * 5 : 0);
            }
            o.take(tuttiCommFinalize(comm));
            o.take(tuttiCommDestroy(comm));
          },
          &config);
      require_success(processes.wait());
    }
}

TEST_CASE("processes that share a GPU and call what goes different ways are told both calls") {
  FakePort port(1);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = 0;
  Processes processes(
      2,
      [&](int r, tuttiComm_t comm, Outcome& o) {
        GpuStream stream(port);
        std::vector<int32_t> data(500'000);
        (void)tuttiAllReduce(data.data(), data.data(), r == 0 ? 1 : data.size(), tuttiInt32, tuttiSum, comm, stream);
        tuttiResult_t state = tuttiSuccess;
        for (int look = 0; look < 5000 && state == tuttiSuccess; look++) {
          (void)tuttiCommGetAsyncError(comm, &state);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        o.wrong += state != tuttiInvalidUsage;
        const std::string why = tuttiGetLastError(comm);
        o.wrong += why.find("count=1,") == std::string::npos || why.find("count=500000,") == std::string::npos;
        if (o.wrong > 0) o.message = why;
        stream.synchronize();  // it does not wait for ever
        (void)tuttiCommAbort(comm);
      },
      &config);
  require_success(processes.wait());
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
  CHECK(port.runs == runs + 1);  // one kernel for all ranks
  for (auto& stream : streams) stream->synchronize();
  for (const auto& d : data)
    for (size_t i = 0; i < d.size(); i++) REQUIRE(d[i] == static_cast<int64_t>(i) * 10);
  for (tuttiComm_t comm : comms) REQUIRE(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("an algorithm that is asked for is run as a schedule, by one launch on each GPU") {
  FakePort port(2);
  const bool together = GENERATE(true, false);
  for (const char* algo : {"ring", "tree", "circulant"}) {
    const int before = port.programs;
    const tuttiUniqueId id = new_id();
    std::vector<Outcome> outcomes(2);
    const auto run = [&](int r) {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.cudaDevice = together ? 0 : r;
      config.algo = algo;
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      if (comm == nullptr) return;
      GpuStream stream(port);
      for (const size_t count : {size_t{0}, size_t{1}, size_t{100'000}}) {
        std::vector<int32_t> data(count, r + 1);
        for (int turn = 0; turn < 3; turn++)
          o.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, tuttiSum, comm, stream));
        stream.synchronize();
        for (const int32_t value : data) o.wrong += value != 12;
      }
      o.take(tuttiCommFinalize(comm));
      o.take(tuttiCommDestroy(comm));
    };
    std::thread second(run, 1);
    run(0);
    second.join();
    require_success(outcomes);
    CHECK(port.programs == before + (together ? 6 : 12));
  }
}

TEST_CASE("an algorithm that is asked for is that of each root, and no other for what schedules do not do") {
  FakePort port(2);
  for (const int first : {0, 1}) {  // the GPU of rank 1
    const tuttiUniqueId id = new_id();
    std::vector<Outcome> outcomes(2);
    const auto run = [&](int r) {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.cudaDevice = r * first;
      config.algo = "ring";
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      if (comm == nullptr) return;
      GpuStream stream(port);
      for (const int root : {0, 1}) {
        int32_t number = r == root ? 5 + root : 0;
        o.take(tuttiBcast(&number, 1, tuttiInt32, root, comm, stream));
        stream.synchronize();
        o.wrong += number != 5 + root;
      }
      const size_t counts[] = {3, 1}, at[] = {1, 0};
      const int32_t mine[] = {10 + r, 20 + r, 30 + r};
      int32_t all[] = {0, 0, 0, 0};
      o.take(tuttiAllGatherv(mine, all, counts, at, tuttiInt32, comm, stream));
      float factor = static_cast<float>(r + 2), sum = 1;
      tuttiRedOp_t op;
      o.take(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, tuttiScalarHostImmediate, comm));
      o.take(tuttiAllReduce(&sum, &sum, 1, tuttiFloat, op, comm, stream));
      stream.synchronize();
      const int32_t expected[] = {11, 10, 20, 30};
      o.wrong += memcmp(all, expected, sizeof all) != 0 || sum != 5;
      o.take(tuttiRedOpDestroy(op, comm));
      o.take(tuttiCommFinalize(comm));
      o.take(tuttiCommDestroy(comm));
    };
    std::thread second(run, 1);
    run(0);
    second.join();
    require_success(outcomes);
  }
}

TEST_CASE("all-reduces between GPUs are one kernel on each up to a size, whatever sizes follow each other") {
  constexpr int kTurns = kSanitized ? 2 : 4;
  FakePort port(5);
  require_success(run_gpu_threads(port, 5, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    GpuStream stream(port);
    uint32_t seed = 1;
    for (int turn = 0; turn < kTurns; turn++)
      for (const size_t count : {1, 8192, 3, 70'001, 2049, 262'145, 8192, 8193, 511, 262'144})
        compare({0, count, tuttiFloat, turn % 2 == 0 ? tuttiAvg : tuttiMin, 0}, r, 5, gpu, host, stream, o, seed++);
  }));
  CHECK(port.lines == 5 * kTurns * 9);  // one size is too large
}

TEST_CASE("more ranks than lines are for add up by phases") {
  constexpr int kRanks = tutti::cuda::kLineRanks + 1;
  FakePort port(kRanks);
  require_success(run_gpu_threads(port, kRanks, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    std::vector<int32_t> data(100, r);
    GpuStream stream(port);
    o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, gpu, stream));
    stream.synchronize();
    for (const int32_t value : data) o.wrong += value != kRanks * (kRanks - 1) / 2;
  }));
  CHECK(port.lines == 0);
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
    if (seats == Seats::kTogether) continue;  // ranks of one process: see the next test
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
      for (int launch = 0; launch < 6; launch++) (void)port.launch(graph, stream.ref());
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt64, tuttiSum, gpu, stream));
      stream.synchronize();
      for (const int64_t value : data) o.wrong += value != 2187;
      for (const int64_t value : gathered) o.wrong += value != 729;
      (void)r;
    }));
  }
}

TEST_CASE("graphs: a launch after finalizing is an error, which the communicator tells") {
  FakePort port(2);
  const auto outcomes =
      run_gpu_threads(port, 2, Seats::kStaged, [&](int, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
        GpuStream stream(port);
        std::vector<int32_t> data(100, 1);
        o.take(tuttiBarrier(gpu, stream));
        FakeGraph graph;
        port.begin_capture(stream.ref(), &graph);
        o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, gpu, stream));
        port.end_capture(&graph);
        o.take(tuttiCommFinalize(gpu));
        o.take(tuttiBarrier(host, nullptr));
        (void)port.launch(graph, stream.ref());
        stream.synchronize();
        tuttiResult_t state = tuttiSuccess;
        o.take(tuttiCommGetAsyncError(gpu, &state));
        o.wrong += state != tuttiInvalidUsage || o.code != tuttiSuccess;
      });
  for (const Outcome& o : outcomes) {
    CHECK(o.wrong == 0);
    CHECK(o.code == tuttiInvalidUsage);  // a second tuttiCommFinalize reports it, too
    CHECK(contains(o.message, "was finalized"));
  }
}

TEST_CASE("host memory that operations have outgrown stays, for a graph may use it") {
  FakePort port(2);
  require_success(run_gpu_threads(port, 2, Seats::kStaged, [&](int, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    const int before = port.host_frees;
    std::vector<int32_t> data(10'000, 1);
    GpuStream stream(port);
    for (const size_t count : {size_t{10}, data.size()})
      o.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, tuttiSum, gpu, stream));
    stream.synchronize();
    o.wrong += port.host_frees != before;
    o.take(tuttiBarrier(host, nullptr));  // nobody leaves before both have checked
  }));
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
  for (int launch = 0; launch < 3; launch++) (void)port.launch(graph, stream.ref());
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
  for (const Seats seats : {Seats::kTogether, Seats::kOwnGpus, Seats::kStaged, Seats::kPairs}) {
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

TEST_CASE("quantised sums on GPUs have the host's bits, and its errors, whatever way other operations take") {
  FakePort port(4);
  const Seats seats = GENERATE(Seats::kTogether, Seats::kOwnGpus, Seats::kStaged, Seats::kPairs);
  for (const int n : {1, 2, 3}) {
    INFO("seats " << static_cast<int>(seats) << ", " << n << " ranks");
    require_success(run_gpu_threads(port, n, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
      GpuStream stream(port);
      for (const size_t count : {0, 1, 63, 130, 1000, 40'001})
        for (const bool feeds_back : {false, true}) {
          compare_quantised({count, 128, tuttiInt8, tuttiSum, false, feeds_back}, r, gpu, host, stream, o);
          compare_quantised({count, 192, tuttiFloat8e4m3, tuttiAvg, true, feeds_back}, r, gpu, host, stream, o);
        }
    }));
  }
  CHECK(port.late_launches == 0);
  CHECK(port.spans > 0);
}

TEST_CASE("quantised sums on GPUs keep the order of calls, between others and on several streams") {
  FakePort port(2);
  const Seats seats = GENERATE(Seats::kTogether, Seats::kOwnGpus);
  require_success(run_gpu_threads(port, 2, seats, [&](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    GpuStream first(port), second(port);
    std::vector<float> data(5000, 1.0f);
    for (int round = 0; round < 3; round++) {
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, first));
      o.take(tuttiAllReduceQuantized(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, tuttiInt8, 64,
                                     nullptr, gpu, second));
    }
    first.synchronize();
    second.synchronize();
    // All elements of a block are equal, so each is the block's largest, and rounding changes it very little.
    for (const float value : data) o.wrong += value < 63.99f || value > 64.01f;
  }));
}
