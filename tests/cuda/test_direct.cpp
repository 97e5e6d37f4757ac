// GPU memory that network devices access directly. The GPUs are made up (fake.h), and so is the network
// (direct_plugin.cpp), which makes the memory inaccessible to the CPU while it works on it.
#include <cstdlib>

#include "beside.h"
#include "cuda/pieces.h"
#include "gpu_ranks.h"

using namespace tutti_test;
using tutti::Collective;
using tutti::DataType;
using tutti::Message;
using tutti::Operation;
using tutti::RedOp;

namespace {

class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;

 private:
  const char* const name_;
};

// Ranks that cannot map each other's memory, over a network that accesses it: the made-up one, or, with
// DIRECT_TEST_PLUGIN, the verbs plugin, whose devices really do.
const char* real_plugin() {
  return getenv("DIRECT_TEST_PLUGIN");
}
const std::string g_plugin = real_plugin() != nullptr ? real_plugin() : tutti_test::beside_program("direct_plugin.so");
struct Network {
  explicit Network(const char* direct = "2") : direct_("TUTTI_GPU_DIRECT", direct) {}
  Setting plugin_{"TUTTI_TRANSPORT_PLUGIN", g_plugin.c_str()},
      transports_{"TUTTI_TRANSPORTS", real_plugin() != nullptr ? "shm,verbs" : "shm,madeup"}, direct_;
};

// tuttiExplain's text for an all-reduce of `count` floats.
std::string explained(tuttiComm_t comm, size_t count) {
  char text[8192];
  size_t bytes = sizeof text;
  return tuttiExplain("tuttiAllReduce", count, tuttiFloat, tuttiSum, comm, text, &bytes) == tuttiSuccess ? text : "";
}

}  // namespace

TEST_CASE("pieces of operations stay in their room, and what is sent is received") {
  for (const int n : {2, 3, 8, 61})
    for (const size_t room_bytes : {size_t{1} << 20, size_t{64} << 20})
      for (const auto what :
           {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce, Collective::kAllGather,
            Collective::kReduceScatter, Collective::kAllToAll, Collective::kGather, Collective::kScatter})
        for (const uint64_t count : {uint64_t{1}, uint64_t{1001}, uint64_t{700'003}}) {
          Operation operation;
          operation.collective = what;
          operation.count = count;
          operation.dtype = DataType::kFloat32;
          operation.op = n == 3 ? RedOp::kPreMulSum : RedOp::kSum;
          operation.root = n / 2;
          INFO(tutti::traits(what).name << " " << count << " of " << n << " in " << room_bytes);
          operation.input = reinterpret_cast<void*>(uintptr_t{1} << 40);
          operation.output = reinterpret_cast<void*>(uintptr_t{2} << 40);
          // Messages by sender and receiver, in order.
          std::map<std::pair<int, int>, std::vector<uint64_t>> sent, received;
          bool stays = true;
          char* const room = reinterpret_cast<char*>(uintptr_t{3} << 40);
          for (int r = 0; r < n; r++) {
            const tutti::cuda::DirectPlan plan(operation, r, n, room_bytes);
            for (size_t i = 0; i < std::min<size_t>(plan.pieces(), 3); i++) {
              const auto piece = plan.piece(i, room);
              for (const auto* list : {&piece.collect, &piece.spread})
                for (const Message& m : *list) {
                  const char* const data = static_cast<const char*>(m.data);
                  stays = stays && data >= room && data + m.count <= room + room_bytes;
                  if (m.sends)
                    sent[{r, m.peer}].push_back(m.count);
                  else
                    received[{m.peer, r}].push_back(m.count);
                }
            }
          }
          CHECK(stays);
          CHECK(sent == received);
          CHECK_FALSE(sent.empty());
        }
}

TEST_CASE("pieces of blocks of unequal size end with their block") {
  constexpr int n = 3;
  auto blocks = std::make_shared<Operation::Unequal>();
  blocks->elems = {1, 700'003, 33};
  blocks->at = {0, 1, 700'004};
  Operation operation;
  operation.collective = Collective::kAllGather;
  operation.count = 700'037;
  operation.dtype = DataType::kFloat32;
  operation.unequal = blocks;
  operation.input = reinterpret_cast<void*>(uintptr_t{1} << 40);
  operation.output = reinterpret_cast<void*>(uintptr_t{2} << 40);
  for (int r = 0; r < n; r++) {
    const tutti::cuda::DirectPlan plan(operation, r, n, size_t{1} << 20);
    CHECK(plan.pieces() > 1);
    uint64_t sent_bytes = 0;
    for (size_t i = 0; i < plan.pieces(); i++)
      for (const Message& m : plan.piece(i, reinterpret_cast<char*>(uintptr_t{3} << 40)).spread)
        sent_bytes += m.sends ? m.count : 0;
    CHECK(sent_bytes == (n - 1) * sizeof(float) * blocks->elems[static_cast<size_t>(r)]);
  }
}

TEST_CASE("messages of a rank to itself meet in their order, and the network sees none of them") {
  Operation operation;
  operation.collective = Collective::kSendRecv;
  int32_t from[3] = {}, to[3] = {};
  auto messages = std::make_shared<std::vector<Message>>();
  for (const size_t i : {0, 1, 2}) messages->push_back({true, 1, &from[i], 1, DataType::kInt32});
  for (const size_t i : {0, 1, 2}) messages->push_back({false, 1, &to[i], 1, DataType::kInt32});
  operation.messages = messages;
  char room[64];
  const auto piece = tutti::cuda::direct_messages(operation, 1, room);
  CHECK(piece.collect.empty());
  CHECK(piece.in.empty());
  REQUIRE(piece.out.size() == 3);
  for (const size_t i : {0, 1, 2}) CHECK((piece.out[i].from == &from[i] && piece.out[i].to == &to[i]));
}

TEST_CASE("all collectives from GPU to GPU by a network, without the CPU", "[network]") {
  for (const int n : {2, 3, 5}) {
    if (kSanitized && n == 3) continue;
    FakePort port(n);
    const Network network;
    require_success(run_gpu_threads(port, n, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
      GpuStream stream(port);
      uint32_t seed = 1;
      for (int collective = 0; collective < kCollectiveCases; collective++)
        for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1001}, size_t{100'003}}) {
          const Case c{collective, count, tuttiFloat, tuttiSum, static_cast<int>(seed) % n};
          compare(c, r, n, gpu, host, stream, o, seed++);
        }
    }));
    CHECK(port.flushes > n * kCollectiveCases * 4);  // only messages over the network need flushes
  }
}

TEST_CASE("all types and operators by a network", "[network]") {
  FakePort port(3);
  const Network network;
  require_success(run_gpu_threads(port, 3, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    GpuStream stream(port);
    uint32_t seed = 1;
    for (const int collective : {0, 2, 4})
      for (int type = 0; type < tuttiNumTypes; type++)
        for (int op = 0; op < tuttiNumOps; op++) {
          const Case c{collective, 1000 + seed % 5, static_cast<tuttiDataType_t>(type), static_cast<tuttiRedOp_t>(op),
                       1};
          compare(c, r, 3, gpu, host, stream, o, seed++);
        }
  }));
}

TEST_CASE("factors of the ranks' own by a network", "[network]") {
  FakePort port(3);
  const Network network;
  require_success(run_gpu_threads(port, 3, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    GpuStream stream(port);
    for (const tuttiComm_t comm : {gpu, host}) {
      float factor = 0.5f + static_cast<float>(r);
      tuttiRedOp_t op;
      o.take(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, tuttiScalarHostImmediate, comm));
      std::vector<float> data(5000, 3);
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, op, comm,
                            comm == gpu ? tuttiStream_t(stream) : nullptr));
      stream.synchronize();
      for (const float value : data) o.wrong += value != 3 * (0.5f + 1.5f + 2.5f);
      o.take(tuttiRedOpDestroy(op, comm));
    }
  }));
}

TEST_CASE("operations that are larger than the room for them by a network", "[network]") {
  FakePort port(2);
  const Network network("1");
  require_success(run_gpu_threads(port, 2, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    GpuStream stream(port);
    uint32_t seed = 1;
    for (const int collective : {0, 1, 4, 5}) {
      if (kSanitized && collective % 4 != 0) continue;
      compare({collective, (18 << 17) + 5, tuttiDouble, tuttiMax, 1}, r, 2, gpu, host, stream, o, seed++);
    }
  }));
  CHECK(port.flushes > 0);
}

TEST_CASE("what is small goes through the host's memory if that is left to choose", "[network]") {
  FakePort port(2);
  for (const bool always : {false, true}) {
    const Network network(always ? "2" : "1");
    require_success(run_gpu_threads(port, 2, Seats::kStaged, [&](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      const auto goes = [&](size_t count, const char* way) {
        o.wrong += explained(gpu, count).find(way) == std::string::npos;
      };
      goes(16'383, always ? "GPUDirect RDMA), because" : "through host memory, because");
      goes(16'384, "GPUDirect RDMA), because");
    }));
  }
}

TEST_CASE("ranks of one process that share a GPU do not go by a network, where their streams would wait") {
  FakePort port(2);
  const Network network;
  require_success(run_gpu_threads(port, 4, Seats::kStagedPairs, [&](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    const std::string story = explained(gpu, 100'000);
    o.wrong += !contains(story, "through host memory, because");
    o.wrong += !contains(story, "(GPUDirect RDMA): ranks of one process share a GPU");
  }));
}

TEST_CASE("where streams cannot wait for memory, calls wait, whatever the network can do") {
  FakePort port(2);
  port.has_no_words = true;
  const Network network;
  require_success(run_gpu_threads(port, 2, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    GpuStream stream(port);
    uint32_t seed = 1;
    for (int collective = 0; collective < kCollectiveCases; collective++)
      compare({collective, 100'003}, r, 2, gpu, host, stream, o, seed++);
  }));
}

TEST_CASE("messages by a network, in groups, and of a rank to itself", "[network]") {
  FakePort port(3);
  const Network network("1");
  require_success(run_gpu_threads(port, 3, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    GpuStream stream(port);
    // 20 MB and 40 MB together exceed the first room, as other tests' operations do. A real network is emulated
    // here, and slow.
    const size_t most = kSanitized || real_plugin() != nullptr ? 20'003 : 2'500'003;
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1001}, most}) {
      std::vector<int64_t> out(count + 1, r), from_left(count + 1, -1), own(count + 1, -1), far(2 * count + 1, -1);
      const std::vector<int64_t> to_left(2 * count + 1, 10 + r);
      o.take(tuttiGroupStart());
      o.take(tuttiSend(out.data(), count, tuttiInt64, (r + 1) % 3, gpu, stream));
      o.take(tuttiRecv(from_left.data(), count, tuttiInt64, (r + 2) % 3, gpu, stream));
      o.take(tuttiSend(out.data(), count, tuttiInt64, r, gpu, stream));
      o.take(tuttiRecv(own.data(), count, tuttiInt64, r, gpu, stream));
      o.take(tuttiSend(to_left.data(), 2 * count, tuttiInt64, (r + 2) % 3, gpu, stream));
      o.take(tuttiRecv(far.data(), 2 * count, tuttiInt64, (r + 1) % 3, gpu, stream));
      o.take(tuttiGroupEnd());
      stream.synchronize();
      const auto is_right = [](const std::vector<int64_t>& received, int64_t value) {
        std::vector<int64_t> wanted(received.size() - 1, value);
        wanted.push_back(-1);  // the guard after the received data
        return received == wanted;
      };
      o.wrong += !is_right(from_left, (r + 2) % 3) || !is_right(own, r) || !is_right(far, 10 + (r + 1) % 3);
    }
  }));
  CHECK(port.flushes > 9);
}

TEST_CASE("a graph that goes by a network is replayed", "[network]") {
  FakePort port(2);
  const Network network;
  require_success(run_gpu_threads(port, 2, Seats::kStaged, [&](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    GpuStream stream(port);
    std::vector<int32_t> data(3001, 1), other(3001, 1);
    FakeGraph graph;
    port.begin_capture(stream.ref(), &graph);
    o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, gpu, stream));
    port.end_capture(&graph);
    for (int i = 0; i < 5; i++) {
      (void)port.launch(graph, stream.ref());
      o.take(tuttiAllReduce(other.data(), other.data(), other.size(), tuttiInt32, tuttiSum, gpu, stream));
    }
    stream.synchronize();
    for (size_t i = 0; i < data.size(); i++) o.wrong += data[i] != 32 || other[i] != 32;
  }));
}

TEST_CASE("a graph of messages by a network is replayed after others have needed more room", "[network]") {
  FakePort port(2);
  const Network network("1");
  require_success(run_gpu_threads(port, 2, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    std::vector<int32_t> out(1000, r), in(1000, -1);
    // Both directions exceed the first room, except on the emulated network.
    std::vector<char> much(real_plugin() != nullptr ? 40'000 : 40 << 20, 'x'), as_much(much.size());
    GpuStream stream(port);
    const auto swap = [&](const void* from, void* to, size_t bytes) {
      o.take(tuttiGroupStart());
      o.take(tuttiSend(from, bytes, tuttiInt8, 1 - r, gpu, stream));
      o.take(tuttiRecv(to, bytes, tuttiInt8, 1 - r, gpu, stream));
      o.take(tuttiGroupEnd());
    };
    FakeGraph graph;
    port.begin_capture(stream.ref(), &graph);
    swap(out.data(), in.data(), out.size() * sizeof out[0]);
    port.end_capture(&graph);
    swap(much.data(), as_much.data(), much.size());
    (void)port.launch(graph, stream.ref());
    stream.synchronize();
    for (const int32_t value : in) o.wrong += value != 1 - r;
    o.wrong += as_much != much;
  }));
}

TEST_CASE("where one rank cannot, all go through the host's memory, and say why") {
  struct Trouble {
    const char *direct, *network, *reason;
    bool has_no_dmabufs;
  };
  for (const Trouble& trouble :
       {Trouble{"0", "", "TUTTI_GPU_DIRECT=0 on some rank", false},
        Trouble{"2", "refuses 1", "rank 1: shm: it cannot bypass the CPU; madeup: registering", false},
        Trouble{"2", "loses", "to this GPU's memory does not arrive", false},
        Trouble{"2", "", "this GPU has no dmabufs", true}}) {
    FakePort port(3);
    port.has_no_dmabufs = trouble.has_no_dmabufs;
    const Network network(trouble.direct);
    const Setting made_up("MADE_UP_NETWORK", trouble.network);
    std::string story;
    int before = 0;
    require_success(run_gpu_threads(port, 3, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
      if (r == 2) {
        before = port.flushes;
        story = explained(gpu, 1000);
      }
      GpuStream stream(port);
      compare({0, 100'003, tuttiFloat, tuttiSum, 0}, r, 3, gpu, host, stream, o, 1);
    }));
    INFO(story);
    CHECK(port.flushes == before);
    CHECK(story.find("through host memory") != std::string::npos);
    CHECK(story.find(trouble.reason) != std::string::npos);
  }
}

TEST_CASE("a GPU that no longer sees what the network writes breaks the communicator on all ranks", "[network]") {
  FakePort port(2);
  const Network network;
  port.fails_flushes = 8;  // two of them for the probe
  const auto outcomes = run_gpu_threads(port, 2, Seats::kStaged, [&](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    std::vector<float> data(1000);
    GpuStream stream(port);
    tuttiResult_t state = tuttiSuccess;
    for (int i = 0; i < 1000 && state == tuttiSuccess; i++) {
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, gpu, stream));
      stream.synchronize();
      (void)tuttiCommGetAsyncError(gpu, &state);
    }
    if (o.code == tuttiSuccess) o.code = state;
  });
  for (const Outcome& o : outcomes) CHECK(o.code == tuttiUnhandledCudaError);
}

TEST_CASE("ranks that call different things by a network are told so", "[network]") {
  FakePort port(2);
  const Network network;
  for (const bool gathers : {false, true}) {
    const auto outcomes =
        run_gpu_threads(port, 2, Seats::kStaged, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
          std::vector<float> data(4000), more(8000);
          GpuStream stream(port);
          if (gathers && r == 1)
            o.take(tuttiAllGather(data.data(), more.data(), 4000, tuttiFloat, gpu, stream));
          else
            o.take(tuttiAllReduce(data.data(), data.data(), r == 0 ? 4000 : 3000, tuttiFloat, tuttiSum, gpu, stream));
          stream.synchronize();
          tuttiResult_t state = tuttiSuccess;
          (void)tuttiCommGetAsyncError(gpu, &state);
          o.code = state;
          o.message = tuttiGetLastError(gpu);
        });
    for (const Outcome& o : outcomes) {
      INFO(o.message);
      CHECK(o.code == tuttiInvalidUsage);
      CHECK(o.message.find(gathers ? "AllGather(count=4000" : "count=3000") != std::string::npos);
    }
  }
}

TEST_CASE("aborting frees a stream that waits for the network", "[network]") {
  FakePort port(2);
  const Network network;
  require_abort_frees(port, Seats::kStaged, 1);
}

namespace {

// The made-up network does not reach other processes, so these messages are staged.
bool goes_directly(tuttiComm_t comm) {
  return real_plugin() == nullptr || explained(comm, 100'000).find("GPUDirect RDMA), because") != std::string::npos;
}

// Outcomes of ranks on GPUs, each a process.
std::vector<Outcome> run_by_network(int n, const std::function<void(FakePort&, int, tuttiComm_t, Outcome&)>& body) {
  FakePort port(1);
  port.refuses_maps = true;
  const Network network;
  const tuttiConfig_t config = first_gpu();
  Processes processes(
      n,
      [&](int r, tuttiComm_t comm, Outcome& o) {
        o.wrong += !goes_directly(comm);
        body(port, r, comm, o);
      },
      &config);
  return processes.wait();
}

}  // namespace

TEST_CASE("processes by a network", "[network]") {
  require_success(run_by_network(4, [](FakePort& port, int r, tuttiComm_t comm, Outcome& o) {
    GpuStream stream(port);
    for (const size_t count : {size_t{1}, size_t{1001}, size_t{1'500'003}}) {
      std::vector<int32_t> sum(count, r + 1), all(count * 4, -1), mine(count, r), block(count, -1);
      o.take(tuttiAllReduce(sum.data(), sum.data(), count, tuttiInt32, tuttiSum, comm, stream));
      o.take(tuttiAllGather(mine.data(), all.data(), count, tuttiInt32, comm, stream));
      o.take(tuttiReduceScatter(all.data(), block.data(), count, tuttiInt32, tuttiSum, comm, stream));
      stream.synchronize();
      for (size_t i = 0; i < count; i++) o.wrong += sum[i] != 10 || block[i] != 4 * r;
      for (size_t i = 0; i < 4 * count; i++) o.wrong += all[i] != static_cast<int>(i / count);
    }
  }));
}

TEST_CASE("a process that dies frees the streams that wait for the network", "[network]") {
  check_gpu_survivors(run_by_network(3, [](FakePort& port, int r, tuttiComm_t comm, Outcome& o) {
    std::vector<float> data(500'000);
    GpuStream stream(port);
    tuttiResult_t state = tuttiSuccess;
    for (int i = 0; i < 100'000 && state == tuttiSuccess; i++) {
      if (r == 1 && i == 5) kill(getpid(), SIGKILL);
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, comm, stream));
      stream.synchronize();
      (void)tuttiCommGetAsyncError(comm, &state);
    }
    o.wrong += state != tuttiRemoteError;
    o.take(tuttiCommAbort(comm));
  }));
}
