#include "cuda/progress.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "cuda/ways.h"

namespace tutti::cuda {
namespace {

constexpr int64_t kFirstWordNs = 3'000'000'000;
// Makes these recorders a group of their own for tools that read them.
constexpr uint64_t kOnGpu = 0x677075;

uint64_t called_by(const Witness& witness) {
  const TracedOperation* const last = witness.trace.last();
  return last == nullptr ? 0 : last->nth;
}

}  // namespace

Progress::Progress(Host& host) : host_(host), limit_seconds_(host.operation_limit_seconds()) {
  const TraceHeader& header = host.recorder().header();
  recorder_.share(header.rank, header.n_ranks, header.group ^ kOnGpu, false, host.recorder().trace_file());
}

void Progress::begin(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  end_locked();
  Call call = to_call(operation);
  call.sequence = ++called_;
  recorder_.begin(to_tag(call), call.sequence, operation.caller, operation.created);
  is_under_way_ = true;
}

void Progress::end() {
  const std::lock_guard lock(mutex_);
  end_locked();
}

void Progress::end_locked() {
  recorder_.end(true);
  is_under_way_ = false;
  since_ns_ = 0;
}

Witnesses Progress::others() const {
  if (recorder_.path().empty()) return {};
  auto groups = find_witnesses(recorder_.path().substr(0, recorder_.path().rfind('/')));
  Witnesses all = std::move(groups[recorder_.header().group]);
  all.erase(recorder_.header().rank);
  return all;
}

uint64_t Progress::add_unseen(const Attendee* attendee, const Witnesses& seen, std::vector<int>* behind) const {
  if (attendee == nullptr) return 0;
  const uint64_t mine = attendee->called_by(recorder_.header().rank);
  uint64_t least = mine;
  for (int rank = 0; rank < recorder_.header().n_ranks; rank++) {
    const uint64_t its = seen.contains(rank) ? mine : attendee->called_by(rank);
    if (its >= mine) continue;
    behind->push_back(rank);
    least = std::min(least, its);
  }
  return least;
}

// What it has called is read after its goodbye, and so is final. Every rank that waits for one that has left either
// learns of that here or waits for a rank that does, because neighbours connect all ranks.
Result<void> Progress::check_stays(const Attendee* attendee, int rank) const {
  if (attendee == nullptr || !host_.has_left(rank)) return {};
  const uint64_t called = attendee->called_by(rank);
  if (called >= attendee->called_by(recorder_.header().rank)) return {};
  Error gone = has_left(rank, called);
  gone.message += "; " + explain_wait().value_or("");
  return gone;
}

// A rank that keeps calling is not waiting.
Result<void> Progress::look(const Attendee* attendee) {
  const std::lock_guard lock(mutex_);
  if (!is_under_way_) return {};
  if (std::exchange(looked_at_, called_) != called_) {
    since_ns_ = 0;
    return {};
  }
  const Witnesses witnesses = others();
  std::vector<int> behind;
  uint64_t slowest = called_;
  for (const auto& [rank, witness] : witnesses) {
    if (called_by(witness) >= called_) continue;
    behind.push_back(rank);
    slowest = std::min(slowest, called_by(witness));
  }
  const std::pair least{slowest, add_unseen(attendee, witnesses, &behind)};
  const int64_t now = now_ns();
  if (since_ns_ == 0 || least != slowest_ || behind.empty()) {
    since_ns_ = now;
    slowest_ = least;
    next_word_ns_ = kFirstWordNs;
  }
  const int64_t idle_ns = now - since_ns_;
  recorder_.record_wait(idle_ns, behind);
  if (behind.empty()) return {};
  for (const int rank : behind) TUTTI_TRY(check_stays(attendee, rank));
  const double idle_seconds = static_cast<double>(idle_ns) * 1e-9;
  if (idle_seconds >= limit_seconds_)
    return Error{
        Code::kTimeout,
        format("no progress on the GPU for %.0f s (TUTTI_OP_TIMEOUT or the configuration's opTimeoutSeconds): %s",
               limit_seconds_, explain_wait().value_or("").c_str())};
  if (idle_ns < next_word_ns_) return {};
  next_word_ns_ *= 2;
  log(LogLevel::kWarn, "no progress on the GPU for %.0f s: %s", idle_seconds, explain_wait().value_or("").c_str());
  return {};
}

std::optional<std::string> Progress::explain_wait() const {
  Witness mine{read_trace(recorder_), 'R', {}};
  if (mine.trace.wait.awaited.empty()) return {};
  Witnesses all = others();
  const int rank = recorder_.header().rank;
  all.insert_or_assign(rank, std::move(mine));
  return why(all, rank);
}

}  // namespace tutti::cuda
