// Two features at a time, each tested elsewhere: the state that one leaves behind must not mislead the other.
#include <atomic>
#include <type_traits>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

std::vector<int32_t> numbers_of(int rank, size_t count) {
  std::vector<int32_t> data(count);
  for (size_t i = 0; i < count; i++) data[i] = 1000 * rank + static_cast<int32_t>(i);
  return data;
}

// A value that a stream's callback writes once `open` is set.
struct Late {
  int32_t* value;
  int32_t number;
  std::atomic<bool> open{false};

  static void write(tuttiStream_t, tuttiResult_t, void* user) {
    auto* late = static_cast<Late*>(user);
    while (!late->open) std::this_thread::yield();
    *late->value = late->number;
  }
};

}  // namespace

TEST_CASE("a small operation that has been done before is refused after finalizing") {
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    int32_t one = 1, sum = 0;
    for (int i = 0; i < 3; i++) outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr));
    outcome.take(tuttiCommFinalize(comm));
    sum = -1;
    outcome.wrong += tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr) != tuttiInvalidUsage;
    outcome.wrong += !contains(tuttiGetLastError(nullptr), "was finalized") || sum != -1;
  }));
}

// The root of a broadcast waits for nobody, and would not notice.
TEST_CASE("a small operation that has been done before ends with its group") {
  std::atomic<bool> received{false};
  const auto outcomes = run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    int32_t value = rank == 0 ? 7 : 0;
    for (int i = 0; i < 3; i++) outcome.take(tuttiBroadcast(&value, &value, 1, tuttiInt32, 0, comm, nullptr));
    outcome.wrong += value != 7;
    if (rank == 1) received = true;
    while (!received) std::this_thread::yield();
    tuttiResult_t state = tuttiSuccess;
    if (rank == 0) outcome.take(tuttiCommRevoke(comm, 0));
    while (state == tuttiSuccess) outcome.take(tuttiCommGetAsyncError(comm, &state));
    outcome.wrong += tuttiBroadcast(&value, &value, 1, tuttiInt32, 0, comm, nullptr) == tuttiSuccess;
    outcome.wrong += !contains(tuttiGetLastError(nullptr), "tuttiCommRevoke");
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.wrong == 0);
  }
}

TEST_CASE("a small operation that has been done before waits for its stream") {
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    int32_t value = 1, sum = 0;
    for (int i = 0; i < 3; i++) outcome.take(tuttiAllReduce(&value, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr));
    tuttiStream_t stream = nullptr;
    outcome.take(tuttiStreamCreate(&stream));
    Late late{&value, 20};
    outcome.take(tuttiStreamAddCallback(stream, Late::write, &late));
    outcome.take(tuttiAllReduce(&value, &sum, 1, tuttiInt32, tuttiSum, comm, stream));
    late.open = true;
    outcome.take(tuttiStreamSynchronize(stream));
    outcome.wrong += sum != 40;
    outcome.take(tuttiStreamDestroy(stream));
  }));
}

TEST_CASE("a small operation that has been done before waits for the end of its group") {
  const tuttiUniqueId id = new_id();
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.opTimeoutSeconds = kSanitized ? 30 : 3;  // fails instead of hanging
  tuttiComm_t comms[2];
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < 2; r++) REQUIRE(tuttiCommInitRankConfig(&comms[r], 2, id, r, &config) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  int32_t values[2] = {1, 2}, sums[2] = {};
  for (int i = 0; i < 4; i++) {
    CHECK(tuttiGroupStart() == tuttiSuccess);
    for (int r = 0; r < 2; r++)
      REQUIRE(tuttiAllReduce(&values[r], &sums[r], 1, tuttiInt32, tuttiSum, comms[r], nullptr) == tuttiSuccess);
    values[0] = i;  // the group reads it when it ends
    CHECK(tuttiGroupEnd() == tuttiSuccess);
    CHECK((sums[0] == i + 2 && sums[1] == i + 2));
  }
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

// Same count, hence the same place for their plans: a block of one is as long as all blocks of the other together.
TEST_CASE("blocks of unequal and of equal size by turns, with one count, on one communicator") {
  require_success(run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const auto me = static_cast<size_t>(rank);
    const size_t counts[] = {2, 6}, displs[] = {0, 2}, all = 8;
    const auto equal = [&] {
      std::vector<int32_t> got(2 * all + 1, -1), want = numbers_of(0, all);
      const auto second = numbers_of(1, all);
      want.insert(want.end(), second.begin(), second.end());
      want.push_back(-1);
      outcome.take(tuttiAllGather(numbers_of(rank, all).data(), got.data(), all, tuttiInt32, comm, nullptr));
      outcome.wrong += got != want;
      std::vector<int32_t> sums(all + 1, -1);
      outcome.take(
          tuttiReduceScatter(numbers_of(rank, 2 * all).data(), sums.data(), all, tuttiInt32, tuttiSum, comm, nullptr));
      for (size_t i = 0; i < all; i++) outcome.wrong += sums[i] != 1000 + 2 * static_cast<int32_t>(me * all + i);
      outcome.wrong += sums[all] != -1;
    };
    const auto unequal = [&] {
      std::vector<int32_t> got(2 * all, -1), want = numbers_of(0, counts[0]);
      const auto second = numbers_of(1, counts[1]);
      want.insert(want.end(), second.begin(), second.end());
      want.resize(2 * all, -1);
      outcome.take(
          tuttiAllGatherv(numbers_of(rank, all).data(), got.data(), counts, displs, tuttiInt32, comm, nullptr));
      outcome.wrong += got != want;
      std::vector<int32_t> sums(all, -1);
      outcome.take(tuttiReduceScatterv(numbers_of(rank, 2 * all).data(), sums.data(), counts, tuttiInt32, tuttiSum,
                                       comm, nullptr));
      for (size_t i = 0; i < all; i++)
        outcome.wrong += sums[i] != (i < counts[me] ? 1000 + 2 * static_cast<int32_t>(displs[me] + i) : -1);
    };
    for (int i = 0; i < 3; i++) {
      equal();
      equal();
      unequal();
      unequal();
    }
  }));
}

// Plans are kept by the operations' arguments; the operators of a program are numbers, and some of them are sums.
TEST_CASE("a sum, and one of inputs that count several times, by turns, small and large") {
  require_success(run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    int32_t factors[] = {2, 3, 5, 7};
    tuttiRedOp_t ops[2];
    for (int i = 0; i < 2; i++)
      outcome.take(
          tuttiRedOpCreatePreMulSum(&ops[i], &factors[2 * i + rank], tuttiInt32, tuttiScalarHostImmediate, comm));
    const auto add = [&](size_t count, tuttiRedOp_t op, int32_t want) {
      std::vector<int32_t> data(count, rank + 1);
      outcome.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, op, comm, nullptr));
      outcome.wrong += data != std::vector<int32_t>(count, want);
    };
    for (const size_t count : {size_t{2}, size_t{100'000}, size_t{2}})
      for (int i = 0; i < 2; i++) {
        add(count, tuttiSum, 3);
        add(count, ops[0], 2 + 2 * 3);
        add(count, ops[1], 5 + 2 * 7);
        add(count, tuttiMax, 2);
      }
  }));
}

// All are small and repeated, so that each has a plan where the lookup of another one could find it.
TEST_CASE("operations that differ in one thing alone, by turns") {
  require_success(run_threads(3, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const int32_t small[] = {rank + 1, 10 * (rank + 1)};
    const int64_t wide[] = {rank + 1, int64_t{1} << (40 + rank)};
    const float real[] = {0.5f, 0.25f * static_cast<float>(rank)};
    const auto sum = [&](const auto& data, auto... want) {
      using T = std::remove_cvref_t<decltype(data[0])>;
      const T wanted[] = {static_cast<T>(want)...};
      T got[2] = {};
      const auto type = sizeof(T) == 8 ? tuttiInt64 : std::is_same_v<T, float> ? tuttiFloat : tuttiInt32;
      outcome.take(tuttiAllReduce(data, got, 2, type, tuttiSum, comm, nullptr));
      outcome.wrong += got[0] != wanted[0] || got[1] != wanted[1];
    };
    for (int i = 0; i < 3; i++) {
      sum(small, 6, 60);
      sum(wide, 6, int64_t{7} << 40);
      sum(real, 1.5f, 0.75f);
      int32_t most[2] = {}, from[2] = {}, one[2] = {-1, -1};
      outcome.take(tuttiAllReduce(small, most, 2, tuttiInt32, tuttiMax, comm, nullptr));
      outcome.wrong += most[0] != 3 || most[1] != 30;
      for (int root = 0; root < 3; root++) {
        outcome.take(tuttiBroadcast(small, from, 2, tuttiInt32, root, comm, nullptr));
        outcome.wrong += from[0] != root + 1 || from[1] != 10 * (root + 1);
        outcome.take(tuttiReduce(small, one, 2, tuttiInt32, tuttiSum, root, comm, nullptr));
        outcome.wrong += rank == root && (one[0] != 6 || one[1] != 60);
      }
    }
  }));
}

TEST_CASE("a group within a group runs with that") {
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  int32_t value = 5, sum = -1;
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  CHECK(tuttiAllReduce(&value, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr) == tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  CHECK(sum == -1);
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  CHECK(sum == 5);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

// The protocol is chosen per message: the receiver of the small one knows nothing of the large one.
TEST_CASE("a small message and a large one in one group, to ranks that receive one each") {
  require_success(run_threads(3, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    constexpr size_t kLarge = 500'000;
    const size_t count = rank == 1 ? 3 : kLarge;
    if (rank != 0) {
      std::vector<int32_t> got(count, -1);
      outcome.take(tuttiRecv(got.data(), count, tuttiInt32, 0, comm, nullptr));
      outcome.wrong += got != numbers_of(rank, count);
    } else {
      const auto small = numbers_of(1, 3), large = numbers_of(2, kLarge);
      outcome.take(tuttiGroupStart());
      outcome.take(tuttiSend(small.data(), 3, tuttiInt32, 1, comm, nullptr));
      outcome.take(tuttiSend(large.data(), kLarge, tuttiInt32, 2, comm, nullptr));
      outcome.take(tuttiGroupEnd());
    }
    outcome.take(tuttiBarrier(comm, nullptr));
  }));
}

TEST_CASE("ranks of which only some want the same bits in every run are told so at creation") {
  tuttiConfig_t configs[2] = {TUTTI_CONFIG_INITIALIZER, TUTTI_CONFIG_INITIALIZER};
  configs[1].deterministic = 1;
  check_refused(configs, "TUTTI_DETERMINISTIC");
}

TEST_CASE("ranks of which only some encrypt are told so at creation") {
  tuttiConfig_t configs[2] = {TUTTI_CONFIG_INITIALIZER, TUTTI_CONFIG_INITIALIZER};
  configs[1].encrypt = 1;
  check_refused(configs, "TUTTI_ENCRYPT");
}

TEST_CASE("ranks that encrypt meet, add up over TCP and split") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.encrypt = 1;
  config.transports = "tcp";
  require_success(run_threads(3, &config, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (const size_t n : {size_t{2}, size_t{100'000}}) {
      std::vector<int> values(n, rank + 1);
      outcome.take(tuttiAllReduce(values.data(), values.data(), n, tuttiInt32, tuttiSum, comm, nullptr));
      for (const int value : values) outcome.wrong += value != 6;
    }
    tuttiComm_t part = nullptr;
    outcome.take(tuttiCommSplit(comm, rank == 1 ? 1 : 0, rank, &part, nullptr));
    if (part == nullptr) return;
    int one = 1;
    outcome.take(tuttiAllReduce(&one, &one, 1, tuttiInt32, tuttiSum, part, nullptr));
    outcome.wrong += one != (rank == 1 ? 1 : 2);
    outcome.take(tuttiCommDestroy(part));
  }));
}

// Values for which every order of adding gives different bits.
TEST_CASE("a split of a deterministic communicator is deterministic, in its own order of ranks") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.deterministic = 1;
  config.algo = "ring";
  require_success(run_threads(4, &config, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t part = nullptr;
    outcome.take(tuttiCommSplit(comm, 0, -rank, &part, nullptr));
    if (part == nullptr) return;
    const float values[] = {1e8f, 1, -1e8f, 1};  // in the new order 1, -1e8, 1, 1e8
    std::vector<float> sums(1000);
    const std::vector<float> mine(1000, values[rank]);
    outcome.take(tuttiAllReduce(mine.data(), sums.data(), 1000, tuttiFloat, tuttiSum, part, nullptr));
    outcome.wrong += sums != std::vector<float>(1000, ((1.0f + -1e8f) + 1.0f) + 1e8f);
    outcome.take(tuttiAllReduce(mine.data(), sums.data(), 1000, tuttiFloat, tuttiSum, comm, nullptr));
    outcome.wrong += sums != std::vector<float>(1000, ((1e8f + 1.0f) + -1e8f) + 1.0f);
    outcome.take(tuttiCommDestroy(part));
  }));
}

TEST_CASE("more than sixteen ranks that give a split one key stay in their order") {
  constexpr int n = 18;
  require_success(run_threads(n, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t part = nullptr;
    outcome.take(tuttiCommSplit(comm, 3, 7, &part, nullptr));
    int place = -1;
    if (part != nullptr) outcome.take(tuttiCommUserRank(part, &place));
    outcome.wrong += place != rank;
    if (part != nullptr) outcome.take(tuttiCommDestroy(part));
  }));
}

// The sent value is written by a stream of its own, and read where it was received by another one.
TEST_CASE("messages that a group has on two streams wait for both, and both wait for them") {
  require_success(run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    int32_t value = rank == 1 ? 5 : 0, got = 0;
    if (rank == 1) {
      outcome.take(tuttiRecv(&got, 1, tuttiInt32, 0, comm, nullptr));
      usleep(50'000);  // so that a stream that does not wait reads too early
      outcome.take(tuttiSend(&value, 1, tuttiInt32, 0, comm, nullptr));
      return void(outcome.wrong += got != 42);
    }
    tuttiStream_t receives = nullptr, sends = nullptr;
    outcome.take(tuttiStreamCreate(&receives));
    outcome.take(tuttiStreamCreate(&sends));
    Late late{&value, 42};
    outcome.take(tuttiStreamAddCallback(sends, Late::write, &late));
    outcome.take(tuttiGroupStart());
    outcome.take(tuttiRecv(&got, 1, tuttiInt32, 1, comm, receives));
    outcome.take(tuttiSend(&value, 1, tuttiInt32, 1, comm, sends));
    outcome.take(tuttiGroupEnd());
    const auto look = [](tuttiStream_t, tuttiResult_t, void* at) { *static_cast<int32_t*>(at) += 1; };
    outcome.take(tuttiStreamAddCallback(sends, look, &got));
    outcome.wrong += tuttiStreamQuery(receives) != tuttiInProgress;
    late.open = true;
    outcome.take(tuttiStreamSynchronize(sends));
    outcome.take(tuttiStreamSynchronize(receives));
    outcome.wrong += got != 6;
    outcome.take(tuttiStreamDestroy(receives));
    outcome.take(tuttiStreamDestroy(sends));
  }));
}

TEST_CASE("a stream of two communicators that fail tells of the first") {
  tuttiComm_t comms[2];
  for (tuttiComm_t& comm : comms) REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  tuttiStream_t stream = nullptr;
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  int32_t value = 1;
  std::atomic<bool> open{false};
  const auto hold = [](tuttiStream_t, tuttiResult_t, void* user) {
    while (!*static_cast<std::atomic<bool>*>(user)) std::this_thread::yield();
  };
  CHECK(tuttiStreamAddCallback(stream, hold, &open) == tuttiSuccess);
  CHECK(tuttiCommFinalize(comms[1]) == tuttiSuccess);
  for (tuttiComm_t comm : comms)
    CHECK(tuttiAllReduce(&value, &value, 1, tuttiInt32, tuttiSum, comm, stream) == tuttiSuccess);
  CHECK(tuttiCommRevoke(comms[0], 0) == tuttiSuccess);
  open = true;
  CHECK(tuttiStreamSynchronize(stream) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "tuttiCommRevoke"));
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  for (tuttiComm_t comm : comms) static_cast<void>(tuttiCommDestroy(comm));
}

TEST_CASE("who sends itself more than it receives is refused, whatever the numbers") {
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  const auto exchange = [&](int sends, int receives, size_t count = 1, tuttiDataType_t type = tuttiInt32) {
    int32_t from[4] = {1, 2, 3, 4}, to[5] = {};
    CHECK(tuttiGroupStart() == tuttiSuccess);
    for (int i = 0; i < sends; i++) CHECK(tuttiSend(&from[i], 1, tuttiInt32, 0, comm, nullptr) == tuttiSuccess);
    for (int i = 0; i < receives; i++) CHECK(tuttiRecv(&to[i], count, type, 0, comm, nullptr) == tuttiSuccess);
    const tuttiResult_t code = tuttiGroupEnd();
    if (code == tuttiSuccess) CHECK(std::equal(from, from + receives, to));
    return code;
  };
  CHECK(exchange(4, 4) == tuttiSuccess);
  CHECK(exchange(4, 3) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "sends 4 messages to itself and receives 3"));
  CHECK(exchange(3, 4) == tuttiInvalidUsage);
  CHECK(exchange(2, 2, 2, tuttiInt32) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "sends itself 1 x int32 and receives 2 x int32"));
  CHECK(exchange(2, 2, 1, tuttiFloat) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "sends itself 1 x int32 and receives 1 x float"));
  CHECK(exchange(0, 1) == tuttiInvalidUsage);
  CHECK(exchange(3, 3) == tuttiSuccess);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a list for tuttiCommShrink that has a rank twice is refused") {
  tuttiComm_t comms[3], left = nullptr;
  REQUIRE(tuttiCommInitAll(comms, 3, nullptr) == tuttiSuccess);
  int excluded[] = {2, 2};
  CHECK(tuttiCommShrink(comms[0], excluded, 2, &left, nullptr, TUTTI_SHRINK_DEFAULT) == tuttiInvalidArgument);
  CHECK(contains(tuttiGetLastError(nullptr), "excludeRanksList[1]=2 is listed twice"));
  CHECK(left == nullptr);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a group runs nothing if one of its communicators was destroyed in it") {
  tuttiComm_t comms[2];
  for (tuttiComm_t& comm : comms) REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  int32_t values[2] = {1, 2}, sums[2] = {-1, -1};
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int i = 0; i < 2; i++)
    CHECK(tuttiAllReduce(&values[i], &sums[i], 1, tuttiInt32, tuttiSum, comms[i], nullptr) == tuttiSuccess);
  CHECK(tuttiCommDestroy(comms[1]) == tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "was destroyed after calls on it in this group"));
  CHECK((sums[0] == -1 && sums[1] == -1));
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  CHECK(tuttiAllReduce(&values[0], &sums[0], 1, tuttiInt32, tuttiSum, comms[0], nullptr) == tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  CHECK(sums[0] == 1);
  CHECK(tuttiCommDestroy(comms[0]) == tuttiSuccess);
}

// A link is made when both of its ranks call.
TEST_CASE("a first message that its sender never calls ends after the limit of operations, and names the sender") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.opTimeoutSeconds = 1;
  config.transports = GENERATE("shm", "tcp");
  std::atomic<bool> done{false};
  const auto outcomes = run_threads(2, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    int32_t value = -1;
    if (rank == 0) outcome.take(tuttiRecv(&value, 1, tuttiInt32, 1, comm, nullptr));
    if (rank == 0) done = true;
    while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    outcome.wrong += value != -1;
  });
  INFO(outcomes[0].message);
  CHECK(outcomes[0].code == tuttiTimeout);
  CHECK(contains(outcomes[0].message,
                 "no progress for 1 s (TUTTI_OP_TIMEOUT or the configuration's opTimeoutSeconds): waiting for rank 1 "
                 "(to send); "));
  CHECK(contains(outcomes[0].message, "rank 1 has not called it yet"));
  CHECK(outcomes[0].wrong + outcomes[1].wrong == 0);
}

TEST_CASE("operations of a group keep their order, on a stream and without one") {
  tuttiComm_t comm = nullptr;
  tuttiStream_t stream = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  for (const bool stream_first : {false, true}) {
    int32_t first = 7, second = -1, third = -2;
    CHECK(tuttiGroupStart() == tuttiSuccess);
    CHECK(tuttiAllReduce(&first, &second, 1, tuttiInt32, tuttiSum, comm, stream_first ? stream : nullptr) ==
          tuttiSuccess);
    CHECK(tuttiAllReduce(&second, &third, 1, tuttiInt32, tuttiSum, comm, stream_first ? nullptr : stream) ==
          tuttiSuccess);
    CHECK(tuttiGroupEnd() == tuttiSuccess);
    CHECK(tuttiStreamSynchronize(stream) == tuttiSuccess);
    CHECK(third == 7);
  }
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a group whose stream is gone at its end fails, and its communicator goes on") {
  tuttiComm_t comm = nullptr;
  tuttiStream_t stream = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  int32_t value = 7, sum = -1;
  CHECK(tuttiGroupStart() == tuttiSuccess);
  CHECK(tuttiAllReduce(&value, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr) == tuttiSuccess);
  CHECK(tuttiAllReduce(&value, &sum, 1, tuttiInt32, tuttiSum, comm, stream) == tuttiSuccess);
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiInvalidArgument);
  CHECK(contains(tuttiGetLastError(nullptr), "is not a live stream"));
  CHECK(sum == -1);
  CHECK(tuttiAllReduce(&value, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr) == tuttiSuccess);
  CHECK(sum == 7);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

// An exposed message must be read before its sender may go on.
TEST_CASE("with TUTTI_PROTO=copy who sends does not wait until that is read, a message or a broadcast") {
  const bool broadcasts = GENERATE(false, true);
  constexpr size_t kBytes = 100'000;
  setenv("TUTTI_PROTO", "copy", 1);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.opTimeoutSeconds = kSanitized ? 30 : 3;  // fails instead of hanging
  config.transports = "shm";
  std::atomic<int> sent{0};
  std::atomic<bool> has_failed{false};
  require_success(run_threads(2, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (int i = 0; i < 2; i++) {  // the first one makes the links
      std::vector<char> data(kBytes, rank == 0 ? 'x' : '-');
      while (rank == 1 && i == 1 && sent < 2 && !has_failed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (broadcasts)
        outcome.take(tuttiBcast(data.data(), kBytes, tuttiInt8, 0, comm, nullptr));
      else if (rank == 0)
        outcome.take(tuttiSend(data.data(), kBytes, tuttiInt8, 1, comm, nullptr));
      else
        outcome.take(tuttiRecv(data.data(), kBytes, tuttiInt8, 0, comm, nullptr));
      if (rank == 0) sent++, has_failed = outcome.code != tuttiSuccess;
      outcome.wrong += data != std::vector<char>(kBytes, 'x');
    }
  }));
  unsetenv("TUTTI_PROTO");
}
