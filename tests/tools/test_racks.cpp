// Which hosts share a rack, found in invented networks.
#include <algorithm>
#include <numeric>
#include <random>

#include "../../tools/tune/racks.h"
#include "catch.h"

using namespace tutti;

namespace {

// Hosts in racks, with the speed of each host's network card, and the speed between racks.
struct Invented {
  std::vector<int> rack;
  std::vector<double> card;
  double between;
  double noise = 0;
  int asked = 0;
  std::mt19937 random{7};

  tune::Racks find() {
    tune::Racks found;
    const auto speed = [&](int from, int to, double* fast) {
      asked++;
      const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
      *fast = std::min({card[a], card[b], rack[a] == rack[b] ? 1e12 : between});
      *fast *= 1 - noise * std::uniform_real_distribution<>(0, 1)(random);
      return perf::Status();
    };
    REQUIRE(tune::find_racks(static_cast<int>(rack.size()), speed, &found));
    return found;
  }
};

using Lists = std::vector<std::vector<int>>;

}  // namespace

TEST_CASE("racks: two, dealt out in turns, and one after the other") {
  CHECK(Invented{{0, 1, 0, 1}, {1, 1, 1, 1}, .2}.find().racks == Lists{{0, 2}, {1, 3}});
  CHECK(Invented{{0, 0, 1, 1, 1}, {1, 1, 1, 1, 1}, .5}.find().racks == Lists{{0, 1}, {2, 3, 4}});
}

TEST_CASE("racks: a network that is as fast everywhere is one") {
  CHECK(Invented{{0, 0, 0}, {1, 1, 1}, 1}.find().racks == Lists{{0, 1, 2}});
  CHECK(Invented{{0, 1}, {1, 1}, .2}.find().racks == Lists{{0, 1}});  // with two hosts there is nothing to compare
  CHECK(Invented{{0, 0, 1, 1}, {1, 1, 1, 1}, .8}.find().racks.size() == 1);
}

TEST_CASE("racks: slow hosts are no racks, wherever they stand") {
  const auto one = Invented{{0, 0, 0, 0}, {1, 1, 1, .1}, 1}.find();
  CHECK(one.racks == Lists{{0, 1, 2, 3}});
  CHECK(one.bytes_per_second == std::vector<double>{1, 1, 1, .1});
  const auto first = Invented{{0, 0, 0, 0}, {.1, .1, 1, 1}, 1}.find();
  CHECK(first.racks.size() == 1);
  const auto among_racks = Invented{{0, 1, 0, 1, 1}, {1, 1, 1, 1, .1}, .3}.find();
  CHECK(among_racks.racks.size() == 2);
  CHECK(among_racks.bytes_per_second[4] == .1);
  CHECK(among_racks.racks != among_racks.fast_hosts());
  CHECK(among_racks.fast_hosts() == Lists{{0, 2}, {1, 3}});
  CHECK(tune::Racks{{{0, 1}, {2}}, {1, 1, .1}}.fast_hosts() == Lists{{0, 1}, {2}});
}

TEST_CASE("racks: many, with noise, in any order, and not too many questions") {
  std::mt19937 random(3);
  for (int round = 0; round < 50; round++) {
    Invented invented{std::vector<int>(60), std::vector<double>(60, 1), .3, .2};
    for (size_t h = 0; h < 60; h++) invented.rack[h] = static_cast<int>(h % 6);
    std::shuffle(invented.rack.begin(), invented.rack.end(), random);
    Lists want(6);
    for (size_t h = 0; h < 60; h++) want[static_cast<size_t>(invented.rack[h])].push_back(static_cast<int>(h));
    Lists found = invented.find().racks;
    std::sort(want.begin(), want.end());
    std::sort(found.begin(), found.end());
    CHECK(found == want);
    CHECK(invented.asked <= 60 * 7);
  }
}
