// Prices: what a file may say, and how a bad one is reported.
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "catch.h"
#include "plan/prices.h"

using namespace tutti;

namespace {

// A directory that serves as the user's configuration meanwhile.
struct Place {
  std::filesystem::path top;
  Place() {
    char name[] = "/tmp/tutti-prices-XXXXXX";
    top = mkdtemp(name);
    std::filesystem::create_directory(top / "tutti");
    setenv("XDG_CONFIG_HOME", top.c_str(), 1);
    unsetenv("TUTTI_TUNE_FILE");
  }
  ~Place() {
    std::filesystem::remove_all(top);
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("TUTTI_TUNE_FILE");
  }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = top / name;
    REQUIRE(write_file(path, text));
    return path;
  }
};

std::string complaint(const std::string& text) {
  const auto list = prices_from_text(text, "some/file");
  REQUIRE_FALSE(list);
  CHECK(list.error().code == Code::kInvalidUsage);
  return list.error().message;
}

}  // namespace

TEST_CASE("prices: a file may name another one that describes the network, beside it") {
  const Place place;
  place.write("tutti/tuning", "shm.hop = 150\nnetwork = racks.json  # of this cluster\n");
  const auto absent = find_prices();
  REQUIRE(!absent);
  CHECK(absent.error().message.find("tutti/racks.json cannot be read: No such file") != std::string::npos);
  place.write("tutti/racks.json", R"({"hosts_per_rack": 2, "ranks_per_host": 1, "hosts": ["a", "b", "c"],
    "local": {"gbit_per_s": 8, "latency_us": 1}, "nic": {"gbit_per_s": 1, "latency_us": 20},
    "rack": {"gbit_per_s": 1, "latency_us": 5}})");
  const auto list = find_prices();
  if (!list && list.error().message.find("this build has no nlohmann-json") != std::string::npos) {
    WARN("skipped: " + list.error().message);
    return;
  }
  REQUIRE(list);
  REQUIRE(list.value().network);
  CHECK(list.value().network->find_host("c") == 2);
  CHECK(list.value().network_file == "racks.json");
  // Ranks whose networks differ do not agree.
  const auto of_network = [](const PriceList& l) { return fingerprint(l.prices, l.network_text); };
  CHECK(of_network(list.value()) != fingerprint(list.value().prices));
  PriceList other = list.value();
  other.network_text.back() ^= 1;
  CHECK(of_network(list.value()) != of_network(other));
  const std::filesystem::path elsewhere = place.top / "elsewhere.json";  // anywhere, if the path is absolute
  std::filesystem::rename(place.top / "tutti/racks.json", elsewhere);
  place.write("tutti/tuning", "network = " + elsewhere.string());
  CHECK(find_prices());
}

TEST_CASE("prices: a file that is found by itself is no link and nobody else's") {
  const Place place;
  const std::string path = place.write("tutti/tuning", "shm.hop = 150\n");
  REQUIRE(find_prices());
  const std::string aside = place.top / "aside";
  std::filesystem::rename(path, aside);
  std::filesystem::create_symlink(aside, path);
  const auto linked = find_prices();
  REQUIRE(!linked);
  CHECK(linked.error().message.find(path + " cannot be read: it is a symbolic link") != std::string::npos);
  setenv("TUTTI_TUNE_FILE", path.c_str(), 1);  // an explicit name is trusted
  CHECK(find_prices());
  unsetenv("TUTTI_TUNE_FILE");
  std::filesystem::remove(path);
  std::filesystem::rename(aside, path);
  if (chown(path.c_str(), 65534, 65534) != 0) {
    WARN("skipped: not run as root, so no file can be given to another user");
    return;
  }
  const auto others = find_prices();
  REQUIRE(!others);
  CHECK(others.error().message.find("it belongs to user 65534") != std::string::npos);
}

TEST_CASE("prices: what is written is read again, each of them") {
  Prices prices = built_in_prices();
  double value = 172136980;  // more digits than most values have
  for (const NamedPrice& price : by_name(prices)) *price.value = value += 0.25;
  const auto list = prices_from_text(to_text(prices), "file");
  REQUIRE(list);
  CHECK(fingerprint(list.value().prices) == fingerprint(prices));
  CHECK(list.value().given.size() == by_name(prices).size());
  for (const NamedPrice& price : by_name(prices)) {
    const double before = std::exchange(*price.value, 77);
    CHECK(fingerprint(list.value().prices) != fingerprint(prices));
    *price.value = before;
  }
}

TEST_CASE("prices: a file may give some, with comments and blanks; the rest is built in") {
  const auto list =
      prices_from_text("# of my machine\n\n  shm.hop=5 \r\n\tsum.byte = 2e-1 # measured\nrdma.turn = 9", "f");
  REQUIRE(list);
  CHECK(list.value().prices.shm.hop == 5);
  CHECK(list.value().prices.summed_byte == 0.2);
  CHECK(list.value().prices.rdma.turn == 9);
  CHECK(list.value().prices.shm.message == built_in_prices().shm.message);
  CHECK(list.value().given == std::vector<std::string>{"shm.hop", "sum.byte", "rdma.turn"});
  CHECK(prices_from_text("", "f"));
}

TEST_CASE("prices: a bad line is named, with the remedy") {
  for (const char* line : {"shm.hop = fast", "shm.hop = 0", "shm.hop = -1", "shm.hop = nan", "shm.hop = inf",
                           "shm.hop = 1e30", "shm.hop = 1 2", "shm.hop =", "shm.hop = 1,5"}) {
    const std::string said = complaint(std::string("\nsum.byte = 1\n") + line);
    INFO(said);
    CHECK(said.find("some/file, line 3: shm.hop = ") != std::string::npos);
    CHECK(said.find("give nanoseconds") != std::string::npos);
  }
  for (const char* line : {"shm.hops = 1", "shm.hop", "= 1", "\x01\xff", "[shm]"})
    CHECK(complaint(line).find("some/file, line 1: there is no price '") != std::string::npos);
}

TEST_CASE("prices: a network without a file is refused") {
  CHECK(complaint("network = ").find("some/file, line 1: it names no file") != std::string::npos);
}

TEST_CASE("prices: the file that is named, else the user's, else what is built in") {
  const Place place;
  const auto hop = [] {
    const auto list = find_prices();
    return list ? list.value().prices.shm.hop : -1;
  };
  CHECK(hop() == built_in_prices().shm.hop);
  const std::string users = place.write("tutti/tuning", "shm.hop = 11");
  CHECK(hop() == 11);
  CHECK(find_prices().value().file == users);
  setenv("TUTTI_TUNE_FILE", place.write("mine", "shm.hop = 12").c_str(), 1);
  CHECK(hop() == 12);
  setenv("TUTTI_TUNE_FILE", "/dev/null", 1);
  CHECK(hop() == built_in_prices().shm.hop);
  for (const std::string& bad : {(place.top / "absent").string(), place.top.string(),
                                 place.write("long", std::string(1 << 17, ' ')), place.write("odd", "hop")}) {
    setenv("TUTTI_TUNE_FILE", bad.c_str(), 1);
    const auto list = find_prices();
    REQUIRE_FALSE(list);
    INFO(list.error().message);
    CHECK(list.error().code == Code::kInvalidUsage);
    CHECK(list.error().message.find("the tuning file " + bad) == 0);
  }
}

TEST_CASE("prices: the user's folder is .config at home where no other one is named") {
  const Place place;
  const char* const home = getenv("HOME");
  const std::string before = home == nullptr ? "/" : home;
  CHECK(users_configuration() == place.top.string());
  setenv("HOME", place.top.c_str(), 1);
  for (const char* none : {"", "a/relative/one"}) {
    setenv("XDG_CONFIG_HOME", none, 1);
    CHECK(users_configuration() == place.top.string() + "/.config");
  }
  setenv("HOME", before.c_str(), 1);
}
