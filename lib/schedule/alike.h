// This header: schedules of very many ranks that are those of a few, moved (Alike in schedule.h), and their proof.
// Pure functions; any thread.
//
// All are compared with the first ones, pattern by pattern, so what is true of one rank is true of all. Then two things
// are left to prove.
//
//   The lanes: those of the first `period` ranks run with real slots, each for all ranks that do the same. Nothing
//   there depends on the order in which lanes are tried, so they may as well be tried all at once: then each of them
//   sends and receives as often, and a link from or to another rank is that from or to the first one that is like it.
//   So they come to their end, or none does, and on each link comes what its receiver expects.
//
//   The data: a chunk meets no other one, in no buffer, so it can be followed by itself, through all ranks, and of
//   those chunks that move into each other one is enough. Without the others there are fewer messages, so less is known
//   to be over when something is overwritten: what is right so is right.
#pragma once

#include <algorithm>
#include <numeric>

#include "schedule/schedule.h"

namespace tutti {

// The ways in which a group of ranks and chunks is moved onto itself.
class Symmetry {
 public:
  Symmetry(const Alike& alike, int n_ranks) : alike_(alike), n_ranks_(n_ranks) {}

  // Whether moving as often as there are ranks leads back to where it began.
  bool are_whole(uint32_t n_chunks) const;
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
  // Whether what a walk does is the same before and after a move.
  bool suit(const Walk& walk) const { return walk.modulus == alike_.walk.modulus; }
  // Of the chunks that move into each other, one.
  bool is_first_chunk(uint32_t chunk) const {
    return chunk % alike_.walk.modulus < std::gcd(alike_.walk.stride, alike_.walk.modulus);
  }

 private:
  Alike alike_;
  int n_ranks_;
};

// Whether they are, all of them, as the first one says.
bool are_alike(std::span<const Schedule> schedules);

namespace checker {

// What check() in schedule.h proves, of all-reduces that are alike.
Result<void> check_alike(std::span<const Schedule> schedules, const CheckOptions& options);
// The same, if need be of every rank by itself.
Result<void> check_each(std::span<const Schedule> schedules, const CheckOptions& options);

}  // namespace checker
}  // namespace tutti
