// What becomes of a link when one of its queue pairs fails and others are left.
//
// Each end closes its half of the pair when it learns of the failure, from the device or by the other's Notice, and
// sends one Notice itself. Once both are closed the pair can write nothing any more, neither into slots nor into the
// user's memory, however late a packet is; and what the receiver then says about what has arrived stays true. So:
//   - The sender resends, through the other pairs, what it had given to that pair and has not arrived. Nothing is
//     delivered twice, and a message that has not arrived still has its slot, because it was not released.
//   - A resent message goes into its slot with its header, not to a wished place: a wish is only a hint. A required
//     place stays required, and is told once more.
//   - Exposed memory is the user's again once its message has arrived, and not before the pair is closed at the sender.
//     If the device had reported it as read but the message has not arrived, it is lost; then the link fails.
//   - Releases and wishes are told by one more wish through another pair, after both ends are closed, so that no old
//     wish arrives after it. Until then the connection beside the link tells of releases.
// All this needs both ends to look at the link, which they do whenever they wait for any link of the endpoint.
//
// The pair is made again when its port is up. The sender makes a new pair in its place and announces it through the
// connection beside the link; the receiver makes its half and answers, or says that it cannot. An empty write then
// proves that the network lets it through: a message would be stalled until all retries are over. The receiver uses its
// half once the first message has arrived by it.

#include <algorithm>

#include "base/log.h"
#include "transports/verbs/link.h"

namespace tutti::verbs {
namespace {

// A device that works flushes at once.
constexpr double kLongestFlushSeconds = 0.1;

}  // namespace

void Half::close_dropped() {
  if (!pairs_.take_drops()) return;
  read_socket();  // a peer that has gone is a better reason than the queue pair failures it causes
  for (QueuePair& pair : pairs_)
    if (pair.queue.is_open() && !pair.is_usable() && !failure_ && !side_.closed) close(pair);
}

void Half::close(QueuePair& pair) {
  const auto others = std::ranges::count_if(pairs_, &Queue::is_open, &QueuePair::queue) - 1;
  if (others == 0) return fail(pair.why);
  // All that has arrived must be taken first: its completions may go with the pair.
  const Deadline limit = Deadline::after_seconds(pair.queue.stop() ? kLongestFlushSeconds : 0);
  do poll_completions();
  while (!pair.is_flushed && !failure_ && !limit.passed());
  pairs_.close(pair);
  log(LogLevel::kWarn, "verbs link with rank %d: %s. Its messages now take the other %td queue pairs", config_.peer,
      pair.why.c_str(), others);
  send_notice(Notice::kClosed, pair, pair.why);
  if (pairs_.settle(pair)) on_closed(pair, *pair.notice);
}

// The socket always has room for it: few are ever sent.
void Half::send_notice(Notice::What what, const QueuePair& pair, const std::string& why, const QueueAddress& made) {
  Notice notice{};
  notice.what = what;
  notice.queue = static_cast<uint32_t>(&pair - &pairs_[0]);
  notice.made = made;
  snprintf(notice.why, sizeof notice.why, "%s", why.c_str());
  fill(&notice);
  if (!side_.say(notice)) fail("it could not be told that a queue pair has failed");
}

void Half::take_notice(const Notice& notice) {
  on_released(notice.released);
  if (notice.what == Notice::kReleased || notice.queue >= pairs_.size()) return;
  QueuePair& pair = pairs_[notice.queue];
  if (notice.what == Notice::kMade) return on_made(pair, notice.made);
  if (pair.notice) {
    if (!std::exchange(pair.next, nullptr)) return;
    pair.pause();
    return log(LogLevel::kInfo, "verbs link with rank %d: it still cannot be reached through %s: %s", config_.peer,
               pair.queue.port().name().c_str(), notice.why);
  }
  pair.notice = notice;
  if (pair.queue.is_open())
    pairs_.drop(pair, format("rank %d closed the other end: %s", config_.peer, notice.why));
  else if (pairs_.settle(pair))
    on_closed(pair, notice);
}

void SendLink::on_closed(const QueuePair& pair, const Notice& notice) {
  for (Sent& message : sent_) {
    if (message.pair != &pair) continue;
    const uint64_t ahead = message.number - notice.released;
    const bool is_there = message.number < released_ || (ahead < config_.slots && (notice.arrived >> ahead & 1) != 0);
    message.pair = nullptr;
    if (is_there) {
      on_read(static_cast<uint32_t>(&message - sent_.data()));
    } else if (message.payload != nullptr && !message.exposed) {
      fail("a message that was sent from registered memory was lost with its port");
    } else {
      // wish_ is still this message's: no later place was required, because this one was not released.
      set_place(message, {.number = low_bits(message.number), .is_placed = message.is_required});
    }
  }
}

void RecvLink::fill(Notice* notice) {
  notice->released = messages_.released();
  notice->arrived = messages_.arrived();
}

void RecvLink::on_closed(const QueuePair&, const Notice&) {
  Wish wish{.number = Wish::kNone};
  if (is_required_ && wished_ && wish_.number == messages_.released()) wish = wish_;
  wish.released = messages_.released();
  tell(wish);
}

void SendLink::mend() {
  for (QueuePair& pair : pairs_) {
    if (failure_ || !pair.is_time_to_mend()) continue;
    auto made = pairs_.make(pair.queue.route());
    if (!made) {
      log(LogLevel::kInfo, "verbs link with rank %d: %s", config_.peer, made.error().message.c_str());
      continue;
    }
    send_notice(Notice::kMade, pair, "", made.value().address(memory_));
    pair.next = std::make_unique<Queue>(std::move(made).value());
  }
}

void SendLink::on_made(QueuePair& pair, const QueueAddress& made) {
  const auto next = std::move(pair.next);
  if (!next) return fail("it sent a queue pair that it was not asked for");
  pair.replace(std::move(*next));
  const auto connected = pair.queue.connect(made);
  if (!connected) return pairs_.drop(pair, connected.error().message);
  if (!pair.queue.write_nothing(slots_at_)) pairs_.drop(pair, "a write cannot be posted");
}

void RecvLink::on_made(QueuePair& pair, const QueueAddress& made) {
  if (pair.queue.is_open()) return fail("it sent an invalid queue pair");
  const std::string down = pair.queue.port().down_because();
  auto queue = down.empty() ? make_queue(pair.queue.route(), made) : Error{Code::kRemoteError, down};
  if (!queue) return send_notice(Notice::kClosed, pair, queue.error().message);
  pair.replace(std::move(queue).value());
  send_notice(Notice::kMade, pair, "", pair.queue.address(memory_));
}

}  // namespace tutti::verbs
