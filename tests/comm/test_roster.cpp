// What ranks make of each other's introductions.
#include "comm/roster.h"

#include "catch.h"
#include "tutti/tutti.h"

TEST_CASE("ranks with the same pid in different containers are in different processes") {
  using namespace tutti;
  std::vector<std::string> said;
  for (const ProcessId& process : std::vector<ProcessId>{{1, 7, 100}, {1, 7, 200}, {1, 7, 100}, {2, 7, 100}}) {
    Introduction one{.version = TUTTI_VERSION_CODE};
    one.control.host = host_id();
    one.process = process;
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
