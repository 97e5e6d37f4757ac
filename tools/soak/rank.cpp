#include "rank.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tutti/trace.h"

namespace tutti::soak {
namespace {

constexpr uint64_t kStepsPerCommand = 4;

uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What each member first says in a new group.
struct Greeting {
  uint64_t life, random, check;
};

}  // namespace

Rank::Rank(const Options& options, Board& board, int slot)
    : options_(options),
      board_(board),
      slot_(board.slots[slot]),
      index_(slot),
      operations_(options, board.counts, slot_.doing),
      random_(mixed(options.seed * 1000 + slot_.life)) {}

void Rank::doing(const char* what) {
  snprintf(slot_.doing, sizeof slot_.doing, "%s, step %llu of a group of %d", what,
           static_cast<unsigned long long>(steps_), place_.n_ranks);
  slot_.progress_ns = now_ns();
}

int Rank::run() {
  watcher_ = std::thread([this] { watch(); });
  tuttiComm_t alone = nullptr;  // makes the library set up what it sets up only once
  if (tuttiCommInitAll(&alone, 1, nullptr) != tuttiSuccess || tuttiCommDestroy(alone) != tuttiSuccess) {
    fprintf(stderr, "tutti-soak: a group of one: %s\n", tuttiGetLastError(nullptr));
    _exit(1);  // the watcher does not end
  }
  const Census before = Census::take();
  while (!is_done_) {
    if (comm_ == nullptr) {
      wait_to_join();
      continue;
    }
    if (const tuttiResult_t code = has_greeted_ ? step() : greet(); code != tuttiSuccess)
      recover(has_greeted_ ? slot_.doing : "the first operation", code);
    if (options_.rest_us > 0) usleep(static_cast<useconds_t>(options_.rest_us));
  }
  const int status = leave_no_trace(before);
  ended_ = true;
  watcher_.join();
  slot_.state = State::kEnded;
  return status;
}

void Rank::wait_to_join() {
  slot_.state = State::kWaiting;
  doing("waiting to join");
  for (;; usleep(2000)) {
    slot_.progress_ns = now_ns();
    slot_.leave = slot_.revoke = false;
    if (board_.stop) {
      is_done_ = true;
      return;
    }
    const uint64_t number = board_.gathering;
    Gathering& gathering = board_.gathering_of(number);
    if (number == seen_gathering_) continue;
    seen_gathering_ = number;
    if (gathering.index_of[index_] < 0 || gathering.verdict != Verdict::kOpen) continue;
    slot_.state = State::kGathering;
    doing("joining");
    const bool leads = gathering.index_of[index_] == 0 && gathering.n_ranks < 0;
    if (leads && tuttiGetUniqueId(&gathering.id) == tuttiSuccess) gathering.n_ranks = gathering.n_joiners;
    while (gathering.n_ranks <= 0 && gathering.verdict == Verdict::kOpen) usleep(500);
    if (gathering.verdict == Verdict::kOpen) gather(gathering, gathering.n_ranks, false);
    return;
  }
}

// Waits for a background creation, unless its gathering is given up.
tuttiResult_t Rank::settle(tuttiComm_t comm, tuttiResult_t code, const Gathering* gathering) {
  while (code == tuttiInProgress) {
    if (gathering != nullptr && gathering->verdict == Verdict::kGivenUp) return tuttiRemoteError;
    usleep(200);
    if (tuttiCommGetAsyncError(comm, &code) != tuttiSuccess) return tuttiInternalError;
  }
  return code;
}

// Members and newcomers together; in the end all of them have the new group, or none has.
void Rank::gather(Gathering& gathering, int n_ranks, bool leads) {
  const int64_t begun_ns = now_ns();
  const bool is_new = comm_ == nullptr;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that it can be given up
  config.transports = options_.transports.empty() ? nullptr : options_.transports.c_str();
  config.majority = options_.hosts > 1;
  tuttiComm_t larger = nullptr;
  tuttiResult_t code = tuttiSuccess;
  if (is_new) {
    const int rank = n_ranks - gathering.n_joiners + gathering.index_of[index_];
    code = n_ranks == gathering.n_joiners ? tuttiCommInitRankConfig(&larger, n_ranks, gathering.id, rank, &config)
                                          : tuttiCommGrow(nullptr, n_ranks, &gathering.id, rank, &larger, &config);
  } else {
    code = tuttiCommGrow(comm_, n_ranks, leads ? &gathering.id : nullptr, -1, &larger, &config);
  }
  code = settle(larger, code, &gathering);
  if (code != tuttiSuccess && gathering.decide(Verdict::kGivenUp) && seen_gathering_ == 1 &&
      board_.last_trouble_ns == 0)
    fprintf(stderr, "tutti-soak: the first group was not formed, for rank %d of %d: %s: %s\n",
            gathering.index_of[index_], n_ranks, tuttiGetErrorString(code), tuttiGetLastError(larger));
  if (code == tuttiSuccess && ++gathering.arrived == n_ranks) gathering.decide(Verdict::kFormed);
  while (gathering.verdict == Verdict::kOpen) usleep(200);
  const bool has_formed = gathering.verdict == Verdict::kFormed;
  if (leads || (is_new && n_ranks == gathering.n_joiners && gathering.index_of[index_] == 0))
    (has_formed ? board_.counts.growths : board_.counts.growths_given_up)++;
  if (has_formed) {
    since_ns_ = begun_ns;
    return take_over(larger);
  }
  if (larger != nullptr) static_cast<void>(tuttiCommAbort(larger));
  growth_given_up_ = !is_new;
}

// Continues with `comm` as its group; nullptr: this rank has no group.
void Rank::take_over(tuttiComm_t comm) {
  tuttiComm_t old = comm;
  {
    const std::lock_guard lock(mutex_);
    std::swap(old, comm_);
    group_ = 0;
  }
  if (old != nullptr) static_cast<void>(tuttiCommDestroy(old));
  has_greeted_ = growth_given_up_ = false;
  steps_ = 0;
  if (comm == nullptr) return;
  slot_.state = State::kMember;
  static_cast<void>(tuttiCommCount(comm, &place_.n_ranks));
  static_cast<void>(tuttiCommUserRank(comm, &place_.rank));
  place_.comm = comm;
}

// The members identify themselves, and agree on the seed.
tuttiResult_t Rank::greet() {
  doing("greeting");
  random_ = mixed(random_);
  const Greeting mine = {slot_.life, random_, mixed(slot_.life + random_)};
  std::vector<Greeting> all(static_cast<size_t>(place_.n_ranks));
  const tuttiResult_t code = tuttiAllGather(&mine, all.data(), sizeof mine, tuttiUint8, comm_, nullptr);
  if (code != tuttiSuccess) return code;
  uint64_t group = 1;
  lives_.clear();
  for (const Greeting& one : all) {
    if (one.check != mixed(one.life + one.random)) {
      board_.counts.wrong++;
      fprintf(stderr, "tutti-soak: WRONG: a greeting of rank %zu is not what it sent\n", lives_.size());
    }
    lives_.push_back(one.life);
    group = mixed(group + one.random);
  }
  {
    const std::lock_guard lock(mutex_);
    group_ = group;
  }
  has_greeted_ = true;
  board_.counts.operations++;
  if (place_.rank == 0) board_.counts.groups++;
  const int64_t now = now_ns();
  if (last_death_ns_ > 0 && board_.disturbed_until_ns < last_death_ns_) board_.until_good.add(now - last_death_ns_);
  last_death_ns_ = 0;
  return code;
}

tuttiResult_t Rank::step() {
  if (slot_.leave.exchange(false)) {
    end_life(false);
    return tuttiSuccess;
  }
  if (const int ms = slot_.delay_ms.exchange(0); ms > 0) {
    doing("delayed");
    usleep(static_cast<useconds_t>(ms) * 1000);
  }
  steps_++;
  if (steps_ % kStepsPerCommand == 0) {
    doing("taking a command");
    Command given{};
    const tuttiResult_t code = command(&given);
    if (code == tuttiSuccess) obey(given);
    return code;
  }
  doing("operations");
  const tuttiResult_t code = operations_.step(place_, mixed(group_ + steps_));
  doing("operations");
  return code;
}

// Rank 0 looks up the director's wishes and broadcasts them.
tuttiResult_t Rank::command(Command* given) {
  if (place_.rank == 0) {
    const uint64_t number = board_.gathering;
    const Gathering& gathering = board_.gathering_of(number);
    given->order = board_.stop ? Order::kStop : Order::kGoOn;
    if (given->order == Order::kGoOn && number > seen_gathering_ && gathering.verdict == Verdict::kOpen &&
        gathering.n_ranks == 0)
      *given = {Order::kGather, gathering.n_joiners, number};
  }
  return tuttiBcast(given, sizeof *given, tuttiUint8, 0, comm_, nullptr);
}

void Rank::obey(const Command& given) {
  if (given.order == Order::kGather) {
    doing("growing");
    seen_gathering_ = given.gathering;
    Gathering& gathering = board_.gathering_of(given.gathering);
    const int n_ranks = place_.n_ranks + given.n_joiners;
    if (place_.rank == 0 && tuttiGetUniqueId(&gathering.id) == tuttiSuccess) gathering.n_ranks = n_ranks;
    gather(gathering, n_ranks, place_.rank == 0);
  } else if (given.order == Order::kStop) {
    doing("finalizing");
    const tuttiResult_t code = settle(comm_, tuttiCommFinalize(comm_));
    if (code != tuttiSuccess) note_break("tuttiCommFinalize", code);
    end_life(true);
    is_done_ = true;
  }
}

// Leaves its group; to the others this rank dies.
void Rank::end_life(bool gracefully) {
  if (!gracefully) board_.end(slot_.life);
  tuttiComm_t old = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::swap(old, comm_);
  }
  has_greeted_ = false;
  last_death_ns_ = 0;
  lives_.clear();
  const tuttiResult_t code = gracefully ? tuttiCommDestroy(old) : tuttiCommAbort(old);
  if (gracefully && code != tuttiSuccess) note_break("tuttiCommDestroy", code);
  if (!gracefully) slot_.life = board_.new_life();
}

bool Rank::has_reason() const {
  if (growth_given_up_ || board_.revoked.has(group_) || board_.cut_until_ns > since_ns_) return true;
  if (!has_greeted_ && board_.last_trouble_ns >= since_ns_) return true;
  return std::any_of(lives_.begin(), lives_.end(), [&](uint64_t life) { return board_.end_of(life) != 0; });
}

// Every error must have a reason, and name the dead.
void Rank::note_break(const char* in, tuttiResult_t code) {
  const int64_t now = now_ns();
  const std::string why = tuttiGetLastError(nullptr);
  const bool is_expected = code == tuttiRemoteError || code == tuttiSystemError ||
                           (code == tuttiInvalidUsage && why.find("tuttiCommRevoke") != std::string::npos);
  if (!is_expected || !has_reason()) {
    board_.counts.unexplained++;
    fprintf(stderr, "tutti-soak: UNEXPLAINED: rank %d of %d in %s : %s: %s\n", place_.rank, place_.n_ranks, in,
            tuttiGetErrorString(code), why.c_str());
  }
  int64_t first_death = 0;
  for (const uint64_t life : lives_) {
    const int64_t gone = board_.end_of(life);
    if (gone == 0) continue;
    first_death = first_death == 0 ? gone : std::min(first_death, gone);
    last_death_ns_ = std::max(last_death_ns_, gone);
  }
  if (!has_greeted_ || operations_.in_part() || first_death == 0 || board_.revoked.has(group_) || growth_given_up_)
    return;
  std::vector<int> lost(static_cast<size_t>(place_.n_ranks));
  int n_lost = 0;
  static_cast<void>(tuttiCommLostRanks(comm_, lost.data(), &n_lost));
  // A rank that leaves by tuttiCommAbort says so itself, before its connections are gone.
  bool is_named = n_lost > 0;
  for (int rank = 0; rank < place_.n_ranks && !is_named; rank++)
    is_named = board_.end_of(lives_[static_cast<size_t>(rank)]) != 0 &&
               why.find("rank " + std::to_string(rank) + " ") != std::string::npos;
  board_.counts.deaths_met++;
  if (is_named) board_.counts.deaths_named++;
  for (int i = 0; i < n_lost; i++) {
    const int rank = lost[static_cast<size_t>(i)];
    if (board_.end_of(lives_[static_cast<size_t>(rank)]) != 0 || board_.cut_until_ns > since_ns_) continue;
    board_.counts.misnamed++;
    fprintf(stderr, "tutti-soak: MISNAMED: rank %d of %d reports rank %d lost, which is alive: %s\n", place_.rank,
            place_.n_ranks, rank, why.c_str());
  }
  if (!is_named) fprintf(stderr, "tutti-soak: unnamed: rank %d of %d: %s\n", place_.rank, place_.n_ranks, why.c_str());
  if (board_.disturbed_until_ns < first_death) board_.until_error.add(now - first_death);
}

void Rank::recover(const char* in, tuttiResult_t code) {
  note_break(in, code);
  doing("shrinking");
  since_ns_ = now_ns();
  if (!shrink()) end_life(false);
}

// False if this rank must go on alone.
bool Rank::shrink() {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = (index_ + static_cast<int>(seen_gathering_)) % 2;
  tuttiComm_t smaller = nullptr;
  tuttiResult_t code = tuttiCommShrink(comm_, nullptr, 0, &smaller, &config, TUTTI_SHRINK_DEFAULT);
  code = settle(smaller, code);
  // A group that has formed in the background and broken since exists, too: it shrinks next.
  int n_ranks = 0;
  if (code == tuttiSuccess || (smaller != nullptr && tuttiCommCount(smaller, &n_ranks) == tuttiSuccess)) {
    if (place_.rank == 0) board_.counts.shrinks++;
    take_over(smaller);
    return true;
  }
  const std::string why = tuttiGetLastError(smaller);
  if (smaller != nullptr) static_cast<void>(tuttiCommAbort(smaller));
  const bool was_alone = why.find("not a majority") != std::string::npos;
  const bool is_cut = board_.cut_until_ns > since_ns_;
  const bool is_left = why.find("continued without it") != std::string::npos;
  auto& counts = board_.counts;
  (was_alone           ? counts.without_majority
   : is_left && is_cut ? counts.without_majority
   : is_left           ? counts.left_behind
                       : counts.failed)++;
  if (!was_alone && !is_cut)
    fprintf(stderr, "tutti-soak: FAILED: rank %d of %d: tuttiCommShrink: %s: %s\n", place_.rank, place_.n_ranks,
            tuttiGetErrorString(code), why.c_str());
  return false;
}

void Rank::watch() {
  while (!ended_) {
    usleep(20'000);
    const std::lock_guard lock(mutex_);
    if (slot_.revoke.exchange(false) && comm_ != nullptr && group_ != 0) {
      board_.revoked.add(group_);
      board_.last_trouble_ns = now_ns();
      board_.counts.revokes++;
      static_cast<void>(tuttiCommRevoke(comm_, 0));
    }
    if (!slot_.explain) continue;
    size_t bytes = sizeof slot_.explanation;
    if (comm_ == nullptr || tuttiCommExplainWait(comm_, slot_.explanation, &bytes) != tuttiSuccess)
      snprintf(slot_.explanation, sizeof slot_.explanation, "%s",
               comm_ == nullptr ? "it has no communicator" : tuttiGetLastError(nullptr));
    slot_.explain = false;
  }
}

int Rank::leave_no_trace(const Census& before) {
  doing("counting what is left");
  std::string more;
  // Threads that have finished disappear a little later; the root of an id that nobody came to ends at its time-out.
  for (const int64_t end = now_ns() + (kInitSeconds + 5) * int64_t{1'000'000'000}; now_ns() < end;) {
    more = Census::take().more_than(before);
    if (more.empty()) return 0;
    usleep(20'000);
    slot_.progress_ns = now_ns();
  }
  board_.counts.leaks++;
  fprintf(stderr, "tutti-soak: LEAK: %s\n", more.c_str());
  return 0;
}

}  // namespace tutti::soak
