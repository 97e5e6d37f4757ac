// Wrong arguments: a code, a message that names the argument and its value, and a communicator that still works.
#include "comm/ranks.h"

#include <cstddef>

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
  check_refused(exchange(four, two, none), tuttiInvalidArgument, "overlap");
  check_refused(exchange(four, none, none), tuttiInvalidArgument, "overlap");
  check_refused(exchange(four, none, far), tuttiInvalidArgument, "overflow");
  CHECK(exchange(four, none, four) == tuttiSuccess);
  for (size_t i = 0; i < 8; i++) CHECK(a[i] == static_cast<float>(i % 4 + 1));
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

namespace {

// The arguments of a call. Each case makes one of them wrong.
struct Call {
  const void* send;
  void* recv;
  size_t count = 2;
  int type = tuttiFloat, op = tuttiSum, rank = 0;  // the root or peer
  tuttiComm_t comm;
  tuttiStream_t stream = nullptr;

  tuttiDataType_t datatype() const { return static_cast<tuttiDataType_t>(type); }
  tuttiRedOp_t redop() const { return static_cast<tuttiRedOp_t>(op); }
};

struct Function {
  const char* name;
  tuttiResult_t (*call)(const Call&);
  bool sends, receives, reduces, has_root;
};
const Function kFunctions[] = {
    {"AllReduce",
     [](const Call& c) { return tuttiAllReduce(c.send, c.recv, c.count, c.datatype(), c.redop(), c.comm, c.stream); },
     true, true, true, false},
    {"Broadcast",
     [](const Call& c) { return tuttiBroadcast(c.send, c.recv, c.count, c.datatype(), c.rank, c.comm, c.stream); },
     true, true, false, true},
    {"Bcast", [](const Call& c) { return tuttiBcast(c.recv, c.count, c.datatype(), c.rank, c.comm, c.stream); }, false,
     true, false, true},
    {"Reduce",
     [](const Call& c) {
       return tuttiReduce(c.send, c.recv, c.count, c.datatype(), c.redop(), c.rank, c.comm, c.stream);
     },
     true, true, true, true},
    {"AllGather", [](const Call& c) { return tuttiAllGather(c.send, c.recv, c.count, c.datatype(), c.comm, c.stream); },
     true, true, false, false},
    {"ReduceScatter",
     [](const Call& c) {
       return tuttiReduceScatter(c.send, c.recv, c.count, c.datatype(), c.redop(), c.comm, c.stream);
     },
     true, true, true, false},
    {"AlltoAll", [](const Call& c) { return tuttiAlltoAll(c.send, c.recv, c.count, c.datatype(), c.comm, c.stream); },
     true, true, false, false},
    {"Gather",
     [](const Call& c) { return tuttiGather(c.send, c.recv, c.count, c.datatype(), c.rank, c.comm, c.stream); }, true,
     true, false, true},
    {"Scatter",
     [](const Call& c) { return tuttiScatter(c.send, c.recv, c.count, c.datatype(), c.rank, c.comm, c.stream); }, true,
     true, false, true},
    {"AllGatherv",
     [](const Call& c) {
       const size_t none = 0;
       return tuttiAllGatherv(c.send, c.recv, &c.count, &none, c.datatype(), c.comm, c.stream);
     },
     true, true, false, false},
    {"ReduceScatterv",
     [](const Call& c) {
       return tuttiReduceScatterv(c.send, c.recv, &c.count, c.datatype(), c.redop(), c.comm, c.stream);
     },
     true, true, true, false},
    {"AlltoAllv",
     [](const Call& c) {
       const size_t none = 0;
       return tuttiAlltoAllv(c.send, &c.count, &none, c.recv, &c.count, &none, c.datatype(), c.comm, c.stream);
     },
     true, true, false, false},
    {"Send", [](const Call& c) { return tuttiSend(c.send, c.count, c.datatype(), c.rank, c.comm, c.stream); }, true,
     false, false, true},
    {"Recv", [](const Call& c) { return tuttiRecv(c.recv, c.count, c.datatype(), c.rank, c.comm, c.stream); }, false,
     true, false, true}};

}  // namespace

TEST_CASE("every operation names a wrong buffer, count, type, operator, root, peer, communicator and stream") {
  tuttiComm_t comm = nullptr, dead = nullptr;
  tuttiStream_t gone = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiCommInitAll(&dead, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiCommDestroy(dead) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&gone) == tuttiSuccess);
  REQUIRE(tuttiStreamDestroy(gone) == tuttiSuccess);
  float a[8] = {}, b[8] = {};
  const Call good{a, b, 2, tuttiFloat, tuttiSum, 0, comm, nullptr};
  for (const Function& f : kFunctions) {
    INFO(f.name);
    const auto refuses = [&](const char* part, auto&& spoil) {
      Call call = good;
      spoil(call);
      check_refused(f.call(call), tuttiInvalidArgument, part);
    };
    if (f.sends) refuses("sendbuff is NULL", [](Call& c) { c.send = nullptr; });
    if (f.receives)
      refuses(strcmp(f.name, "Bcast") == 0 ? "buff is NULL" : "recvbuff is NULL", [](Call& c) { c.recv = nullptr; });
    refuses("=4611686018427387904", [](Call& c) { c.count = size_t{1} << 62; });
    refuses("=18446744073709551615", [](Call& c) { c.count = SIZE_MAX; });
    refuses("datatype=12", [](Call& c) { c.type = tuttiNumTypes; });
    refuses("datatype=-3", [](Call& c) { c.type = -3; });
    if (f.reduces) refuses("op=5", [](Call& c) { c.op = tuttiNumOps; });
    if (f.reduces) refuses("op=-1", [](Call& c) { c.op = -1; });
    if (f.reduces) refuses("op=2147483647", [](Call& c) { c.op = tuttiMaxRedOp; });
    if (f.has_root) refuses("=1 is not a rank", [](Call& c) { c.rank = 1; });
    if (f.has_root) refuses("=-7 is not a rank", [](Call& c) { c.rank = -7; });
    refuses("comm is NULL", [](Call& c) { c.comm = nullptr; });
    refuses("is not a live communicator", [&](Call& c) { c.comm = dead; });
    refuses("is not a live stream", [&](Call& c) { c.stream = gone; });
    if (f.sends && f.receives)
      refuses("overlap", [&](Call& c) { c.recv = static_cast<float*>(const_cast<void*>(c.send)) + 1; });
    // A group does not collect a wrong call, and tuttiGroupEnd reports it, too.
    CHECK(tuttiGroupStart() == tuttiSuccess);
    refuses("datatype=12", [](Call& c) { c.type = tuttiNumTypes; });
    refuses("is not a live stream", [&](Call& c) { c.stream = gone; });
    check_refused(tuttiGroupEnd(), tuttiInvalidArgument, "datatype=12");
  }
  check_refused(tuttiBarrier(nullptr, nullptr), tuttiInvalidArgument, "comm is NULL");
  check_refused(tuttiBarrier(dead, nullptr), tuttiInvalidArgument, "is not a live communicator");
  check_refused(tuttiBarrier(comm, gone), tuttiInvalidArgument, "is not a live stream");
  for (const Function& f : kFunctions) {  // none of these calls did any harm
    INFO(f.name);
    if (!f.sends || !f.receives) continue;
    CHECK(f.call(good) == tuttiSuccess);
  }
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("wrong blocks of unequal size are named with their values") {
  require_success(run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    float a[8] = {}, b[8] = {};
    const auto refused = [&](tuttiResult_t result, const char* part) {
      outcome.wrong += result != tuttiInvalidArgument || !strstr(tuttiGetLastError(nullptr), part);
    };
    const size_t two[] = {2, 2}, overlapping[] = {0, 1}, apart[] = {0, 2}, huge[] = {2, SIZE_MAX};
    const auto gather = [&](const size_t* counts, const size_t* displs) {
      return tuttiAllGatherv(a, b, counts, displs, tuttiFloat, comm, nullptr);
    };
    refused(gather(two, overlapping), "recvcounts[0]=2 at displs[0]=0 and recvcounts[1]=2 at displs[1]=1 overlap");
    refused(gather(huge, apart), "recvcounts[1]=18446744073709551615");
    refused(gather(two, huge), "displs[1]=18446744073709551615");
    refused(gather(nullptr, apart), "recvcounts is NULL");
    refused(gather(two, nullptr), "displs is NULL");
    refused(tuttiAllGatherv(b + 2 * (1 - rank), b, two, apart, tuttiFloat, comm, nullptr), "overlap");  // the other's
    refused(tuttiReduceScatterv(a, b, huge, tuttiFloat, tuttiSum, comm, nullptr), "recvcounts[1]=18446744073709551615");
    refused(tuttiReduceScatterv(a, b, nullptr, tuttiFloat, tuttiSum, comm, nullptr), "recvcounts is NULL");
    const auto exchange = [&](const size_t* sends, const size_t* from, const size_t* recvs, const size_t* to) {
      return tuttiAlltoAllv(a, sends, from, b, recvs, to, tuttiFloat, comm, nullptr);
    };
    refused(exchange(nullptr, apart, two, apart), "sendcounts is NULL");
    refused(exchange(two, nullptr, two, apart), "sdispls is NULL");
    refused(exchange(two, apart, nullptr, apart), "recvcounts is NULL");
    refused(exchange(two, apart, two, nullptr), "rdispls is NULL");
    refused(exchange(huge, apart, two, apart), "sendcounts[1]=18446744073709551615");
    refused(exchange(two, huge, two, apart), "sdispls[1]=18446744073709551615");
    refused(exchange(two, apart, two, huge), "rdispls[1]=18446744073709551615");
    refused(exchange(two, apart, two, overlapping),
            "recvcounts[0]=2 at rdispls[0]=0 and recvcounts[1]=2 at rdispls[1]=1 overlap");
    const size_t six_and_one[] = {6, 1}, behind_the_one[] = {3, 6};
    refused(tuttiAlltoAllv(a, six_and_one, overlapping, a, two, behind_the_one, tuttiFloat, comm, nullptr),
            "overlap in memory (sendbuff and recvbuff; at ");
    outcome.take(exchange(two, overlapping, two, apart));  // blocks to send may overlap
    const size_t first_only[] = {2, 0};
    outcome.take(gather(first_only, huge));  // displs of empty blocks are ignored
    const size_t nothing[] = {0, 0};
    outcome.take(exchange(first_only, huge, rank == 0 ? two : nothing, rank == 0 ? apart : huge));
  }));
}

namespace {

void invalid(tuttiResult_t result, const char* part) {
  check_refused(result, tuttiInvalidArgument, part);
}

}  // namespace

TEST_CASE("wrong communicators and pointers of all other functions are named") {
  tuttiComm_t comm = nullptr, made = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  std::vector<uint64_t> zeros(64);
  const auto no_comm = reinterpret_cast<tuttiComm_t>(zeros.data());
  int number = 0;
  tuttiResult_t state = tuttiSuccess;
  for (const auto& [handle, part] :
       {std::pair{tuttiComm_t{}, "comm is NULL"}, {no_comm, "is not a live communicator"}}) {
    invalid(tuttiCommCount(handle, &number), part);
    invalid(tuttiCommUserRank(handle, &number), part);
    invalid(tuttiCommFinalize(handle), part);
    invalid(tuttiCommFinalizeLocal(handle), part);
    invalid(tuttiCommDestroy(handle), part);
    invalid(tuttiCommAbort(handle), part);
    invalid(tuttiCommGetAsyncError(handle, &state), part);
    invalid(tuttiCommSplit(handle, 0, 0, &made, nullptr), part);
    CHECK(tuttiGetLastError(handle) == std::string(tuttiGetLastError(nullptr)));
  }
  invalid(tuttiCommCount(comm, nullptr), "count is NULL");
  invalid(tuttiCommUserRank(comm, nullptr), "rank is NULL");
  invalid(tuttiCommGetAsyncError(comm, nullptr), "asyncError is NULL");
  invalid(tuttiCommSplit(comm, 0, 0, nullptr, nullptr), "newcomm is NULL");
  invalid(tuttiCommSplit(comm, -2, 0, &made, nullptr), "color=-2");
  invalid(tuttiCommSplit(comm, INT32_MIN, 0, &made, nullptr), "color=-2147483648");
  invalid(tuttiCommInitFromEnv(nullptr, nullptr), "comm is NULL");
  check_refused(tuttiGroupEnd(), tuttiInvalidUsage, "without tuttiGroupStart");
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a dead handle stays dead while other communicators come and go") {
  tuttiComm_t dead = nullptr;
  int count = 0;
  REQUIRE(tuttiCommInitAll(&dead, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiCommDestroy(dead) == tuttiSuccess);
  for (int i = 0; i < 3; i++) {
    tuttiComm_t comm = nullptr;
    REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
    CHECK(comm != dead);
    invalid(tuttiCommCount(dead, &count), "is not a live communicator");
    CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  }
}

TEST_CASE("wrong streams and events are named") {
  tuttiStream_t stream = nullptr;
  tuttiEvent_t event = nullptr;
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  REQUIRE(tuttiEventCreate(&event) == tuttiSuccess);
  const auto as_stream = reinterpret_cast<tuttiStream_t>(event);  // handles of the wrong kind
  const auto as_event = reinterpret_cast<tuttiEvent_t>(stream);
  const auto ignore = [](tuttiStream_t, tuttiResult_t, void*) {};
  for (const auto& [handle, part] :
       {std::pair{tuttiStream_t{}, "stream is NULL"}, {as_stream, "is not a live stream"}}) {
    invalid(tuttiStreamSynchronize(handle), part);
    invalid(tuttiStreamQuery(handle), part);
    invalid(tuttiStreamDestroy(handle), part);
    invalid(tuttiStreamAddCallback(handle, ignore, nullptr), part);
  }
  invalid(tuttiEventRecord(event, as_stream), "is not a live stream");
  invalid(tuttiStreamWaitEvent(as_stream, event), "is not a live stream");
  invalid(tuttiStreamAddCallback(stream, nullptr, nullptr), "callback is NULL");
  for (const auto& [handle, part] : {std::pair{tuttiEvent_t{}, "event is NULL"}, {as_event, "is not a live event"}}) {
    invalid(tuttiEventRecord(handle, stream), part);
    invalid(tuttiEventQuery(handle), part);
    invalid(tuttiEventSynchronize(handle), part);
    invalid(tuttiEventDestroy(handle), part);
    invalid(tuttiStreamWaitEvent(stream, handle), part);
  }
  invalid(tuttiEventCreate(nullptr), "event is NULL");
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  CHECK(tuttiEventDestroy(event) == tuttiSuccess);
  invalid(tuttiEventRecord(event, nullptr), "is not a live event");
}

TEST_CASE("a communicator that goes takes along what its thread's group has collected for it") {
  for (const bool abort : {false, true}) {
    float data = 1;
    tuttiComm_t made = nullptr;
    REQUIRE(tuttiCommInitAll(&made, 1, nullptr) == tuttiSuccess);
    CHECK(tuttiGroupStart() == tuttiSuccess);
    CHECK(tuttiAllReduce(&data, &data, 1, tuttiFloat, tuttiSum, made, nullptr) == tuttiSuccess);
    CHECK(tuttiCommFinalize(made) == tuttiSuccess);
    CHECK((abort ? tuttiCommAbort(made) : tuttiCommDestroy(made)) == tuttiSuccess);
    check_refused(tuttiGroupEnd(), tuttiInvalidUsage, "was destroyed");
  }
}

TEST_CASE("a communicator that goes takes along what its thread's group was to make from it") {
  using Make = tuttiResult_t (*)(tuttiComm_t, tuttiComm_t*);
  const Make all[] = {
      [](tuttiComm_t comm, tuttiComm_t* made) { return tuttiCommSplit(comm, 0, 0, made, nullptr); },
      [](tuttiComm_t comm, tuttiComm_t* made) {
        const int me = 0;
        return tuttiCommCreateGroup(comm, &me, 1, made, nullptr);
      },
      [](tuttiComm_t comm, tuttiComm_t* made) { return tuttiCommShrink(comm, nullptr, 0, made, nullptr, 0); },
      [](tuttiComm_t comm, tuttiComm_t* made) { return tuttiCommGrow(comm, 1, nullptr, -1, made, nullptr); }};
  for (const Make make : all)
    for (const bool abort : {false, true}) {
      tuttiComm_t comm = nullptr, made = nullptr;
      REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
      CHECK(tuttiGroupStart() == tuttiSuccess);
      CHECK(make(comm, &made) == tuttiSuccess);
      CHECK((abort ? tuttiCommAbort(comm) : tuttiCommDestroy(comm)) == tuttiSuccess);
      check_refused(tuttiGroupEnd(), tuttiInvalidUsage, "was destroyed");
      CHECK(made == nullptr);
    }
}

TEST_CASE("wrong arguments of set-up are named") {
  const tuttiUniqueId id = id_of_few();
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
  const int devices[1] = {-2};
  check_refused(tuttiCommInitAll(&comm, 1, devices), tuttiInvalidArgument, "devlist[0]=-2");

  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.magic = 0;
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument, "TUTTI_CONFIG_INITIALIZER");
  config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 0;
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument, "initTimeoutSeconds=0");
  const auto refuses_value = [&](int tuttiConfig_t::*field, int value, const char* part) {
    config = TUTTI_CONFIG_INITIALIZER;
    config.*field = value;
    check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument, part);
  };
  refuses_value(&tuttiConfig_t::opTimeoutSeconds, -5, "opTimeoutSeconds=-5");
  refuses_value(&tuttiConfig_t::opTimeoutSeconds, 0, "opTimeoutSeconds=0");
  refuses_value(&tuttiConfig_t::deterministic, 2, "deterministic=2");
  refuses_value(&tuttiConfig_t::blocking, -1, "blocking=-1");
  refuses_value(&tuttiConfig_t::cudaDevice, -2, "cudaDevice=-2");
  config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = 1000;  // there is no such device, or no CUDA
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidUsage, "cudaDevice=1000");
  config = TUTTI_CONFIG_INITIALIZER;
  config.size = 8;
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument, "TUTTI_CONFIG_INITIALIZER");
  check_refused(tuttiCommInitRank(&comm, INT32_MAX, id, 0), tuttiInvalidArgument, "2147483647");
  check_refused(tuttiCommInitAll(&comm, -1, nullptr), tuttiInvalidArgument, "ndev=-1");
  config = TUTTI_CONFIG_INITIALIZER;
  config.algo = "magic";
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidUsage, "'magic'");
  config = TUTTI_CONFIG_INITIALIZER;
  config.transports = "shm,carrier-pigeon";
  check_refused(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidUsage, "carrier-pigeon");
}

TEST_CASE("a configuration of an older or a newer header is read as far as both sides know it") {
  tuttiConfig_t older = TUTTI_CONFIG_INITIALIZER;
  older.size = offsetof(tuttiConfig_t, deterministic);
  older.deterministic = older.blocking = older.majority = older.encrypt = 77;  // past the end of the older struct
  struct {
    tuttiConfig_t known;
    int unknown;
  } newer = {TUTTI_CONFIG_INITIALIZER, 77};
  newer.known.size = sizeof newer;
  for (const tuttiConfig_t* config : {&older, &newer.known}) {
    tuttiComm_t comm = nullptr;
    const tuttiResult_t code = tuttiCommInitRankConfig(&comm, 1, new_id(), 0, config);
    INFO(tuttiGetLastError(nullptr));
    REQUIRE(code == tuttiSuccess);
    CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  }
}

TEST_CASE("a configuration counts more than the environment, also where it switches something off") {
  setenv("TUTTI_DETERMINISTIC", "1", 1);
  for (const int wanted : {0, 1, TUTTI_CONFIG_UNDEF_INT}) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.transports = "tcp";  // over TCP the order of ranks makes a difference
    config.deterministic = wanted;
    const auto outcomes = run_threads(3, &config, [](int, tuttiComm_t comm, Outcome& outcome) {
      char text[4000] = "";
      size_t bytes = sizeof text;
      outcome.take(tuttiExplain("tuttiAllReduce", 1000, tuttiFloat, tuttiSum, comm, text, &bytes));
      outcome.message = text;
    });
    for (const Outcome& outcome : outcomes) {
      INFO(outcome.message);
      CHECK(outcome.code == tuttiSuccess);
      CHECK(contains(outcome.message, wanted == 0 ? "order of the sums: fixed" : "order of the sums: rank order"));
    }
  }
  unsetenv("TUTTI_DETERMINISTIC");
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
  check_refused(configs, "TUTTI_ALGO");
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
