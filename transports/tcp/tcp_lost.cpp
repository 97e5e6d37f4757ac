// Connections that break, or whose peer is not heard of any more: how a sender finds out, and what becomes of what they
// had.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/log.h"
#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {
namespace {

// Where another connection goes on: it costs less to move than to wait.
constexpr int64_t kShortTimeoutNs = 2'000 * kMs;

constexpr int64_t kFirstRedialNs = 500 * kMs, kLongestRedialNs = 10'000 * kMs;
// For an answer, which may be lost with the network once more: who is called waits no longer either. Looks, not time,
// because who looks seldom has not heard what came meanwhile.
constexpr uint32_t kMostRedialLooks = kHandshakePatienceNs / kSilenceCheckNs;

constexpr double kPartingSeconds = 0.5;

}  // namespace

// What was handed over and not called unsent has to arrive. The kernel sees to that after the end of this link, unless
// a network breaks, and whether one does shows in this time.
SendLink::~SendLink() {
  pairs_.leave(this, config_);
  const Deadline deadline = Deadline::after_seconds(kPartingSeconds);
  const auto suspects = [this] {
    return std::any_of(streams_.begin(), streams_.end(),
                       [](const SendStream& s) { return s.fd && s.silence.view.unanswered; });
  };
  while (!failure_ && awaits_acknowledgements() && unsent() == 0 && (!deadline.passed() || suspects())) {
    if (!poll()) return;
    usleep(50);
  }
}

void SendLink::listen() {
  for (SendStream& stream : streams_)
    if (stream.fd && !failure_) listen(stream);
}

void SendLink::listen(SendStream& stream) {
  char byte;
  const ssize_t n = ::recv(stream.fd.get(), &byte, 1, MSG_DONTWAIT | (stream.is_heard ? MSG_PEEK : 0));
  if (n == 0) give_up(stream, "it closed the connection");
  if (n > 0 && !stream.is_heard) fail("it sent something where nothing is expected", 0);
  if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
    give_up(stream, system_error("the connection broke", errno).message, errno);
}

void SendLink::look_at_silence() {
  const int64_t now = now_ns();
  if (failure_ || now < next_silence_check_ns_) return;
  next_silence_check_ns_ = now + kSilenceCheckNs;
  tell_of_lost();
  for (SendStream& stream : streams_) stream.fd ? stream.silence.look(stream.fd.get(), now) : redial(stream, now);
  const bool another_goes_on = several_ && std::any_of(streams_.begin(), streams_.end(), [](const SendStream& s) {
                                 return s.fd && s.silence.silent_ns < kShortTimeoutNs / 2;
                               });
  const auto is_lost = [&](const Silence& silence) {
    return another_goes_on ? silence.lasts(std::min(kShortTimeoutNs, timeout_ns_)) : silence.means_loss(timeout_ns_);
  };
  for (SendStream& stream : streams_)
    if (stream.fd && is_lost(stream.silence)) give_up(stream, stream.silence.story(), ETIMEDOUT);
}

void SendLink::tell_of_lost() {
  for (SendStream& stream : streams_) {
    if (stream.lost.empty()) continue;
    log(LogLevel::kWarn, "tcp link to rank %d: connection %zu of %zu, at %s, is given up: %s; the others go on",
        config_.peer, static_cast<size_t>(&stream - streams_.data()) + 1, streams_.size(),
        stream.dialer.story().c_str(), stream.lost.c_str());
    stream.lost.clear();
  }
}

// A network that is mended carries its share again: by a connection to the same address, or that would say nothing of
// it.
void SendLink::redial(SendStream& stream, int64_t now) {
  const auto index = static_cast<uint32_t>(&stream - streams_.data());
  if (!stream.redial.is_under_way) {
    if (now < stream.redial.next_ns) return;
    Dialer::Call again = call_;
    again.args = hello_args(config_, index | kAgain, static_cast<uint32_t>(streams_.size()));
    stream.dialer = Dialer(again, {stream.address});
    stream.redial.is_under_way = true;
    stream.redial.looks = 0;
  }
  const Dialer::Status status = stream.dialer.advance();
  if (status == Dialer::Status::kPending && ++stream.redial.looks < kMostRedialLooks) return;
  stream.redial.is_under_way = false;
  stream.redial.pause_ns = std::clamp(2 * stream.redial.pause_ns, kFirstRedialNs, kLongestRedialNs);
  stream.redial.next_ns = now + stream.redial.pause_ns;
  if (status != Dialer::Status::kDone) return;
  Fd fd = stream.dialer.take();
  if (!wait_set_.replace(index, fd.get())) return;
  stream.connected(SharedFd(std::move(fd), stream.dialer.take_channel()));
  keep_queue_short(stream.fd.get());
  prepare(stream.fd.get(), timeout_ns_ / (1000 * kMs));
  log(LogLevel::kInfo, "tcp link to rank %d: connection %u of %zu is back, at %s", config_.peer, index + 1,
      streams_.size(), stream.dialer.story().c_str());
}

// Takes a connection's pieces back. When a link ends its connections go one after another, so only a later look can
// tell that one was lost alone.
void SendLink::give_up(SendStream& stream, const std::string& why, int sys_errno) {
  for (; !stream.in_flight.empty(); stream.in_flight.pop()) give_to_others(stream.in_flight.front().piece);
  if (std::exchange(stream.busy, false)) give_to_others(stream.piece);
  wait_set_.drop(static_cast<size_t>(&stream - streams_.data()));
  // At once, instead of trying for minutes what others do.
  const linger at_once{1, 0};
  setsockopt(stream.fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  resent_ += kernel_view(stream.fd.get()).resent;
  stream.silence = {};  // which counts that, too
  stream.fd.reset();
  stream.lost = why;
  stream.redial.next_ns = now_ns() + std::max(stream.redial.pause_ns, kFirstRedialNs);
  if (!several_ || std::none_of(streams_.begin(), streams_.end(), [](const SendStream& s) { return bool(s.fd); }))
    fail(why, sys_errno);
}

void SendLink::give_to_others(const Piece& piece) {
  ring_[piece.number].handed &= ~bit_of(piece.index);
  again_.push(piece);
  waiting_bytes_ += size_of(piece);
}

void SendLink::fail(const std::string& why, int sys_errno) {
  failure_ = Error{Code::kRemoteError,
                   format("tcp link to rank %d: %s: its process ended, its communicator was destroyed or the network "
                          "broke",
                          config_.peer, why.c_str()),
                   config_.peer, sys_errno};
}

}  // namespace tutti::tcp
