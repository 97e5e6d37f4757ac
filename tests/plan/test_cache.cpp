// Tunings as text, and where they rest: what comes back, and what damaged, foreign and unwritable files do.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "catch.h"
#include "plan/cache.h"

using namespace tutti;
namespace fs = std::filesystem;

namespace {

Tuning some_tuning() {
  Tuning tuning{{1234.5, 1.0 / 3, 0.1, 1e-9, 1}, true, {}};
  tuning.raced[{Collective::kAllReduce, false, true, 17}] = {{{Algo::kDirect, 2}, 12345}, {{Algo::kRing, 1}, 20000}};
  tuning.raced[{Collective::kReduce, true, false, 64}] = {{{Algo::kHalving, 1, true}, 1}, {{Algo::kAuto, 1}, 2}};
  return tuning;
}

// A directory of its own for a test, which TUTTI_TUNE_CACHE names, and a log file.
struct Place {
  fs::path top = fs::temp_directory_path() / ("tutti-cache-" + std::to_string(getpid()));
  fs::path log = top / "log";
  Place() {
    fs::remove_all(top);
    fs::create_directories(top);
    setenv("TUTTI_TUNE_CACHE", (top / "a" / "b").c_str(), 1);
    setenv("TUTTI_LOG_FILE", log.c_str(), 1);
  }
  ~Place() {
    unsetenv("TUTTI_TUNE_CACHE");
    unsetenv("TUTTI_LOG_FILE");
    fs::remove_all(top);
  }
  fs::path file(const std::string& layout) const { return cache_file(cache_directory(), layout); }
};

std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// A layout that this process has not kept yet: what is recalled of it comes from the disk.
std::string fresh_layout() {
  static int n = 0;
  return "layout " + std::to_string(n++);
}

// The file that another process would have left for `layout`.
std::string file_for(const Place& place, const std::string& layout) {
  keep_tuning(layout, some_tuning());
  return contents(place.file(layout));
}

}  // namespace

TEST_CASE("tuning: text and back") {
  const Tuning tuning = some_tuning();
  const auto back = tuning_from_text(to_text(tuning));
  REQUIRE(back);
  CHECK(back.value().raced == tuning.raced);
  CHECK(back.value().probed);
  CHECK(to_text(back.value()) == to_text(tuning));
}

TEST_CASE("tuning: text that makes no sense is an error that shows the line") {
  const std::string prices = "prices 1 1 1 1 1 1\n";
  for (const char* line : {"race 1 0 0 17 comb 1 copy 5", "race 1 0 0 17 ring 3 copy 5", "race 1 0 0 17 ring 1 copy -5",
                           "race 1 0 0 17", "race 99 0 0 17 ring 1 copy 5", "race 1 0 0 65 ring 1 copy 5",
                           "race 1 0 0 17 ring 1 keep 5", "race 1 0 0 17 ring", "prices 1 0 1 1 1 1",
                           "prices 1 nan 1 1 1 1", "prices 1 1 1 1 1", "nonsense", "prices 2 1 1 1 1 1"}) {
    const auto tuning = tuning_from_text(prices + line + "\n");
    INFO(line);
    REQUIRE_FALSE(tuning);
    CHECK(tuning.error().message.find(line) != std::string::npos);
  }
  CHECK_FALSE(tuning_from_text(""));
  CHECK_FALSE(tuning_from_text("race 1 0 0 17 ring 1 copy 5\n"));
}

TEST_CASE("cache: what was kept comes back, in directories that it makes, and nothing else lies there") {
  const Place place;
  const std::string layout = fresh_layout(), other = fresh_layout();
  CHECK_FALSE(recall_tuning(layout));
  const std::string text = file_for(place, layout);
  CHECK(text.find(layout) != std::string::npos);
  // Under the name of a layout that this process does not know yet, with its line changed, it is that one's.
  std::string moved = text;
  moved.replace(moved.find(layout), layout.size(), other);
  write(place.file(other), moved);
  const auto found = recall_tuning(other);
  REQUIRE(found);
  CHECK(found->raced == some_tuning().raced);
  CHECK(std::distance(fs::directory_iterator(cache_directory()), {}) == 2);
  // More joins what is there.
  Tuning more{{1, 1, 1, 1, 1}, false, {}};
  more.raced[{Collective::kReduce, false, false, 3}] = {{{Algo::kTree, 1}, 7}};
  keep_tuning(other, more);
  CHECK(recall_tuning(other)->raced.size() == 3);
  CHECK(recall_tuning(other)->prices.hop == 1234.5);  // measured ones stay
}

TEST_CASE("cache: a damaged or foreign file is ignored with a warning that names it, and replaced") {
  const Place place;
  const std::string good = file_for(place, fresh_layout());
  std::string flipped = good;
  flipped[good.size() - 3] ^= 1;
  const std::string cut = good.substr(0, good.size() - 5);
  for (const std::string& bad :
       {std::string("somebody's notes\n"), std::string(), flipped, cut, good, std::string(2 << 20, 'x')}) {
    const std::string layout = fresh_layout();  // not the one that `good` was made for
    write(place.file(layout), bad);
    CHECK_FALSE(recall_tuning(layout));
    CHECK(contents(place.log).find(place.file(layout)) != std::string::npos);
    keep_tuning(layout, some_tuning());
    CHECK(contents(place.file(layout)).find(layout) != std::string::npos);
  }
}

TEST_CASE("cache: where nothing can be written nothing fails") {
  const Place place;
  const std::string layout = fresh_layout();
  write(place.top / "a", "a file where a directory should be");
  keep_tuning(layout, some_tuning());
  CHECK(recall_tuning(layout));  // in this process at least
  setenv("TUTTI_TUNE_CACHE", "/proc/self", 1);
  keep_tuning(fresh_layout(), some_tuning());
  setenv("TUTTI_TUNE_CACHE", "/dev/full", 1);
  keep_tuning(fresh_layout(), some_tuning());
  CHECK_FALSE(recall_tuning(fresh_layout()));
  // A directory where the file should be.
  setenv("TUTTI_TUNE_CACHE", place.top.c_str(), 1);
  const std::string blocked = fresh_layout();
  fs::create_directories(place.file(blocked) / "x");
  CHECK_FALSE(recall_tuning(blocked));
  keep_tuning(blocked, some_tuning());
  CHECK(fs::is_directory(place.file(blocked)));
}

TEST_CASE("cache: which directory") {
  const Place place;
  setenv("TUTTI_TUNE_CACHE", "off", 1);
  CHECK(cache_directory().empty());
  unsetenv("TUTTI_TUNE_CACHE");
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  CHECK(cache_directory() == "/somewhere/tutti");
  setenv("XDG_CACHE_HOME", "relative", 1);  // not allowed by the specification
  setenv("HOME", "/home/somebody", 1);
  CHECK(cache_directory() == "/home/somebody/.cache/tutti");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  CHECK(cache_directory().empty());
}
