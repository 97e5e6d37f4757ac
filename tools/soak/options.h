// What the user asks for.
#pragma once

#include <cstdint>
#include <string>

namespace tutti::soak {

struct Options {
  double seconds = 60;
  uint64_t seed = 1;
  int ranks = 5;
  int hosts = 1;
  std::string transports;
  uint64_t max_bytes = 2 << 20;
  int every_ms = 250;  // between faults, on average
  int rest_us = 0;     // of every rank after each operation
  int hang_seconds = 30;
  std::string faults = "kill,stop,delay,leave,revoke,join,cut";
  std::string json_path;

  bool has(const char* fault) const {
    return ("," + faults + ",").find(std::string(",") + fault + ",") != std::string::npos;
  }
};

}  // namespace tutti::soak
