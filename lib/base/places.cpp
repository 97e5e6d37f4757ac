#include "base/places.h"

#include <array>
#include <mutex>

#include "base/at_fork.h"

namespace tutti {
namespace {

// Created when the library is loaded, because the first use might coincide with another thread's fork. Never destroyed:
// other threads may outlive main.
struct Names {
  MutexAcrossForks mutex;
  uint64_t last = 0;
  std::array<std::string, kMostPlaces> all;  // each at its number modulo kMostPlaces
};

Names& g_names = *new Names;

constinit thread_local uint64_t t_place = 0;

}  // namespace

std::atomic<bool> g_has_places{false};

uint64_t name_place(std::string_view name) {
  const std::lock_guard lock(g_names.mutex);
  const uint64_t place = ++g_names.last;
  g_names.all[place % kMostPlaces] = name.substr(0, kMostPlaceBytes);
  return place;
}

std::string place_name(uint64_t place) {
  const std::lock_guard lock(g_names.mutex);
  const bool is_kept = place > 0 && place <= g_names.last && g_names.last - place < kMostPlaces;
  return is_kept ? g_names.all[place % kMostPlaces] : std::string();
}

void set_place(uint64_t place) {
  t_place = place;
  if (place != 0 && !g_has_places.load(std::memory_order_relaxed)) g_has_places.store(true, std::memory_order_relaxed);
}

uint64_t place_of_thread() {
  return t_place;
}

}  // namespace tutti
