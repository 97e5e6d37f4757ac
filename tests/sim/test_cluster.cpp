// Files that describe networks: their content, and their mistakes.
#include "catch.h"
#include "contains.h"
#include "networks.h"

namespace tutti::sim::testing {
namespace {

using tutti_test::contains;

constexpr const char* kGood = R"({"racks": 2, "hosts_per_rack": 3, "ranks_per_host": 4, "nics_per_host": 2,
  "local": {"gbit_per_s": 800, "latency_us": 0.5, "message_us": 0.1, "byte_ns": 0.25},
  "nic": {"gbit_per_s": 100, "latency_us": 3}, "rack": {"gbit_per_s": 200, "latency_us": 2},
  "exceptions": [{"host": 1, "nic": 1, "gbit_per_s": 10}, {"rank": 9, "starts_late_us": 5, "slowdown": 2},
                 {"rack": 1, "gbit_per_s": 40}, {"from_host": 0, "to_host": 5, "gbit_per_s": 1}]})";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  REQUIRE(at != text.npos);
  return text.replace(at, what.size(), by);
}

double speed_of(const Network& network, const std::string& name) {
  for (size_t wire = 0; wire < network.wires().size(); wire++)
    if (network.wire_name(static_cast<int>(wire)) == name) return network.wires()[wire];
  FAIL("no wire " + name);
  return 0;
}

TEST_CASE("a file's numbers are those of the network") {
  const auto cluster = cluster_from_json(kGood, "F");
  REQUIRE(cluster);
  const Network network = network_of(cluster.value(), 24);
  CHECK(speed_of(network, "rank 23's port, in") == about(100));
  CHECK(speed_of(network, "host 1's NIC 0, out") == about(12.5));
  CHECK(speed_of(network, "host 1's NIC 1, in") == about(1.25));
  CHECK(speed_of(network, "host 1's NIC 1, out") == about(1.25));
  CHECK(speed_of(network, "rack 0, out") == about(25));
  CHECK(speed_of(network, "rack 1, in") == about(5));
  CHECK(speed_of(network, "rack 1, out") == about(5));
  CHECK(speed_of(network, "host 0 to host 5") == about(0.125));
  CHECK(network.starts_ns(9) == about(5000));
  CHECK(network.slowdown(9) == about(2));
  CHECK(network.slowdown(8) == about(1));
  CHECK(network.layout().slow_hosts == std::vector<int>{1});
  const Route within = network.route(4, 7), beside = network.route(3, 4), across = network.route(2, 21);
  CHECK(within.latency_ns == about(500));
  CHECK(network.wire_name(beside.wires[0]) == "host 0's NIC 1, out");
  CHECK(network.wire_name(beside.wires[1]) == "host 1's NIC 0, in");
  CHECK(across.n_wires == 5);
  CHECK(across.latency_ns == about(5000));
  CHECK(network.wire_name(across.wires[3]) == "host 0 to host 5");
  CHECK(facts_of(network).wire_latency_ns == 3000);
  CHECK(facts_of(network).racks.latency_ns == 2000);
}

TEST_CASE("a file says whether there is RDMA, and may say what messages are like") {
  const std::string good = kGood;
  const auto tcp = cluster_from_json(good, "F");
  const auto rdma =
      cluster_from_json(replaced(good, "\"racks\"", R"("rdma": true, "slots": 3, "slot_bytes": 130, "racks")"), "F");
  REQUIRE(tcp);
  REQUIRE(rdma);
  CHECK(!facts_of(network_of(tcp.value(), 24)).has_rdma);
  CHECK(facts_of(network_of(rdma.value(), 24)).has_rdma);
  const MessageSizes sizes = network_of(rdma.value(), 24).sizes();
  CHECK(sizes.slots == 3);
  CHECK(sizes.slot_bytes == 128);
}

TEST_CASE("a file's costs of CPUs are those of the cluster") {
  const auto cluster =
      cluster_from_json(replaced(kGood, "\"racks\"", R"("cpus_per_host": 3, "shares_cpus": true, "summed_byte_ns": 0.5,
        "cache_bytes": 4096, "far_byte_ns": 0.25, "evicted_byte_ns": 0.125, "operation_us": 2, "switch_us": 4,
        "racks")"),
                        "F");
  REQUIRE(cluster);
  const ClusterCpus& cpus = cluster.value().cpus;
  CHECK(cpus.per_host == 3);
  CHECK(cpus.are_shared);
  CHECK(cpus.summed_byte_ns == 0.5);
  CHECK(cpus.cache_bytes == 4096);
  CHECK(cpus.far_byte_ns == 0.25);
  CHECK(cpus.evicted_byte_ns == 0.125);
  CHECK(cpus.operation_ns == about(2000));
  CHECK(cpus.switch_ns == about(4000));
  CHECK(cluster.value().local.message_ns == about(100));
  CHECK(cluster.value().local.byte_ns == 0.25);
}

TEST_CASE("racks that are not numbered are as many as it takes") {
  const auto cluster = cluster_from_json(replaced(kGood, "\"racks\": 2, ", ""), "F");
  REQUIRE(cluster);
  CHECK(network_of(cluster.value(), 1000).n_hosts() == 250);
}

TEST_CASE("hosts are found by their names, and are as fast as their slowest NIC") {
  const std::string good = kGood;
  const auto cluster =
      cluster_from_json(replaced(good, "\"racks\": 2,", R"("racks": 2, "hosts": ["a", "b", "", "c.x", "b.x"],)"), "F");
  REQUIRE(cluster);
  CHECK(cluster.value().find_host("b") == 1);
  CHECK(cluster.value().find_host("b.example.org") == 1);
  CHECK(cluster.value().find_host("c.x") == 3);
  CHECK(cluster.value().find_host("b.x") == 4);
  CHECK(cluster.value().find_host("c") == -1);
  CHECK(cluster.value().host_bytes_per_second(0) == about(25e9));
  CHECK(cluster.value().host_bytes_per_second(1) == about(2.5e9));
  CHECK(cluster.value().rack_bytes_per_second() == about(5e9));
  Cluster faster = cluster.value();
  faster.exceptions.push_back({.host = 0, .bytes_per_second = 50e9});
  faster.exceptions.push_back({.host = 2, .nic = 0, .bytes_per_second = 50e9});
  CHECK(faster.host_bytes_per_second(0) == about(100e9));
  CHECK(faster.host_bytes_per_second(2) == about(25e9));  // its other NIC is unchanged
  faster.exceptions.push_back({.rack = 0, .bytes_per_second = 50e9});
  CHECK(faster.rack_bytes_per_second() == about(5e9));  // that of the slowest one
}

TEST_CASE("the planner's prices are the cluster's, whatever joins the ranks") {
  const Cluster cluster = uneven_cluster();
  const Prices prices = prices_of(cluster);
  for (const Medium& within : {prices.shm, prices.loopback}) {
    CHECK(within.hop == about(300));
    CHECK(within.turn == about(300 / 1.5));  // three ranks for two CPUs
    CHECK(within.message == about(50));
    CHECK(within.byte == about(0.01 + 0.5 / 40));  // through the port, at either end
  }
  for (const Medium& between : {prices.network, prices.rdma}) {
    CHECK(between.hop == about(kLatencyNs));
    CHECK(between.message == about(400));
  }
  CHECK(prices.summed_byte == about(0.02));
}

TEST_CASE("what is wrong with a file is said, and what to do") {
  struct Wrong {
    std::string text, says;
  };
  const std::string good = kGood;
  const std::vector<Wrong> wrongs = {
      {"{", "F: it does not hold a JSON object"},
      {"[1]", "F: it does not hold a JSON object"},
      {replaced(good, "\"hosts_per_rack\": 3, ", ""), "F: hosts_per_rack is missing"},
      {replaced(good, "\"nic\":", "\"nik\":"), "there is no field 'nik' here; the fields are: "},
      {replaced(good, "\"nic\": {\"gbit_per_s\": 100, \"latency_us\": 3},", ""), "F: nic is missing"},
      {replaced(good, "\"rack\": {\"gbit_per_s\": 200, \"latency_us\": 2},", ""), "F: rack is missing"},
      {replaced(good, "\"latency_us\": 3", "\"latency\": 3"), "F, nic: latency_us is missing"},
      {replaced(good, "\"gbit_per_s\": 100", "\"gbit_per_s\": 0"), "F, nic: gbit_per_s is 0, so nothing would ever"},
      {replaced(good, "\"gbit_per_s\": 100", "\"gbit_per_s\": 1e12"), "F, nic: gbit_per_s is over 1e9, faster than"},
      {replaced(good, "\"gbit_per_s\": 100", "\"gbit_per_s\": -1"), "gbit_per_s is -1; give a number of at least 0"},
      {replaced(good, "\"latency_us\": 3", "\"latency_us\": \"3\""), "latency_us is \"3\"; give a number"},
      {replaced(good, "\"racks\"", R"("hosts": "a", "racks")"), "F: hosts is not a list of names"},
      {replaced(good, "\"racks\"", R"("hosts": ["a", 7], "racks")"), "F: hosts contains 7; give names"},
      {replaced(good, "\"racks\"", R"("hosts": ["a", "", "", "a"], "racks")"), "F: hosts contains \"a\" twice"},
      {replaced(good, "\"racks\"", R"("hosts": ["a", "b", "c", "d", "e", "f", "g"], "racks")"),
       "F: hosts has 7 names, but the racks have room for only 6"},
      {replaced(good, "\"racks\"", "\"rdma\": 1, \"racks\""), "F: rdma is 1; give true or false"},
      {replaced(good, "\"racks\": 2", "\"racks\": 0"), "racks is 0; give a whole number of at least 1"},
      {replaced(good, "\"racks\": 2", "\"racks\": 1000000000"), "ranks are too many"},
      {replaced(good, "\"racks\": 2", "\"racks\": 1.5"), "racks is 1.5; give a whole number"},
      {replaced(good, "\"rank\": 9", "\"rank\": 24"), "F, exceptions[1]: there is no rank 24; the last one is 23"},
      {replaced(good, "\"host\": 1", "\"host\": 6"), "F, exceptions[0]: there is no host 6; the last one is 5"},
      {replaced(good, "\"nic\": 1", "\"nic\": 2"), "there is no nic 2; the last one is 1"},
      {replaced(good, "\"rack\": 1", "\"rack\": 2"), "there is no rack 2; the last one is 1"},
      {replaced(good, "\"to_host\": 5", "\"to_host\": 7"), "there is no to_host 7; the last one is 5"},
      {replaced(good, "\"from_host\": 0, ", ""), "give exactly one of host, rank, rack, or from_host and to_host"},
      {replaced(good, "\"rack\": 1, \"gbit_per_s\": 40", "\"rack\": 1"), "it changes nothing"},
      {replaced(good, "\"starts_late_us\": 5", "\"gbit_per_s\": 5"), "a rank has no gbit_per_s"},
      {replaced(good, "\"slowdown\": 2", "\"slowdown\": 0.5"), "slowdown is 0.5; give a number of at least 1"},
      {replaced(good, "\"from_host\": 0, \"to_host\": 5, \"gbit_per_s\": 1",
                "\"host\": 0, \"from_host\": 1, \"slowdown\": 2"),
       "give exactly one of host, rank, rack, or from_host and to_host"},
      {replaced(good, "\"to_host\": 5", "\"to_host\": 0"), "from_host and to_host are the same"},
      {replaced(good, "\"racks\": 2", "\"racks\": 4294967298"), "racks is 4294967298; give a whole number"},
      {replaced(good, "\"from_host\": 0", "\"from_host\": 6"), "there is no from_host 6; the last one is 5"},
      {replaced(good, "\"nic\": 1, \"gbit_per_s\": 10", "\"nic\": 1, \"slowdown\": 2"),
       "slowdown applies only to a host or a rank"},
      {replaced(good, "\"rack\": 1, \"gbit_per_s\": 40", "\"host\": 2, \"starts_late_us\": 5"),
       "starts_late_us applies only to a rank"},
      {replaced(good, "\"rack\": 1, \"gbit_per_s\": 40", "\"host\": 2, \"dies_us\": 5"),
       "dies_us applies only to a rank"},
      {replaced(good, "\"rack\": 1, \"gbit_per_s\": 40", "\"rack\": 1, \"nic\": 0, \"gbit_per_s\": 40"),
       "nic needs a host"},
      {replaced(replaced(good, "\"racks\": 2, ", ""), "\"rack\": {\"gbit_per_s\": 200, \"latency_us\": 2},", ""),
       "F: rack is missing"},
      {replaced(good, "{\"rack\": 1, \"gbit_per_s\": 40}", "7"), "F, exceptions[2]: it is not an object"},
  };
  for (const Wrong& wrong : wrongs) {
    const auto cluster = cluster_from_json(wrong.text, "F");
    INFO(wrong.says);
    REQUIRE(!cluster);
    CHECK(cluster.error().code == Code::kInvalidUsage);
    INFO(cluster.error().message);
    CHECK(contains(cluster.error().message, wrong.says));
  }
}

TEST_CASE("more ranks than there is room for, and exceptions for ranks that are not there") {
  const auto cluster = cluster_from_json(kGood, "F");
  REQUIRE(cluster);
  const auto many = Network::make(cluster.value(), 25), few = Network::make(cluster.value(), 9);
  REQUIRE(!many);
  CHECK(contains(many.error().message, "25 ranks are more than the topology has room for, 2 racks of 3 hosts of 4"));
  REQUIRE(!few);
  CHECK(contains(few.error().message, "exception for rank 9, but there are only 9 ranks"));
  CHECK(Network::make(uneven_cluster(), 1));
  CHECK_FALSE(Network::make(uneven_cluster(), 0));
  Cluster three = uneven_cluster();
  three.racks = 3, three.hosts_per_rack = 1;
  three.exceptions = {{.host = 2, .bytes_per_second = 1e9}};
  CHECK(speed_of(network_of(three, 6), "rack 0, out") == about(20));  // the group does not use the third host
}

}  // namespace
}  // namespace tutti::sim::testing
