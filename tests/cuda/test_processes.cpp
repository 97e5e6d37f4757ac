// Ranks that are processes with one made-up GPU each (fake.h): data can go the same ways as in one process.
#include <string>

#include "gpu_ranks.h"

using namespace tutti_test;

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads

namespace {

constexpr size_t kCount = (1 << 18) + 77;  // more ints than what is not done in place

using Body = std::function<void(int rank, FakePort& port, tuttiComm_t comm, Outcome& outcome)>;

std::vector<Outcome> run_processes(int n, const Body& body, const char* algo = nullptr) {
  Processes ranks(n, [&](int rank, tuttiComm_t host, Outcome& outcome) {
    auto* port = new FakePort(n);
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.cudaDevice = rank;
    config.algo = algo;
    tuttiUniqueId id = {};
    if (rank == 0) outcome.take(tuttiGetUniqueId(&id));
    outcome.take(tuttiBcast(&id, sizeof id, tuttiInt8, 0, host, nullptr));
    tuttiComm_t comm = nullptr;
    outcome.take(tuttiCommInitRankConfig(&comm, n, id, rank, &config));
    if (comm == nullptr) return;
    body(rank, *port, comm, outcome);
    (void)tuttiCommDestroy(comm);
  });
  return ranks.wait();
}

// Ints on a made-up GPU, and one of its streams.
struct Data {
  Data(FakePort& owner, size_t count)
      : port(owner), stream(owner), elems(count), at(static_cast<int32_t*>(owner.allocate(count * 4).value())) {}
  ~Data() {
    stream.synchronize();
    port.free(at);
  }
  void fill(int32_t value) { std::fill_n(at, elems, value); }
  size_t count_other_than(int32_t value) {
    stream.synchronize();
    return elems - static_cast<size_t>(std::count(at, at + elems, value));
  }

  FakePort& port;
  GpuStream stream;
  const size_t elems;
  int32_t* const at;
};

tuttiResult_t sum(Data& data, tuttiComm_t comm) {
  return tuttiAllReduce(data.at, data.at, data.elems, tuttiInt32, tuttiSum, comm, data.stream);
}

// The communicator's error, once there is one.
tuttiResult_t wait_for_error(tuttiComm_t comm) {
  tuttiResult_t state = tuttiSuccess;
  for (int i = 0; i < 30'000 && state == tuttiSuccess; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (void)tuttiCommGetAsyncError(comm, &state);
  }
  return state;
}

}  // namespace

TEST_CASE("all-reduces between processes with a GPU each are one kernel on each up to a size") {
  require_success(run_processes(3, [](int rank, FakePort& port, tuttiComm_t comm, Outcome& o) {
    int turns = 0;
    for (const size_t count : {size_t{1}, size_t{8192}, size_t{8193}, size_t{3}, size_t{262'144}}) {
      Data data(port, count);
      data.fill(rank + 1);
      for (int turn = 0; turn < 3; turn++, turns++) o.take(sum(data, comm));
      o.wrong += data.count_other_than(6 * 9) != 0;
    }
    o.wrong += port.lines != turns || port.runs != 0;
  }));
}

TEST_CASE("where one process cannot share its GPU's memory all know its reason") {
  Processes ranks(2, [](int rank, tuttiComm_t host, Outcome& o) {
    auto* port = new FakePort(2);
    port->has_no_words = rank == 1;
    if (rank == 1) setenv("TUTTI_GPU_DIRECT", "0", 1);
    const tuttiComm_t comm = create_on_own_gpu(rank, host, o);
    if (comm == nullptr) return;
    char text[8192];
    size_t bytes = sizeof text;
    o.take(tuttiExplain("tuttiAllReduce", 1000, tuttiFloat, tuttiSum, comm, text, &bytes));
    o.wrong += !contains(text, "because rank 1: streams of this device or driver cannot wait");
    o.wrong += !contains(text, "TUTTI_GPU_DIRECT=0 on some rank");
    o.take(tuttiCommDestroy(comm));
  });
  require_success(ranks.wait());
}

TEST_CASE("processes whose GPUs refuse words in memory, anywhere or in the others', go through host memory") {
  const auto [are_far, is_one] = GENERATE(std::pair(false, false), std::pair(true, false), std::pair(false, true));
  const std::string why = are_far ? "1: operation not supported" : is_one ? "1: streams of this" : "0: streams of this";
  const size_t count = is_one ? 1'500'000 : 1000;  // more than goes in one piece where streams wait
  Processes ranks(2, [=, are_far = are_far, is_one = is_one](int rank, tuttiComm_t host, Outcome& o) {
    auto* port = new FakePort(2);
    port->has_no_words = !are_far && (rank == 1 || !is_one);
    port->refuses_far_words = are_far && rank == 1;
    const tuttiComm_t comm = create_on_own_gpu(rank, host, o);
    if (comm == nullptr) return;
    char text[8192];
    size_t bytes = sizeof text;
    o.take(tuttiExplain("tuttiAllReduce", 1000, tuttiFloat, tuttiSum, comm, text, &bytes));
    o.wrong += !contains(text, "because rank " + why);
    {
      Data data(*port, count);
      data.fill(rank + 1);
      for (int turn = 0; turn < 2; turn++) o.take(sum(data, comm));
      o.wrong += data.count_other_than(6);
    }
    o.take(tuttiCommDestroy(comm));
  });
  require_success(ranks.wait());
}

TEST_CASE("an algorithm that is asked for is interpreted between processes") {
  for (const char* algo : {"ring", "tree", "direct"}) {
    INFO(algo);
    const auto body = [](int rank, FakePort& port, tuttiComm_t comm, Outcome& o) {
      constexpr size_t kElems = 30'000;
      Data data(port, kElems), gathered(port, 3 * kElems);
      for (int root = 0; root < 3; root++) {
        data.fill(rank + 1);
        o.take(sum(data, comm));                                                                           // 6
        o.take(tuttiReduce(data.at, gathered.at, kElems, tuttiInt32, tuttiSum, root, comm, data.stream));  // 18
        o.take(tuttiBcast(gathered.at, kElems, tuttiInt32, root, comm, data.stream));
        o.take(tuttiAllGather(data.at, gathered.at, kElems, tuttiInt32, comm, data.stream));
        o.take(tuttiReduceScatter(gathered.at, data.at, kElems, tuttiInt32, tuttiSum, comm, data.stream));
        o.wrong += data.count_other_than(18) + gathered.count_other_than(6);
      }
      o.wrong += port.programs != 3 * 5;
    };
    require_success(run_processes(3, body, algo));
  }
}

TEST_CASE("processes that call different things are told both calls, and no stream waits for ever") {
  for (const size_t count : {size_t{99}, size_t{20'000}, kCount}) {
    INFO(count);
    const auto outcomes = run_processes(3, [&](int rank, FakePort& port, tuttiComm_t comm, Outcome& o) {
      Data data(port, rank == 1 ? count : 100);
      tuttiResult_t state = sum(data, comm);
      if (state == tuttiSuccess) state = wait_for_error(comm);
      o.code = state;
      o.message = tuttiGetLastError(comm);
      data.stream.synchronize();  // although the communicator has not been aborted
    });
    for (const Outcome& o : outcomes) {
      CHECK(o.code == tuttiInvalidUsage);
      CHECK(o.message.find("count=100,") != std::string::npos);
      CHECK(contains(o.message, "rank 1 called AllReduce(count=" + std::to_string(count) + ","));
    }
  }
}

TEST_CASE("a process may be far ahead of another one, and waits when it is too far") {
  constexpr int kTurns = 2500;
  require_success(run_processes(2, [](int rank, FakePort& port, tuttiComm_t comm, Outcome& o) {
    Data data(port, 5);
    data.fill(rank == 0 ? 3 : 7);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    for (int turn = 0; turn < kTurns; turn++)
      o.take(tuttiAllReduce(data.at, data.at, data.elems, tuttiInt32, tuttiMax, comm, data.stream));
    o.wrong += data.count_other_than(7);
  }));
}

TEST_CASE("large operations of processes are done where registered buffers lie") {
  // Registered by all; by all but one; by none; by all, but one cannot map the others' memory.
  enum class How { kAll, kNotByOne, kNone, kRefused };
  for (const How how : {How::kAll, How::kNotByOne, How::kNone, How::kRefused}) {
    INFO(static_cast<int>(how));
    require_success(run_processes(3, [&](int rank, FakePort& port, tuttiComm_t comm, Outcome& o) {
      constexpr size_t kShift = 5;  // elements
      const bool registers = how == How::kAll || how == How::kRefused || (how == How::kNotByOne && rank != 2);
      port.refuses_maps = how == How::kRefused && rank == 1;
      for (int turn = 0; turn < 3; turn++) {  // memory is allocated and freed each time
        Data whole(port, 4 * kCount);
        void* handle = nullptr;
        if (registers) o.take(tuttiCommRegister(comm, whole.at + kShift, (4 * kCount - kShift) * 4, &handle));
        int32_t* const in = whole.at + kShift + static_cast<size_t>(rank);
        int32_t* const out = in + kCount;
        std::fill_n(in, kCount, rank + 1);
        const int before = port.runs;
        o.take(tuttiAllReduce(in, in, kCount, tuttiInt32, tuttiSum, comm, whole.stream));
        o.take(tuttiAllGather(in, out, kCount / 3, tuttiInt32, comm, whole.stream));
        o.take(tuttiBroadcast(in, out, kCount, tuttiInt32, 1, comm, whole.stream));
        whole.stream.synchronize();
        for (size_t i = 0; i < kCount; i++) o.wrong += in[i] != 6 || out[i] != 6;
        // One kernel each for the sum and the broadcast; the gathered blocks are small and go by phases.
        o.wrong += (port.runs - before == 2 + 2) != (how == How::kAll);
        o.take(tuttiCommDeregister(comm, handle));
      }
      o.wrong += static_cast<size_t>(port.early_frees);  // of memory that others still had mapped
    }));
  }
}

TEST_CASE("a buffer that is registered in part counts as not registered") {
  require_success(run_processes(2, [](int, FakePort& port, tuttiComm_t comm, Outcome& o) {
    Data data(port, kCount);
    for (const size_t registered : {kCount, kCount - 1}) {
      void* handle = nullptr;
      o.take(tuttiCommRegister(comm, data.at, registered * 4, &handle));
      data.fill(4);
      const int before = port.runs;
      o.take(sum(data, comm));
      o.wrong += data.count_other_than(8);
      // One kernel, or one that puts and one that takes.
      o.wrong += port.runs - before != (registered == kCount ? 1 : 2);
      o.take(tuttiCommDeregister(comm, handle));
    }
  }));
}

TEST_CASE("processes whose blocks are of unequal size put them each in its own places, and agree on the sizes") {
  const size_t counts[] = {kCount, 1, 9};
  require_success(run_processes(3, [&](int rank, FakePort& port, tuttiComm_t comm, Outcome& o) {
    const size_t orders[3][3] = {{0, kCount, kCount + 1}, {10, 9, 0}, {1, 0, kCount + 1}};
    Data whole(port, 2 * kCount + 10);
    void* handle = nullptr;
    o.take(tuttiCommRegister(comm, whole.at, whole.elems * 4, &handle));
    int32_t* const out = whole.at + kCount;
    std::fill_n(whole.at, kCount, rank + 1);
    o.take(tuttiAllGatherv(whole.at, out, counts, orders[rank], tuttiInt32, comm, whole.stream));
    whole.stream.synchronize();
    for (size_t b = 0; b < 3; b++)
      for (size_t i = 0; i < counts[b]; i++) o.wrong += out[orders[rank][b] + i] != static_cast<int32_t>(b) + 1;
    o.take(tuttiBarrier(comm, whole.stream));
    o.take(tuttiCommDeregister(comm, handle));
  }));
  const auto outcomes = run_processes(3, [&](int rank, FakePort& port, tuttiComm_t comm, Outcome& o) {
    const size_t mine[] = {kCount, rank == 2 ? 2u : 1u, rank == 2 ? 8u : 9u};
    Data in(port, kCount + 10), out(port, kCount);
    tuttiResult_t state = tuttiReduceScatterv(in.at, out.at, mine, tuttiInt32, tuttiSum, comm, in.stream);
    if (state == tuttiSuccess) state = wait_for_error(comm);
    o.code = state;
    o.message = tuttiGetLastError(comm);
    in.stream.synchronize();
  });
  for (const Outcome& o : outcomes) {
    INFO(o.message);
    CHECK(o.code == tuttiInvalidUsage);
    CHECK(o.message.find("gave different recvcounts") != std::string::npos);
  }
}

TEST_CASE("what is registered is neither more than its allocation nor memory of the host") {
  require_success(run_processes(2, [](int, FakePort& port, tuttiComm_t comm, Outcome& o) {
    Data data(port, kCount);
    std::vector<int32_t> on_host(kCount);
    void* handle = nullptr;
    o.take(tuttiCommRegister(comm, data.at, (kCount + (1 << 20)) * 4, &handle));  // accepted, no effect
    o.take(tuttiCommDeregister(comm, handle));
    o.take(tuttiCommRegister(comm, on_host.data(), kCount * 4, &handle));
    o.take(tuttiCommDeregister(comm, handle));
    std::vector<void*> handles(300);  // more than can be registered
    for (void*& h : handles) o.take(tuttiCommRegister(comm, data.at, kCount * 4, &h));
    data.fill(4);
    o.take(sum(data, comm));
    o.wrong += data.count_other_than(8);
    for (void* h : handles) o.take(tuttiCommDeregister(comm, h));
  }));
}

#endif
