// This header: names for the places that call, for bindings whose callers an address says nothing of: "all_reduce of
// float32[1024] at train.py:41". A name has a number, which takes the place of the caller's address.
//
// All functions from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

inline constexpr size_t kMostPlaceBytes = 119;  // what is longer loses its end
inline constexpr size_t kMostPlaces = 4096;     // the last ones; who calls from an older one is not known

// A number for a name; never 0.
uint64_t name_place(std::string_view name);
// Empty if it was forgotten.
std::string place_name(uint64_t place);

// A place's name as what follows an operation's: " (all_reduce of float32[4] at train.py:41)", or nothing.
inline std::string in_parentheses(const std::string& name) {
  return name.empty() ? name : " (" + name + ")";
}

// Where this thread's calls come from, from now on; 0: from where they are seen to.
void set_place(uint64_t place);
uint64_t place_of_thread();

// Places among callers: no program has addresses as high.
inline constexpr uint64_t kPlaceBit = uint64_t{1} << 63;
inline uint64_t to_place(const void* caller) {
  const auto word = reinterpret_cast<uintptr_t>(caller);
  return (word & kPlaceBit) != 0 ? word & ~kPlaceBit : 0;
}

// Where no thread has set any, none needs its own variable, which takes a function call.
extern std::atomic<bool> g_has_places;
inline const void* caller_or_place(const void* address) {
  if (!g_has_places.load(std::memory_order_relaxed)) return address;
  const uint64_t place = place_of_thread();
  return place == 0 ? address : reinterpret_cast<const void*>(static_cast<uintptr_t>(place | kPlaceBit));
}

}  // namespace tutti
