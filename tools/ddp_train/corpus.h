// The text that the network learns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.h"

namespace tutti::train {

// Bytes as numbers below the size of the alphabet.
struct Corpus {
  std::vector<uint8_t> symbols;
  std::string alphabet;
  std::string source;  // for people
};

// Reads `path`. Without one it is the licence texts that every Debian has; where those are not, sums in decimal
// ("17+25=42"), which are generated.
Status load_corpus(const std::string& path, Corpus* corpus);

}  // namespace tutti::train
