#include "comm/stall_watch.h"

namespace tutti {

Standing StallWatch::standing(int64_t idle_ns) const {
  Standing s = monitor_.begun().standing(monitor_.watch().rank(), doing_, monitor_.recorder());
  s.idle_ns = static_cast<uint64_t>(idle_ns);
  s.passed_at_once = static_cast<uint32_t>(at_once_);
  s.awaited = run_.blockers().awaited();
  return s;
}

// A rank that waits long says in which operation. So ranks that wait for each other because their calls differ
// (broadcasts with different roots, or a message and a collective) find out: messages cannot tell them, because nobody
// sends any.
Result<void> StallWatch::check_stalled(int64_t idle_ns) {
  constexpr int64_t kLongNs = 100'000'000, kPauseNs = 50'000'000;
  TUTTI_TRY(monitor_.comparison().check());
  if (monitor_.begun().limit.passed())
    return Error{Code::kTimeout,
                 "this rank was aborted, or the limit for the creation passed (TUTTI_INIT_TIMEOUT or the "
                 "configuration's initTimeoutSeconds), before all ranks had "
                 "prepared their GPUs: waiting for " +
                     run_.blockers().text()};
  if (idle_ns <= kLongNs) next_look_ns_ = 0;
  if (idle_ns <= kLongNs || idle_ns < next_look_ns_) return {};
  next_look_ns_ = idle_ns + kPauseNs;
  Standing mine = standing(idle_ns);
  std::vector<int> ranks;
  for (const AwaitedMessage& awaited : mine.awaited) ranks.push_back(awaited.peer);
  monitor_.recorder().record_wait(idle_ns, ranks);
  TUTTI_TRY_ASSIGN(const std::string word, monitor_.comparison().look(std::move(mine)));
  if (!word.empty()) monitor_.watch().ending().tell(word);
  if (!monitor_.inquiry().is_due(idle_ns)) return {};
  if (const std::string question = monitor_.inquiry().question(); !question.empty())
    monitor_.watch().ending().tell(question);
  monitor_.recorder().record_reason(why_waiting());
  return {};
}

}  // namespace tutti
