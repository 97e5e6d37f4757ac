// New communicators out of old ones; blocks of unequal size; sums that do not depend on the order of their terms.
#include <cmath>
#include <cstdlib>

#include "comm/gathers.h"
#include "comm/ranks.h"

using namespace tutti_test;

TEST_CASE("a split gives each color a communicator in the order of the keys") {
  require_success(run_threads(6, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    // Groups [0,3] [1,4] [2,5] of six ranks, in reverse order of ranks.
    tuttiComm_t part = nullptr;
    outcome.take(tuttiCommSplit(comm, rank % 3, -rank, &part, nullptr));
    if (part == nullptr) return;
    int count = 0, place = -1;
    outcome.take(tuttiCommCount(part, &count));
    outcome.take(tuttiCommUserRank(part, &place));
    outcome.wrong += count != 2 || place != (rank < 3 ? 1 : 0);
    int32_t sum = 0, all = 0;
    for (int i = 0; i < 3; i++) {  // the two communicators are used alternately
      outcome.take(tuttiAllReduce(&rank, &sum, 1, tuttiInt32, tuttiSum, part, nullptr));
      outcome.take(tuttiAllReduce(&rank, &all, 1, tuttiInt32, tuttiSum, comm, nullptr));
    }
    outcome.wrong += sum != 2 * (rank % 3) + 3 || all != 15;
    outcome.take(tuttiCommFinalize(part));
    outcome.take(tuttiCommDestroy(part));
  }));
}

TEST_CASE("a rank without a color gets no communicator, and wrong colors are refused") {
  require_success(run_threads(3, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t part = nullptr;
    outcome.wrong += tuttiCommSplit(comm, -2, 0, &part, nullptr) != tuttiInvalidArgument;
    outcome.wrong += tuttiCommSplit(comm, 0, 0, nullptr, nullptr) != tuttiInvalidArgument;
    outcome.take(tuttiCommSplit(comm, rank == 1 ? TUTTI_SPLIT_NOCOLOR : 7, 0, &part, nullptr));
    outcome.wrong += (part == nullptr) != (rank == 1);
    if (part != nullptr) outcome.take(tuttiBarrier(part, nullptr));
    if (part != nullptr) outcome.take(tuttiCommDestroy(part));
    outcome.take(tuttiBarrier(comm, nullptr));
  }));
}

TEST_CASE("unequal blocks, some of them empty, with gaps between them") {
  const char* algo = GENERATE("ring", "tree");
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = algo;
  constexpr int n = 4;
  require_success(run_threads(n, &config, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const size_t counts[n] = {5, 0, 100001, 1}, displs[n] = {200000, 0, 10, 3};
    const auto me = static_cast<size_t>(rank);
    const std::vector<int32_t> mine(counts[me] + 1, rank + 1);
    std::vector<int32_t> all(200010, -1);
    outcome.take(tuttiAllGatherv(mine.data(), all.data(), counts, displs, tuttiInt32, comm, nullptr));
    std::vector<int32_t> want(all.size(), -1);
    for (size_t r = 0; r < n; r++)
      std::fill_n(want.begin() + static_cast<long>(displs[r]), counts[r], static_cast<int32_t>(r) + 1);
    outcome.wrong += all != want;

    std::vector<int32_t> whole(100007), part(counts[me] + 1, -1);
    for (size_t i = 0; i < whole.size(); i++) whole[i] = static_cast<int32_t>(i) + rank;
    outcome.take(tuttiReduceScatterv(whole.data(), part.data(), counts, tuttiInt32, tuttiSum, comm, nullptr));
    const size_t begins[n] = {0, 5, 5, 100006};
    for (size_t i = 0; i < counts[me]; i++) outcome.wrong += part[i] != 4 * static_cast<int32_t>(begins[me] + i) + 6;
    outcome.wrong += part[counts[me]] != -1;
    int32_t* const mine_of_whole = whole.data() + begins[me];  // in place
    outcome.take(tuttiReduceScatterv(whole.data(), mine_of_whole, counts, tuttiInt32, tuttiSum, comm, nullptr));
    for (size_t i = 0; i < counts[me]; i++)
      outcome.wrong += mine_of_whole[i] != 4 * static_cast<int32_t>(begins[me] + i) + 6;

    const size_t overlapping[n] = {0, 0, 0, 0};
    outcome.wrong += tuttiAllGatherv(mine.data(), all.data(), counts, overlapping, tuttiInt32, comm, nullptr) !=
                     tuttiInvalidArgument;
    outcome.wrong +=
        tuttiAllGatherv(mine.data(), all.data(), nullptr, displs, tuttiInt32, comm, nullptr) != tuttiInvalidArgument;
  }));
}

TEST_CASE("all-to-all with a different count for every pair") {
  constexpr int n = 3;
  require_success(run_threads(n, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    const auto count = [](int from, int to) { return static_cast<size_t>(from == to ? 2 : 1000 * from + to); };
    size_t send_counts[n], send_at[n], recv_counts[n], recv_at[n], sends = 0, recvs = 0;
    for (int peer = 0; peer < n; peer++) {
      send_counts[peer] = count(rank, peer);
      recv_counts[peer] = count(peer, rank);
      send_at[peer] = sends;
      recv_at[peer] = recvs;
      sends += send_counts[peer];
      recvs += recv_counts[peer];
    }
    std::vector<int32_t> send(sends), recv(recvs, -1);
    for (int peer = 0; peer < n; peer++)
      std::fill_n(send.begin() + static_cast<long>(send_at[peer]), send_counts[peer], 10 * rank + peer);
    outcome.take(tuttiAlltoAllv(send.data(), send_counts, send_at, recv.data(), recv_counts, recv_at, tuttiInt32, comm,
                                nullptr));
    for (int peer = 0; peer < n; peer++)
      for (size_t i = 0; i < recv_counts[peer]; i++) outcome.wrong += recv[recv_at[peer] + i] != 10 * peer + rank;
    outcome.wrong += tuttiAlltoAllv(send.data(), nullptr, send_at, recv.data(), recv_counts, recv_at, tuttiInt32, comm,
                                    nullptr) != tuttiInvalidArgument;
  }));
}

TEST_CASE("deterministic sums have the same bits whatever the transport, the slots, the algorithm and the operation") {
  constexpr int n = 5;
  constexpr size_t kCount = 5 * 3001;
  // Values of very different magnitude: nearly every order of adding gives different bits.
  const auto fill = [](std::vector<float>& data, int rank) {
    for (size_t i = 0; i < data.size(); i++) {
      const unsigned h = (static_cast<unsigned>(i) * 2654435761u) ^ (static_cast<unsigned>(rank + 1) * 2246822519u);
      data[i] = std::ldexp(1.0f + static_cast<float>(h % 65521) / 65521.0f, static_cast<int>(h >> 16) % 50 - 25) *
                (h & 0x8000 ? -1.0f : 1.0f);
    }
  };
  std::vector<float> want(kCount), input(kCount);
  fill(want, 0);
  for (int r = 1; r < n; r++) {
    fill(input, r);
    for (size_t i = 0; i < kCount; i++) want[i] += input[i];
  }
  const char* transport = GENERATE("shm", "tcp");
  const char* algo = GENERATE("ring", "tree");
  const char* slot_bytes = GENERATE("64", "1K", "128K");
  INFO(transport << ", " << algo << ", slots of " << slot_bytes);
  setenv("TUTTI_SLOT_BYTES", slot_bytes, 1);
  setenv("TUTTI_DETERMINISTIC", "1", 1);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  config.algo = algo;
  const auto outcomes = run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> data(kCount), all(kCount), part(kCount / n), one(kCount);
    fill(data, rank);
    outcome.take(tuttiAllReduce(data.data(), all.data(), kCount, tuttiFloat, tuttiSum, comm, nullptr));
    outcome.take(tuttiReduceScatter(data.data(), part.data(), kCount / n, tuttiFloat, tuttiSum, comm, nullptr));
    outcome.take(tuttiReduce(data.data(), one.data(), kCount, tuttiFloat, tuttiSum, 2, comm, nullptr));
    outcome.wrong += memcmp(all.data(), want.data(), kCount * sizeof(float)) != 0;
    outcome.wrong += memcmp(part.data(), &want[static_cast<size_t>(rank) * (kCount / n)], part.size() * 4) != 0;
    outcome.wrong += rank == 2 && memcmp(one.data(), want.data(), kCount * sizeof(float)) != 0;
  });
  unsetenv("TUTTI_SLOT_BYTES");
  unsetenv("TUTTI_DETERMINISTIC");
  require_success(outcomes);
}

TEST_CASE("splits of one communicator in one group keep the order of calls", "[long]") {
  constexpr int n = 4;
  require_success(run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (int i = 0; i < 100; i++) {
      tuttiComm_t half = nullptr, all = nullptr;
      int size_of_half = 0, size_of_all = 0;
      outcome.take(tuttiGroupStart());
      outcome.take(tuttiCommSplit(comm, rank % 2, rank, &half, nullptr));
      outcome.take(tuttiCommSplit(comm, 0, rank, &all, nullptr));
      outcome.take(tuttiGroupEnd());
      if (outcome.code != tuttiSuccess) return;
      outcome.take(tuttiCommCount(half, &size_of_half));
      outcome.take(tuttiCommCount(all, &size_of_all));
      outcome.wrong += size_of_half != 2 || size_of_all != n;
      outcome.take(tuttiCommDestroy(half));
      outcome.take(tuttiCommDestroy(all));
    }
  }));
}

TEST_CASE("who calls something else than a split or growth is told so, even what the library makes of it") {
  const bool grows = GENERATE(false, true);
  const size_t bytes = grows ? sizeof(tuttiUniqueId) : 2 * sizeof(int32_t);
  const tuttiUniqueId id = new_id();
  const auto outcomes = run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t other = nullptr;
    std::vector<char> in(bytes), out(2 * bytes);
    if (rank == 1)
      outcome.take(tuttiAllGather(in.data(), out.data(), bytes, tuttiInt8, comm, nullptr));
    else if (grows)
      outcome.take(tuttiCommGrow(comm, 3, &id, -1, &other, nullptr));
    else
      outcome.take(tuttiCommSplit(comm, 0, 0, &other, nullptr));
  });
  const std::string makes = std::string("rank 0 called Comm") + (grows ? "Grow" : "Split") + " as operation 1";
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(contains(outcome.message, makes));
    CHECK(contains(outcome.message, "rank 1 called AllGather(count="));
  }
}

TEST_CASE("a rank may come to a split later than the limit for creations: that is for the meeting") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 1;
  require_success(run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    tuttiComm_t part = nullptr;
    outcome.take(tuttiCommSplit(comm, 0, 0, &part, &config));
    if (part != nullptr) outcome.take(tuttiCommDestroy(part));
  }));
}

TEST_CASE("a rank may take longer than the limit for creations to hear where a split meets") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 1;
  require_success(run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t part = nullptr;
    if (rank < 2) {
      outcome.take(tuttiCommSplit(comm, 0, 0, &part, &config));
      if (part != nullptr) outcome.take(tuttiCommDestroy(part));
      return;
    }
    const int32_t no_color[] = {TUTTI_SPLIT_NOCOLOR, 0};
    std::vector<char> choices(3 * sizeof no_color), no_id(128), ids(3 * no_id.size());
    outcome.take(gather_for(tutti::kGathersForSplit, no_color, choices.data(), sizeof no_color, comm));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    outcome.take(gather_for(tutti::kGathersForSplit, no_id.data(), ids.data(), no_id.size(), comm));
  }));
}

TEST_CASE("a rank that cannot start the group of a split says why, and the others say which rank that is",
          "[processes]") {
  Processes ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t part = nullptr;
    if (rank == 0) setenv("TUTTI_SOCKET_IFNAME", "nosuchif", 1);
    const tuttiResult_t code = tuttiCommSplit(comm, 0, rank, &part, nullptr);
    const char* const says = rank == 0 ? "TUTTI_SOCKET_IFNAME=nosuchif"
                                       : "rank 0 could not start the new group: TUTTI_SOCKET_IFNAME=nosuchif";
    outcome.wrong += code != (rank == 0 ? tuttiInvalidUsage : tuttiRemoteError) || part != nullptr;
    outcome.wrong += !contains(tuttiGetLastError(nullptr), says);
    unsetenv("TUTTI_SOCKET_IFNAME");
    outcome.take(tuttiCommSplit(comm, 0, rank, &part, nullptr));  // the old group still works
    outcome.take(tuttiCommDestroy(part));
    outcome.take(tuttiCommFinalize(comm));
    outcome.take(tuttiCommDestroy(comm));
  });
  require_success(ranks.wait());
}
