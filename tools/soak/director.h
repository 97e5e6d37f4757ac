// Starts the ranks' processes, kills and disturbs them, and checks whether they cope. A single thread, which forks; it
// does not call the library itself.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "board.h"
#include "hosts.h"
#include "options.h"

namespace tutti::soak {

// The faults that were injected, and what happened to the ranks.
struct Fate {
  std::map<std::string, uint64_t> faults;
  uint64_t kills = 0, joined = 0, crashes = 0, hangs = 0, stray_children = 0, left_files = 0;
  double seconds = 0;
};

class Director {
 public:
  Director(const Options& options, Board& board, const Hosts& hosts, std::string trace_folder);
  // `is_interrupted` ends it early. Returns when no process is left.
  Fate run(const std::function<bool()>& is_interrupted);

 private:
  struct Deed {
    int64_t at_ns;
    std::function<void()> act;
  };

  Slot& slot(int i) { return board_.slots[i]; }
  std::vector<int> slots_in(std::initializer_list<State> states);
  int one_of(const std::vector<int>& list) { return list[random_() % list.size()]; }
  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  void later(int ms, std::function<void()> act);
  void start(int i);
  void reap();
  void note_end(int i, int status);

  void act();
  void kill_some();
  void kill_one(int i);
  void stop_one();
  void delay_one();
  void leave_one();
  void revoke_one();
  void cut_one();
  void join();
  void disturb(int ms);

  void tend_gathering();
  void judge_progress();
  void start_anew(const std::vector<int>& hung);
  void wind_down();
  void show_progress() const;
  void count_files();
  bool has(const char* fault) const { return options_.has(fault); }

  const Options& options_;
  Board& board_;
  const Hosts& hosts_;
  const std::string trace_folder_;
  std::mt19937_64 random_;
  std::vector<Deed> deeds_;
  std::map<int, int> slot_of_;  // process id to slot
  std::set<int> ended_well_;    // process ids
  Fate fate_;
  int64_t begun_ns_ = 0, next_ns_ = 0;
  int cut_host_ = -1;
};

}  // namespace tutti::soak
