// The doctor's findings about a network, given the results of probes; about settings; and about RDMA devices.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "catch.h"
#include "network.h"

namespace {

using tutti::doctor::compare_settings;
using tutti::doctor::Finding;
using tutti::doctor::Findings;
using tutti::doctor::judge;
using tutti::doctor::look_at_rdma;
using tutti::doctor::Path;
using Level = Finding::Level;

Path good_path() {
  return {.from = "a (10.0.0.1)",
          .to = "b (10.0.0.2)",
          .interface = "eth0",
          .sent = 100,
          .answered = 100,
          .round_trip_us = 50,
          .ahead_seconds = 0.001,
          .mtu_bytes = 1500,
          .largest_bytes = 1500,
          .is_told_largest = 0};
}

// The single finding about a path that differs from a good one by `change`.
template <class Change>
Finding finding_of(Change&& change) {
  Path path = good_path();
  change(path);
  const Findings findings = judge({good_path(), path});
  REQUIRE(findings.size() == 1);
  return findings[0];
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("doctor: a good network is one line, and no network none") {
  const Finding f = finding_of([](Path&) {});
  CHECK(f.level == Level::kGood);
  CHECK(has(f.found, "2 paths"));
  CHECK(f.remedy.empty());
  CHECK(judge({}).empty());
}

TEST_CASE("doctor: lost packets") {
  CHECK(finding_of([](Path& p) { p.answered = 98; }).level == Level::kGood);
  CHECK(finding_of([](Path& p) { p.answered = 97; }).level == Level::kWarning);
  CHECK(finding_of([](Path& p) { p.answered = 90; }).level == Level::kBad);
  CHECK(finding_of([](Path& p) { p.sent = 20, p.answered = 19; }).level == Level::kWarning);
  const Finding some = finding_of([](Path& p) { p.answered = 95; });
  CHECK(some.level == Level::kWarning);
  CHECK(has(some.found, "5 of 100"));
  CHECK(has(some.remedy, "eth0"));
  CHECK(finding_of([](Path& p) { p.answered = 70; }).level == Level::kBad);
  const Finding all = finding_of([](Path& p) { p.sent = 4, p.answered = 0; });
  CHECK(all.level == Level::kWarning);
  CHECK(has(all.what, "a (10.0.0.1) to b (10.0.0.2)"));
  CHECK(has(all.remedy, "firewall"));
}

TEST_CASE("doctor: packets that are too large, which TCP learns or not") {
  const Finding silent = finding_of([](Path& p) { p.largest_bytes = 1400; });
  CHECK(silent.level == Level::kBad);
  CHECK(has(silent.found, "more than 1400 bytes"));
  CHECK(has(silent.remedy, "TUTTI_TCP_MSS=1328"));
  CHECK(finding_of([](Path& p) { p.largest_bytes = 1400, p.is_told_largest = 1; }).level == Level::kWarning);
}

TEST_CASE("doctor: clocks") {
  const Finding ahead = finding_of([](Path& p) { p.ahead_seconds = 3.25; });
  CHECK(ahead.level == Level::kWarning);
  CHECK(has(ahead.found, "3.2 s ahead"));
  CHECK(has(finding_of([](Path& p) { p.ahead_seconds = -3.25; }).found, "3.2 s behind"));
}

TEST_CASE("doctor: of many lines the worst are shown") {
  Path late = good_path(), silent = good_path();
  late.ahead_seconds = 5;
  silent.largest_bytes = 1000;
  std::vector<Path> paths(20, late);
  paths.push_back(silent);
  const Findings findings = judge(paths);
  CHECK(findings.size() == 9);
  CHECK(findings[0].level == Level::kBad);
  CHECK(has(findings[8].found, "13 more"));
}

TEST_CASE("doctor: settings that differ") {
  const std::string usual = "TUTTI_ALGO=ring\nTUTTI_LOG=warn\n", loud = "TUTTI_ALGO=ring\nTUTTI_LOG=info\n";
  CHECK(compare_settings({usual, usual, usual}).level == Level::kGood);
  const Finding allowed = compare_settings({usual, usual, loud, usual});
  CHECK(allowed.level == Level::kWarning);
  CHECK(allowed.found == "ranks 0 and 2 have TUTTI_LOG=warn and TUTTI_LOG=info");
  CHECK(has(allowed.remedy, "that is allowed"));
}

TEST_CASE("doctor: RDMA devices, and the plugin that uses them") {
  const auto folder = std::filesystem::temp_directory_path() / ("tutti-doctor." + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "infiniband");
  const auto plugin = folder / "libtutti-verbs.so";
  for (const char* without : {"infiniband", "nothing"}) {
    const Findings none = look_at_rdma(folder / without, plugin);
    REQUIRE(none.size() == 1);
    CHECK(none[0].level == Level::kGood);
    CHECK(has(none[0].found, "no RDMA devices"));
  }
  std::filesystem::create_directories(folder / "infiniband" / "mlx5_0");
  const Findings lacking = look_at_rdma(folder / "infiniband", plugin);
  CHECK(lacking.size() == 2);
  CHECK(lacking.back().level == Level::kWarning);
  CHECK(has(lacking.back().found, plugin.string()));
  CHECK(std::ofstream(plugin).good());
  CHECK(look_at_rdma(folder / "infiniband", plugin).size() == 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
