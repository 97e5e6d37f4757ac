// How the group ends for a rank, and what it tells its neighbours until then. The first failure wins, and they all get
// a notice of it; but a rank that has said goodbye tells nothing any more, and others' failures are not its own.
//
// Any thread; failed() is one load.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "group/line.h"

namespace tutti {

class Ending {
 public:
  // `wake`: an eventfd(2).
  Ending(int rank, RankName name, Fd wake, Lines& lines)
      : rank_(rank), name_(std::move(name)), wake_fd_(std::move(wake)), lines_(lines) {}

  // Has anything ended this group? Acquire: failure() is there afterwards.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Error failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // Readable once failed: for a sleeper's poll(2).
  int wake_fd() const { return wake_fd_.get(); }
  // Until it has failed: at most so long, whatever signals come meanwhile.
  void wait(int limit_ms) const;

  // Ends the group with `mine` here and `theirs` at the others. The first failure wins; notices are handed to the
  // kernel before this returns, so that a process may exit right after.
  void fail(const Error& mine, const Error& theirs) { fail_from(rank_, mine, theirs); }
  void fail(const Error& error) { fail_from(rank_, error, error); }
  // The same where this rank may have said goodbye: then it ends for this rank alone.
  void fail_also_after_goodbye(const Error& error) { fail_from(rank_, error, error, true); }
  // A neighbour's notice; false: it makes no sense in a group of so many.
  bool hear(std::string_view notice, int n_ranks);

  // Tells the neighbours' listeners something, unless this rank has said goodbye.
  void tell(std::string_view what) {
    const std::lock_guard lock(mutex_);
    if (!failed() && !leaving_) lines_.send_to_all(kQuestion, what);
  }
  // Asks all other ranks what one of them will answer by ending the group, and waits for that. If nobody does so soon,
  // or a rank turns out to be lost meanwhile, the group ends with `otherwise`. An empty question has been asked by
  // somebody else. kMostQuestionBytes at most.
  void ask(std::string_view question, const Error& otherwise, int limit_ms);
  static constexpr size_t kMostQuestionBytes = 8192;

  // Tells the neighbours that this rank leaves in good order after `operations` operations.
  void say_goodbye(uint64_t operations);
  bool said_goodbye() const {
    const std::lock_guard lock(mutex_);
    return leaving_;
  }

 private:
  // `origin`: the rank whose words these are.
  void fail_from(int origin, const Error& mine, const Error& theirs, bool also_after_goodbye = false);

  const int rank_;
  const RankName name_;
  const Fd wake_fd_;
  Lines& lines_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // what follows, and what is sent from here: nothing after a goodbye
  Error failure_;
  std::optional<Error> otherwise_;  // while this rank waits for an answer
  bool leaving_ = false;
};

}  // namespace tutti
