#include "base/sort.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "catch.h"

using namespace tutti;

TEST_CASE("sort: by what is compared, and what is alike stays in order") {
  std::mt19937 random(7);
  for (int n = 0; n < 50; n++) {
    std::vector<std::pair<int, int>> sorted;  // key, original position
    for (int i = 0; i < n; i++) sorted.emplace_back(static_cast<int>(random() % 5), i);
    auto expected = sorted;
    std::sort(expected.begin(), expected.end());
    sort_stably(sorted, [](const auto& a, const auto& b) { return a.first < b.first; });
    CHECK(sorted == expected);
  }
}
