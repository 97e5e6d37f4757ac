// This header: schedules of very many ranks that repeat those of a few, moved (Alike in schedule.h), and their proof.
// Pure functions; any thread.
//
// Every schedule is compared with that of the first rank like it, pattern by pattern, so what holds for one rank holds
// for all. Two things remain to be proved.
//
//   The lanes: those of the first `period` ranks run with real slots, each for all ranks that do the same. The outcome
//   does not depend on the order in which lanes are tried, so lanes that are alike may run in lockstep: then all of
//   them have sent and received equally often, and a link with another rank behaves like that with the first rank like
//   it. So if the first ranks finish, all do, and if their links deliver what receivers expect, all links do.
//
//   The data: a chunk shares no slice with another, so each can be followed separately through all ranks, and one of
//   the chunks that move into each other is enough. Without the other chunks there are fewer messages, so fewer
//   accesses are known to be over when something is overwritten: what passes without them passes with them.
#pragma once

#include <algorithm>
#include <numeric>

#include "schedule/schedule.h"

namespace tutti {

// The moves that map a group's ranks and chunks onto themselves.
class Symmetry {
 public:
  Symmetry(const Alike& alike, int n_ranks) : alike_(alike), n_ranks_(n_ranks) {}

  // Whether ranks and chunks divide evenly, so that count() moves lead back to the start.
  bool divides_evenly(uint32_t n_chunks) const;
  int period() const { return alike_.period; }
  uint32_t count() const { return static_cast<uint32_t>(n_ranks_ / alike_.period); }
  // Rank r is first(r), moved times(r) times.
  int first(int rank) const { return rank % alike_.period; }
  uint32_t times(int rank) const { return static_cast<uint32_t>(rank / alike_.period); }
  int move(int rank, uint32_t times) const {
    const int by = static_cast<int>(times) * alike_.period;
    return rank < 0 ? rank : (rank + by) % n_ranks_;
  }
  int move_back(int rank, uint32_t times) const { return move(rank, count() - times); }
  uint32_t move_chunk(uint32_t chunk, uint32_t times) const { return alike_.walk.move(chunk, times); }
  uint32_t move_chunk_back(uint32_t chunk, uint32_t times) const { return move_chunk(chunk, count() - times); }
  Step move(Step step, uint32_t times) const;
  // Whether the walk and the moves commute.
  bool commutes_with(const Walk& walk) const { return walk.modulus == alike_.walk.modulus; }
  // True for one of the chunks that move into each other.
  bool is_first_chunk(uint32_t chunk) const {
    return chunk % alike_.walk.modulus < std::gcd(alike_.walk.stride, alike_.walk.modulus);
  }

 private:
  Alike alike_;
  int n_ranks_;
};

// Whether all schedules have the symmetry that the first one claims.
bool are_alike(std::span<const Schedule> schedules);

namespace checker {

// Proves what check() in schedule.h does, for all-reduces that are alike.
Result<void> check_alike(std::span<const Schedule> schedules, const CheckOptions& options);
// The same for any schedules, by simulating every rank.
Result<void> check_each(std::span<const Schedule> schedules, const CheckOptions& options);

}  // namespace checker
}  // namespace tutti
