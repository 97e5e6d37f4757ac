// Operators made by the program: sums whose inputs each rank multiplies first.
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
