// What was measured, for a group of some layout: the prices, and the races that are over. As text, which travels from
// rank 0 to the others when a communicator is created, and rests in the cache in between.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "plan/cost.h"

namespace tutti {

// Operations that share a decision: sizes from one power of two to the next.
struct SizeClass {
  Collective collective = Collective::kNone;
  bool in_one_place = false;  // sums that may not be made by every algorithm
  bool registered = false;    // all memory is registered: only of what was raced
  uint8_t bits = 0;           // of the size in bytes: 0 for nothing, else the size is in [2^(bits-1), 2^bits)
  auto operator<=>(const SizeClass&) const = default;
};

struct Tuning {
  Prices prices;
  bool probed = false;                               // the prices were measured
  std::map<SizeClass, std::vector<Measured>> raced;  // the winner first
};

std::string to_text(const Tuning& tuning);
// The error says what is wrong with the text.
Result<Tuning> tuning_from_text(std::string_view text);

uint64_t checksum(std::string_view bytes);

}  // namespace tutti
