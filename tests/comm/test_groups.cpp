// Point-to-point operations, and groups of calls.
#include <numeric>

#include "api/group.h"
#include "comm/ranks.h"

using namespace tutti_test;

namespace {

std::vector<int32_t> numbers(size_t count, int32_t from) {
  std::vector<int32_t> data(count);
  std::iota(data.begin(), data.end(), from);
  return data;
}

}  // namespace

TEST_CASE("messages arrive whole and in order, of every size") {
  const char* transport = GENERATE("shm", "tcp");
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  require_success(run_threads(2, &config, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{300001}}) {
      for (int32_t k = 0; k < 3; k++) {
        auto data = rank == 0 ? numbers(count, k) : std::vector<int32_t>(count, -1);
        outcome.take(rank == 0 ? tuttiSend(data.data(), count, tuttiInt32, 1, comm, nullptr)
                               : tuttiRecv(data.data(), count, tuttiInt32, 0, comm, nullptr));
        outcome.wrong += data != numbers(count, k);
      }
    }
  }));
}

TEST_CASE("a thread that ends within a group leaves none open") {
  REQUIRE_FALSE(tutti::api::a_group_is_open());
  std::thread([] {
    tuttiGroupStart();
    tuttiGroupStart();
  }).join();
  CHECK_FALSE(tutti::api::a_group_is_open());
}

TEST_CASE("a small message may be sent before its receive is called, with collectives in between") {
  require_success(run_threads(3, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    int32_t value = rank, sum = 0;
    if (rank == 0) outcome.take(tuttiSend(&value, 1, tuttiInt32, 2, comm, nullptr));
    const int32_t one = 1;
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr));
    if (rank == 2) outcome.take(tuttiRecv(&value, 1, tuttiInt32, 0, comm, nullptr));
    outcome.wrong += sum != 3 || (rank == 2 && value != 0);
  }));
}

TEST_CASE("a group's messages may be called in any order, to any peer, and to oneself") {
  const int n = GENERATE(1, 2, 5);
  const size_t count = GENERATE(size_t{7}, size_t{200000});
  require_success(run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<std::vector<int32_t>> sent, received(static_cast<size_t>(n) * 2, std::vector<int32_t>(count));
    for (int peer = 0; peer < 2 * n; peer++) sent.push_back(numbers(count, rank * 1000 + peer));
    outcome.take(tuttiGroupStart());
    outcome.take(tuttiGroupStart());   // nested
    for (int k = 0; k < 2 * n; k++) {  // two messages for each rank, in a different order on each rank
      const auto slot = static_cast<size_t>(rank % 2 == 0 ? k : 2 * n - 1 - k);
      const int peer = static_cast<int>(slot) / 2;
      const auto send = [&](size_t s) {
        outcome.take(tuttiSend(sent[s].data(), count, tuttiInt32, peer, comm, nullptr));
      };
      if (rank % 2 == 0) send(slot);
      outcome.take(
          tuttiRecv(received[static_cast<size_t>(2 * peer + k % 2)].data(), count, tuttiInt32, peer, comm, nullptr));
      if (rank % 2 != 0) send(static_cast<size_t>(2 * peer + k % 2));
    }
    outcome.take(tuttiGroupEnd());
    outcome.take(tuttiGroupEnd());
    for (int peer = 0; peer < n; peer++)
      for (int i = 0; i < 2; i++)
        outcome.wrong += received[static_cast<size_t>(2 * peer + i)] != numbers(count, peer * 1000 + 2 * rank + i);
  }));
}

TEST_CASE("messages of a group on several streams keep their order, and both directions go at once") {
  const size_t count = GENERATE(size_t{1}, size_t{3'000'000});
  require_success(run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiStream_t streams[] = {nullptr, nullptr, nullptr};  // the first stays, which is the caller's
    for (tuttiStream_t* stream : {&streams[1], &streams[2]}) outcome.take(tuttiStreamCreate(stream));
    std::vector<std::vector<int32_t>> sent, received(4, std::vector<int32_t>(count));
    for (int32_t k = 0; k < 4; k++) sent.push_back(numbers(count, 10 * rank + k));
    for (const size_t first : {0, 1, 2}) {
      outcome.take(tuttiGroupStart());
      for (size_t k = 0; k < 4; k++) {
        const tuttiStream_t to = streams[(first + k + static_cast<size_t>(rank)) % 3],
                            from = streams[(first + 2 * k) % 3];
        outcome.take(tuttiSend(sent[k].data(), count, tuttiInt32, 1 - rank, comm, to));
        outcome.take(tuttiRecv(received[k].data(), count, tuttiInt32, 1 - rank, comm, from));
      }
      outcome.take(tuttiGroupEnd());
      for (const tuttiStream_t stream : {streams[1], streams[2]}) outcome.take(tuttiStreamSynchronize(stream));
      for (int32_t k = 0; k < 4; k++) {
        auto& got = received[static_cast<size_t>(k)];
        outcome.wrong += got != numbers(count, 10 * (1 - rank) + k);
        std::fill(got.begin(), got.end(), -1);
      }
    }
    for (const tuttiStream_t stream : {streams[1], streams[2]}) outcome.take(tuttiStreamDestroy(stream));
  }));
}

// At the first use of the links. A rank's messages in a group must reach a peer that sends what the group waits for
// only after it has received them.
TEST_CASE("a group that receives into memory of its other messages is refused, however many there are") {
  require_success(run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const int peer = 1 - rank;
    auto data = numbers(2'000'000, rank);
    struct One {
      bool sends;
      size_t at, count;
    };
    const auto exchange = [&](const std::vector<One>& messages) {
      tuttiGroupStart();
      for (const auto& [sends, at, count] : messages)
        outcome.take(sends ? tuttiSend(&data[at], count, tuttiInt32, peer, comm, nullptr)
                           : tuttiRecv(&data[at], count, tuttiInt32, peer, comm, nullptr));
      return tuttiGroupEnd();
    };
    const auto refuses = [&](const std::vector<One>& messages, const std::string& part) {
      outcome.wrong +=
          exchange(messages) != tuttiInvalidArgument || !contains(tuttiGetLastError(nullptr), part.c_str());
    };
    const std::string of_peer = ", int32, peer=" + std::to_string(peer) + ") at ";
    refuses({{true, 0, 2'000'000}, {false, 0, 2'000'000}}, "Send(count=2000000" + of_peer);
    refuses({{false, 1, 8}, {true, 8, 4}}, "Recv(count=8" + of_peer);
    refuses({{true, 0, 4}, {true, 2, 4}, {false, 10, 4}, {false, 13, 4}}, "overlap");
    refuses({{true, 0, 100}, {true, 2, 4}, {false, 200, 1}, {false, 50, 1}}, "Recv(count=1" + of_peer);
    outcome.wrong += data != numbers(2'000'000, rank);
    outcome.take(exchange({{true, 0, 4}, {false, 4, 4}}));
    outcome.take(exchange({{false, 0, 4}, {true, 4, 4}}));
    outcome.take(exchange({{true, 0, 4}, {true, 2, 4}, {false, 10, 4}, {false, 14, 4}, {false, 3, 0}, {true, 12, 0}}));
    auto expected = numbers(2'000'000, rank);
    for (int32_t i = 0; i < 4; i++)
      expected[static_cast<size_t>(4 + i)] = expected[static_cast<size_t>(10 + i)] = peer + i;
    expected[14] = peer + 2, expected[15] = peer + 3, expected[16] = rank, expected[17] = rank + 1;
    outcome.wrong += data != expected;
    // Who gathers or scatters with messages may have its own part where it is to be.
    tuttiGroupStart();
    for (const int to : {rank, peer}) outcome.take(tuttiSend(data.data() + to, 1, tuttiInt32, to, comm, nullptr));
    outcome.take(tuttiRecv(data.data() + rank, 1, tuttiInt32, rank, comm, nullptr));
    outcome.take(tuttiRecv(&data[5], 1, tuttiInt32, peer, comm, nullptr));
    outcome.take(tuttiGroupEnd());
    expected[5] = rank + peer;
    outcome.wrong += data != expected;
  }));
}

TEST_CASE("a group's messages that are behind a collective here and before it there end, and both ranks are told") {
  const auto outcomes = run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    int32_t one = 1, sum = 0, token = 0;
    tuttiGroupStart();
    if (rank == 1) outcome.take(tuttiRecv(&token, 1, tuttiInt32, 0, comm, nullptr));
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr));
    if (rank == 0) outcome.take(tuttiSend(&token, 1, tuttiInt32, 1, comm, nullptr));
    outcome.take(tuttiGroupEnd());
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(contains(outcome.message, "rank 0 called AllReduce(count=1, int32, sum)"));
    CHECK(contains(outcome.message, "but rank 1 has begun 0"));
    CHECK(contains(outcome.message, "message 1 from rank 0, which has begun only 0 matching Send"));
  }
}

TEST_CASE("a group's messages go out though its receives have yet to be sent") {
  const char* const transport = GENERATE("shm", "tcp");
  const int n = GENERATE(2, 4);
  const size_t count = GENERATE(size_t{5}, size_t{3'000'000});  // more than links hold
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  config.opTimeoutSeconds = kSanitized ? 60 : 10;  // fails instead of hanging
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    const int from = (rank + n - 1) % n, to = (rank + 1) % n;
    const auto sent = numbers(count, 7);
    std::vector<int32_t> got(count, -1);
    const auto receive = [&] { outcome.take(tuttiRecv(got.data(), count, tuttiInt32, from, comm, nullptr)); };
    const auto send = [&](const void* data) { outcome.take(tuttiSend(data, count, tuttiInt32, to, comm, nullptr)); };
    if (rank == 0) {
      outcome.take(tuttiGroupStart());
      receive();
      send(sent.data());
      outcome.take(tuttiGroupEnd());
    } else {
      receive();
      send(got.data());
    }
    outcome.wrong += got != sent;
  }));
}

TEST_CASE("a message whose receiver expects another count or type is an error on both sides") {
  const auto outcomes = run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    int64_t data[4] = {};
    outcome.take(rank == 0 ? tuttiSend(data, 4, tuttiInt32, 1, comm, nullptr)
                           : tuttiRecv(data, 3, tuttiInt64, 0, comm, nullptr));
    outcome.take(tuttiBarrier(comm, nullptr));
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(outcome.message.find("4 x int32") != std::string::npos);
    CHECK(outcome.message.find("3 x int64") != std::string::npos);
  }
}

TEST_CASE("one thread may hold several ranks of a group: creation, operations, finalizing") {
  constexpr int n = 3;
  const tuttiUniqueId id = new_id();
  tuttiComm_t comms[n];
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int r = 0; r < n; r++) REQUIRE(tuttiCommInitRank(&comms[r], n, id, r) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  int32_t values[n] = {1, 2, 4}, sums[n] = {}, again[n] = {};
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (int r = n - 1; r >= 0; r--) {
    REQUIRE(tuttiAllReduce(&values[r], &sums[r], 1, tuttiInt32, tuttiSum, comms[r], nullptr) == tuttiSuccess);
    REQUIRE(tuttiAllReduce(&sums[r], &again[r], 1, tuttiInt32, tuttiSum, comms[r], nullptr) == tuttiSuccess);
  }
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  for (int r = 0; r < n; r++) CHECK(again[r] == 21);
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (tuttiComm_t comm : comms) REQUIRE(tuttiCommFinalize(comm) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("who finalizes alone waits for its own operations, and takes nothing from slower ranks") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = GENERATE("shm", "tcp");
  constexpr int kBroadcasts = 20;
  require_success(run_threads(3, &config, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiStream_t stream = nullptr;
    outcome.take(tuttiStreamCreate(&stream));
    std::vector<std::vector<int32_t>> data;
    const auto broadcast = [&](size_t count, tuttiStream_t where) {
      data.push_back(rank == 0 ? numbers(count, 5) : std::vector<int32_t>(count));
      outcome.take(tuttiBcast(data.back().data(), count, tuttiInt32, 0, comm, where));
    };
    broadcast(2, nullptr);  // makes the links
    if (rank != 0) usleep(100'000);
    for (int i = 0; i < kBroadcasts; i++) broadcast(i % 2 == 0 ? 2 : 70'000, stream);
    outcome.take(tuttiCommFinalizeLocal(comm));
    for (const auto& each : data) outcome.wrong += each != numbers(each.size(), 5);
    outcome.wrong += tuttiBarrier(comm, nullptr) != tuttiInvalidUsage;
    outcome.take(tuttiStreamDestroy(stream));
  }));
}

TEST_CASE("two communicators used in opposite order on two ranks, within groups, do not deadlock") {
  const tuttiUniqueId ids[2] = {new_id(), new_id()};
  Outcome outcomes[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; rank++)
    threads.emplace_back([&, rank] {
      tuttiComm_t comms[2] = {};
      int32_t value[2] = {rank, rank};
      for (int c = 0; c < 2; c++) outcomes[rank].take(tuttiCommInitRank(&comms[c], 2, ids[c], rank));
      outcomes[rank].take(tuttiGroupStart());
      for (int c = 0; c < 2; c++) {
        const int which = rank == 0 ? c : 1 - c;
        outcomes[rank].take(
            tuttiAllReduce(&value[which], &value[which], 1, tuttiInt32, tuttiSum, comms[which], nullptr));
      }
      outcomes[rank].take(tuttiGroupEnd());
      outcomes[rank].wrong += value[0] != 1 || value[1] != 1;
      for (tuttiComm_t comm : comms) outcomes[rank].take(tuttiCommDestroy(comm));
    });
  for (auto& thread : threads) thread.join();
  require_success({outcomes[0], outcomes[1]});
}

TEST_CASE("a refused call spoils its group, and the end says which") {
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    float data[4] = {};
    outcome.take(tuttiGroupStart());
    outcome.take(tuttiAllReduce(data, data, 4, tuttiFloat, tuttiSum, comm, nullptr));
    outcome.wrong += tuttiSend(data, 4, tuttiFloat, 9, comm, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiGroupEnd() != tuttiInvalidArgument;
    outcome.wrong += strstr(tuttiGetLastError(nullptr), "peer=9") == nullptr;
    outcome.wrong += tuttiGroupEnd() != tuttiInvalidUsage;  // there is no group
    outcome.wrong += tuttiSend(data, 4, tuttiFloat, 0, nullptr, nullptr) != tuttiInvalidArgument;
    outcome.take(tuttiBarrier(comm, nullptr));
  }));
}

TEST_CASE("a group does its operations although another communicator's finalization fails") {
  const tuttiUniqueId id = new_id();
  require_success(run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t other = nullptr;
    int32_t one = 1, sum = 0;
    outcome.take(tuttiCommInitRank(&other, 2, id, rank));
    if (rank == 1) outcome.take(tuttiCommAbort(other));
    tuttiResult_t state = tuttiSuccess;
    while (rank == 0 && state == tuttiSuccess) outcome.take(tuttiCommGetAsyncError(other, &state));
    outcome.take(tuttiGroupStart());
    if (rank == 0) outcome.take(tuttiCommFinalize(other));
    outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr));
    outcome.wrong += tuttiGroupEnd() != (rank == 0 ? tuttiRemoteError : tuttiSuccess);
    outcome.wrong += sum != 2;
    if (rank == 0) outcome.wrong += tuttiCommDestroy(other) != tuttiRemoteError;
  }));
}

// Each operation took its turn, and later calls wait for all of them.
TEST_CASE("of a group on a broken communicator every operation is refused, and those behind it, too") {
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  int32_t one = 1, sum = -1;
  const auto add = [&] { return tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr); };
  CHECK(tuttiCommRevoke(comm, 0) == tuttiSuccess);
  CHECK(tuttiGroupStart() == tuttiSuccess);
  for (int i = 0; i < 3; i++) CHECK(add() == tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiInvalidUsage);
  CHECK(add() == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "tuttiCommRevoke"));
  CHECK(sum == -1);
  CHECK(tuttiCommDestroy(comm) == tuttiInvalidUsage);
}

TEST_CASE("a group makes what it is to make from a communicator although the first of that fails") {
  require_success(run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.initTimeoutSeconds = 2;
    if (rank == 0) config.transports = "magic";
    tuttiComm_t own = nullptr, both = nullptr;
    outcome.take(tuttiGroupStart());
    outcome.take(tuttiCommSplit(comm, rank, 0, &own, &config));
    outcome.take(tuttiCommSplit(comm, 7, 0, &both, nullptr));
    outcome.wrong += tuttiGroupEnd() != (rank == 0 ? tuttiInvalidUsage : tuttiSuccess);
    outcome.wrong += (own == nullptr) != (rank == 0) || both == nullptr;
    if (own != nullptr) outcome.take(tuttiCommDestroy(own));
    if (both == nullptr) return;
    outcome.take(tuttiBarrier(both, nullptr));
    outcome.take(tuttiCommDestroy(both));
  }));
}

TEST_CASE("a call that is to make or to end a communicator, or has one buffer, spoils its group, too") {
  tuttiComm_t comm = nullptr, made = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  tuttiUniqueId id{};
  int32_t one = 1, sum = -1;
  const std::function<tuttiResult_t()> wrong_calls[] = {
      [&] { return tuttiCommInitRank(&made, 1, id, 1); },
      [&] { return tuttiCommInitRankConfig(&made, 1, id, 1, nullptr); },
      [&] { return tuttiCommInitRankScalable(&made, 1, 1, 1, &id, nullptr); },
      [&] { return tuttiCommInitFromEnv(nullptr, nullptr); },
      [&] { return tuttiCommSplit(comm, -2, 0, &made, nullptr); },
      [&] { return tuttiCommCreateGroup(comm, nullptr, 1, &made, nullptr); },
      [&] { return tuttiCommGrow(comm, 0, nullptr, -1, &made, nullptr); },
      [&] { return tuttiCommShrink(comm, nullptr, 0, &made, nullptr, 2); },
      [&] { return tuttiCommFinalize(nullptr); },
      [&] { return tuttiBcast(nullptr, 1, tuttiInt32, 0, comm, nullptr); }};
  for (const auto& call : wrong_calls) {
    CHECK(tuttiGroupStart() == tuttiSuccess);
    CHECK(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr) == tuttiSuccess);
    CHECK(call() == tuttiInvalidArgument);
    const std::string why = tuttiGetLastError(nullptr);
    CHECK(tuttiGroupEnd() == tuttiInvalidArgument);
    CHECK(contains(tuttiGetLastError(nullptr), why.c_str()));
    CHECK(sum == -1);
  }
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}
