// Two or three ranks are killed at random moments, and all others must get together again: each calls tuttiCommShrink
// without a list whenever its group broke, and goes on. Prints how long that took.
//   shrinks [ROUNDS [SEED]]           kills in groups that work, and while they shrink
//   shrinks --creation [ROUNDS [SEED]]  kills while the first group is formed
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "sanitized.h"
#include "tutti/tutti.h"

namespace {

constexpr int kMostRanks = 8;
constexpr double kHangSeconds = kSanitized ? 120 : 20;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Memory that the processes share.
struct Board {
  tuttiUniqueId id;
  std::atomic<bool> has_id;
  std::atomic<int> working, left;  // ranks whose first group works; survivors once all kills are done, 0 until then
  struct Rank {
    std::atomic<bool> failed, ended;
    std::atomic<double> ended_at, longest_shrink;
    std::atomic<int> shrinks;
    char what[400];
  } ranks[kMostRanks];
};

void say(Board::Rank& rank, const char* what) {
  snprintf(rank.what, sizeof rank.what, "%s: %s", what, tuttiGetLastError(nullptr));
}

enum class Sum { kBroken, kWrong, kGoesOn, kAllSayDone };

// Sums over the group, including how many ranks think that this is the last group.
Sum sum(tuttiComm_t comm, Board& board) {
  int count = 0, me = 0;
  tuttiCommCount(comm, &count);
  tuttiCommUserRank(comm, &me);
  std::vector<int32_t> mine(5000, me + 1), all(5000, -1);
  mine[0] = board.left == count;
  if (tuttiAllReduce(mine.data(), all.data(), mine.size(), tuttiInt32, tuttiSum, comm, nullptr) != tuttiSuccess)
    return Sum::kBroken;
  const int want = count * (count + 1) / 2;
  if (std::any_of(all.begin() + 1, all.end(), [&](int32_t value) { return value != want; })) return Sum::kWrong;
  return all[0] == count ? Sum::kAllSayDone : Sum::kGoesOn;
}

// Until the group consists of exactly the survivors.
bool go_on(tuttiComm_t comm, Board& board, Board::Rank& rank) {
  for (;;) {
    const Sum done = sum(comm, board);
    if (done == Sum::kWrong) return say(rank, "a sum is wrong"), false;
    if (done == Sum::kAllSayDone) {
      rank.ended_at = now();
      if (tuttiCommFinalize(comm) == tuttiSuccess && tuttiCommDestroy(comm) == tuttiSuccess) return true;
      return say(rank, "tuttiCommFinalize"), false;
    }
    if (done == Sum::kGoesOn) continue;
    tuttiComm_t left = nullptr;
    const double begin = now();
    snprintf(rank.what, sizeof rank.what, "in its shrink number %d", rank.shrinks + 1);
    const tuttiResult_t code = tuttiCommShrink(comm, nullptr, 0, &left, nullptr, TUTTI_SHRINK_DEFAULT);
    rank.longest_shrink = std::max(rank.longest_shrink.load(), now() - begin);
    rank.shrinks++;
    if (code != tuttiSuccess) return say(rank, "tuttiCommShrink"), false;
    tuttiCommDestroy(comm);
    comm = left;
    int count = 0;
    tuttiCommCount(comm, &count);
    snprintf(rank.what, sizeof rank.what, "at work with %d ranks", count);
  }
}

[[noreturn]] void be_rank(int me, int n, Board& board, bool in_creation, int log_to) {
  Board::Rank& rank = board.ranks[me];
  if (log_to >= 0) {
    dup2(log_to, STDERR_FILENO);
    setenv("TUTTI_LOG", "info", 1);
  }
  alarm(static_cast<unsigned>(2 * kHangSeconds));
  if (me == 0) {
    if (tuttiGetUniqueId(&board.id) != tuttiSuccess) _exit(1);
    board.has_id = true;
  }
  while (!board.has_id) usleep(100);
  tuttiComm_t comm = nullptr;
  const tuttiResult_t code = tuttiCommInitRank(&comm, n, board.id, me);
  if (in_creation) {  // with or without an error, but soon
    if (code != tuttiSuccess) say(rank, "tuttiCommInitRank");
    rank.failed = code != tuttiSuccess;
    rank.ended_at = now();
  } else if (code != tuttiSuccess) {
    say(rank, "tuttiCommInitRank");
    _exit(1);
  } else if (sum(comm, board) != Sum::kGoesOn) {
    say(rank, "the first sum");
    _exit(1);
  } else {
    board.working++;
    if (!go_on(comm, board, rank)) _exit(1);
  }
  rank.ended = true;
  _exit(0);
}

struct Tally {
  std::vector<double> until_good_ms, shrink_ms;
  int faults = 0, survivors = 0, hangs = 0, failures = 0, shrinks = 0, refused = 0;

  void print() {
    const auto line = [](const char* what, std::vector<double>& all) {
      if (all.empty()) return;
      std::sort(all.begin(), all.end());
      printf("%s: median %.1f ms, 99%% %.1f ms, worst %.1f ms\n", what, all[all.size() / 2], all[all.size() * 99 / 100],
             all.back());
    };
    printf("%d kills, %d survivors, %d hangs, %d other failures, %d shrinks, %d creations that ended in an error\n",
           faults, survivors, hangs, failures, shrinks, refused);
    line("from the last kill to a survivor's end", until_good_ms);
    line("a survivor's longest call of tuttiCommShrink", shrink_ms);
  }
};

class Round {
 public:
  Round(std::mt19937& random, bool in_creation) : random_(random), in_creation_(in_creation) {
    board_ =
        static_cast<Board*>(mmap(nullptr, sizeof *board_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    memset(static_cast<void*>(board_), 0, sizeof *board_);
    n_ = upto(3, kMostRanks);
    const int doomed = in_creation_ ? upto(0, n_ - 1) : -1;
    if (pipe2(log_, O_CLOEXEC) != 0 || fcntl(log_[1], F_SETFL, O_NONBLOCK) != 0) abort();  // writers must not block
    for (int r = 0; r < n_; r++) {
      pids_.push_back(fork());
      if (pids_.back() == 0) be_rank(r, n_, *board_, in_creation_, in_creation_ ? log_[1] : -1);
    }
    close(log_[1]);
    if (in_creation_) victims_ = {doomed};
  }
  ~Round() {
    close(log_[0]);
    munmap(board_, sizeof *board_);
  }

  void run(Tally& tally) {
    const double begin = now();
    while (!in_creation_ && board_->working < n_ && now() - begin < kHangSeconds) usleep(200);
    const double killed_at = in_creation_ ? kill_creating() : kill_some();
    tally.faults += static_cast<int>(victims_.size());
    board_->left = n_ - static_cast<int>(victims_.size());
    for (int r = 0; r < n_; r++) {
      if (std::find(victims_.begin(), victims_.end(), r) != victims_.end())
        waitpid(pids_[static_cast<size_t>(r)], nullptr, 0);
      else
        judge(r, killed_at, tally);
    }
  }

 private:
  int upto(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  void kill_one() {
    int victim = upto(0, n_ - 1);
    while (std::find(victims_.begin(), victims_.end(), victim) != victims_.end()) victim = (victim + 1) % n_;
    victims_.push_back(victim);
    kill(pids_[static_cast<size_t>(victim)], SIGKILL);
  }
  double kill_some() {
    const int kills = n_ == 3 ? 2 : upto(2, 3);
    usleep(static_cast<useconds_t>(upto(0, 2000)));
    for (int i = 0; i < kills; i++) {
      if (i > 0 && upto(0, 3) > 0) usleep(static_cast<useconds_t>(upto(0, 20000)));
      kill_one();
    }
    return now();
  }
  // After all have joined: a rank that dies earlier is not known yet.
  double kill_creating() {
    std::string log;
    char bytes[4096];
    const auto all_joined = [&] {
      int joined = 0;
      for (size_t at = 0; (at = log.find("joined the root", at)) != std::string::npos; at++) joined++;
      return joined == n_;
    };
    for (ssize_t n; !all_joined() && (n = read(log_[0], bytes, sizeof bytes)) > 0;)
      log.append(bytes, static_cast<size_t>(n));
    if (!all_joined()) {
      printf("no log says that all %d ranks have joined:\n%s\n", n_, log.c_str());
      exit(1);
    }
    usleep(static_cast<useconds_t>(upto(0, 20000)));
    kill(pids_[static_cast<size_t>(victims_[0])], SIGKILL);
    return now();
  }
  void judge(int r, double killed_at, Tally& tally) {
    const Board::Rank& rank = board_->ranks[r];
    const pid_t pid = pids_[static_cast<size_t>(r)];
    int status = 0;
    pid_t gone = 0;
    while ((gone = waitpid(pid, &status, WNOHANG)) == 0 && now() - killed_at < kHangSeconds) usleep(500);
    tally.survivors++;
    if (gone == 0) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
    }
    if (!rank.ended) {
      (gone == 0 ? tally.hangs : tally.failures)++;
      printf("%d ranks, killed:", n_);
      for (const int victim : victims_) printf(" %d", victim);
      printf("; rank %d %s, %s\n", r, gone == 0 ? "hangs" : "failed", rank.what);
      fflush(stdout);
      return;
    }
    tally.until_good_ms.push_back(std::max(0.0, (rank.ended_at - killed_at) * 1e3));
    tally.shrinks += rank.shrinks;
    tally.refused += rank.failed;
    if (!in_creation_) tally.shrink_ms.push_back(rank.longest_shrink * 1e3);
  }

  std::mt19937& random_;
  const bool in_creation_;
  Board* board_;
  int n_;
  int log_[2] = {-1, -1};  // the ranks' log
  std::vector<pid_t> pids_;
  std::vector<int> victims_;
};

}  // namespace

int main(int argc, char** argv) {
  const bool in_creation = argc > 1 && strcmp(argv[1], "--creation") == 0;
  argv += in_creation ? 1 : 0;
  argc -= in_creation ? 1 : 0;
  const int rounds = argc > 1 ? atoi(argv[1]) : 100;
  const unsigned seed = argc > 2 ? static_cast<unsigned>(atoi(argv[2])) : 1;
  printf("%d rounds, seed %u\n", rounds, seed);
  fflush(stdout);
  std::mt19937 random(seed);
  Tally tally;
  for (int i = 0; i < rounds; i++) Round(random, in_creation).run(tally);
  tally.print();
  return tally.hangs + tally.failures == 0 ? 0 : 1;
}
