// Included first in the files that tests/ablation/run changes, and nowhere else.
#pragma once

#include <cstdlib>
#include <cstring>

namespace tutti_ablation {

inline bool is_left_out(const char* name) {
  const char* const left_out = getenv("TUTTI_WITHOUT");
  return left_out != nullptr && strcmp(left_out, name) == 0;
}

}  // namespace tutti_ablation

// Whether this is the fast path that is left out. Looked up once per place; after that it costs one byte load.
#define without(name)                                               \
  ([] {                                                             \
    static const bool left_out = tutti_ablation::is_left_out(name); \
    return left_out;                                                \
  }())
