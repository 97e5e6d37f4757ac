// Which transport a link takes.
#include "comm/link_pool.h"

#include "catch.h"

namespace tutti::test_link_pool {
namespace {

// TCP, as a network device that is faster than a core copies.
const tuttiTransport* fast_network() {
  static const tuttiTransport fast = [] {
    tuttiTransport table = kTcpTransport;
    table.name = "fast";
    table.endpoint_open = [](const tuttiEndpointConfig* config, tuttiEndpoint** endpoint, tuttiEndpointInfo* info,
                             tuttiTransportError* error) {
      const tuttiResult_t opened = kTcpTransport.endpoint_open(config, endpoint, info, error);
      info->latency_ns = 100;
      info->bytes_per_second = 100'000'000'000;
      return opened;
    };
    return table;
  }();
  return &fast;
}

LinkPool pool_of(int rank, bool by_cost) {
  const tuttiEndpointConfig config{sizeof config, rank, 2};
  return LinkPool::open(config, {&kTcpTransport, fast_network(), &kShmTransport}, by_cost).value();
}

}  // namespace

TEST_CASE("ranks of one host share memory, however fast its network devices are, unless the user has an order") {
  LinkPool first = pool_of(0, true), second = pool_of(1, true);
  const auto on_another_host = [&](int) {
    auto addresses = second.addresses();
    addresses.erase("shm");
    return addresses;
  };
  first.set_peers({2, [&](int) { return second.addresses(); }}, {});
  CHECK(first.route(1) == "shm");
  first.set_peers({2, on_another_host}, {});
  CHECK(first.route(1) == "fast, because shm: the peer does not have it");
  LinkPool ordered = pool_of(0, false);
  ordered.set_peers({2, [&](int) { return second.addresses(); }}, {});
  CHECK(ordered.route(1) == "tcp");
}

}  // namespace tutti::test_link_pool
