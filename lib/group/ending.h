// How the group ends for a rank, and what the rank tells its neighbours until then. The first failure wins, and all
// neighbours get a notice of it. A rank that has said goodbye sends nothing more, and ignores the failures of others.
//
// Any thread; failed() is one load.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
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

  // Has anything ended this group? Acquire: if true, failure() is set.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Error failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // Readable once the group has failed, for the poll(2) of a sleeping thread.
  int wake_fd() const { return wake_fd_.get(); }
  // Waits until the group has failed, at most limit_ms, whatever signals come meanwhile.
  void wait(int limit_ms) const;

  // Ends the group with `mine` here and `theirs` at the others. The first failure wins; notices are handed to the
  // kernel before this returns, so that a process may exit right after.
  void fail(const Error& mine, const Error& theirs) { fail_from(rank_, mine, theirs); }
  void fail(const Error& error) { fail_from(rank_, error, error); }
  // The same even after this rank's goodbye: then the group ends for this rank alone.
  void fail_also_after_goodbye(const Error& error) { fail_from(rank_, error, error, true); }
  // On the watching thread: the notice, if there is one, goes over a new line, too. Over an earlier one, whose network
  // has failed since, it may be lost. Who gets it twice has failed already.
  void repeat_to(int peer);
  // On the watching thread, until nothing is untold: sends the notice for which there was no memory.
  void tell_again();
  bool is_untold() const {
    const std::lock_guard lock(mutex_);
    return is_untold_;
  }
  // Takes a neighbour's notice; false: it makes no sense in a group of n_ranks.
  bool hear(std::string_view notice, int n_ranks);

  // Tells the neighbours' listeners something, if there is anything to tell, unless the group has failed or this rank
  // has said goodbye.
  void tell(std::string_view what) {
    const std::lock_guard lock(mutex_);
    if (!what.empty() && !failed() && !leaving_) lines_.send_to_all(kQuestion, what);
  }
  // Asks all other ranks a question of at most kMostQuestionBytes, and waits up to limit_ms for one of them to answer
  // by ending the group. Without an answer, or if a rank turns out to be lost meanwhile, the group ends with
  // `otherwise`. Empty: only waits, because it has been asked already.
  void ask(std::string_view question, const Error& otherwise, int limit_ms);
  static constexpr size_t kMostQuestionBytes = 8192;

  // Tells the neighbours that this rank leaves in good order after `operations` operations.
  void say_goodbye(uint64_t operations);
  bool said_goodbye() const {
    const std::lock_guard lock(mutex_);
    return leaving_;
  }

 private:
  // `origin`: the rank that reported the failure first.
  void fail_from(int origin, const Error& mine, const Error& theirs, bool also_after_goodbye = false);

  const int rank_;
  const RankName name_;
  const Fd wake_fd_;
  Lines& lines_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // guards the members below, and sending: nothing follows a goodbye
  Error failure_;
  std::optional<Error> otherwise_;  // while this rank waits for an answer
  bool leaving_ = false;
  std::string notice_;      // of the failure
  bool is_untold_ = false;  // not all neighbours have it
};

}  // namespace tutti
