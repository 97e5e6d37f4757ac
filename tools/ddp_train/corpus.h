// The text that the network learns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.h"

namespace tutti::train {

// Bytes as numbers below the alphabet's size.
struct Corpus {
  std::vector<uint8_t> symbols;
  std::string alphabet;
  std::string source;  // a description for people
};

// Reads `path`. Without one it uses the licence texts that every Debian has; if there are none, generated decimal sums
// ("17+25=42").
Status load_corpus(const std::string& path, Corpus* corpus);

}  // namespace tutti::train
