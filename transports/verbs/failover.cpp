// What becomes of a link when one of its queue pairs fails and others are left.
//
// Each end closes its half of the pair when it learns of it, from the device or by the other's Notice, and sends one
// Notice itself. Once both are closed nothing of that pair can be written any more, neither into slots nor into the
// user's memory, however late a packet is; and what the receiver then says about what has arrived stays true. So:
//   - The sender sends again what it had given to that pair and what is not there, through the others. Nothing is sent
//     twice, and a slot is still its message's, because what is not there was not released.
//   - It goes into its slot with its header, not where it was wished: a wish is only a hint. A place that is
//     required stands, and is told once more.
//   - Exposed memory is the user's again when the message is there, and not before the pair is closed at the sender.
//   One
//     that the device had reported as read but that is not there is lost; then the link fails.
//   - Releases and wishes are told by one more wish through another pair, after both ends are closed, so that none of
//     the old ones comes after it. Until then the connection beside the link tells of releases.
// For all this both ends have to look at the link, which they do whenever they wait for any link of the endpoint.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "transports/verbs/link.h"

namespace tutti::verbs {
namespace {

// A device that lives flushes at once.
constexpr double kLongestFlushSeconds = 0.1;
// From one attempt to mend a queue pair to the next. One that is proved by a few bytes may still stall what it is given
// until all retries are over, so it has to last, or the pauses grow.
constexpr int64_t kFirstPauseNs = 500'000'000, kLongestPauseNs = 60'000'000'000;

}  // namespace

void Half::drop(size_t queue, const std::string& why) {
  if (!is_usable(queue)) return;
  states_[queue].why = queues_[queue].port().name() + ": " + why;
  drops_ = true;
}

void Half::close_dropped() {
  if (!drops_) return;
  drops_ = false;
  read_socket();  // a peer that went is a better reason than what its going does to the queue pairs
  for (size_t q = 0; q < queues_.size() && !failure_ && !closed_; q++)
    if (queues_[q].is_open() && !states_[q].why.empty()) close(q);
}

void Half::close(size_t q) {
  Queue& queue = queues_[q];
  State& state = states_[q];
  const auto others =
      std::count_if(queues_.begin(), queues_.end(), [](const Queue& other) { return other.is_open(); }) - 1;
  if (others == 0) return fail(state.why);
  // All that has arrived is to be taken first: with the pair, its completions may go.
  const Deadline limit = Deadline::after_seconds(queue.stop() ? kLongestFlushSeconds : 0);
  do poll_completions();
  while (!state.is_flushed && !failure_ && !limit.passed());
  queue.close();
  unsettled_++;
  log(LogLevel::kWarn, "verbs link with rank %d: %s. Its messages take the other %td queue pairs", config_.peer,
      state.why.c_str(), others);
  send_notice(Notice::kClosed, q, state.why);
  if (state.notice) settle(q);
}

void Half::settle(size_t q) {
  unsettled_--;
  State& state = states_[q];
  const int64_t now = now_ns();
  if (now - state.made_ns > kLongestPauseNs) state.pause_ns = 0;
  state.pause_ns = std::clamp(2 * state.pause_ns, kFirstPauseNs, kLongestPauseNs);
  state.mend_ns = now + state.pause_ns;
  on_closed(q, *state.notice);
}

// There is always room for it: few are ever sent.
void Half::send_notice(Notice::What what, size_t q, const std::string& why, const QueueAddress& made) {
  Notice notice{};
  notice.what = what;
  notice.queue = static_cast<uint32_t>(q);
  notice.made = made;
  snprintf(notice.why, sizeof notice.why, "%s", why.c_str());
  fill(&notice);
  if (::send(socket_.get(), &notice, sizeof notice, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof notice)
    fail("its connection ignores a queue pair that has failed");
}

void Half::take_notices() {
  while (inbox_.size() >= sizeof(Notice) && !failure_) {
    Notice notice;
    memcpy(&notice, inbox_.data(), sizeof notice);
    inbox_.erase(0, sizeof notice);
    notice.why[sizeof notice.why - 1] = '\0';
    on_notice(notice);
    if (notice.what != Notice::kReleased && notice.queue < queues_.size()) take_notice(notice);
  }
}

void Half::take_notice(const Notice& notice) {
  const size_t q = notice.queue;
  State& state = states_[q];
  if (notice.what == Notice::kMade) return on_made(q, notice.made);
  if (state.notice) return on_not_made(q, notice.why);
  state.notice = notice;
  if (queues_[q].is_open())
    drop(q, format("rank %d has closed the other end: %s", config_.peer, notice.why));
  else
    settle(q);
}

void SendLink::on_notice(const Notice& notice) {
  take_released(notice.released);
}

void SendLink::on_closed(size_t queue, const Notice& notice) {
  for (Sent& message : sent_) {
    if (message.queue != queue) continue;
    const uint64_t ahead = message.number - notice.released;
    const bool is_there = message.number < released_ || (ahead < config_.slots && (notice.arrived >> ahead & 1) != 0);
    message.queue = Sent::kNoQueue;
    if (is_there) {
      if (message.exposed) give_back(message);
    } else if (message.payload != nullptr && !message.exposed) {
      fail("a message that was sent from registered memory is lost with its port");
    } else if (message.is_required) {
      // No later place was required, because this one was not released.
      set_place(message, {.number = low_bits(message.number), .is_placed = 1});
    } else {
      set_place(message, {.number = low_bits(message.number)});
    }
  }
}

void RecvLink::fill(Notice* notice) {
  notice->released = released_;
  for (uint64_t i = 0; i < config_.slots; i++)
    if (arrivals_[(released_ + i) % config_.slots].is_there) notice->arrived |= uint64_t{1} << i;
}

void RecvLink::on_closed(size_t, const Notice&) {
  Wish wish{.released = released_, .number = Wish::kNone};
  if (is_required_ && wished_ && wish_.number == released_) {
    wish = wish_;
    wish.released = released_;
  }
  tell(wish);
}

}  // namespace tutti::verbs
