// One rank's process: a member of groups that break, shrink and grow, from one life to the next, until the director
// says stop. Its main thread does everything that ranks do; a second one does what is needed while the main thread is
// in an operation or hangs: revoke, and explain what it waits for.
#pragma once

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "board.h"
#include "census.h"
#include "operations.h"
#include "options.h"

namespace tutti::soak {

class Rank {
 public:
  Rank(const Options& options, Board& board, int slot);
  // Returns the process's exit status.
  int run();

 private:
  enum class Order : int { kGoOn, kGather, kStop };
  struct Command {
    Order order;
    int n_joiners;
    uint64_t gathering;
  };

  void wait_to_join();
  tuttiResult_t step();
  tuttiResult_t command(Command* given);
  tuttiResult_t greet();
  void obey(const Command& given);
  void gather(Gathering& gathering, int n_ranks, bool leads);
  tuttiResult_t settle(tuttiComm_t comm, tuttiResult_t code, const Gathering* gathering = nullptr);
  void recover(const char* in, tuttiResult_t code);
  void note_break(const char* in, tuttiResult_t code);
  bool shrink();
  bool has_reason() const;
  void end_life(bool gracefully);
  void take_over(tuttiComm_t comm);
  void doing(const char* what);
  void watch();
  int leave_no_trace(const Census& before);

  const Options& options_;
  Board& board_;
  Slot& slot_;
  const int index_;
  Operations operations_;
  std::mutex mutex_;  // guards what the second thread reads
  tuttiComm_t comm_ = nullptr;
  uint64_t group_ = 0;
  std::atomic<bool> ended_{false};
  std::thread watcher_;

  Place place_{};
  std::vector<uint64_t> lives_;  // of the members, by rank; known after the greeting
  bool has_greeted_ = false, is_done_ = false;
  uint64_t steps_ = 0, seen_gathering_ = 0, random_;
  int64_t last_death_ns_ = 0, since_ns_ = 0;  // since: when this group began to form
  bool growth_given_up_ = false;
};

}  // namespace tutti::soak
