#include "plan/tuning.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace tutti {
namespace {

// prices 1 200 100 0.1 0.05 1
// race 1 0 0 17 direct 2 copy 10000 ring 2 lend 12000
constexpr const char* kPricesWord = "prices";
constexpr const char* kRaceWord = "race";
constexpr const char *kCopyWord = "copy", *kLendWord = "lend";

bool is_price(double price) {
  return price > 0 && price < 1e15;
}

bool read_prices(std::istringstream& line, Tuning* tuning) {
  Prices& p = tuning->prices;
  line >> tuning->probed >> p.hop >> p.message >> p.copied_byte >> p.summed_byte >> p.wired_byte;
  return !line.fail() && is_price(p.hop) && is_price(p.message) && is_price(p.copied_byte) && is_price(p.summed_byte) &&
         is_price(p.wired_byte);
}

bool read_race(std::istringstream& line, Tuning* tuning) {
  int collective = 0, bits = 0;
  bool in_one_place = false, registered = false;
  line >> collective >> in_one_place >> registered >> bits;
  if (line.fail() || collective <= 0 || collective >= kCollectives || bits < 0 || bits > 64) return false;
  auto& results =
      tuning->raced[{static_cast<Collective>(collective), in_one_place, registered, static_cast<uint8_t>(bits)}];
  std::string name;
  while (line >> name) {
    Measured measured;
    int lanes = 0;
    std::string way;
    line >> lanes >> way >> measured.ns;
    bool known = name == algo_name(Algo::kAuto);
    for (const Algo algo : kAlgos) {
      if (name != algo_name(algo)) continue;
      measured.plan.algo = algo;
      known = true;
    }
    measured.plan.lanes = static_cast<uint8_t>(lanes);
    measured.plan.lends = way == kLendWord;
    known = known && (way == kLendWord || way == kCopyWord);
    if (line.fail() || !known || lanes < 1 || lanes > kMostLanes || measured.ns < 0) return false;
    results.push_back(measured);
  }
  return !results.empty();
}

}  // namespace

std::string to_text(const Tuning& tuning) {
  const Prices& p = tuning.prices;
  // 17 digits are all that a double has.
  std::string text = format("%s %d %.17g %.17g %.17g %.17g %.17g\n", kPricesWord, tuning.probed ? 1 : 0, p.hop,
                            p.message, p.copied_byte, p.summed_byte, p.wired_byte);
  for (const auto& [key, results] : tuning.raced) {
    text += format("%s %d %d %d %d", kRaceWord, static_cast<int>(key.collective), key.in_one_place ? 1 : 0,
                   key.registered ? 1 : 0, key.bits);
    for (const Measured& m : results)
      text += format(" %s %d %s %" PRId64, algo_name(m.plan.algo), m.plan.lanes, m.plan.lends ? kLendWord : kCopyWord,
                     m.ns);
    text += "\n";
  }
  return text;
}

Result<Tuning> tuning_from_text(std::string_view text) {
  Tuning tuning;
  bool has_prices = false;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    words.imbue(std::locale::classic());
    std::string first;
    words >> first;
    const bool is_race = first == kRaceWord;
    if (!(is_race ? read_race(words, &tuning) : first == kPricesWord && read_prices(words, &tuning)))
      return Error{Code::kInvalidUsage, "this line makes no sense: '" + line.substr(0, 100) + "'"};
    has_prices = has_prices || !is_race;
  }
  if (!has_prices) return Error{Code::kInvalidUsage, "it has no prices"};
  return tuning;
}

// FNV-1a.
uint64_t checksum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace tutti
