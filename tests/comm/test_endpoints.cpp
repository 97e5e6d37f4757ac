// Which transport a link takes.
#include "comm/endpoints.h"

#include <sys/resource.h>

#include "catch.h"
#include "contains.h"

namespace tutti::test_endpoints {
namespace {

// TCP, posing as a network device that is faster than a core's copies.
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

Endpoints endpoints_of(int rank, bool by_cost) {
  const tuttiEndpointConfig config{sizeof config, rank, 2};
  return open_endpoints(config, {&kTcpTransport, fast_network(), &kShmTransport}, by_cost).value();
}

const tuttiTransport* failing_with(tuttiResult_t code) {
  static tuttiTransport failing;
  static tuttiResult_t failure;
  failing = kTcpTransport;
  failing.name = "failing";
  failure = code;
  failing.endpoint_open = [](const tuttiEndpointConfig*, tuttiEndpoint**, tuttiEndpointInfo*,
                             tuttiTransportError* error) {
    return report({static_cast<Code>(failure), "SETTING=typo excludes all cards"}, error);
  };
  return &failing;
}

}  // namespace

TEST_CASE("a transport that is not usable is left out, but one that is set wrongly is an error") {
  const tuttiEndpointConfig config{sizeof config, 0, 2};
  const auto without = open_endpoints(config, {failing_with(tuttiSystemError), &kTcpTransport}, true);
  REQUIRE(without);
  CHECK(without.value().size() == 1);
  const auto wrong = open_endpoints(config, {failing_with(tuttiInvalidUsage), &kTcpTransport}, true);
  REQUIRE(!wrong);
  CHECK(wrong.error().code == Code::kInvalidUsage);
  CHECK(tutti_test::contains(wrong.error().message, "SETTING=typo"));
}

TEST_CASE("ranks of one host share memory, however fast its network devices are, unless the user has an order") {
  const Endpoints first = endpoints_of(0, true), ordered = endpoints_of(0, false), second = endpoints_of(1, true);
  const Addresses here = addresses_of(second);
  Addresses on_another_host = here;
  on_another_host.erase("shm");
  CHECK(route_to(first, here) == "shm");
  CHECK(route_to(first, on_another_host) == "fast, because shm: the peer does not have it");
  CHECK(route_to(ordered, here) == "tcp");
}

TEST_CASE("who has no descriptor left for a link does not blame the peer") {
  Endpoints mine = endpoints_of(0, true);
  const Addresses peer = addresses_of(endpoints_of(1, true));
  LinkAttempt attempt({sizeof(tuttiLinkConfig), 1, 0, 2, 64, 1}, peer, false);
  rlimit usual{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  Result<bool> ready = attempt.advance(mine);
  for (int i = 0; i < 10 && ready; i++) ready = attempt.advance(mine);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE(!ready);
  CHECK(ready.error().code == Code::kSystemError);
  CHECK(tutti_test::contains(ready.error().message, "raise ulimit -n"));
}

}  // namespace tutti::test_endpoints
