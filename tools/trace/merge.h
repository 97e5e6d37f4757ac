// Several ranks' dumps in one picture.
#pragma once

#include <string>
#include <vector>

#include "dump.h"

namespace tutti::trace {

// For Perfetto (ui.perfetto.dev) and chrome://tracing: a process for each rank, its operations as slices, and arrows
// from the last rank to the others.
std::string perfetto_text(const std::vector<Dump>& dumps);

// A single file that needs no other: a timeline to explore with the mouse, which ranks were late, and the errors.
std::string html_page(const std::vector<Dump>& dumps);

// The format that PyTorch's analyser (torch.distributed.flight_recorder) loads: it reads pickles.
std::string pickle(const nlohmann::json& json);

}  // namespace tutti::trace
