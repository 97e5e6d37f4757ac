#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

Result<std::unique_ptr<RecvLink>> RecvLink::create(Door& door, const tuttiLinkConfig& config,
                                                   std::vector<SharedFd> connections, int64_t timeout_seconds) {
  TUTTI_TRY_ASSIGN(SlotRing<RecvSlot> ring, SlotRing<RecvSlot>::create(config));
  std::unique_ptr<RecvLink> link(new RecvLink(door, config, connections.size(), timeout_seconds, std::move(ring)));
  for (SharedFd& fd : connections) {
    prepare(fd.get(), timeout_seconds);
    if (connections.size() > 1) acknowledge_soon(fd.get());
    link->streams_.emplace_back().fd = std::move(fd);
  }
  return link;
}

void RecvLink::receive_also_on(const SharedFd& connection) {
  streams_.emplace_back().fd = connection;
}

Result<bool> RecvLink::poll() {
  if (several_ || look_out_.is_time()) look();
  if (several_ || streams_.size() == 1)
    receive_all();
  else
    receive_by_turns();
  // Messages that arrived before a failure must still be read.
  if (failure_ && messages_.is_empty()) return *failure_;
  return true;
}

// The kernel probes an idle peer, but not while something is in flight. The other half of a pair may have data in
// flight on this connection, and while this rank waits for the peer's answer, nobody checks on that half.
void RecvLink::look() {
  const int64_t now = now_ns();
  if (now < next_look_ns_) return;
  next_look_ns_ = now + (several_ ? kLookNs : kSilenceCheckNs);
  if (several_) return door_.look();
  for (RecvStream& stream : streams_) {
    if (!stream.fd || failure_) continue;
    stream.silence.look(stream.fd.get(), now);
    if (stream.silence.means_loss(timeout_seconds_ * 1000 * kMs)) lose(stream, stream.silence.story(), ETIMEDOUT);
  }
}

void RecvLink::receive_all() {
  for (RecvStream& stream : streams_) {
    receive(stream);
    if (!stream.next.empty() && !failure_) change(stream);
  }
}

void RecvLink::receive_by_turns() {
  RecvStream& first = streams_[first_];
  if (receive(first) || (first.fd && first.can_receive() && ++looks_ % kLooksPerTurn != 0)) return;
  for (size_t i = 0; i < streams_.size(); i++)
    if (i != first_ && receive(streams_[i])) first_ = i;
}

Result<void> RecvLink::rejoin(size_t index, SharedFd connection) {
  const size_t own = several_ ? streams_.size() : 1;
  if (index >= own)
    return Error{Code::kRemoteError, format("it reopened connection %zu of a link that has only %zu", index + 1, own)};
  streams_[index].next.push_back(std::move(connection));
  return {};
}

// The sender will not resend what this kernel has acknowledged, so all of it is read before the given-up connection is
// closed. A frame that is incomplete by then arrives on another.
void RecvLink::change(RecvStream& stream) {
  int unread = 0;
  if (stream.fd && ioctl(stream.fd.get(), FIONREAD, &unread) == 0 && unread > 0) return;
  if (stream.fd && !stream.can_receive()) return;  // what waits for a slot has arrived
  SharedFd fd = std::move(stream.next.front());
  stream.next.pop_front();
  stream = RecvStream{std::move(fd), std::move(stream.next)};
  prepare(stream.fd.get(), timeout_seconds_);
  acknowledge_soon(stream.fd.get());
}

// One step of receiving; false when there is nothing more to be done now.
bool RecvLink::receive_some(RecvStream& stream) {
  if (!stream.frame) return read_header(stream);
  RecvFrame& frame = *stream.frame;
  // A piece that arrives again has no place any more: its memory may soon not be ours.
  frame.unwanted = messages_.has_piece(frame.header);
  if (!frame.unwanted && frame.to == nullptr) {
    if (!messages_.find_place(frame.header, &frame.to)) return fail_for_strange_data();
    if (frame.to == nullptr) return false;
  }
  if (const size_t left = frame.bytes - frame.got; left > 0) {
    char* const to = frame.unwanted ? nullptr : frame.to + frame.got;
    size_t n = stream.stage.take(to, left);
    if (n == 0)
      n = to != nullptr ? receive_into(stream, to, left)
                        : receive_into(stream, stream.stage.room(), std::min(left, Stage::kBytes));
    if (n == 0) return false;
    frame.got += n;
    if (n < left) return true;
  }
  if (!frame.unwanted) messages_.add(frame.header);
  stream.frame.reset();
  return true;
}

// Takes a header from the stage, or fills the stage.
bool RecvLink::read_header(RecvStream& stream) {
  FrameHeader header;
  Stage& stage = stream.stage;
  if (stage.bytes() < sizeof header) {
    char* const to = stage.room();
    const size_t n = receive_into(stream, to, (stream.was_large ? sizeof header : Stage::kBytes) - stage.bytes());
    stage.add(n);
    return n > 0;
  }
  stage.take(&header, sizeof header);
  bool is_valid = messages_.is_valid(header);
  // Several connections may deliver a piece twice. The two of a pair deliver each message once, but not in order.
  const bool in_order = !door_.pairs().is_answered(config_);
  if (is_valid && !several_) is_valid = in_order ? header.number == messages_.awaited() : !messages_.has_piece(header);
  if (!is_valid) return fail_for_strange_data();
  stream.frame = RecvFrame{header, messages_.size_of(header)};
  stream.was_large = stream.frame->bytes > Stage::kBytes;
  return true;
}

// Returns how many bytes were received; 0: none.
size_t RecvLink::receive_into(RecvStream& stream, void* to, size_t room) {
  if (std::exchange(stream.drained, false)) return 0;  // until the next poll
  const ssize_t n = recv_some(stream.fd.get(), stream.fd.channel(), to, room);
  if (n > 0) {
    stream.drained = static_cast<size_t>(n) < room;
    return static_cast<size_t>(n);
  }
  const int sys_errno = n == 0 ? 0 : errno;
  if (sys_errno == EINTR) return receive_into(stream, to, room);
  if (sys_errno == EAGAIN || sys_errno == EWOULDBLOCK) return 0;
  if (sys_errno == EBADMSG)
    fail(why_broken(sys_errno), sys_errno);  // other connections cannot resend what this one had
  else
    lose(stream, n == 0 ? "" : system_error("the connection broke", sys_errno).message, sys_errno);
  return 0;
}

// What the other connections hold is delivered before the failure, and they resend what this one had.
void RecvLink::lose(RecvStream& stream, std::string why, int sys_errno) {
  const auto i = static_cast<size_t>(&stream - streams_.data());
  stream.torn = stream.in_middle();
  if (why.empty())
    why = std::any_of(streams_.begin(), streams_.end(), [](const RecvStream& s) { return s.torn; })
              ? "it closed the connection in the middle of a message: its process ended"
              : "it closed the connection: its process ended or its communicator was destroyed";
  stream.frame.reset();
  stream.fd.reset();
  // A pair needs both connections; what the other one has received is still read.
  const bool is_essential = !several_ && sys_errno != 0;
  if (is_essential)
    for (RecvStream& other : streams_) receive(other);
  if (is_essential ||
      std::all_of(streams_.begin(), streams_.end(), [](const RecvStream& s) { return !s.fd && s.next.empty(); }))
    fail(why, sys_errno);
  else if (sys_errno != 0)
    log(LogLevel::kWarn, "tcp link from rank %d: connection %zu of %zu was given up: %s; the others carry on",
        config_.peer, i + 1, streams_.size(), why.c_str());
}

void RecvLink::fail(const std::string& why, int sys_errno) {
  failure_ = Error{Code::kRemoteError, format("tcp link from rank %d: %s", config_.peer, why.c_str()), config_.peer,
                   sys_errno};
}

bool RecvLink::wait_begin(tuttiWait* wait) {
  look_out_.note_sleep();
  // Staged data wakes nobody: it goes to the slots that have become free since the last poll.
  receive_all();
  // A connection that waits for a slot has data to read, which must not wake this rank.
  for (const RecvStream& stream : streams_)
    if (stream.fd) add_wait(wait, stream.fd.get(), stream.can_receive() ? POLLIN : 0);
  wait->peer_cpu_plus_1 = sending_cpu_plus_1(streams_[first_].fd.get());
  return !failure_ && messages_.is_empty();
}

}  // namespace tutti::tcp
