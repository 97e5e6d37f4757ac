// Right results: every type, operator, algorithm and transport, odd sizes, in place, unaligned, as threads.
#include <cmath>
#include <cstdint>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

// A value of `datatype` that every type holds exactly.
void put(void* to, int datatype, size_t index, int value) {
  const auto store = [&](auto v) { memcpy(static_cast<char*>(to) + index * sizeof v, &v, sizeof v); };
  switch (datatype) {
    case tuttiInt8: return store(static_cast<int8_t>(value));
    case tuttiUint8: return store(static_cast<uint8_t>(value));
    case tuttiInt32: return store(static_cast<int32_t>(value));
    case tuttiUint32: return store(static_cast<uint32_t>(value));
    case tuttiInt64: return store(static_cast<int64_t>(value));
    case tuttiUint64: return store(static_cast<uint64_t>(value));
    case tuttiFloat32: return store(static_cast<float>(value));
    case tuttiFloat64: return store(static_cast<double>(value));
    case tuttiFloat16: return store(static_cast<uint16_t>(value == 0 ? 0 : ((std::ilogb(value) + 15) << 10)));
    case tuttiBfloat16: return store(static_cast<uint16_t>(value == 0 ? 0 : ((std::ilogb(value) + 127) << 7)));
    case tuttiFloat8e4m3: return store(static_cast<uint8_t>(value == 0 ? 0 : ((std::ilogb(value) + 7) << 3)));
    default: return store(static_cast<uint8_t>(value == 0 ? 0 : ((std::ilogb(value) + 15) << 2)));
  }
}

constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// Powers of two only, so that one rule serves all types: rank 0 and 1 contribute 2, the others the neutral element.
int contribution(int op, int rank, size_t index) {
  const int mine = index % 3 == 0 ? 2 : 4;
  switch (op) {
    case tuttiSum:
    case tuttiAvg: return rank < 2 ? mine : 0;
    case tuttiProd: return rank < 2 ? mine : 1;
    case tuttiMax: return rank == 1 ? mine : 1;
    default: return rank == 1 ? 1 : mine;
  }
}

int expected(int op, int n, size_t index) {
  const int mine = index % 3 == 0 ? 2 : 4;
  switch (op) {
    case tuttiSum: return n == 1 ? mine : 2 * mine;
    case tuttiAvg: return n == 1 ? mine : n == 2 ? mine : mine / 2;  // with n == 4
    case tuttiProd: return n == 1 ? mine : mine * mine;
    case tuttiMax: return n == 1 ? 1 : mine;
    default: return n == 1 ? mine : 1;
  }
}

size_t check_all_reduce(int rank, int n, tuttiComm_t comm, int datatype, int op, size_t count, size_t offset,
                        bool in_place, Outcome& outcome) {
  const size_t bytes = count * kBytes[datatype];
  std::vector<char> input(bytes + offset + 64, 'x'), output(bytes + offset + 64, 'g'), want(bytes + 1);
  char* send = input.data() + offset;
  char* recv = in_place ? send : output.data() + offset;
  for (size_t i = 0; i < count; i++) {
    put(send, datatype, i, contribution(op, rank, i));
    put(want.data(), datatype, i, expected(op, n, i));
  }
  outcome.take(tuttiAllReduce(send, recv, count, static_cast<tuttiDataType_t>(datatype), static_cast<tuttiRedOp_t>(op),
                              comm, nullptr));
  const char guard = in_place ? 'x' : 'g';
  return memcmp(recv, want.data(), bytes) != 0 || recv[bytes] != guard;
}

}  // namespace

TEST_CASE("all-reduce gives the right values for every type and operator") {
  const char* algo = GENERATE("ring", "tree");
  const char* transport = GENERATE("shm", "tcp");
  const int n = GENERATE(1, 2, 4);
  INFO(algo << " over " << transport << " with " << n << " ranks");
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = algo;
  config.transports = transport;
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (int datatype = 0; datatype < tuttiNumTypes; datatype++)
      for (int op = 0; op < tuttiNumOps; op++)
        for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1001}})
          outcome.wrong += check_all_reduce(rank, n, comm, datatype, op, count, count % 2, count == 7, outcome);
  }));
}

TEST_CASE("all-reduce and broadcast of many sizes, over many ranks", "[long]") {
  const char* algo = GENERATE("ring", "tree");
  const int n = GENERATE(3, 5, 8, 16);
  if (kSanitized && (n == 5 || n == 16)) return;
  INFO(algo << " with " << n << " ranks");
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = algo;
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    const size_t large = kSanitized ? 100'001 : 300'001;
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{1000}, size_t{65537}, large}) {
      std::vector<int64_t> data(count + 1), result(count + 1, -7);
      for (size_t i = 0; i < count; i++) data[i] = static_cast<int64_t>(i) * (rank + 1);
      outcome.take(tuttiAllReduce(data.data(), result.data(), count, tuttiInt64, tuttiSum, comm, nullptr));
      for (size_t i = 0; i < count; i++) outcome.wrong += result[i] != static_cast<int64_t>(i) * n * (n + 1) / 2;
      outcome.wrong += result[count] != -7;
      for (const int root : {0, n / 2, n - 1}) {
        outcome.take(tuttiBroadcast(rank == root ? data.data() : nullptr, result.data(), count, tuttiInt64, root, comm,
                                    nullptr));
        for (size_t i = 0; i < count; i++) outcome.wrong += result[i] != static_cast<int64_t>(i) * (root + 1);
        result.assign(count + 1, -7);
        if (rank == root) result = data;
        outcome.take(tuttiBcast(result.data(), count, tuttiInt64, root, comm, nullptr));
        for (size_t i = 0; i < count; i++) outcome.wrong += result[i] != static_cast<int64_t>(i) * (root + 1);
        result[count] = -7;
      }
    }
    outcome.take(tuttiCommFinalize(comm));
  }));
}

TEST_CASE("all ranks get bit-identical floats") {
  const char* algo = GENERATE("ring", "tree");
  constexpr int n = 5;
  constexpr size_t kCount = 4099;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = algo;
  std::vector<std::vector<float>> results(n, std::vector<float>(kCount));
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> data(kCount);
    for (size_t i = 0; i < kCount; i++)
      data[i] = std::ldexp(
          1.0f + static_cast<float>((i * 2654435761u + static_cast<unsigned>(rank) * 40503u) % 8191) / 8191.0f,
          static_cast<int>((i + static_cast<size_t>(rank)) % 40) - 20);
    outcome.take(tuttiAllReduce(data.data(), results[static_cast<size_t>(rank)].data(), kCount, tuttiFloat, tuttiSum,
                                comm, nullptr));
  }));
  for (int r = 1; r < n; r++)
    REQUIRE(memcmp(results[0].data(), results[static_cast<size_t>(r)].data(), kCount * sizeof(float)) == 0);
}

TEST_CASE("streams run in order, several at once, and report errors when asked") {
  constexpr int n = 3;
  require_success(run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiStream_t streams[2];
    for (auto& stream : streams) outcome.take(tuttiStreamCreate(&stream));
    std::vector<std::vector<int32_t>> buffers(20, std::vector<int32_t>(1000, rank + 1));
    for (size_t k = 0; k < buffers.size(); k++)  // twice on one stream: the value shows the order
      for (int twice = 0; twice < 2; twice++)
        outcome.take(tuttiAllReduce(buffers[k].data(), buffers[k].data(), buffers[k].size(), tuttiInt32, tuttiSum, comm,
                                    streams[k % 2]));
    for (auto& stream : streams) {
      outcome.take(tuttiStreamSynchronize(stream));
      outcome.take(tuttiStreamQuery(stream));
    }
    for (const auto& buffer : buffers)
      for (const int32_t value : buffer) outcome.wrong += value != 6 * n;
    // On the caller's thread again, after the queued operations.
    int32_t one = 1;
    outcome.take(tuttiAllReduce(buffers[0].data(), buffers[0].data(), 1000, tuttiInt32, tuttiMax, comm, streams[0]));
    outcome.take(tuttiAllReduce(&one, &one, 1, tuttiInt32, tuttiSum, comm, nullptr));
    outcome.wrong += one != n;
    for (auto& stream : streams) outcome.take(tuttiStreamDestroy(stream));
  }));
}

TEST_CASE("communicators of one process: tuttiCommInitAll, destroyed one after the other") {
  tuttiComm_t comms[4];
  REQUIRE(tuttiCommInitAll(comms, 4, nullptr) == tuttiSuccess);
  std::vector<std::thread> threads;
  std::vector<int32_t> results(4);
  for (int r = 0; r < 4; r++)
    threads.emplace_back([&, r] {
      const int32_t mine = 1 << r;
      tuttiAllReduce(&mine, &results[static_cast<size_t>(r)], 1, tuttiInt32, tuttiSum, comms[r], nullptr);
    });
  for (auto& thread : threads) thread.join();
  for (const int32_t result : results) CHECK(result == 15);
  for (tuttiComm_t comm : comms) {
    int count = 0;
    CHECK(tuttiCommCount(comm, &count) == tuttiSuccess);
    CHECK(count == 4);
    CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  }
}
