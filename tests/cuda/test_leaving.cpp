// Ranks that destroy their communicators while others still use their memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>

#include "catch.h"
#include "gpu_ranks.h"

using namespace tutti;
using namespace tutti_test;

namespace {

// A rank's communicator, and memory on its GPU in which it works directly; no communicator if there is none.
struct InPlace {
  static constexpr size_t kCount = (1 << 18) + 1;  // more than what is not done in place
  FakePort* port = new FakePort(2);
  tuttiComm_t comm = nullptr;
  void *data = nullptr, *handle = nullptr;
};

InPlace register_on_own_gpu(int rank, tuttiComm_t host, Outcome& o) {
  InPlace in;
  in.comm = create_on_own_gpu(rank, host, o);
  if (in.comm == nullptr) return in;
  in.data = in.port->allocate(InPlace::kCount * 4).value();
  o.take(tuttiCommRegister(in.comm, in.data, InPlace::kCount * 4, &in.handle));
  return in;
}

// A sum is done, in place, and another one is captured. All ranks come to its end.
void add_up_and_capture(const InPlace& in, GpuStream& stream, FakeGraph* graph, tuttiComm_t host, Outcome& o) {
  o.take(tuttiAllReduce(in.data, in.data, InPlace::kCount, tuttiInt32, tuttiSum, in.comm, stream));
  in.port->begin_capture(stream.ref(), graph);
  o.take(tuttiAllReduce(in.data, in.data, 10, tuttiInt32, tuttiSum, in.comm, stream));
  o.wrong += !in.port->end_capture(stream.ref());
  stream.synchronize();
  o.take(tuttiBarrier(host, nullptr));
}

}  // namespace

TEST_CASE("memory of a rank that has left stays until the others no longer write to it, and is freed then") {
  FakePort port(2);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  uint32_t gate = 0;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.cudaDevice = r;
      config.algo = "ring";
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      if (comm == nullptr) return;
      GpuStream stream(port);
      const cuda::WordOperation waits{&gate, 1, true};
      if (r == 1) (void)port.words(&waits, 1, stream.ref());  // until rank 0 has left
      std::vector<int32_t> data(1000, r == 0 ? 7 : 0);
      o.take(tuttiBcast(data.data(), data.size(), tuttiInt32, 0, comm, stream));
      if (r == 0) {
        stream.synchronize();
        o.take(tuttiCommDestroy(comm));
        __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
      } else {
        stream.synchronize();
        for (const int32_t number : data) o.wrong += number != 7;
        o.take(tuttiCommDestroy(comm));
      }
    });
  for (auto& thread : threads) thread.join();
  require_success(outcomes);
  CHECK(port.programs == 2);
  CHECK(port.allocations() == 0);
}

TEST_CASE("memory of a rank that has left stays for what another one has called before, and nothing is called after") {
  FakePort port(2);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  const bool calls_before = GENERATE(false, true);
  std::barrier all(2);
  uint32_t gate = 0;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(Seats::kOwnGpus, r);
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      GpuStream stream(port);
      std::vector<float> data(1000);
      const auto add_up = [&] { o.take(call({0, 1000u}, data.data(), data.data(), comm, stream)); };
      const cuda::WordOperation waits{&gate, 1, true};
      if (r == 0) (void)port.words(&waits, 1, stream.ref());
      if (r == 0 && calls_before) add_up();
      all.arrive_and_wait();
      if (r == 1) o.take(tuttiCommDestroy(comm));
      all.arrive_and_wait();
      if (r == 1) return;
      if (!calls_before) add_up();
      o.wrong += o.code != (calls_before ? tuttiSuccess : tuttiRemoteError);
      __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
      (void)tuttiCommAbort(comm);
      stream.synchronize();
    });
  for (auto& thread : threads) thread.join();
  INFO(outcomes[0].message);
  CHECK(outcomes[0].wrong == 0);
  CHECK(contains(outcomes[0].message, calls_before ? "" : "rank 1 destroyed or finalized its communicator after 0"));
  CHECK(outcomes[1].code == tuttiSuccess);
}

TEST_CASE("what the GPU may still use stays if the GPU cannot be asked") {
  // Threads stay, too, and each later test with processes would wait 100 s for them (see Processes).
  if (kSanitized) {
    WARN("skipped: with a sanitizer the threads that stay would make later tests wait");
    return;
  }
  for (const Seats seats : kAllSeats) {
    FakePort port(2);
    port.refuses_peers = seats == Seats::kStaged;
    const tuttiUniqueId id = new_id();
    std::vector<Outcome> outcomes(2);
    std::vector<std::thread> threads;
    std::barrier all(2);
    for (int r = 0; r < 2; r++)
      threads.emplace_back([&, r] {
        Outcome& o = outcomes[static_cast<size_t>(r)];
        tuttiConfig_t config = config_of(seats, r);
        tuttiComm_t comm = nullptr;
        o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
        uint32_t gate = 0;
        const cuda::WordOperation waits{&gate, 1, true};
        GpuStream stream(port);
        (void)port.words(&waits, 1, stream.ref());
        std::vector<int32_t> data(1000, r);
        o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, comm, stream));
        all.arrive_and_wait();
        port.refuses_queries = true;
        (void)tuttiCommDestroy(comm);
        __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
        stream.synchronize();  // while all memory that it uses still exists
      });
    for (auto& thread : threads) thread.join();
    require_success(outcomes);
  }
}

TEST_CASE("a stream that comes late leaves buffers alone that another rank has taken back after a failure") {
  FakePort port(2);
  const tuttiUniqueId id = new_id();
  std::barrier called(2), both(2);
  std::vector<std::thread> threads;
  std::vector<Outcome> outcomes(2);
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      const tuttiConfig_t config = config_of(Seats::kOwnGpus, r);
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      auto* const data = static_cast<int32_t*>(port.allocate(InPlace::kCount * 4).value());
      std::fill_n(data, InPlace::kCount, r);
      {
        GpuStream stream(port);
        if (r == 0) (void)port.enqueue(stream.ref(), [&] { both.arrive_and_wait(); });
        o.take(tuttiAllReduce(data, data, InPlace::kCount, tuttiInt32, tuttiSum, comm, stream));
        called.arrive_and_wait();
        if (r == 1) {
          o.take(tuttiCommRevoke(comm, 0));
          stream.synchronize();
          std::fill_n(data, InPlace::kCount, 7);
          both.arrive_and_wait();
        }
        stream.synchronize();
      }
      both.arrive_and_wait();
      o.wrong += static_cast<size_t>(std::count(data, data + InPlace::kCount, r == 1 ? 7 : 0)) != InPlace::kCount;
      o.take(tuttiCommAbort(comm));
      port.free(data);
    });
  for (std::thread& thread : threads) thread.join();
  require_success(outcomes);
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("a process frees nothing that others have mapped") {
  Processes ranks(2, [](int rank, tuttiComm_t host, Outcome& o) {
    auto* port = new FakePort(2);
    for (int turn = 0; turn < 3; turn++) {
      const tuttiComm_t comm = create_on_own_gpu(rank, host, o);
      if (comm == nullptr) return;
      if (rank == turn % 2) o.take(tuttiCommDestroy(comm));
      o.take(tuttiBarrier(host, nullptr));
      if (rank != turn % 2) o.take(tuttiCommDestroy(comm));
      o.take(tuttiBarrier(host, nullptr));
    }
    o.wrong += static_cast<size_t>(port->early_frees) + (port->allocations() > 2);  // those of the last turns
  });
  require_success(ranks.wait());
}

TEST_CASE("a process frees nothing that others have mapped where mapped memory does not work") {
  Processes ranks(4, [](int rank, tuttiComm_t host, Outcome& o) {
    auto* port = new FakePort(4);
    port->corrupts_maps = rank == 2;
    const tuttiComm_t comm = create_on_own_gpu(rank, host, o, 4);
    o.take(tuttiBarrier(host, nullptr));
    o.wrong += comm == nullptr || port->early_frees != 0;
    o.take(tuttiCommDestroy(comm));
    o.take(tuttiCommFinalize(host));
  });
  require_success(ranks.wait());
}

TEST_CASE("a rank that leaves lets go of what the others have registered") {
  Processes ranks(2, [](int rank, tuttiComm_t host, Outcome& o) {
    const InPlace in = register_on_own_gpu(rank, host, o);
    if (in.comm == nullptr) return;
    {
      GpuStream stream(*in.port);
      const int before = in.port->runs;
      o.take(tuttiAllReduce(in.data, in.data, InPlace::kCount, tuttiInt32, tuttiSum, in.comm, stream));
      stream.synchronize();
      o.wrong += in.port->runs - before != 1;  // done directly in the buffers
    }
    o.take(tuttiBarrier(host, nullptr));
    if (rank == 1) o.take(tuttiCommDestroy(in.comm));
    if (rank == 1) in.port->free(in.data);  // no other rank has it mapped any more
    o.wrong += static_cast<size_t>(in.port->early_frees);
    o.take(tuttiBarrier(host, nullptr));
    if (rank == 1) return;
    const int said = memfd_create("log", MFD_CLOEXEC);
    o.wrong += dup2(said, STDERR_FILENO) != STDERR_FILENO;
    o.take(tuttiCommDeregister(in.comm, in.handle));
    o.wrong += lseek(said, 0, SEEK_END) != 0;  // a log line: a peer still has it mapped
    in.port->free(in.data);
    o.wrong += static_cast<size_t>(in.port->early_frees);
    o.take(tuttiCommDestroy(in.comm));
  });
  require_success(ranks.wait());
}

TEST_CASE("a stream that is held up while its communicator is aborted comes to its end, however many waits it has") {
  Processes ranks(2, [](int rank, tuttiComm_t host, Outcome& o) {
    auto* port = new FakePort(2);
    const tuttiComm_t comm = create_on_own_gpu(rank, host, o);
    if (comm == nullptr) return;
    if (rank == 0) {
      uint32_t gate = 0;
      const cuda::WordOperation waits{&gate, 1, true};
      std::vector<float> data(1000);
      GpuStream stream(*port);
      (void)port->words(&waits, 1, stream.ref());
      for (int i = 0; i < 2; i++) o.take(tuttiAllGather(data.data(), data.data(), 500, tuttiFloat, comm, stream));
      o.take(tuttiCommAbort(comm));  // waits for 10 s
      __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
      stream.synchronize();
    }
    o.take(tuttiBarrier(host, nullptr));
    if (rank == 1) (void)tuttiCommDestroy(comm);
  });
  require_success(ranks.wait());
}

TEST_CASE("a rank whose GPU waits for another one lets go of nothing until then: its thread would wait, too") {
  const bool is_graph = GENERATE(false, true);
  Processes ranks(2, [is_graph](int rank, tuttiComm_t host, Outcome& o) {
    const InPlace in = register_on_own_gpu(rank, host, o);
    if (in.comm == nullptr) return;
    GpuStream stream(*in.port);
    const auto add_up = [&](size_t count) {
      o.take(tuttiAllReduce(in.data, in.data, count, tuttiInt32, tuttiSum, in.comm, stream));
    };
    add_up(InPlace::kCount);
    stream.synchronize();
    FakeGraph graph;
    if (is_graph) in.port->begin_capture(stream.ref(), &graph);
    if (is_graph) add_up(10);
    if (is_graph) o.wrong += !in.port->end_capture(stream.ref());
    const auto add_up_few = [&] {
      if (!is_graph) return add_up(10);
      o.wrong += !in.port->launch(graph, stream.ref());
    };
    if (rank == 0) add_up_few();
    o.take(tuttiBarrier(host, nullptr));
    if (rank == 1) {
      o.take(tuttiCommDeregister(in.comm, in.handle));  // waits for rank 0 for a while
      add_up_few();
    }
    stream.synchronize();
    o.wrong += static_cast<size_t>(in.port->stuck_unmaps);
    o.take(tuttiBarrier(host, nullptr));
    o.take(tuttiCommDestroy(in.comm));
  });
  require_success(ranks.wait());
}

TEST_CASE("a rank that has captured operations lets go of others' memory as it deregisters what nobody has mapped") {
  Processes ranks(2, [](int rank, tuttiComm_t host, Outcome& o) {
    const InPlace in = register_on_own_gpu(rank, host, o);
    if (in.comm == nullptr) return;
    void* const unused = in.port->allocate(64).value();
    void* handle = nullptr;
    o.take(tuttiCommRegister(in.comm, unused, 64, &handle));
    GpuStream stream(*in.port);
    FakeGraph graph;
    add_up_and_capture(in, stream, &graph, host, o);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 1 waits for it by then
    o.take(tuttiCommDeregister(in.comm, rank == 0 ? handle : in.handle));
    in.port->free(rank == 0 ? unused : in.data);
    o.wrong += static_cast<size_t>(in.port->early_frees);
    o.take(tuttiBarrier(host, nullptr));
    o.take(tuttiCommDestroy(in.comm));
  });
  require_success(ranks.wait());
}

TEST_CASE("ranks that have captured operations let go of each other's memory as they deregister theirs") {
  Processes ranks(2, [](int rank, tuttiComm_t host, Outcome& o) {
    const InPlace in = register_on_own_gpu(rank, host, o);
    if (in.comm == nullptr) return;
    GpuStream stream(*in.port);
    FakeGraph graph;
    add_up_and_capture(in, stream, &graph, host, o);
    o.take(tuttiCommDeregister(in.comm, in.handle));
    in.port->free(in.data);
    o.wrong += static_cast<size_t>(in.port->early_frees);
    o.take(tuttiBarrier(host, nullptr));
    o.take(tuttiCommDestroy(in.comm));
  });
  require_success(ranks.wait());
}
#endif

TEST_CASE("one thread finalizes its ranks on GPUs one after the other, each alone and once its own work is done") {
  const int n_devices = GENERATE(1, 2);
  FakePort port(n_devices);
  tuttiComm_t comms[2];
  const int devices[2] = {0, n_devices - 1};
  REQUIRE(tuttiCommInitAll(comms, 2, devices) == tuttiSuccess);
  {
    GpuStream streams[2] = {GpuStream(port), GpuStream(port)};
    int32_t data[2][3] = {{1, 2, 3}, {10, 20, 30}};
    const auto sum = [&](int r) {
      return tuttiAllReduce(data[r], data[r], 3, tuttiInt32, tuttiSum, comms[r], streams[r]);
    };
    REQUIRE(tuttiGroupStart() == tuttiSuccess);
    for (int r = 0; r < 2; r++) REQUIRE(sum(r) == tuttiSuccess);
    REQUIRE(tuttiGroupEnd() == tuttiSuccess);
    for (int r = 0; r < 2; r++) {
      CHECK(tuttiCommFinalizeLocal(comms[r]) == tuttiSuccess);
      CHECK((data[r][0] == 11 && data[r][2] == 33));
      CHECK(sum(r) == tuttiInvalidUsage);
      CHECK(tuttiCommDestroy(comms[r]) == tuttiSuccess);
    }
  }
}
