// This header: the order of a rank's steps where chunks travel round a ring in groups.
#pragma once

#include <algorithm>
#include <vector>

#include "schedule/steps.h"

namespace tutti {

// Calls ticks(trip, first, last) for the ticks of all trips, one trip after the other. A trip's first step needs
// nothing from anyone, and its last sends nothing: so the next trip's first message leaves before the wait for this
// trip's last one, which saves one hop per trip. Every rank is then two messages ahead at most: two slots.
template <class Ticks>
void for_each_tick(int first_trip, int n_trips, int by, int n_ticks, Ticks ticks) {
  if (first_trip < n_trips) ticks(first_trip, 0, 0);
  for (int trip = first_trip; trip < n_trips; trip += by) {
    if (n_ticks > 2) ticks(trip, 1, n_ticks - 2);
    if (trip + by < n_trips) ticks(trip + by, 0, 0);
    if (n_ticks > 1) ticks(trip, n_ticks - 1, n_ticks - 1);
  }
}

// The same steps where one trip is like the other, but for the chunks, which `walk` moves: make(trip, tick).
template <class Make>
void repeat_trips(Steps& steps, int n_trips, int n_ticks, Walk walk, Make make) {
  std::vector<Steps::Pattern> trip;
  for_each_tick(0, 2, 1, n_ticks, [&](int which, int first, int last) {
    for (int tick = first; tick <= last; tick++) trip.push_back({make(which, tick)});
  });
  steps.push_back(trip[0].step);
  if (n_ticks > 1) trip.resize(static_cast<size_t>(n_ticks) + 1);
  steps.repeat(std::span(trip).subspan(1), static_cast<uint32_t>(n_trips - 1), walk);
  for (int tick = 1; tick < n_ticks; tick++) steps.push_back(make(n_trips - 1, tick));
}

// Of a ring's ticks first .. last those before tick `turn` are alike but for their chunks, and those after it: calls
// part(first, last) for each of the up to three parts.
template <class Part>
void for_each_part(int turn, int first, int last, Part part) {
  if (first < turn) part(first, std::min(last, turn - 1));
  if (first <= turn && turn <= last) part(turn, turn);
  if (last > turn) part(std::max(first, turn + 1), last);
}

}  // namespace tutti
