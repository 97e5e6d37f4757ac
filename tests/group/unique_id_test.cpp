#include <cstring>
#include <random>

#include "catch.h"
#include "group/bootstrap.h"
#include "group/bootstrap_connect.h"

using namespace tutti;

namespace {

Address address(const std::string& host, uint16_t port) {
  return resolve(host, port).value().at(0);
}

UniqueIdParts parts_with(const std::vector<std::string>& hosts, uint16_t port) {
  UniqueIdParts parts;
  for (size_t i = 0; i < sizeof parts.secret; i++) parts.secret[i] = static_cast<uint8_t>(7 * i + 1);
  for (const auto& host : hosts) parts.addresses.push_back(address(host, port));
  return parts;
}

}  // namespace

TEST_CASE("a unique id keeps its addresses, port and secret") {
  const auto parts = parts_with({"10.1.2.3", "2001:db8::17", "fe80::1234%1", "127.0.0.1"}, 54321);
  const auto back = unpack_unique_id(pack_unique_id(parts));
  REQUIRE(back);
  CHECK(memcmp(back.value().secret, parts.secret, sizeof parts.secret) == 0);
  REQUIRE(back.value().addresses.size() == 4);
  for (size_t i = 0; i < 4; i++) CHECK(back.value().addresses[i].to_string() == parts.addresses[i].to_string());
}

TEST_CASE("a unique id has the same bytes on every machine") {
  const UniqueId id = pack_unique_id(parts_with({"10.1.2.3"}, 0x1234));
  const uint8_t front[8] = {'T', 'U', 'I', 'D', 1, 0x34, 0x12, 1};
  CHECK(memcmp(id.bytes, front, sizeof front) == 0);
  const uint8_t packed[5] = {4, 10, 1, 2, 3};
  CHECK(memcmp(id.bytes + 24, packed, sizeof packed) == 0);
}

TEST_CASE("a unique id takes as many addresses as fit, best first") {
  std::vector<std::string> hosts;
  for (int i = 1; i < 20; i++) hosts.push_back("2001:db8::" + std::to_string(i));
  const auto back = unpack_unique_id(pack_unique_id(parts_with(hosts, 1000)));
  REQUIRE(back);
  REQUIRE(back.value().addresses.size() == 6);  // 104 bytes, 17 each
  CHECK(back.value().addresses[0].to_string() == "[2001:db8::1]:1000");
  CHECK(back.value().addresses[5].to_string() == "[2001:db8::6]:1000");
}

TEST_CASE("bytes that are no unique id are refused and never crash") {
  std::mt19937 random(42);
  UniqueId id;
  for (uint8_t& b : id.bytes) b = static_cast<uint8_t>(random());
  const auto garbage = unpack_unique_id(id);
  REQUIRE(!garbage);
  CHECK(garbage.error().code == Code::kInvalidArgument);

  const UniqueId good = pack_unique_id(parts_with({"10.1.2.3", "2001:db8::17", "fe80::1234%1"}, 54321));
  int accepted = 0, refused = 0;
  for (int round = 0; round < 20000; round++) {
    id = good;
    const int flips = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < flips; i++) id.bytes[random() % sizeof id.bytes] = static_cast<uint8_t>(random());
    const auto parts = unpack_unique_id(id);
    (parts ? accepted : refused)++;
    for (size_t i = 0; parts && i < parts.value().addresses.size(); i++) CHECK(parts.value().addresses[i].port() != 0);
  }
  CHECK(accepted > 0);
  CHECK(refused > 0);
}

TEST_CASE("an id without addresses or port is refused") {
  CHECK(!unpack_unique_id(pack_unique_id(parts_with({}, 1))));
  CHECK(!unpack_unique_id(pack_unique_id(parts_with({"10.1.2.3"}, 0))));
}

TEST_CASE("loopback is tried first when the root runs on this host") {
  const auto here = root_candidates(parts_with({"198.51.100.77", "127.0.0.2"}, 99));
  REQUIRE(here.size() == 3);
  CHECK(here[0].to_string() == "127.0.0.1:99");
  CHECK(here[1].to_string() == "198.51.100.77:99");
  const auto elsewhere = root_candidates(parts_with({"198.51.100.77"}, 99));
  REQUIRE(elsewhere.size() == 1);
}

TEST_CASE("a link-local address is tried through the interfaces of this host, whatever the root's number was") {
  const auto candidates = root_candidates(parts_with({"fe80::aaaa:bbbb%77"}, 99));
  for (const Address& a : candidates) CHECK(a.to_string().find("%77") == std::string::npos);
}
