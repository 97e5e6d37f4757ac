// What a soak found, for people and as JSON.
#pragma once

#include <string>

#include "board.h"
#include "director.h"
#include "options.h"

namespace tutti::soak {

// The number of things that went wrong.
uint64_t failures(const Board& board, const Fate& fate);
void print_report(FILE* out, const Options& options, const Board& board, const Fate& fate);
std::string json_text(const Options& options, const Board& board, const Fate& fate);

}  // namespace tutti::soak
