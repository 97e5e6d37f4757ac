// One step in readable form, for to_text and the checker's errors: "recv 1 + in[2] -> out[2], send 3".
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace tutti {

std::string slice_text(const Slice& slice);
std::string step_text(const Step& step);

}  // namespace tutti
