// What ranks derive from each other's introductions.
#include "comm/roster.h"

#include "catch.h"
#include "contains.h"
#include "plan/planner.h"
#include "tutti/tutti.h"

TEST_CASE("ranks with the same pid in different containers are in different processes") {
  using namespace tutti;
  std::vector<std::string> said;
  for (const ProcessId& process : std::vector<ProcessId>{{1, 7, 100}, {1, 7, 200}, {1, 7, 100}, {2, 7, 100}}) {
    Introduction one{.version = TUTTI_VERSION_CODE};
    one.control.host = host_id();
    one.place.process = process;
    said.push_back(one.to_bytes());
  }
  const auto of_process = [&](int rank) {
    const auto roster = Roster::of(Blobs::pack(said), rank);
    REQUIRE(roster);
    CHECK(roster.value()->ranks_of_host == 4);
    return roster.value()->ranks_of_process;
  };
  CHECK(of_process(0) == std::vector<int>{0, 2});
  CHECK(of_process(1) == std::vector<int>{1});
  CHECK(of_process(3) == std::vector<int>{3});
}

TEST_CASE("all ranks of a group give it one number, and those of another one another") {
  using namespace tutti;
  const auto number = [](int pid, int rank) {
    std::vector<std::string> said;
    for (const int of_rank : {0, 1}) {
      Introduction one{.version = TUTTI_VERSION_CODE};
      one.control.host = host_id();
      one.place.process = {pid + of_rank, 7, 100};
      said.push_back(one.to_bytes());
    }
    const auto roster = Roster::of(Blobs::pack(said), rank);
    REQUIRE(roster);
    return roster.value()->group;
  };
  CHECK(number(1, 0) == number(1, 1));
  CHECK(number(1, 0) != number(2, 0));
}

TEST_CASE("ranks of which one is to do something otherwise are told what, each of them") {
  using namespace tutti;
  const auto refused = [](const char* setting, void (*differ)(GroupSettings&)) {
    std::vector<std::string> said;
    for (int rank = 0; rank < 2; rank++) {
      Introduction one{.version = TUTTI_VERSION_CODE};
      one.control.host = host_id();
      if (rank == 1) differ(one.settings);
      said.push_back(one.to_bytes());
    }
    for (const int rank : {0, 1}) {
      INFO(setting << ", rank " << rank);
      const auto roster = Roster::of(Blobs::pack(said), rank);
      REQUIRE_FALSE(roster);
      CHECK(roster.error().code == Code::kInvalidUsage);
      CHECK(tutti_test::contains(roster.error().message, setting));
      CHECK(roster.error().culprit_rank == 1 - rank);
    }
  };
  refused("TUTTI_ENCRYPT", [](GroupSettings& one) { one.encrypts = 1; });
  refused("TUTTI_SLOT_BYTES=64", [](GroupSettings& one) { one.slot_bytes = 64; });
  refused("TUTTI_DETERMINISTIC", [](GroupSettings& one) { one.deterministic = 1; });
  refused("config.majority=1", [](GroupSettings& one) { one.majority = 1; });
  refused("config.cudaDevice=a device", [](GroupSettings& one) { one.on_gpu = 1; });
  refused("has the tuning file a file, ", [](GroupSettings& one) { one.prices = 1, one.prices_from = "a file"; });
  refused("TUTTI_ORDER=rank", [](GroupSettings& one) { one.order = "rank"; });
  refused("TUTTI_ALGO", [](GroupSettings& one) { one.algo = "ring"; });
}

TEST_CASE("where machines differ, no CPUs that ranks are bound to change the algorithm of a sum") {
  using namespace tutti;
  // Four ranks on a machine of 2 CPUs, and four on a machine of 8, of which they use `used`.
  const auto choices = [](int used) {
    std::vector<std::string> said;
    for (int rank = 0; rank < 8; rank++) {
      const bool is_large = rank >= 4;
      Introduction one{.version = TUTTI_VERSION_CODE};
      one.control.host.bytes[0] = one.place.machine.bytes[0] = static_cast<uint8_t>(1 + is_large);
      one.place.machine_cpus = is_large ? 8u : 2u;
      for (int cpu = 0; cpu < (is_large ? used : 2); cpu++) one.place.cpus[static_cast<size_t>(cpu)] = true;
      one.network.bytes_per_second = 1'000'000'000;
      one.place.cache_bytes = 32 << 20;
      one.place.process.pid = rank;
      said.push_back(one.to_bytes());
    }
    const auto roster = Roster::of(Blobs::pack(said), 0);
    REQUIRE(roster);
    CHECK(roster.value()->facts.machine.unbound().oversubscription() == 2);
    const Planner planner(0, roster.value()->layout, Algo::kAuto, false, roster.value()->facts,
                          {built_in_prices(), "", {}});
    std::vector<Algo> chosen;
    for (uint64_t bytes = 8; bytes <= 64 << 20; bytes *= 2) {
      Call call;
      call.collective = Collective::kAllReduce;
      call.dtype = DataType::kFloat32;
      call.count = bytes / 4;
      chosen.push_back(planner.choose(call));
    }
    return chosen;
  };
  CHECK(choices(8) == choices(1));
}

namespace tutti {
namespace {

struct Told {
  uint8_t host;
  uint64_t round_trip_ns;
  uint32_t sends_by_rate = 0;
  uint64_t wire_latency_ns = 0;
};

std::shared_ptr<const Roster> roster_of(const std::vector<Told>& all) {
  std::vector<std::string> said;
  for (const Told& told : all) {
    Introduction one{.version = TUTTI_VERSION_CODE};
    one.control.host.bytes[0] = told.host;
    one.network.round_trip_ns = told.round_trip_ns;
    one.network.sends_by_rate = told.sends_by_rate;
    one.network.latency_ns = told.wire_latency_ns;
    one.network.bytes_per_second = 25'000'000;
    one.place.process.pid = static_cast<int32_t>(said.size());
    said.push_back(one.to_bytes());
  }
  const auto roster = Roster::of(Blobs::pack(said), 0);
  REQUIRE(roster);
  return roster.value();
}

}  // namespace

TEST_CASE("hosts that are far from each other get messages of as many bytes as are under way, and connections") {
  constexpr uint64_t kFarNs = 80'000'000, kUnderWay = 2 * 25'000'000 * 8 / 100;  // twice the bytes in flight
  const MessageSizes near = roster_of({{1, 0}, {2, 4'000'000}})->sizes;
  CHECK(near.slot_bytes == kTcpMessageBytes);
  CHECK(near.connections == 0);
  const MessageSizes far = roster_of({{1, 0}, {2, kFarNs}})->sizes;
  CHECK(far.slot_bytes == kUnderWay / kTcpMessageBytes * kTcpMessageBytes);
  CHECK(far.connections == 15);
  CHECK(far.slots == 2);
  // One connection is enough only if all kernels pace their sending.
  CHECK(roster_of({{1, 0, 1}, {2, kFarNs, 0}})->sizes.connections == 15);
  CHECK(roster_of({{1, 0, 1}, {2, kFarNs, 1}})->sizes.connections == 0);
  // If all hosts are equally far from the meeting, it is unknown how far they are from each other.
  CHECK(roster_of({{1, kFarNs}, {2, kFarNs}})->sizes.slot_bytes == kTcpMessageBytes);
  // Ranks of a host that meet through its first rank: each sends its part.
  const MessageSizes shared = roster_of({{1, 0}, {1, 0}, {2, 0}, {2, kFarNs}})->sizes;
  CHECK(shared.slot_bytes == kUnderWay / 2 / kTcpMessageBytes * kTcpMessageBytes);
  // A measured distance decides nothing else; a distance from a file does.
  CHECK(roster_of({{1, 0}, {2, kFarNs}})->facts.wire_latency_ns == 0);
  const auto described = roster_of({{1, 0, 0, kFarNs / 2}, {2, 0, 0, kFarNs / 2}});
  CHECK(described->facts.wire_latency_ns == kFarNs / 2);
  CHECK(described->sizes.slot_bytes == far.slot_bytes);
}

}  // namespace tutti

TEST_CASE("what one rank has and another one lacks is nothing to plan with") {
  using namespace tutti;
  const auto facts = [](const char* transport, bool both, uint64_t first_cache_bytes) {
    std::vector<std::string> said;
    for (const int rank : {0, 1}) {
      Introduction one{.version = TUTTI_VERSION_CODE};
      one.place.cache_bytes = rank == 0 ? first_cache_bytes : 1000;
      if (rank == 0 || both) one.addresses[transport] = "there";
      said.push_back(one.to_bytes());
    }
    const auto roster = Roster::of(Blobs::pack(said), 0);
    REQUIRE(roster);
    return roster.value()->facts;
  };
  CHECK(facts("shm", true, 500).shares_memory);
  CHECK_FALSE(facts("shm", false, 500).shares_memory);
  for (const char* device : {"verbs", "net"}) {
    CHECK(facts(device, true, 500).has_rdma);
    CHECK_FALSE(facts(device, false, 500).has_rdma);
  }
  CHECK(facts("tcp", true, 500).cache_bytes == 500);
  CHECK(facts("tcp", true, 2000).cache_bytes == 1000);
}

TEST_CASE("a rank knows the CPUs of all ranks of its machine, and no others") {
  using namespace tutti;
  std::vector<std::string> said;
  for (size_t rank = 0; rank < 4; rank++) {
    Introduction one{.version = TUTTI_VERSION_CODE};
    one.control.host.bytes[0] = one.place.machine.bytes[0] = static_cast<uint8_t>(1 + rank / 2);
    one.place.machine_cpus = 8;
    one.place.cpus[2 * rank] = one.place.cpus[2 * rank + 1] = true;
    one.network.bytes_per_second = 1'000'000'000;
    one.place.process.pid = static_cast<int>(rank);
    said.push_back(one.to_bytes());
  }
  for (const int rank : {1, 2}) {
    const auto roster = Roster::of(Blobs::pack(said), rank);
    REQUIRE(roster);
    for (size_t cpu = 0; cpu < 8; cpu++)
      CHECK(roster.value()->cpus_here[cpu] == (static_cast<int>(cpu / 4) == rank / 2));
  }
}

TEST_CASE("ranks share CPUs where those of any group of the process outnumber these, but for one that was left") {
  using namespace tutti;
  const auto group_of = [](int n) {
    std::vector<std::string> said;
    for (int rank = 0; rank < n; rank++) {
      Introduction one{.version = TUTTI_VERSION_CODE};
      one.control.host = host_id();
      one.place.machine.bytes[0] = 1;
      one.place.machine_cpus = 2;
      one.place.cpus[0] = one.place.cpus[1] = true;
      one.place.process.pid = rank;
      said.push_back(one.to_bytes());
    }
    auto roster = Roster::of(Blobs::pack(said), 0);
    REQUIRE(roster);
    return std::move(roster).value();
  };
  const auto pair = group_of(2);
  CHECK_FALSE(Roster::ranks_share_cpus(0));
  auto all = group_of(3);
  CHECK(Roster::ranks_share_cpus(0));
  CHECK(Roster::ranks_share_cpus(pair->group));
  CHECK_FALSE(Roster::ranks_share_cpus(all->group));
  all = nullptr;
  CHECK_FALSE(Roster::ranks_share_cpus(0));
}

TEST_CASE("of a rank that runs another version both versions are told as people write them") {
  const auto read = tutti::Introduction::from_bytes(tutti::Introduction{.version = 10203}.to_bytes(), 3);
  REQUIRE(!read);
  CHECK(read.error().code == tutti::Code::kInvalidUsage);
  const auto version = [](int major, int minor, int patch) {
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  };
  CHECK(tutti_test::contains(read.error().message, "rank 3 runs version 1.2.3 of Tutti, this rank " +
                                                       version(TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH) + ":"));
}
