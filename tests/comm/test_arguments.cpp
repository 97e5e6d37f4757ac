// Wrong arguments: a code, a message that names the argument and its value, and a communicator that still works.
#include "comm/ranks.h"

using namespace tutti_test;

namespace {

void check_refused(tuttiResult_t result, tuttiResult_t expected, const std::string& part) {
  const std::string message = tuttiGetLastError(nullptr);
  INFO(message);
  CHECK(result == expected);
  CHECK(message.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("wrong arguments of operations are named") {
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {};
  const auto reduce = [&](const void* send, void* recv, size_t count, int type, int op, tuttiComm_t c) {
    return tuttiAllReduce(send, recv, count, static_cast<tuttiDataType_t>(type), static_cast<tuttiRedOp_t>(op), c,
                          nullptr);
  };
  check_refused(reduce(nullptr, b, 8, tuttiFloat, tuttiSum, comm), tuttiInvalidArgument, "sendbuff is NULL");
  check_refused(reduce(a, nullptr, 8, tuttiFloat, tuttiSum, comm), tuttiInvalidArgument, "recvbuff is NULL");
  check_refused(reduce(a, b, 8, 12, tuttiSum, comm), tuttiInvalidArgument, "datatype=12");
  check_refused(reduce(a, b, 8, -1, tuttiSum, comm), tuttiInvalidArgument, "datatype=-1");
  check_refused(reduce(a, b, 8, tuttiFloat, 5, comm), tuttiInvalidArgument, "op=5");
  check_refused(reduce(a, b, SIZE_MAX / 2, tuttiFloat, tuttiSum, comm), tuttiInvalidArgument, "overflow");
  check_refused(reduce(a, a + 1, 4, tuttiFloat, tuttiSum, comm), tuttiInvalidArgument, "overlap");
  check_refused(reduce(a, b, 8, tuttiFloat, tuttiSum, nullptr), tuttiInvalidArgument, "comm is NULL");
  check_refused(tuttiBroadcast(a, b, 8, tuttiFloat, 1, comm, nullptr), tuttiInvalidArgument, "root=1");
  check_refused(tuttiBroadcast(a, b, 8, tuttiFloat, -1, comm, nullptr), tuttiInvalidArgument, "root=-1");
  check_refused(tuttiAllReduce(a, b, 8, tuttiFloat, tuttiSum, comm, reinterpret_cast<tuttiStream_t>(a)),
                tuttiInvalidArgument, "stream=");
  CHECK(reduce(nullptr, nullptr, 0, tuttiFloat, tuttiSum, comm) == tuttiSuccess);
  CHECK(reduce(a, b, 8, tuttiFloat, tuttiAvg, comm) == tuttiSuccess);
  CHECK(memcmp(a, b, sizeof a) == 0);

  CHECK(tuttiCommFinalize(comm) == tuttiSuccess);
  CHECK(tuttiCommFinalize(comm) == tuttiSuccess);
  check_refused(reduce(a, b, 8, tuttiFloat, tuttiSum, comm), tuttiInvalidUsage, "finalized");
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  check_refused(reduce(a, b, 8, tuttiFloat, tuttiSum, comm), tuttiInvalidArgument, "not a live communicator");
  check_refused(tuttiCommDestroy(comm), tuttiInvalidArgument, "not a live communicator");
}

TEST_CASE("blocks of unequal size that overlap are refused, but for in place") {
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const size_t four[] = {4}, two[] = {2}, none[] = {0}, far[] = {SIZE_MAX / 4};
  const auto gather = [&](const float* send) { return tuttiAllGatherv(send, a, four, two, tuttiFloat, comm, nullptr); };
  check_refused(gather(a + 1), tuttiInvalidArgument, "overlap");
  CHECK(gather(a + 2) == tuttiSuccess);
  const auto scatter = [&](float* recv) {
    return tuttiReduceScatterv(a, recv, four, tuttiFloat, tuttiSum, comm, nullptr);
  };
  check_refused(scatter(a + 3), tuttiInvalidArgument, "overlap");
  CHECK(scatter(a) == tuttiSuccess);
  const auto exchange = [&](const size_t* counts, const size_t* from, const size_t* to) {
    return tuttiAlltoAllv(a, counts, from, a, counts, to, tuttiFloat, comm, nullptr);
  };
  check_refused(exchange(four, none, two), tuttiInvalidArgument, "overlap");
  check_refused(exchange(four, none, none), tuttiInvalidArgument, "overlap");
  check_refused(exchange(four, none, far), tuttiInvalidArgument, "overflow");
  CHECK(exchange(four, none, four) == tuttiSuccess);
  for (size_t i = 0; i < 8; i++) CHECK(a[i] == static_cast<float>(i % 4 + 1));
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("wrong arguments of set-up are named") {
  const tuttiUniqueId id = new_id();
  tuttiUniqueId nonsense;
  memset(&nonsense, 0x5a, sizeof nonsense);
  tuttiComm_t comm = reinterpret_cast<tuttiComm_t>(1);
  check_refused(tuttiGetUniqueId(nullptr), tuttiInvalidArgument, "uniqueId is NULL");
  check_refused(tuttiCommInitRank(nullptr, 1, id, 0), tuttiInvalidArgument, "comm is NULL");
  check_refused(tuttiCommInitRank(&comm, 0, id, 0), tuttiInvalidArgument, "nranks=0");
  CHECK(comm == nullptr);
  check_refused(tuttiCommInitRank(&comm, 2, id, 2), tuttiInvalidArgument, "rank=2");
  check_refused(tuttiCommInitRank(&comm, 2, id, -1), tuttiInvalidArgument, "rank=-1");
  CHECK(tuttiCommInitRank(&comm, 2, nonsense, 0) == tuttiInvalidArgument);
  check_refused(tuttiCommInitAll(nullptr, 2, nullptr), tuttiInvalidArgument, "comms is NULL");
  const int devices[1] = {0};
  check_refused(tuttiCommInitAll(&comm, 1, devices), tuttiInvalidArgument, "devlist");

  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.magic = 0;
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument, "TUTTI_CONFIG_INITIALIZER");
  config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 0;
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument, "initTimeoutSeconds=0");
  config = TUTTI_CONFIG_INITIALIZER;
  config.algo = "magic";
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidUsage, "'magic'");
  config = TUTTI_CONFIG_INITIALIZER;
  config.transports = "shm,carrier-pigeon";
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidUsage, "carrier-pigeon");
}

TEST_CASE("wrong environment variables are named at creation") {
  const auto refuses = [](const char* name, const char* value) {
    setenv(name, value, 1);
    tuttiComm_t comm = nullptr;
    const tuttiResult_t result = tuttiCommInitAll(&comm, 1, nullptr);
    unsetenv(name);
    check_refused(result, tuttiInvalidUsage, name);
  };
  refuses("TUTTI_INIT_TIMEOUT", "soon");
  refuses("TUTTI_OP_TIMEOUT", "-1");
  refuses("TUTTI_SLOTS", "1");
  refuses("TUTTI_SLOT_BYTES", "12Q");
  refuses("TUTTI_TRANSPORTS", "rdma");
  refuses("TUTTI_ALGO", "best");
  refuses("TUTTI_CPU_ISA", "mmx");
  refuses("TUTTI_SOCKET_IFNAME", "nosuchif");
  refuses("TUTTI_LOG", "loud");
}

TEST_CASE("ranks whose settings differ are told so at creation") {
  tuttiConfig_t configs[2] = {TUTTI_CONFIG_INITIALIZER, TUTTI_CONFIG_INITIALIZER};
  configs[0].algo = "ring";
  configs[1].algo = "tree";
  const tuttiUniqueId id = new_id();
  Outcome outcomes[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      tuttiComm_t comm = nullptr;
      outcomes[r].take(tuttiCommInitRankConfig(&comm, 2, id, r, &configs[r]));
    });
  for (auto& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(outcome.message.find("TUTTI_ALGO") != std::string::npos);
  }
}

TEST_CASE("memory and streams are recognised when they come back") {
  void* block = nullptr;
  CHECK(tuttiMemAlloc(&block, 100000) == tuttiSuccess);
  CHECK(reinterpret_cast<uintptr_t>(block) % 4096 == 0);
  memset(block, 1, 100000);
  check_refused(tuttiMemFree(static_cast<char*>(block) + 1), tuttiInvalidArgument, "ptr=");
  CHECK(tuttiMemFree(block) == tuttiSuccess);
  check_refused(tuttiMemFree(block), tuttiInvalidArgument, "ptr=");
  CHECK(tuttiMemFree(nullptr) == tuttiSuccess);
  CHECK(tuttiMemAlloc(&block, 0) == tuttiSuccess);
  CHECK(block == nullptr);
  check_refused(tuttiMemAlloc(nullptr, 1), tuttiInvalidArgument, "ptr is NULL");
  CHECK(tuttiMemAlloc(&block, SIZE_MAX / 2) == tuttiSystemError);

  tuttiStream_t stream = nullptr;
  CHECK(tuttiStreamCreate(&stream) == tuttiSuccess);
  CHECK(tuttiStreamQuery(stream) == tuttiSuccess);
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  check_refused(tuttiStreamSynchronize(stream), tuttiInvalidArgument, "stream=");
  check_refused(tuttiStreamCreate(nullptr), tuttiInvalidArgument, "stream is NULL");

  int version = 0;
  CHECK(tuttiGetVersion(&version) == tuttiSuccess);
  CHECK(version == TUTTI_VERSION_CODE);
  check_refused(tuttiGetVersion(nullptr), tuttiInvalidArgument, "version is NULL");
  for (int code = 0; code <= tuttiNumResults; code++)
    CHECK(std::string(tuttiGetErrorString(static_cast<tuttiResult_t>(code))).size() > 3);
}
