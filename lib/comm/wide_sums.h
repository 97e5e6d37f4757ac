// Sums of 16- and 8-bit floats that take several steps: their partial sums are floats, and the result is rounded once,
// as where one step adds up everything. A piece at a time, so that the floats take little room.
// Threading: the operation's own thread.
#pragma once

#include <functional>

#include "base/result.h"
#include "exec/program.h"

namespace tutti {

// Calls drive(piece) for one piece after the other, each the same operation on floats; there is something to add up.
// Ends with the first error.
Result<void> in_wide_pieces(const BoundCall& what, const std::function<Result<void>(const BoundCall&)>& drive);

}  // namespace tutti
