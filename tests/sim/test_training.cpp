// Training steps against times computed by hand.
#include "catch.h"
#include "networks.h"
#include "tools/sim/training.h"

namespace tutti::sim::testing {
namespace {

TEST_CASE("buckets are filled from the last tensor on") {
  const std::vector<uint64_t> tensors = {50, 30, 30, 200};
  const auto buckets = bucket_up(tensors, 60);
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0].bytes == 200);
  CHECK(buckets[1].bytes == 60);
  CHECK(buckets[2].bytes == 50);
  CHECK(buckets[0].ready_share == about(0.25));
  CHECK(buckets[1].ready_share == about(0.75));
  CHECK(buckets[2].ready_share == about(1));
  CHECK(bucket_up(tensors, 1000).size() == 1);
}

// Forward pass until 100, backward pass until 300; gradients are ready at 200 and 300.
TEST_CASE("what the network does while gradients are computed costs nothing") {
  const std::vector<Bucket> buckets = {{10, 0.5}, {20, 1}};
  const auto step = [&](double ns_of_byte) {
    const auto time = step_time(
        buckets, 300, [&](uint64_t bytes) -> Result<double> { return static_cast<double>(bytes) * ns_of_byte; });
    REQUIRE(time);
    return time.value();
  };
  CHECK(step(0).efficiency == about(1));
  CHECK(step(1).ns == about(300 + 20));
  CHECK(step(1).communicates_ns == about(30));
  // The second bucket waits for the first one.
  CHECK(step(20).ns == about(200 + 200 + 400));
  CHECK(step(20).efficiency == about(300.0 / 800));
  const auto failed = step_time(buckets, 300, [](uint64_t) -> Result<double> { return Error{}; });
  CHECK(!failed);
}

}  // namespace
}  // namespace tutti::sim::testing
