// Operators that the program creates: sums whose inputs each rank multiplies first.
#include "comm/ranks.h"

using namespace tutti_test;

namespace {

bool refused(tuttiResult_t result, const std::string& part) {
  return result == tuttiInvalidArgument && std::string(tuttiGetLastError(nullptr)).find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("operators belong to one communicator and one type, until they are destroyed") {
  tuttiComm_t comm = nullptr, other = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiCommInitAll(&other, 1, nullptr) == tuttiSuccess);
  float factor = 2, data = 3;
  tuttiRedOp_t op = tuttiSum, next = tuttiSum, foreign = tuttiSum;
  REQUIRE(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, tuttiScalarHostImmediate, comm) == tuttiSuccess);
  REQUIRE(tuttiRedOpCreatePreMulSum(&next, &factor, tuttiFloat, tuttiScalarDevice, comm) == tuttiSuccess);
  REQUIRE(tuttiRedOpCreatePreMulSum(&foreign, &factor, tuttiFloat, tuttiScalarDevice, other) == tuttiSuccess);
  CHECK(op >= tuttiNumOps);
  CHECK(next >= tuttiNumOps);
  CHECK(next != op);
  const auto named = [](tuttiRedOp_t o) { return "op=" + std::to_string(static_cast<int>(o)); };
  const auto reduce = [&](tuttiRedOp_t o, tuttiDataType_t type) {
    return tuttiAllReduce(&data, &data, 1, type, o, comm, nullptr);
  };
  CHECK(refused(reduce(foreign, tuttiFloat), named(foreign)));
  CHECK(refused(reduce(op, tuttiInt32), named(op) + " was made for float"));
  CHECK(refused(tuttiRedOpDestroy(foreign, comm), named(foreign)));
  CHECK(refused(tuttiRedOpDestroy(tuttiAvg, comm), "op=4 is built in"));
  CHECK(refused(tuttiRedOpDestroy(op, nullptr), "comm is NULL"));
  CHECK(tuttiRedOpDestroy(op, comm) == tuttiSuccess);
  CHECK(refused(tuttiRedOpDestroy(op, comm), named(op)));
  CHECK(refused(reduce(op, tuttiFloat), named(op)));
  CHECK(data == 3);

  const auto create = [&](tuttiRedOp_t* to, void* scalar, int type, int residence) {
    return tuttiRedOpCreatePreMulSum(to, scalar, static_cast<tuttiDataType_t>(type),
                                     static_cast<tuttiScalarResidence_t>(residence), comm);
  };
  CHECK(refused(create(nullptr, &factor, tuttiFloat, 0), "op is NULL"));
  CHECK(refused(create(&op, nullptr, tuttiFloat, 0), "scalar is NULL"));
  CHECK(refused(create(&op, &factor, tuttiNumTypes, 0), "datatype=12"));
  CHECK(refused(create(&op, &factor, tuttiFloat, 2), "residence=2"));
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  CHECK(refused(tuttiRedOpDestroy(next, comm), "not a live communicator"));
  CHECK(refused(create(&op, &factor, tuttiFloat, 0), "not a live communicator"));
  CHECK(tuttiCommDestroy(other) == tuttiSuccess);
}

namespace {

// Small whole numbers, which every type holds exactly.
template <class T>
std::vector<T> input_of(int rank, size_t count) {
  std::vector<T> data(count);
  for (size_t i = 0; i < count; i++) data[i] = static_cast<T>(i % 5 + static_cast<size_t>(rank));
  return data;
}
template <class T>
T factor_of(int rank) {
  return static_cast<T>(rank + 2);
}
template <class T>
T product_sum(int n_ranks, size_t i) {
  T sum = 0;
  for (int r = 0; r < n_ranks; r++)
    sum = static_cast<T>(sum + factor_of<T>(r) * static_cast<T>(i % 5 + static_cast<size_t>(r)));
  return sum;
}

template <class T>
void check_products(tuttiDataType_t type, const tuttiConfig_t* config) {
  constexpr int n = 3;
  constexpr size_t kBlock = 20011;
  require_success(run_threads(n, config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    const auto residence = rank == 1 ? tuttiScalarDevice : tuttiScalarHostImmediate;  // ranks need not agree
    T factor = factor_of<T>(rank);
    tuttiRedOp_t op = tuttiSum;
    outcome.take(tuttiRedOpCreatePreMulSum(&op, &factor, type, residence, comm));
    if (residence == tuttiScalarHostImmediate) factor = 0;  // it was copied, so this has no effect
    const auto count_wrong = [&](const std::vector<T>& got, size_t begin) {
      for (size_t i = 0; i < got.size(); i++) outcome.wrong += got[i] != product_sum<T>(n, begin + i);
    };
    const auto input = input_of<T>(rank, n * kBlock);
    auto all = input, one = input;
    std::vector<T> part(kBlock), unequal(static_cast<size_t>(rank) * 1000 + 1);
    outcome.take(tuttiAllReduce(all.data(), all.data(), all.size(), type, op, comm, nullptr));
    count_wrong(all, 0);
    outcome.take(tuttiReduceScatter(input.data(), part.data(), kBlock, type, op, comm, nullptr));
    count_wrong(part, static_cast<size_t>(rank) * kBlock);
    outcome.take(tuttiReduce(input.data(), one.data(), one.size(), type, op, 1, comm, nullptr));
    if (rank == 1) count_wrong(one, 0);
    const size_t counts[n] = {1, 1001, 2001}, begins[n] = {0, 1, 1002};
    outcome.take(tuttiReduceScatterv(input.data(), unequal.data(), counts, type, op, comm, nullptr));
    count_wrong(unequal, begins[rank]);
    outcome.wrong += input != input_of<T>(rank, n * kBlock);  // the factor belongs to what is sent, not to the input
    outcome.take(tuttiRedOpDestroy(op, comm));
  }));
}

}  // namespace

TEST_CASE("each rank's input is multiplied by that rank's scalar", "[long]") {
  const char* algo = GENERATE("ring", "tree", "");
  const int deterministic = GENERATE(0, 1);
  INFO("algo=" << algo << ", deterministic=" << deterministic);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = algo;
  config.deterministic = deterministic;
  check_products<float>(tuttiFloat, &config);
  check_products<int32_t>(tuttiInt32, &config);
  check_products<uint8_t>(tuttiUint8, &config);
  check_products<double>(tuttiDouble, &config);
  check_products<uint64_t>(tuttiUint64, &config);
}

TEST_CASE("a scalar that stays the caller's is read when the operation runs") {
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    tuttiStream_t stream = nullptr;
    float factor = 100, later = 100, data = 3, sum = 0, other = 0;
    tuttiRedOp_t immediate = tuttiSum, device = tuttiSum;
    outcome.take(tuttiStreamCreate(&stream));
    outcome.take(tuttiRedOpCreatePreMulSum(&immediate, &factor, tuttiFloat, tuttiScalarHostImmediate, comm));
    outcome.take(tuttiRedOpCreatePreMulSum(&device, &later, tuttiFloat, tuttiScalarDevice, comm));
    // The stream sets the scalars before it gets to the operations, which outlive their operators.
    const auto set = [](tuttiStream_t, tuttiResult_t, void* to) { *static_cast<float*>(to) = 2; };
    outcome.take(tuttiStreamAddCallback(stream, set, &factor));
    outcome.take(tuttiStreamAddCallback(stream, set, &later));
    outcome.take(tuttiAllReduce(&data, &sum, 1, tuttiFloat, immediate, comm, stream));
    outcome.take(tuttiAllReduce(&data, &other, 1, tuttiFloat, device, comm, stream));
    outcome.take(tuttiRedOpDestroy(immediate, comm));
    outcome.take(tuttiRedOpDestroy(device, comm));
    outcome.take(tuttiStreamSynchronize(stream));
    outcome.wrong += sum != 600 || other != 12;
    outcome.take(tuttiStreamDestroy(stream));
  }));
}

TEST_CASE("ranks that disagree about the kind of sum are told so") {
  const auto outcomes = run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    float factor = 2, data = 1;
    tuttiRedOp_t op = tuttiSum;
    if (rank == 0) outcome.take(tuttiRedOpCreatePreMulSum(&op, &factor, tuttiFloat, tuttiScalarHostImmediate, comm));
    outcome.take(tuttiAllReduce(&data, &data, 1, tuttiFloat, op, comm, nullptr));
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(outcome.message.find("mulsum") != std::string::npos);
  }
}
