// This header: names for places, which are call sites in bindings, where return addresses say nothing: "all_reduce of
// float32[1024] at train.py:41". Each name has a number, which stands in for the caller's address.
//
// All functions from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

inline constexpr size_t kMostPlaceBytes = 119;  // longer names are cut
inline constexpr size_t kMostPlaces = 4096;     // only the newest are kept; older ones are forgotten

// A new number for a name; never 0.
uint64_t name_place(std::string_view name);
// Empty if the name was forgotten.
std::string place_name(uint64_t place);

// A place's name as a suffix of an operation's: " (all_reduce of float32[4] at train.py:41)", or nothing.
inline std::string in_parentheses(const std::string& name) {
  return name.empty() ? name : " (" + name + ")";
}

// The place of this thread's calls from now on; 0: their real return addresses.
void set_place(uint64_t place);
uint64_t place_of_thread();

// Marks a place among caller addresses: no program has addresses this high.
inline constexpr uint64_t kPlaceBit = uint64_t{1} << 63;
inline uint64_t to_place(const void* caller) {
  const auto word = reinterpret_cast<uintptr_t>(caller);
  return (word & kPlaceBit) != 0 ? word & ~kPlaceBit : 0;
}

// Until a thread sets a place, no thread reads its thread-local variable, which takes a function call.
extern std::atomic<bool> g_has_places;
inline const void* caller_or_place(const void* address) {
  if (!g_has_places.load(std::memory_order_relaxed)) return address;
  const uint64_t place = place_of_thread();
  return place == 0 ? address : reinterpret_cast<const void*>(static_cast<uintptr_t>(place | kPlaceBit));
}

}  // namespace tutti
