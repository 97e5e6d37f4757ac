// All the other collectives: right data at odd sizes, in place and not, for several rank counts and both transports.
#include <atomic>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

// Element i of the block from rank `from` to rank `to`.
int64_t item(int from, int to, size_t i) {
  return from * 1000003LL + to * 1009LL + static_cast<int64_t>(i);
}

std::vector<int64_t> block(int from, int to, size_t count) {
  std::vector<int64_t> data(count);
  for (size_t i = 0; i < count; i++) data[i] = item(from, to, i);
  return data;
}

// One block for (or from) every rank.
template <typename Item>
std::vector<int64_t> blocks(int n, size_t count, const Item& item_of) {
  std::vector<int64_t> all(static_cast<size_t>(n) * count);
  for (int r = 0; r < n; r++)
    for (size_t i = 0; i < count; i++) all[static_cast<size_t>(r) * count + i] = item_of(r, i);
  return all;
}

std::vector<int64_t> sum_of_blocks(int n, int to, size_t count) {
  std::vector<int64_t> sum(count);
  for (int r = 0; r < n; r++)
    for (size_t i = 0; i < count; i++) sum[i] += item(r, to, i);
  return sum;
}

struct Rank {
  int rank, n;
  size_t count;
  tuttiComm_t comm;
  Outcome& outcome;

  // If `got` has one more element than `want`, that one must still be the guard.
  void expect(const std::vector<int64_t>& got, const std::vector<int64_t>& want) const {
    for (size_t i = 0; i < want.size(); i++) outcome.wrong += got[i] != want[i];
    outcome.wrong += got.size() > want.size() && got.back() != -1;
  }
  std::vector<int64_t> room(size_t elems) const { return std::vector<int64_t>(elems + 1, -1); }

  void reduce(int root) const {
    const auto send = block(rank, 0, count);
    auto recv = room(count);
    outcome.take(tuttiReduce(send.data(), rank == root ? recv.data() : nullptr, count, tuttiInt64, tuttiSum, root, comm,
                             nullptr));
    if (rank == root) expect(recv, sum_of_blocks(n, 0, count));
    auto both = block(rank, 0, count);
    outcome.take(tuttiReduce(both.data(), both.data(), count, tuttiInt64, tuttiSum, root, comm, nullptr));
    expect(both, rank == root ? sum_of_blocks(n, 0, count) : send);  // sendbuff is left unchanged
  }

  void all_reduce(tuttiRedOp_t op, int time) const {
    auto want = op == tuttiMax ? block(n - 1, time, count) : sum_of_blocks(n, time, count);
    if (op == tuttiAvg)
      for (int64_t& value : want) value /= n;
    auto send = block(rank, time, count);
    auto recv = room(count);
    const bool in_place = time % 2 == 1;
    outcome.take(
        tuttiAllReduce(send.data(), in_place ? send.data() : recv.data(), count, tuttiInt64, op, comm, nullptr));
    expect(in_place ? send : recv, want);
  }

  void broadcast(int root, int time) const {
    const auto send = block(root, time, count);
    auto recv = rank == root && time % 2 == 1 ? send : room(count);
    const void* from = rank != root ? nullptr : time % 2 == 1 ? recv.data() : send.data();
    outcome.take(tuttiBroadcast(from, recv.data(), count, tuttiInt64, root, comm, nullptr));
    expect(recv, send);
  }

  void all_gather() const {
    const auto want = blocks(n, count, [](int r, size_t i) { return item(r, 0, i); });
    const auto send = block(rank, 0, count);
    auto recv = room(want.size());
    outcome.take(tuttiAllGather(send.data(), recv.data(), count, tuttiInt64, comm, nullptr));
    expect(recv, want);
    auto both = room(want.size());
    int64_t* mine = both.data() + static_cast<size_t>(rank) * count;
    std::copy(send.begin(), send.end(), mine);
    outcome.take(tuttiAllGather(mine, both.data(), count, tuttiInt64, comm, nullptr));
    expect(both, want);
  }

  void reduce_scatter() const {
    const auto send = blocks(n, count, [&](int r, size_t i) { return item(rank, r, i); });
    const auto want = sum_of_blocks(n, rank, count);
    auto recv = room(count);
    outcome.take(tuttiReduceScatter(send.data(), recv.data(), count, tuttiInt64, tuttiSum, comm, nullptr));
    expect(recv, want);
    auto both = send;
    int64_t* mine = both.data() + static_cast<size_t>(rank) * count;
    outcome.take(tuttiReduceScatter(both.data(), mine, count, tuttiInt64, tuttiSum, comm, nullptr));
    for (size_t i = 0; i < count; i++) outcome.wrong += mine[i] != want[i];
  }

  void all_to_all() const {
    const auto send = blocks(n, count, [&](int r, size_t i) { return item(rank, r, i); });
    auto recv = room(send.size());
    outcome.take(tuttiAlltoAll(send.data(), recv.data(), count, tuttiInt64, comm, nullptr));
    expect(recv, blocks(n, count, [&](int r, size_t i) { return item(r, rank, i); }));
  }

  void gather(int root) const {
    const auto want = blocks(n, count, [](int r, size_t i) { return item(r, 0, i); });
    const auto send = block(rank, 0, count);
    auto recv = room(want.size());
    outcome.take(
        tuttiGather(send.data(), rank == root ? recv.data() : nullptr, count, tuttiInt64, root, comm, nullptr));
    if (rank == root) expect(recv, want);
  }

  void scatter(int root) const {
    const auto send = blocks(n, count, [&](int r, size_t i) { return item(root, r, i); });
    auto recv = room(count);
    outcome.take(
        tuttiScatter(rank == root ? send.data() : nullptr, recv.data(), count, tuttiInt64, root, comm, nullptr));
    expect(recv, block(root, rank, count));
  }
};

}  // namespace

TEST_CASE("collectives move and reduce the right blocks", "[long]") {
  const char* transport = GENERATE("shm", "tcp");
  const char* algo = GENERATE("ring", "tree");
  const int n = GENERATE(1, 2, 3, 4, kSanitized ? 5 : 7);
  INFO(n << " ranks over " << transport << ", " << algo);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  config.algo = algo;
  // Under sanitizers a buffer of over 256 KiB gets its own pages, and to map and unmap them takes longer than
  // everything else.
  const size_t several_messages = kSanitized ? 5'001 : 70'001;
  if (kSanitized) setenv("TUTTI_SLOT_BYTES", "8192", 1);
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{13}, size_t{1000}, several_messages}) {
      const Rank me{rank, n, count, comm, outcome};
      for (const int root : {0, n - 1}) {
        me.reduce(root);
        me.gather(root);
        me.scatter(root);
      }
      me.all_gather();
      me.reduce_scatter();
      me.all_to_all();
      outcome.take(tuttiBarrier(comm, nullptr));
    }
    outcome.take(tuttiCommFinalize(comm));
  }));
  unsetenv("TUTTI_SLOT_BYTES");
}

// From the second operation of a kind on, everything that does not change is taken over from the first.
TEST_CASE("small operations that repeat give the right data in whatever memory", "[long]") {
  const char* transport = GENERATE("shm", "tcp");
  const char* algo = GENERATE("oneshot", "direct", "tree", "circulant", "doubling", "linear");
  const int n = GENERATE(1, 2, 3, 5);
  INFO(n << " ranks over " << transport << ", " << algo);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  config.algo = algo;
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{13}, size_t{500}}) {
      const Rank me{rank, n, count, comm, outcome};
      for (int time = 0; time < 3; time++) me.all_gather();
      for (int time = 0; time < 3; time++) me.reduce_scatter();
      for (int time = 0; time < 3; time++) me.all_to_all();
      for (int time = 0; time < 3; time++) outcome.take(tuttiBarrier(comm, nullptr));
      for (const int root : {n - 1, 0}) {
        for (int time = 0; time < 3; time++) me.reduce(root);
        for (int time = 0; time < 3; time++) me.gather(root);
        for (int time = 0; time < 3; time++) me.scatter(root);
        for (int time = 0; time < 3; time++) me.broadcast(root, time);
      }
      for (const tuttiRedOp_t op : {tuttiSum, tuttiAvg, tuttiMax})
        for (int time = 0; time < 4; time++) me.all_reduce(op, time);
    }
  }));
}

TEST_CASE("operations with a root give the right data while their plans take turns") {
  const char* transport = GENERATE("shm", "tcp");
  INFO(transport);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  require_success(run_threads(3, &config, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (int i = 0; i < (kSanitized ? 400 : 3000); i++) {
      const Rank few{rank, 3, 13, comm, outcome}, many{rank, 3, 3000, comm, outcome};
      few.broadcast(0, i);
      few.reduce(i % 3);
      if (i % 4 == 0) many.broadcast(2, i);
      if (i % 4 == 1) many.reduce(1);
    }
  }));
}

TEST_CASE("a small operation that repeats with wrong buffers is refused, and the next one works") {
  require_success(run_threads(2, nullptr, [&](int, tuttiComm_t comm, Outcome& outcome) {
    std::vector<int64_t> data(20, 1), sum(10);
    const auto all_reduce = [&](const int64_t* from, int64_t* to) {
      return tuttiAllReduce(from, to, 10, tuttiInt64, tuttiSum, comm, nullptr);
    };
    for (int time = 0; time < 3; time++) {
      outcome.take(all_reduce(data.data(), sum.data()));
      outcome.wrong += all_reduce(nullptr, sum.data()) != tuttiInvalidArgument;
      outcome.wrong += all_reduce(data.data(), nullptr) != tuttiInvalidArgument;
      outcome.wrong += all_reduce(data.data(), data.data() + 9) != tuttiInvalidArgument;
      outcome.wrong += all_reduce(data.data() + 9, data.data()) != tuttiInvalidArgument;
    }
    outcome.take(all_reduce(data.data(), data.data() + 10));
    outcome.wrong += data[10] != 2 || data[19] != 2 || sum[0] != 2;
  }));
}

TEST_CASE("a barrier holds everybody until the last one comes") {
  constexpr int n = 5;
  std::atomic<int> entered{0};
  require_success(run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (int i = 1; i <= 20; i++) {
      if (rank == i % n) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      entered++;
      outcome.take(tuttiBarrier(comm, nullptr));
      outcome.wrong += entered.load() < i * n;
    }
  }));
}

TEST_CASE("wrong buffers of the collectives are named") {
  const auto outcomes = run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    float data[16] = {};
    const auto refused = [&](tuttiResult_t result, const char* part) {
      outcome.wrong += result != tuttiInvalidArgument || !strstr(tuttiGetLastError(nullptr), part);
    };
    refused(tuttiAllGather(data + 1, data, 8, tuttiFloat, comm, nullptr), "block of recvbuff as sendbuff");
    refused(tuttiReduceScatter(data, data + 1, 8, tuttiFloat, tuttiSum, comm, nullptr),
            "block of sendbuff as recvbuff");
    refused(tuttiAlltoAll(data, data, 8, tuttiFloat, comm, nullptr), "never in place");
    refused(tuttiReduce(data, data, 8, tuttiFloat, tuttiSum, 2, comm, nullptr), "root=2");
    refused(tuttiAllGather(data, data + 8, SIZE_MAX / 6, tuttiFloat, comm, nullptr), "overflow");
    if (rank == 0) refused(tuttiGather(data, nullptr, 8, tuttiFloat, 0, comm, nullptr), "recvbuff is NULL");
    if (rank == 0) refused(tuttiScatter(nullptr, data, 8, tuttiFloat, 0, comm, nullptr), "sendbuff is NULL");
    outcome.take(tuttiBarrier(comm, nullptr));  // nothing was sent, so the group still works
  });
  require_success(outcomes);
}

TEST_CASE("an all-to-all of one rank may be in place") {
  require_success(run_threads(1, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    auto data = block(0, 0, 10);
    for (int time = 0; time < 2; time++)
      outcome.take(tuttiAlltoAll(data.data(), data.data(), data.size(), tuttiInt64, comm, nullptr));
    outcome.wrong += data != block(0, 0, 10);
  }));
}
