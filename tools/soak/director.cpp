#include "director.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "rank.h"

namespace tutti::soak {
namespace {

constexpr int64_t kMs = 1'000'000, kSecond = 1000 * kMs;

}  // namespace

Director::Director(const Options& options, Board& board, const Hosts& hosts, std::string trace_folder)
    : options_(options), board_(board), hosts_(hosts), trace_folder_(std::move(trace_folder)), random_(options.seed) {}

std::vector<int> Director::slots_in(std::initializer_list<State> states) {
  std::vector<int> found;
  for (int i = 0; i < options_.ranks; i++)
    if (std::find(states.begin(), states.end(), slot(i).state.load()) != states.end()) found.push_back(i);
  return found;
}

void Director::later(int ms, std::function<void()> act) {
  deeds_.push_back({now_ns() + ms * kMs, std::move(act)});
}

// ---- processes

void Director::start(int i) {
  Slot& s = slot(i);
  s.life = board_.new_life();
  s.delay_ms = 0;
  s.revoke = s.leave = s.explain = s.stopped = false;
  s.progress_ns = now_ns();
  s.state = State::kStarting;
  fflush(nullptr);
  const pid_t director = getpid(), pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != director) _exit(1);
    if (hosts_.size() > 0 && !hosts_.enter(i % hosts_.size())) _exit(1);
    _exit(Rank(options_, board_, i).run());
  }
  if (pid < 0) {
    fprintf(stderr, "tutti-soak: no process can be started for rank %d: %s (see ulimit -u)\n", i, strerror(errno));
    s.state = State::kAbsent;
    s.progress_ns = now_ns() + kSecond;  // not tried again before
    return;
  }
  s.pid = pid;
  slot_of_[pid] = i;
}

void Director::reap() {
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto it = slot_of_.find(pid);
    if (it == slot_of_.end()) {
      fate_.stray_children++;
      fprintf(stderr, "tutti-soak: LEAK: a rank left a child process, %d\n", static_cast<int>(pid));
      continue;
    }
    note_end(it->second, status);
    slot_of_.erase(it);
  }
}

void Director::note_end(int i, int status) {
  Slot& s = slot(i);
  const bool was_killed = board_.end_of(s.life) != 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0 && board_.stop;
  if (ended_well) ended_well_.insert(s.pid);
  if (!was_killed && !ended_well) {
    fate_.crashes++;
    fprintf(stderr, "tutti-soak: CRASH: the rank in slot %d (pid %d, %s) ended by %s %d\n", i, s.pid.load(), s.doing,
            WIFSIGNALED(status) ? "signal" : "exit status",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    board_.end(s.life);
  }
  board_.gathering_of(board_.gathering).decide(Verdict::kGivenUp);
  s.state = State::kAbsent;
  s.stopped = false;
}

// ---- faults

void Director::disturb(int ms) {
  board_.disturbed_until_ns = std::max<int64_t>(board_.disturbed_until_ns, now_ns() + (ms + 50) * kMs);
}

void Director::kill_one(int i) {
  Slot& s = slot(i);
  if (s.state == State::kAbsent || board_.end_of(s.life) != 0) return;
  board_.end(s.life);
  kill(s.pid, SIGKILL);
  fate_.kills++;
}

void Director::kill_some() {
  const std::vector<int> members = slots_in({State::kMember}), others = slots_in({State::kWaiting, State::kGathering});
  if (!others.empty() && between(0, 7) == 0) {
    fate_.faults["kill, of a rank that joins"]++;
    return kill_one(one_of(others));
  }
  // If hosts may be cut off only the majority goes on.
  const int n = static_cast<int>(members.size()), most = hosts_.size() > 0 ? (n - 1) / 2 : n - 1;
  if (most < 1) return;
  const int dice = between(0, 99), wanted = std::min(most, dice < 55 ? 1 : dice < 80 ? 2 : 3);
  static const char* const kNames[] = {"kill", "kill, two", "kill, three"};
  fate_.faults[kNames[wanted - 1]]++;
  std::vector<int> victims = members;
  std::shuffle(victims.begin(), victims.end(), random_);
  const bool at_once = between(0, 2) == 0;
  for (int v = 0; v < wanted; v++) {
    const int victim = victims[static_cast<size_t>(v)];
    if (v == 0 || at_once)
      kill_one(victim);
    else
      later(between(0, 30), [this, victim] { kill_one(victim); });
  }
}

void Director::stop_one() {
  const std::vector<int> all = slots_in({State::kMember, State::kGathering});
  if (all.empty()) return;
  const int i = one_of(all), ms = between(0, 3) == 0 ? between(500, 2500) : between(1, 300), pid = slot(i).pid;
  if (board_.end_of(slot(i).life) != 0 || slot(i).stopped) return;
  fate_.faults["stop"]++;
  disturb(ms);
  slot(i).stopped = true;
  kill(pid, SIGSTOP);
  later(ms, [this, i, pid] {
    if (slot_of_.count(pid) == 0) return;
    kill(pid, SIGCONT);
    slot(i).progress_ns = now_ns();
    slot(i).stopped = false;
  });
}

void Director::delay_one() {
  const std::vector<int> members = slots_in({State::kMember});
  if (members.empty()) return;
  const int ms = between(1, 300);
  fate_.faults["delay"]++;
  disturb(2 * ms);  // it does not start at once
  slot(one_of(members)).delay_ms = ms;
}

void Director::leave_one() {
  const std::vector<int> members = slots_in({State::kMember});
  if (members.size() < (hosts_.size() > 0 ? 3u : 2u)) return;
  fate_.faults["leave"]++;
  slot(one_of(members)).leave = true;
}

void Director::revoke_one() {
  const std::vector<int> members = slots_in({State::kMember});
  if (members.empty()) return;
  fate_.faults["revoke"]++;
  slot(one_of(members)).revoke = true;
}

// A cable that is pulled for a moment loses no rank; ranks that are cut off for longer are lost.
void Director::cut_one() {
  if (hosts_.size() < 2 || cut_host_ >= 0) return;
  const bool is_long = between(0, 1) == 0;
  const int ms = is_long ? between(6000, 9000) : between(50, 900);
  cut_host_ = between(0, hosts_.size() - 1);
  fate_.faults[is_long ? "cut" : "cut, for less than a second"]++;
  board_.cut_until_ns = board_.disturbed_until_ns = std::numeric_limits<int64_t>::max();
  static_cast<void>(hosts_.plug(cut_host_, false));
  later(ms, [this] {
    static_cast<void>(hosts_.plug(cut_host_, true));
    cut_host_ = -1;
    board_.cut_until_ns = board_.disturbed_until_ns = now_ns() + 3 * kSecond;
  });
}

// All ranks without a group ask to be admitted.
void Director::join() {
  Gathering& last = board_.gathering_of(board_.gathering);
  if (cut_host_ >= 0 || (board_.gathering > 0 && last.verdict == Verdict::kOpen)) return;
  for (const int i : slots_in({State::kAbsent}))
    if (slot(i).progress_ns <= now_ns()) start(i);
  const std::vector<int> newcomers = slots_in({State::kStarting, State::kWaiting});
  if (newcomers.empty()) return;
  const bool has_members = !slots_in({State::kMember}).empty();
  const uint64_t number = board_.gathering + 1;
  Gathering& next = board_.gathering_of(number);
  next.arrived = 0;
  next.n_joiners = 0;
  for (int& index : next.index_of) index = -1;
  for (const int i : newcomers)
    if (next.n_joiners == 0 || !has_members || between(0, 3) > 0) next.index_of[i] = next.n_joiners++;
  next.n_ranks = has_members ? 0 : -1;
  next.verdict = Verdict::kOpen;
  board_.gathering = number;
  if (has_members) fate_.faults["join"]++;
  fate_.joined += static_cast<uint64_t>(next.n_joiners);
}

void Director::act() {
  struct Choice {
    const char* name;
    int weight;
    void (Director::*act)();
  };
  static constexpr Choice kChoices[] = {{"kill", 30, &Director::kill_some}, {"join", 30, &Director::join},
                                        {"stop", 12, &Director::stop_one},  {"delay", 12, &Director::delay_one},
                                        {"leave", 6, &Director::leave_one}, {"revoke", 8, &Director::revoke_one},
                                        {"cut", 4, &Director::cut_one}};
  int sum = 0;
  for (const Choice& choice : kChoices) sum += has(choice.name) ? choice.weight : 0;
  if (sum == 0) return;
  int at = between(0, sum - 1);
  for (const Choice& choice : kChoices) {
    if (!has(choice.name)) continue;
    if (at < choice.weight) return (this->*choice.act)();
    at -= choice.weight;
  }
}

// ---- supervision

// A rank that has left cannot report that a gathering is over.
void Director::tend_gathering() {
  const bool is_open = board_.gathering > 0 && board_.gathering_of(board_.gathering).verdict == Verdict::kOpen;
  const bool has_members = !slots_in({State::kMember}).empty();
  if (!is_open && !has_members && !board_.stop) return join();
  Gathering& g = board_.gathering_of(board_.gathering);
  if (is_open && g.n_ranks == 0 && !has_members) g.decide(Verdict::kGivenUp);
}

// A rank that waits for a hung one has waited almost as long.
void Director::judge_progress() {
  std::vector<int> hung;
  bool is_over = false;
  for (const int i : slots_in({State::kStarting, State::kWaiting, State::kGathering, State::kMember})) {
    const int64_t still_ns = slot(i).stopped ? 0 : now_ns() - slot(i).progress_ns;
    if (still_ns > options_.hang_seconds * kSecond / 2) hung.push_back(i);
    is_over = is_over || still_ns > options_.hang_seconds * kSecond;
  }
  if (is_over) start_anew(hung);
}

// Prints what the hung ranks wait for, kills all processes and starts over.
void Director::start_anew(const std::vector<int>& hung) {
  fate_.hangs += hung.size();
  for (const int i : hung) {
    snprintf(slot(i).explanation, sizeof slot(i).explanation, "its second thread does not answer");
    slot(i).explain = true;
  }
  for (int tries = 0; tries < 150; tries++) {
    usleep(20'000);
    if (std::none_of(hung.begin(), hung.end(), [this](int i) { return slot(i).explain.load(); })) break;
  }
  for (int i = 0; i < options_.ranks; i++)
    fprintf(stderr, "tutti-soak: %s slot %d, pid %d, in %s for %.1f s%s%s\n",
            std::find(hung.begin(), hung.end(), i) == hung.end() ? "     " : "HANG:", i, slot(i).pid.load(),
            slot(i).doing, static_cast<double>(now_ns() - slot(i).progress_ns) / 1e9,
            std::find(hung.begin(), hung.end(), i) == hung.end() ? "" : ": ",
            std::find(hung.begin(), hung.end(), i) == hung.end() ? "" : slot(i).explanation);
  for (const auto& [pid, i] : slot_of_) {
    board_.end(slot(i).life);
    kill(pid, SIGKILL);
  }
  for (; !slot_of_.empty(); usleep(2000)) reap();
}

void Director::show_progress() const {
  static const bool is_terminal = isatty(STDERR_FILENO) != 0;
  static int64_t next = 0;
  if (!is_terminal || now_ns() < next) return;
  next = now_ns() + kSecond / 2;
  fprintf(stderr, "\r%.0f of %.0f s: %llu operations, %llu kills, %llu hangs, %llu wrong   ",
          static_cast<double>(now_ns() - begun_ns_) / 1e9, options_.seconds,
          static_cast<unsigned long long>(board_.counts.operations), static_cast<unsigned long long>(fate_.kills),
          static_cast<unsigned long long>(fate_.hangs), static_cast<unsigned long long>(board_.counts.wrong));
}

// No more faults: all ranks, inside and outside the group, finalize, and nothing of them may remain.
void Director::wind_down() {
  for (auto& deed : deeds_) deed.act();
  deeds_.clear();
  board_.gathering_of(board_.gathering).decide(Verdict::kGivenUp);
  board_.stop = true;
  while (!slot_of_.empty()) {
    reap();
    judge_progress();
    usleep(5000);
  }
  count_files();
}

// Processes that finalized must leave no file; those of killed ones are kept for whoever asks why.
void Director::count_files() {
  DIR* const entries = opendir(trace_folder_.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    int pid = 0;  // the third number in the name
    if (sscanf(entry->d_name, "tutti-trace.%*[^.].%*[^.].%d.", &pid) != 1 || ended_well_.count(pid) == 0) continue;
    fate_.left_files++;
    fprintf(stderr, "tutti-soak: LEAK: the file %s/%s\n", trace_folder_.c_str(), entry->d_name);
  }
  closedir(entries);
}

Fate Director::run(const std::function<bool()>& is_interrupted) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  begun_ns_ = now_ns();
  next_ns_ = begun_ns_ + kSecond;
  const int64_t end = begun_ns_ + static_cast<int64_t>(options_.seconds * 1e9);
  for (; now_ns() < end && !is_interrupted(); usleep(1000)) {
    reap();
    tend_gathering();
    judge_progress();
    show_progress();
    const int64_t now = now_ns();
    std::vector<Deed> due;
    for (size_t i = 0; i < deeds_.size(); i++)
      if (deeds_[i].at_ns <= now) due.push_back(deeds_[i]);
    std::erase_if(deeds_, [now](const Deed& deed) { return deed.at_ns <= now; });
    for (const Deed& deed : due) deed.act();
    if (now < next_ns_) continue;
    act();
    next_ns_ =
        now + static_cast<int64_t>(std::exponential_distribution<double>(1.0 / options_.every_ms)(random_) * 1e6);
  }
  fate_.seconds = static_cast<double>(now_ns() - begun_ns_) / 1e9;
  wind_down();
  return fate_;
}

}  // namespace tutti::soak
