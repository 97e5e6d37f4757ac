// This header: the order of a rank's steps where chunks travel round a ring in groups.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "schedule/steps.h"

namespace tutti {

// One trip: the steps make(tick) for the ticks first .. last. The steps between the first and tick `turn`, and those
// between it and the last, are alike except for their chunks, which `walk` moves.
template <class Make>
void repeat_ticks(Steps& steps, int first, int turn, int last, Walk walk, Make make) {
  int begins[] = {first, first + 1, turn, turn + 1, last, last + 1};
  std::sort(std::begin(begins), std::end(begins));
  for (size_t k = 0; k + 1 < std::size(begins); k++)
    if (begins[k] < begins[k + 1])
      steps.repeat({make(begins[k])}, static_cast<uint32_t>(begins[k + 1] - begins[k]), walk);
}

// Calls tick(trip, number) for the ticks of all trips, one trip after the other. A trip's first step receives nothing
// and its last one sends nothing, so the next trip's first message leaves before the wait for this trip's last one,
// which saves one hop per trip. Every rank is then at most two messages ahead: two slots.
template <class Tick>
void for_each_tick(int first_trip, int n_trips, int by, int n_ticks, Tick tick) {
  if (first_trip < n_trips) tick(first_trip, 0);
  for (int trip = first_trip; trip < n_trips; trip += by) {
    for (int number = 1; number + 1 < n_ticks; number++) tick(trip, number);
    if (trip + by < n_trips) tick(trip + by, 0);
    if (n_ticks > 1) tick(trip, n_ticks - 1);
  }
}

// The same steps, make(trip, tick), where all trips are alike except for their chunks, which `walk` moves.
template <class Make>
void repeat_trips(Steps& steps, int n_trips, int n_ticks, Walk walk, Make make) {
  std::vector<Step> trip;
  for_each_tick(0, 2, 1, n_ticks, [&](int which, int tick) { trip.push_back(make(which, tick)); });
  steps.push_back(trip[0]);
  if (n_ticks > 1) trip.resize(static_cast<size_t>(n_ticks) + 1);
  steps.repeat(std::span(trip).subspan(1), static_cast<uint32_t>(n_trips - 1), walk);
  for (int tick = 1; tick < n_ticks; tick++) steps.push_back(make(n_trips - 1, tick));
}

}  // namespace tutti
