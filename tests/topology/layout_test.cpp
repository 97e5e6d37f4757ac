// The order of ranks, from where they are.
#include "topology/layout.h"
#include "catch.h"
#include "topology/machine.h"

using namespace tutti;

namespace {

RankLocation location(uint8_t host, std::vector<uint32_t> path = {}) {
  RankLocation s{{}, std::move(path)};
  s.host.bytes[15] = host;
  return s;
}

}  // namespace

TEST_CASE("layout: hosts in order of their lowest ranks, however the launcher dealt the ranks out") {
  const Layout layout =
      lay_out(std::vector<RankLocation>{location(9), location(4), location(9), location(4), location(7)});
  CHECK(layout.order == std::vector<int>{0, 2, 1, 3, 4});
  CHECK(layout.hosts == std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4}});
  CHECK(to_text(layout) == "0 2 | 1 3 | 4");
}

TEST_CASE("layout: on a host as the parts stand; who may run anywhere stands first, equals by rank") {
  const Layout layout = lay_out(std::vector<RankLocation>{
      location(1, {1, 0, 2}), location(1, {0, 1}), location(1, {10, 0}), location(1, {1, 0, 1}), location(1, {0, 1, 3}),
      location(1), location(1, {2, 0}), location(1, {0, 1})});
  CHECK(to_text(layout) == "5 1 7 4 3 0 6 2");
}

namespace {

RankLocation in_rack(uint8_t host, uint32_t rack, uint64_t bytes_per_second = 0) {
  RankLocation s = location(host);
  s.rack = rack, s.bytes_per_second = bytes_per_second;
  return s;
}

}  // namespace

TEST_CASE("layout: hosts of a rack stand beside each other, racks in order of their lowest ranks") {
  const Layout layout = lay_out(std::vector<RankLocation>{in_rack(1, 7), in_rack(2, 3), in_rack(3, 7), in_rack(4, 0),
                                                          in_rack(2, 3), in_rack(5, 3)});
  CHECK(to_text(layout) == "0 | 2 || 1 4 | 5 || 3");
  CHECK(layout.hosts_of_rack == std::vector<int>{2, 2, 1});
  CHECK(by_rack(layout) == std::vector<std::vector<int>>{{0, 2}, {1, 4, 5}, {3}});
}

TEST_CASE("layout: a host is slow that sends less than half of what the median host does") {
  const auto slow = [](std::vector<uint64_t> speeds) {
    std::vector<RankLocation> locations;
    for (const uint64_t speed : speeds) locations.push_back(in_rack(static_cast<uint8_t>(locations.size()), 0, speed));
    return lay_out(locations).slow_hosts;
  };
  CHECK(slow({100, 10, 100, 100}) == std::vector<int>{1});
  CHECK(slow({100, 50, 100, 100}).empty());
  CHECK(slow({10, 100}) == std::vector<int>{0});
  CHECK(slow({10, 10, 100}).empty());  // with only two others the fast one is the exception
  CHECK(slow({0, 0, 0}).empty());
  CHECK(slow({7}).empty());
  const Layout uneven = lay_out(std::vector<RankLocation>{in_rack(1, 0, 10), in_rack(1, 0, 100), in_rack(2, 0, 100)});
  CHECK(uneven.bytes_per_second == std::vector<uint64_t>{10, 100});  // a host has its slowest rank's speed
  CHECK(uneven.slow_hosts == std::vector<int>{0});
}

TEST_CASE("layout: one rank, none, and flat") {
  CHECK(to_text(lay_out(std::vector<RankLocation>{location(3, {5})})) == "0");
  CHECK(lay_out({}).order.empty());
  CHECK(to_text(flat_layout(4)) == "0 1 2 3");
  CHECK(flat_layout(4).hosts.size() == 1);
}

TEST_CASE("CPU sets in words, and back") {
  CpuSet cpus;
  CHECK(to_text(cpus).empty());
  CHECK(cpus_from_text("").none());
  for (const size_t cpu : {0, 1, 2, 3, 8, 1022, 1023}) cpus[cpu] = true;
  CHECK(to_text(cpus) == "0-3,8,1022-1023");
  CHECK(cpus_from_text("0-3,8,1022-1023") == cpus);
  CHECK(cpus_from_text(to_text(~CpuSet())) == ~CpuSet());
}

TEST_CASE("what makes no sense as a list of CPUs is left out") {
  const auto read_as = [](const char* text) { return to_text(cpus_from_text(text)); };
  CHECK(read_as("x") == "");
  CHECK(read_as("4,,5") == "4");
  CHECK(read_as("4;5") == "4");
  CHECK(read_as("4-") == "");
  CHECK(read_as("4,6-5") == "4");
  CHECK(read_as("4,2,6") == "4");
  CHECK(read_as("-4") == "");
  CHECK(read_as("4,8192") == "4");
  CHECK(read_as("4,99999999999999999999999") == "4");
  CHECK(read_as("8190-99999999999999999999999") == "8190-8191");
}
