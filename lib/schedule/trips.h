// This header: the order of a rank's steps where chunks travel round a ring in groups.
#pragma once

namespace tutti {

// Calls step(trip, tick) for the ticks of all trips, one trip after the other. A trip's first step needs nothing from
// anyone, and its last sends nothing: so the next trip's first message leaves before the wait for this trip's last one,
// which saves one hop per trip. Every rank is then two messages ahead at most: two slots.
template <class Step>
void for_each_tick(int first_trip, int n_trips, int by, int n_ticks, Step step) {
  if (first_trip < n_trips) step(first_trip, 0);
  for (int trip = first_trip; trip < n_trips; trip += by) {
    for (int tick = 1; tick < n_ticks - 1; tick++) step(trip, tick);
    if (trip + by < n_trips) step(trip + by, 0);
    if (n_ticks > 1) step(trip, n_ticks - 1);
  }
}

}  // namespace tutti
