#include "base/places.h"

#include <array>
#include <mutex>

#include "base/at_fork.h"

namespace tutti {
namespace {

// Never destroyed: other threads may outlive main.
struct Names {
  std::mutex mutex;
  uint64_t last = 0;
  std::array<std::string, kMostPlaces> all;  // at their numbers' remainders
};

Names& names() {
  static auto* const all = [] {
    auto* fresh = new Names;
    hold_while_forking(fresh->mutex);
    return fresh;
  }();
  return *all;
}

constinit thread_local uint64_t t_place = 0;

}  // namespace

std::atomic<bool> g_has_places{false};

uint64_t name_place(std::string_view name) {
  Names& known = names();
  const std::lock_guard lock(known.mutex);
  const uint64_t place = ++known.last;
  known.all[place % kMostPlaces] = name.substr(0, kMostPlaceBytes);
  return place;
}

std::string place_name(uint64_t place) {
  Names& known = names();
  const std::lock_guard lock(known.mutex);
  const bool is_kept = place > 0 && place <= known.last && known.last - place < kMostPlaces;
  return is_kept ? known.all[place % kMostPlaces] : std::string();
}

void set_place(uint64_t place) {
  t_place = place;
  if (place != 0 && !g_has_places.load(std::memory_order_relaxed)) g_has_places.store(true, std::memory_order_relaxed);
}

uint64_t place_of_thread() {
  return t_place;
}

}  // namespace tutti
