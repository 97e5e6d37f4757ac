// Several ranks' dumps as one picture.
#pragma once

#include <string>
#include <vector>

#include "dump.h"

namespace tutti::trace {

// For Perfetto (ui.perfetto.dev) and chrome://tracing: a process for each rank, its operations as slices, and arrows
// from who came last to the others.
std::string perfetto_text(const std::vector<Dump>& dumps);

// One file without anything from elsewhere: a timeline to look at with the mouse, who was late, and the errors.
std::string html_page(const std::vector<Dump>& dumps);

// What PyTorch's analyser (torch.distributed.flight_recorder) loads: it reads pickles.
std::string pickle(const nlohmann::json& json);

}  // namespace tutti::trace
