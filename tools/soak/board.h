// Memory that the processes of a soak share: the director maps it before it forks the ranks. Each field's comment names
// its writer; every field that two processes access is atomic, because either may be killed at any instruction.
//
// A rank's process occupies a slot. It lives as a member of groups until it is killed or leaves; the next user of the
// slot, a new process or the same one, is another life. Groups identify their members by their lives.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tutti/tutti.h"

namespace tutti::soak {

inline constexpr int kMostRanks = 64;
inline constexpr size_t kDoingBytes = 160;
inline constexpr int kInitSeconds = 10;  // time-out of creations

int64_t now_ns();  // the same clock in all processes

enum class State : int { kAbsent, kStarting, kWaiting, kGathering, kMember, kEnded };

struct Slot {
  // Written by the director.
  std::atomic<int> pid;
  std::atomic<bool> stopped;
  // Requests, set by the director and cleared by the rank.
  std::atomic<int> delay_ms;
  std::atomic<bool> revoke, leave, explain;
  // Written by the rank.
  std::atomic<State> state;
  std::atomic<uint64_t> life;
  std::atomic<int64_t> progress_ns;
  char doing[kDoingBytes];
  char explanation[1500];
};

// Times in ms, of which the latest kMost are kept.
struct Samples {
  static constexpr size_t kMost = 1 << 17;
  std::atomic<uint64_t> n;
  float ms[kMost];
  void add(int64_t ns) { ms[n++ % kMost] = static_cast<float>(static_cast<double>(ns) / 1e6); }
  size_t kept() const { return n < kMost ? n.load() : kMost; }
};

enum class Verdict : int { kOpen, kFormed, kGivenUp };

// A group to be formed from the members of an existing one (or of none) and newcomers. All of them must agree whether
// it was formed, which is impossible with messages between processes that may die: they agree here, and the director
// speaks for the dead.
struct Gathering {
  std::atomic<Verdict> verdict;
  std::atomic<int> n_ranks;  // including members; until `id` is set 0, or -1 if there are no members
  std::atomic<int> arrived;
  int n_joiners;
  int index_of[kMostRanks];  // a slot's number among the newcomers; -1 if it is not one
  tuttiUniqueId id;

  bool decide(Verdict what) {
    Verdict open = Verdict::kOpen;
    return verdict.compare_exchange_strong(open, what);
  }
};

// The latest kSize values.
template <int kSize>
struct Recent {
  std::atomic<unsigned> n;
  std::atomic<uint64_t> values[kSize];
  void add(uint64_t value) { values[n++ % kSize] = value; }
  bool has(uint64_t value) const {
    for (const auto& v : values)
      if (v == value) return true;
    return false;
  }
};

struct Counts {
  std::atomic<uint64_t> operations, bytes, groups, shrinks, growths, growths_given_up, deaths_met, deaths_named;
  std::atomic<uint64_t> without_majority, revokes;
  // Violations: all of them must stay 0.
  std::atomic<uint64_t> wrong, unexplained, misnamed, left_behind, failed, leaks;
};

struct Board {
  std::atomic<bool> stop;
  std::atomic<int64_t> disturbed_until_ns;  // end of the last stop, delay or cut; in the far future while one lasts
  std::atomic<int64_t> cut_until_ns;        // until then links may be cut
  std::atomic<int64_t> last_trouble_ns;     // when the last death or revocation occurred
  std::atomic<uint64_t> next_life;
  static constexpr int kLives = 1 << 13;
  std::atomic<int64_t> gone_ns[kLives];  // when that life ended; 0 while it lasts
  static constexpr int kGatherings = 64;
  std::atomic<uint64_t> gathering;  // number of the latest gathering; 0: none
  Gathering gatherings[kGatherings];
  Recent<64> revoked;  // groups that were revoked
  Counts counts;
  Samples until_error, until_good;
  Slot slots[kMostRanks];

  std::atomic<int64_t>& end_of(uint64_t life) { return gone_ns[life % kLives]; }
  void end(uint64_t life) {
    last_trouble_ns = now_ns();
    end_of(life) = last_trouble_ns.load();
  }
  Gathering& gathering_of(uint64_t number) { return gatherings[number % kGatherings]; }
  uint64_t new_life() {
    const uint64_t life = ++next_life;
    end_of(life) = 0;
    return life;
  }
};

}  // namespace tutti::soak
