// This header: what a rank does while it waits for peers in one operation: it accepts links that others make, notices
// that the group has failed, and after a while compares its operation with the others'. One for each Run, on its
// thread.
#pragma once

#include "base/log.h"
#include "comm/link_pool.h"
#include "comm/monitor.h"
#include "exec/wait.h"

namespace tutti {

class StallWatch final : public WaitContext {
 public:
  // `at_once`: how many messages go together, if the operation passes any.
  StallWatch(Monitor& monitor, LinkPool& links, const Run& run, Standing::Doing doing, size_t at_once = 0)
      : monitor_(monitor), links_(links), run_(run), doing_(doing), at_once_(at_once) {
    log_set_thread_rank(monitor.watch().rank());  // the thread may use several communicators
  }

  bool interrupted() override { return monitor_.failed(); }
  Error interruption() override { return monitor_.watch().ending().failure(); }
  int wake_fd() override { return monitor_.watch().ending().wake_fd(); }
  const std::vector<Link*>& incoming() override { return links_.incoming(); }
  size_t missing_links() override { return links_.missing(); }
  Result<void> housekeeping() override { return links_.keep_up(); }
  Result<void> check_stalled(int64_t idle_ns) override;
  std::string why_waiting() override { return monitor_.explain_wait(); }

 private:
  Standing standing(int64_t idle_ns) const;

  Monitor& monitor_;
  LinkPool& links_;
  const Run& run_;
  const Standing::Doing doing_;
  const size_t at_once_;
  int64_t next_look_ns_ = 0;  // in idle time
};

}  // namespace tutti
