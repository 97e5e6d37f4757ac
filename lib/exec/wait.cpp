#include "exec/wait.h"

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace tutti {
namespace {

// A spinning thread lost its CPU 5 to 30 times a second to the kernel's own threads on a quiet machine, 90 times beside
// a process that never waits.
constexpr int64_t kStrangersPerSecond = 50, kLookNs = 30'000'000;
constexpr uint64_t kSleepNs = 100'000'000;
constexpr uint64_t kBlindSleepNs = 1'000'000;       // if a transport has nothing to sleep on
constexpr uint64_t kConnectingSleepNs = 5'000'000;  // then looks for links again: a thousand ranks may do so
constexpr int64_t kStrayCheckNs = 1'000'000;
constexpr int64_t kFirstWarningNs = 3'000'000'000;
constexpr int64_t kLongestLookNs = 1'000'000'000;

// Links may wait for the same descriptors, and poll(2) takes no more entries than a process may have descriptors.
void merge(std::vector<pollfd>* fds) {
  std::ranges::sort(*fds, {}, &pollfd::fd);
  size_t n = 0;
  for (const pollfd& one : *fds) {
    if (one.fd < 0) continue;
    if (n > 0 && (*fds)[n - 1].fd == one.fd)
      (*fds)[n - 1].events |= one.events;
    else
      (*fds)[n++] = one;
  }
  fds->resize(n);
}

// Whether another process keeps taking this thread's CPU, though the thread does not give it up.
bool has_stranger(int64_t now) {
  static thread_local int64_t looked_ns = 0;
  static thread_local long times = 0;
  static thread_local bool has = false;
  const int64_t passed_ns = now - looked_ns;
  if (passed_ns < kLookNs) return has;
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  looked_ns = now;
  has = (usage.ru_nivcsw - std::exchange(times, usage.ru_nivcsw)) * 1'000'000'000 > kStrangersPerSecond * passed_ns;
  return has;
}

// One period of idleness, since the last progress.
class Idle {
 public:
  Idle(Run& run, WaitContext& context, const WaitPolicy& policy, Meanwhile* meanwhile)
      : run_(run), context_(context), policy_(policy), meanwhile_(meanwhile) {}

  void reset() {
    if (next_warning_ns_ > kFirstWarningNs) [[unlikely]]
      tell_of_going_on();
    turns_ = 0;
    since_ns_ = 0;
    awake_ns_ = 0;
    looked_again_ = false;
  }

  // One turn of waiting; false when the operation has to end with error().
  bool turn() {
    if (context_.interrupted()) return look_again() || fail(context_.interruption());
    if (meanwhile_ != nullptr && meanwhile_->step()) {
      reset();
      return poll();
    }
    const bool spins = !policy_.yielding.is_on();
    if (spins) {
      pause_cpu();
      if (++turns_ % kTurnsPerPoll != 0) return true;
    }
    return poll() && ((spins && turns_ < kSpins) || wait_on());
  }
  const Error& error() const { return error_; }

 private:
  bool poll() {
    auto well = run_.blockers().poll();
    return well || fail(std::move(well).error());
  }
  // The rank that ends the group may have sent all that this operation needs first, just after this rank last looked.
  bool look_again() {
    if (std::exchange(looked_again_, true)) return false;
    (void)run_.blockers().poll();
    return true;
  }
  bool fail(Error error) {
    error_ = std::move(error);
    return false;
  }

  // The wait is long enough now to read the clock.
  bool wait_on() {
    const int64_t now = now_ns();
    if (since_ns_ == 0) since_ns_ = last_stray_check_ns_ = now;
    if (now - last_stray_check_ns_ > kStrayCheckNs && !check(now)) return false;
    const int64_t idle_ns = now - since_ns_;
    if (awake_ns_ == 0 && idle_ns >= Yielding::kLeastAwakeNs) awake_ns_ = choose_awake_ns(now);
    Yielding& yielding = policy_.yielding;
    if (awake_ns_ != 0 && idle_ns >= awake_ns_)
      sleep();
    else if (yielding.naps())
      nap();
    else if (yielding.is_on())
      yielding.give_way();
    return true;
  }

  int64_t choose_awake_ns(int64_t now) {
    Yielding& yielding = policy_.yielding;
    if (!yielding.is_on() && run_.blockers().awaits_one_on(sched_getcpu())) yielding.start();
    return yielding.awake_ns(!yielding.is_on() && has_stranger(now));
  }

  bool check(int64_t now) {
    // Time in which this process did not run, as when its whole job was stopped, is not counted: sleeps are far
    // shorter.
    since_ns_ += std::max<int64_t>(0, now - std::exchange(last_stray_check_ns_, now) - kLongestLookNs);
    if (auto kept = context_.housekeeping(); !kept) return fail(std::move(kept).error());
    for (Link* link : context_.incoming())
      if (run_.check_stray(*link)) return fail(run_.error());
    const int64_t idle_ns = now - since_ns_;
    if (auto alike = context_.check_stalled(idle_ns); !alike) return fail(std::move(alike).error());
    return check_limit(idle_ns);
  }

  bool check_limit(int64_t idle_ns) {
    if (idle_ns > next_warning_ns_) {
      next_warning_ns_ *= 2;
      waited_for_ = run_.blockers().text();
      log(LogLevel::kWarn, "no progress for %lld s: %s", static_cast<long long>(idle_ns / 1'000'000'000),
          whom_and_why().c_str());
    }
    const double limit = policy_.op_timeout_seconds;
    if (static_cast<double>(idle_ns) * 1e-9 < limit) return true;
    return fail(
        {Code::kTimeout, format("no progress for %.0f s (TUTTI_OP_TIMEOUT or the configuration's opTimeoutSeconds): %s",
                                limit, whom_and_why().c_str())});
  }
  std::string whom_and_why() {
    const std::string why = context_.why_waiting();
    return "waiting for " + run_.blockers().text() + (why.empty() ? "" : "; " + why);
  }
  // Follows up on warnings that it might not.
  [[gnu::cold]] void tell_of_going_on() {
    log(LogLevel::kWarn, "continued after %.1f s without progress, waiting for %s: slow, but not lost",
        static_cast<double>(now_ns() - since_ns_) * 1e-9, waited_for_.c_str());
    next_warning_ns_ = kFirstWarningNs;
  }

  void sleep() {
    // Kept by the thread, so that waiting allocates nothing either.
    struct Room {
      std::vector<Blockers::Sleeper> sleepers;
      std::vector<pollfd> fds;
    };
    auto& [sleepers, fds] = own_of_thread<Room>();
    sleepers.clear();
    if (run_.blockers().prepare_sleep(&sleepers)) {
      fds.clear();
      fds.push_back({context_.wake_fd(), POLLIN, 0});
      uint64_t most_ns = context_.missing_links() > 0 ? kConnectingSleepNs : kSleepNs;
      for (const auto& [link, wait] : sleepers) {
        fds.push_back({wait.fd, wait.events, 0});
        for (uint32_t i = 0; i < wait.n_more; i++) fds.push_back({wait.more[i].fd, wait.more[i].events, 0});
        if (wait.at_most_ns > 0) most_ns = std::min(most_ns, wait.at_most_ns);
        if (wait.at_most_ns == 0 && wait.fd < 0) most_ns = std::min(most_ns, kBlindSleepNs);
      }
      merge(&fds);
      const timespec limit{0, static_cast<long>(most_ns)};  // the kernel may add the thread's timer slack, 50 us
      ::ppoll(fds.data(), fds.size(), &limit, nullptr);
    }
    for (const Blockers::Sleeper& s : sleepers) s.link->wait_end();
  }

  Run& run_;
  WaitContext& context_;
  const WaitPolicy& policy_;
  Meanwhile* const meanwhile_;
  int turns_ = 0;
  bool looked_again_ = false;
  int64_t awake_ns_ = 0;  // how long to stay awake; 0: not decided yet
  int64_t since_ns_ = 0, last_stray_check_ns_ = 0, next_warning_ns_ = kFirstWarningNs;
  std::string waited_for_;  // in the last warning
  Error error_;
};

Result<void> run_to_end(Run& run, WaitContext& context, const WaitPolicy& policy, Meanwhile* meanwhile) {
  Idle idle(run, context, policy, meanwhile);
  size_t missing = context.missing_links();
  Run::Poll state = run.advance();
  while (state == Run::Poll::kProgress || (state == Run::Poll::kIdle && idle.turn())) {
    if (state == Run::Poll::kProgress) idle.reset();
    if (missing > 0) {
      TUTTI_TRY(context.housekeeping());
      const size_t before = std::exchange(missing, context.missing_links());
      if (missing < before) idle.reset();
    }
    state = run.advance();
  }
  if (state == Run::Poll::kDone) {
    idle.reset();
    return {};
  }
  return state == Run::Poll::kFailed ? run.error() : idle.error();
}

}  // namespace

// After any error, even out of memory half-way, the caller's buffers belong to the caller again.
Result<void> drive(Run& run, WaitContext& context, const WaitPolicy& policy, Meanwhile* meanwhile) {
  policy.yielding.begin_operation();
  auto ended = contained([&] { return run_to_end(run, context, policy, meanwhile); });
  if (!ended) run.revoke();
  return ended;
}

}  // namespace tutti
