// How long a group would take; which device a communicator is on.
#include <cmath>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

// The estimate for one group that calls `body`; -1 if it was refused.
float simulate(const std::function<void()>& body) {
  tuttiSimInfo_t info = TUTTI_SIM_INFO_INITIALIZER;
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  body();
  INFO(tuttiGetLastError(nullptr));
  REQUIRE(tuttiGroupSimulateEnd(&info) == tuttiSuccess);
  return info.estimatedTime;
}

bool about(float a, float b) {
  return std::abs(a - b) <= 1e-4f * b;
}

struct Pair {
  tuttiComm_t ranks[2];
  Pair() { REQUIRE(tuttiCommInitAll(ranks, 2, nullptr) == tuttiSuccess); }
  ~Pair() {
    for (tuttiComm_t comm : ranks) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  }
};

}  // namespace

TEST_CASE("a simulated group runs nothing and tells a time that grows with the work") {
  Pair pair;
  std::vector<float> data(1 << 20, 1.0f);
  const auto sum = [&](int rank, size_t count) {
    CHECK(tuttiAllReduce(data.data(), data.data(), count, tuttiFloat, tuttiSum, pair.ranks[rank], nullptr) ==
          tuttiSuccess);
  };
  const float small = simulate([&] { sum(0, 1); }), large = simulate([&] { sum(0, data.size()); });
  CHECK(simulate([] {}) == 0.0f);
  CHECK(small > 0.0f);
  CHECK(large > 10 * small);
  const float twice = simulate([&] { sum(0, data.size()), sum(0, data.size()); });
  CHECK(about(twice, 2 * large));
  const float side_by_side = simulate([&] { sum(0, data.size()), sum(1, data.size()), sum(1, 1); });
  CHECK(about(side_by_side, large + small));
  CHECK(data == std::vector<float>(data.size(), 1.0f));
  tuttiResult_t state = tuttiInternalError;
  CHECK(tuttiCommGetAsyncError(pair.ranks[0], &state) == tuttiSuccess);
  CHECK(state == tuttiSuccess);
  // Nothing was sent: both ranks are still at the same operation.
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  float values[2] = {1, 2};
  for (int r = 0; r < 2; r++)
    CHECK(tuttiAllReduce(values + r, values + r, 1, tuttiFloat, tuttiSum, pair.ranks[r], nullptr) == tuttiSuccess);
  REQUIRE(tuttiGroupEnd() == tuttiSuccess);
  CHECK(values[0] == 3.0f);
  CHECK(values[1] == 3.0f);
}

TEST_CASE("messages and every collective have an estimate") {
  Pair pair;
  tuttiComm_t comm = pair.ranks[0];
  std::vector<float> a(64 << 10), b(64 << 10);
  const size_t n = 32 << 10, counts[2] = {n, n}, at[2] = {0, n};
  CHECK(simulate([&] { tuttiBroadcast(a.data(), b.data(), n, tuttiFloat, 1, comm, nullptr); }) > 0.0f);
  CHECK(simulate([&] { tuttiReduce(a.data(), b.data(), n, tuttiFloat, tuttiMax, 0, comm, nullptr); }) > 0.0f);
  CHECK(simulate([&] { tuttiAllGather(a.data(), b.data(), n, tuttiFloat, comm, nullptr); }) > 0.0f);
  CHECK(simulate([&] { tuttiReduceScatter(a.data(), b.data(), n, tuttiFloat, tuttiSum, comm, nullptr); }) > 0.0f);
  CHECK(simulate([&] { tuttiAlltoAll(a.data(), b.data(), n, tuttiFloat, comm, nullptr); }) > 0.0f);
  CHECK(simulate([&] { tuttiAllGatherv(a.data(), b.data(), counts, at, tuttiFloat, comm, nullptr); }) > 0.0f);
  CHECK(simulate([&] { tuttiGather(a.data(), b.data(), n, tuttiFloat, 0, comm, nullptr); }) > 0.0f);
  CHECK(simulate([&] { tuttiScatter(a.data(), b.data(), n, tuttiFloat, 0, comm, nullptr); }) > 0.0f);
  CHECK(simulate([&] { tuttiBarrier(comm, nullptr); }) > 0.0f);
  const float one = simulate([&] { tuttiSend(a.data(), n, tuttiFloat, 1, comm, nullptr); });
  const float both = simulate([&] {
    tuttiSend(a.data(), n, tuttiFloat, 1, comm, nullptr);
    tuttiRecv(b.data(), n, tuttiFloat, 1, comm, nullptr);
  });
  CHECK(one > 0.0f);
  CHECK(both > one);
  CHECK(both < 2 * one);  // they run at the same time
}

TEST_CASE("a simulated operation takes as long as tuttiExplain predicts") {
  Pair pair;
  std::vector<float> data(1 << 20), all(2 << 20);
  const auto explain = [&](char* text, size_t* bytes) {
    return tuttiExplain("tuttiAllReduce", data.size(), tuttiFloat, tuttiSum, pair.ranks[0], text, bytes);
  };
  char text[4000] = "";
  size_t bytes = sizeof text;
  REQUIRE(explain(text, &bytes) == tuttiSuccess);
  INFO(text);
  CHECK(bytes == strlen(text) + 1);
  const char* const chosen = strstr(text, "\n* ");
  REQUIRE(chosen != nullptr);
  char name[32] = "";
  float predicted_us = 0;
  REQUIRE(sscanf(chosen, " * %31s %f", name, &predicted_us) == 2);
  const float us = simulate(
      [&] { tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, pair.ranks[0], nullptr); });
  CHECK(std::abs(us - predicted_us) <= 0.01f + 1e-4f * predicted_us);

  char beginning[] = "xxxxxxxxxxx";
  size_t room = 10;
  CHECK(explain(beginning, &room) == tuttiSuccess);
  CHECK(room == bytes);
  CHECK(std::string(beginning) == std::string(text, 9));
  CHECK(beginning[10] == 'x');

  const size_t n = data.size(), counts[] = {n, n}, at[] = {0, n};
  tuttiComm_t comm = pair.ranks[0];
  const float equal = simulate([&] { tuttiAllGather(data.data(), all.data(), n, tuttiFloat, comm, nullptr); });
  const float unequal =
      simulate([&] { tuttiAllGatherv(data.data(), all.data(), counts, at, tuttiFloat, comm, nullptr); });
  CHECK(about(unequal, equal));
}

TEST_CASE("what cannot be simulated is refused with a reason, and the next group works") {
  Pair pair;
  tuttiSimInfo_t info = TUTTI_SIM_INFO_INITIALIZER;
  const auto refused = [&](tuttiResult_t code, const char* part, tuttiSimInfo_t* to) {
    CHECK(tuttiGroupSimulateEnd(to) == code);
    INFO(tuttiGetLastError(nullptr));
    CHECK(contains(tuttiGetLastError(nullptr), part));
  };
  refused(tuttiInvalidUsage, "tuttiGroupSimulateEnd without tuttiGroupStart", &info);
  tuttiGroupStart();
  refused(tuttiInvalidArgument, "simInfo is NULL", nullptr);
  tuttiSimInfo_t empty = {};
  tuttiGroupStart();
  refused(tuttiInvalidArgument, "TUTTI_SIM_INFO_INITIALIZER", &empty);
  tuttiGroupStart();
  CHECK(tuttiAllReduce(nullptr, nullptr, 1, tuttiFloat, tuttiSum, pair.ranks[0], nullptr) == tuttiInvalidArgument);
  refused(tuttiInvalidArgument, "no call of this group was run", &info);
  tuttiGroupStart();
  CHECK(tuttiCommFinalize(pair.ranks[0]) == tuttiSuccess);
  refused(tuttiInvalidUsage, "creating and finalizing", &info);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  tuttiComm_t made = nullptr;
  tuttiGroupStart();
  CHECK(tuttiCommInitRankConfig(&made, 1, new_id(), 0, &config) == tuttiInProgress);  // the creation continues
  refused(tuttiInvalidUsage, "creating and finalizing", &info);
  CHECK(tuttiCommDestroy(made) == tuttiSuccess);
  CHECK(info.estimatedTime == -1.0f);
  tuttiGroupStart();
  tuttiGroupStart();
  CHECK(tuttiGroupSimulateEnd(&info) == tuttiSuccess);  // an inner group
  CHECK(info.estimatedTime == -1.0f);
  CHECK(tuttiGroupSimulateEnd(&info) == tuttiSuccess);
  CHECK(info.estimatedTime == 0.0f);
}

TEST_CASE("a communicator on host memory has no CUDA device") {
  tuttiComm_t comm = nullptr;
  const int host[1] = {-1}, nowhere[1] = {-2};
  int device = 7;
  REQUIRE(tuttiCommInitAll(&comm, 1, host) == tuttiSuccess);
  CHECK(tuttiCommCuDevice(comm, &device) == tuttiSuccess);
  CHECK(device == -1);
  CHECK(tuttiCommCuDevice(comm, nullptr) == tuttiInvalidArgument);
  CHECK(tuttiCommCuDevice(nullptr, &device) == tuttiInvalidArgument);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
  CHECK(tuttiCommInitAll(&comm, 1, nowhere) == tuttiInvalidArgument);
  CHECK(contains(tuttiGetLastError(nullptr), "devlist[0]=-2"));
}

TEST_CASE("a quantised sum has an estimate, also where an algorithm is forced") {
  setenv("TUTTI_ALGO", "ring", 1);
  tuttiComm_t comms[3];
  REQUIRE(tuttiCommInitAll(comms, 3, nullptr) == tuttiSuccess);
  unsetenv("TUTTI_ALGO");
  std::vector<float> data(1000);
  const float us = simulate([&] {
    tuttiAllReduceQuantized(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, tuttiInt8, 64, nullptr,
                            comms[0], nullptr);
  });
  CHECK(us > 0.0f);
  for (tuttiComm_t comm : comms) CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("what cannot be explained is refused") {
  Pair pair;
  char text[100] = "";
  const auto refused = [&](const char* collective, int type, int op, const char* part) {
    size_t bytes = sizeof text;
    CHECK(tuttiExplain(collective, 10, static_cast<tuttiDataType_t>(type), static_cast<tuttiRedOp_t>(op), pair.ranks[0],
                       text, &bytes) == tuttiInvalidArgument);
    CHECK(contains(tuttiGetLastError(nullptr), part));
  };
  for (const char* none : {"tuttiFinalize", "tuttiSendRecv", "tuttiNone", "AllReduce", "tuttiAllReduceQuantized", ""})
    refused(none, tuttiFloat, tuttiSum, "is not the name of a collective");
  refused(nullptr, tuttiFloat, tuttiSum, "collective is NULL");
  refused("tuttiAllReduce", 99, tuttiSum, "datatype=99");
  refused("tuttiAllReduce", tuttiFloat, 99, "op=99");
  size_t bytes = sizeof text;
  CHECK(tuttiExplain("tuttiBroadcast", 10, tuttiFloat, static_cast<tuttiRedOp_t>(99), pair.ranks[0], text, &bytes) ==
        tuttiSuccess);  // a broadcast has no op
  bytes = sizeof text;
  CHECK(tuttiExplain("tuttiBcast", 10, tuttiFloat, tuttiSum, pair.ranks[0], text, &bytes) == tuttiSuccess);
}
