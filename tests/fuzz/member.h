// The state of a rank in the API's fuzz target: memory with guards, its communicator, calls whose results are checked.
#pragma once

#include <algorithm>
#include <cstring>

#include "fuzz.h"
#include "tutti/tutti.h"

namespace tutti::fuzz {

inline constexpr size_t kArenaBytes = 32 << 10, kOffsets = 8 << 10, kGuardBytes = 64;
inline constexpr char kGuard = '\x6b';

// Memory that operations of one communicator use, guarded on both sides.
class Arena {
 public:
  Arena() {
    void* memory = nullptr;
    expect(tuttiMemAlloc(&memory, kArenaBytes) == tuttiSuccess, "there is memory for an arena");
    bytes_ = static_cast<char*>(memory);
    memset(bytes_, kGuard, kArenaBytes);
  }
  char* at(size_t offset) { return bytes_ + kGuardBytes + offset; }
  bool guards_hold() const {
    const auto held = [&](size_t from) {
      return std::all_of(bytes_ + from, bytes_ + from + kGuardBytes, [](char c) { return c == kGuard; });
    };
    return held(0) && held(kArenaBytes - kGuardBytes);
  }

 private:
  char* bytes_;
};

// State that one rank keeps from input to input.
struct Member {
  tuttiComm_t comm = nullptr;
  bool has_run = false, is_ended = false;  // its script has run; its communicator was ended from outside
  Arena arenas[2];                         // for the group, and for the group that is split off it
};

inline tuttiResult_t checked(tuttiResult_t result) {
  expect(result >= tuttiSuccess && result < tuttiNumResults, "a result is one of tuttiResult_t");
  if (result != tuttiSuccess) expect(tuttiGetLastError(nullptr)[0] != '\0', "an error has a sentence");
  return result;
}

template <class Enum>
Enum any(int number) {
  Enum value;
  static_assert(sizeof value == sizeof number);
  memcpy(&value, &number, sizeof value);
  return value;
}

}  // namespace tutti::fuzz
