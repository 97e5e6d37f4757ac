// What goes over the control connections.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace tutti {

enum PeerFrame : uint32_t { kNotice = 1, kGoodbye = 2, kLoss = 3, kQuestion = 4, kCouncil = 5, kAlarm = 6, kBeat = 7 };

// `origin` is the rank whose words these are.
std::string notice_payload(int origin, const Error& error);

}  // namespace tutti
