// Included first in the files that tests/faults/run changes, and nowhere else.
#pragma once

#include <cstdlib>
#include <cstring>

namespace tutti_faults {

// Whether this is the fault that is switched on.
inline bool fault(const char* name) {
  static const char* const on = getenv("TUTTI_FAULT");
  return on != nullptr && strcmp(on, name) == 0;
}

}  // namespace tutti_faults

using tutti_faults::fault;  // NOLINT: the diffs write no more than that
