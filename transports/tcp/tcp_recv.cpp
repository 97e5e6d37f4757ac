#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

Result<std::unique_ptr<RecvLink>> RecvLink::create(Door& door, const tuttiLinkConfig& config,
                                                   std::vector<SharedFd> connections, int64_t timeout_seconds) {
  TUTTI_TRY_ASSIGN(SlotRing<RecvSlot> ring, SlotRing<RecvSlot>::create(config));
  std::unique_ptr<RecvLink> link(new RecvLink(door, config, connections.size(), timeout_seconds, std::move(ring)));
  std::vector<int> fds;
  for (SharedFd& fd : connections) {
    prepare(fd.get(), timeout_seconds);
    if (connections.size() > 1) acknowledge_soon(fd.get());
    fds.push_back(fd.get());
    link->streams_.emplace_back().fd = std::move(fd);
  }
  TUTTI_TRY_ASSIGN(link->wait_set_, WaitSet::create(fds));
  return link;
}

void RecvLink::hear_also(const SharedFd& connection) {
  if (const auto watched = wait_set_.add(connection.get()); !watched) return fail(watched.error().message);
  streams_.emplace_back().fd = connection;
}

Result<bool> RecvLink::poll() {
  wait_set_.note_poll();
  if (several_)
    look_at_door();
  else if (look_out_.is_time())
    look_at_silence();
  if (several_ || streams_.size() == 1)
    receive_all();
  else
    receive_by_turns();
  // What arrived before a failure is still to be read.
  if (failure_ && received_ == released_) return *failure_;
  return true;
}

void RecvLink::look_at_door() {
  const int64_t now = now_ns();
  if (now < next_look_ns_) return;
  next_look_ns_ = now + kLookNs;
  door_.look();
}

// The kernel asks an idle peer whether it is there, but not while something is in flight: what the other half of a pair
// has sent by this connection, and as long as the peer's answer is waited for, nobody asks that half.
void RecvLink::look_at_silence() {
  const int64_t now = now_ns();
  if (now < next_look_ns_) return;
  next_look_ns_ = now + kSilenceCheckNs;
  for (Stream& stream : streams_) {
    if (!stream.fd || failure_) continue;
    stream.silence.look(stream.fd.get(), now);
    if (stream.silence.means_loss(timeout_seconds_ * 1'000'000'000)) lose(stream, stream.silence.story(), ETIMEDOUT);
  }
}

bool RecvLink::peek(tuttiMessage* message) {
  if (received_ == released_) return false;
  const RecvSlot& slot = ring_[released_];
  *message = {slot.data, slot.header.bytes, slot.header.tag};
  return true;
}

void RecvLink::receive_all() {
  for (Stream& stream : streams_) {
    receive(stream);
    if (!stream.next.empty() && !failure_) change(stream);
  }
}

void RecvLink::receive_by_turns() {
  Stream& first = streams_[first_];
  if (receive(first) || (first.fd && first.can_receive() && ++looks_ % kLooksPerTurn != 0)) return;
  for (size_t i = 0; i < streams_.size(); i++)
    if (i != first_ && receive(streams_[i])) first_ = i;
}

// All that there is; whether there was anything.
bool RecvLink::receive(Stream& stream) {
  bool any = false;
  while (!failure_ && stream.fd && receive_some(stream)) any = true;
  return any;
}

Result<void> RecvLink::rejoin(size_t index, SharedFd connection) {
  const size_t own = several_ ? streams_.size() : 1;
  if (index >= own)
    return Error{Code::kRemoteError, format("connection %zu of a link that has %zu was opened again", index + 1, own)};
  streams_[index].next.push_back(std::move(connection));
  return {};
}

// What the kernel has acknowledged the sender will not send again, so all of it is read before the connection that was
// given up goes. A frame that is not whole by then comes by others.
void RecvLink::change(Stream& stream) {
  int unread = 0;
  if (stream.fd && ioctl(stream.fd.get(), FIONREAD, &unread) == 0 && unread > 0) return;
  if (stream.fd && !stream.can_receive()) return;  // what waits for a slot has come
  const auto i = static_cast<size_t>(&stream - streams_.data());
  if (stream.fd) wait_set_.drop(i);
  std::deque<SharedFd> next = std::move(stream.next);
  stream = Stream{};
  stream.fd = std::move(next.front());
  next.pop_front();
  stream.next = std::move(next);
  prepare(stream.fd.get(), timeout_seconds_);
  acknowledge_soon(stream.fd.get());
  if (const auto watched = wait_set_.replace(i, stream.fd.get()); !watched) fail(watched.error().message);
}

// One step of receiving; false when there is nothing more to be done now.
bool RecvLink::receive_some(Stream& stream) {
  if (!stream.in_frame) return read_header(stream);
  if (!stream.unwanted && stream.to == nullptr && !find_place(stream)) return false;
  if (stream.got == stream.bytes) return end_frame(stream);
  if (stream.unwanted) return drain(stream);
  return receive_into(stream, stream.to + stream.got, stream.bytes - stream.got, &stream.got);
}

// Takes a header from the stage, or fills the stage.
bool RecvLink::read_header(Stream& stream) {
  FrameHeader& header = stream.header;
  if (stream.staged() < sizeof header) {
    memmove(stream.stage.get(), stream.stage.get() + stream.stage_begin, stream.staged());
    stream.stage_end = stream.staged();
    stream.stage_begin = 0;
    const size_t wanted = stream.was_large ? sizeof header : kStageBytes;
    return receive_into(stream, stream.stage.get() + stream.stage_end, wanted - stream.stage_end, &stream.stage_end);
  }
  memcpy(&header, stream.stage.get() + stream.stage_begin, sizeof header);
  stream.stage_begin += sizeof header;
  if (!is_valid(header)) return fail_for_strange_data();
  stream.in_frame = true;
  stream.bytes = division_.size(header.bytes, header.piece);
  stream.was_large = stream.bytes > kStageBytes;
  stream.unwanted = false;
  stream.to = nullptr;
  stream.got = 0;
  return true;
}

bool RecvLink::is_valid(const FrameHeader& header) {
  return header.check == check_of(header) && header.bytes <= config_.slot_bytes &&
         header.piece < division_.pieces(header.bytes) && may_come_now(header);
}

// Several connections may bring a piece twice. Two of a pair bring each message once, but not in order.
bool RecvLink::may_come_now(const FrameHeader& header) {
  return several_ || (door_.pairs().is_answered(config_) ? !has_piece(header) : header.number == received_);
}

// Another connection has brought what this one, before it broke or was given up, brings too.
bool RecvLink::has_piece(const FrameHeader& header) {
  if (header.number < received_) return true;
  return window_has(header.number) && (ring_[header.number].there & bit_of(header.piece)) != 0;
}

// If there is a free slot for its message the payload may come: what is staged of it, at once.
bool RecvLink::find_place(Stream& stream) {
  stream.unwanted = has_piece(stream.header);
  if (stream.unwanted) return true;
  if (!window_has(stream.header.number)) return false;
  RecvSlot& slot = ring_[stream.header.number];
  if (slot.all == 0) start_message(slot, stream.header);
  if (slot.header.bytes != stream.header.bytes) return fail_for_strange_data();
  stream.to = slot.data + division_.begin(stream.header.piece);
  stream.got = std::min<size_t>(stream.staged(), stream.bytes);
  memcpy(stream.to, stream.stage.get() + stream.stage_begin, stream.got);
  stream.stage_begin += stream.got;
  return true;
}

void RecvLink::start_message(RecvSlot& slot, const FrameHeader& header) {
  const bool is_posted = header.number == posted_.number && header.bytes == posted_.bytes;
  slot.header = header;
  slot.data = is_posted ? posted_.to : slot.room;
  slot.all = division_.all_of(header.bytes);
  slot.there = 0;
}

bool RecvLink::end_frame(Stream& stream) {
  stream.in_frame = false;
  if (stream.unwanted) return true;
  RecvSlot& slot = ring_[stream.header.number];
  slot.there |= bit_of(stream.header.piece);
  if (!slot.complete()) return true;
  // Who else brings some of it comes too late: its memory may not be ours much longer.
  for (Stream& other : streams_)
    if (other.in_frame && other.header.number == stream.header.number) other.unwanted = true;
  while (received_ - released_ < ring_.size() && ring_[received_].complete()) received_++;
  return true;
}

bool RecvLink::drain(Stream& stream) {
  const size_t bytes = std::min<size_t>(stream.staged(), stream.bytes - stream.got);
  stream.stage_begin += bytes;
  stream.got += bytes;
  if (stream.got == stream.bytes) return true;
  return receive_into(stream, stream.stage.get(), std::min<size_t>(stream.bytes - stream.got, kStageBytes),
                      &stream.got);
}

bool RecvLink::receive_into(Stream& stream, void* to, size_t room, size_t* got) {
  if (std::exchange(stream.drained, false)) return false;  // until the next poll
  for (;;) {
    const ssize_t n = recv_some(stream.fd.get(), stream.fd.channel(), to, room);
    if (n > 0) {
      *got += static_cast<size_t>(n);
      stream.drained = static_cast<size_t>(n) < room;
      return true;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    const int sys_errno = n == 0 ? 0 : errno;
    if (sys_errno == EBADMSG) fail(why_broken(sys_errno), sys_errno);  // others cannot bring what this one had
    if (failure_) return false;
    lose(stream, n == 0 ? why_closed(stream) : system_error("the connection broke", sys_errno).message, sys_errno);
    return false;
  }
}

// What the others hold comes before the failure, and what this one had they bring.
void RecvLink::lose(Stream& stream, const std::string& why, int sys_errno) {
  const auto i = static_cast<size_t>(&stream - streams_.data());
  stream.torn = stream.in_middle();
  stream.in_frame = false;
  wait_set_.drop(i);
  stream.fd.reset();
  // A pair cannot do without: what the other one has brought is still read.
  const bool is_essential = !several_ && sys_errno != 0;
  if (is_essential)
    for (Stream& other : streams_) receive(other);
  if (is_essential ||
      std::all_of(streams_.begin(), streams_.end(), [](const Stream& s) { return !s.fd && s.next.empty(); }))
    fail(why, sys_errno);
  else if (sys_errno != 0)
    log(LogLevel::kWarn, "tcp link from rank %d: connection %zu of %zu is given up: %s; the others go on", config_.peer,
        i + 1, streams_.size(), why.c_str());
}

std::string RecvLink::why_closed(const Stream& stream) const {
  const bool torn =
      stream.in_middle() || std::any_of(streams_.begin(), streams_.end(), [](const Stream& s) { return s.torn; });
  return torn ? "it closed the connection in the middle of a message: its process ended"
              : "it closed the connection: its process ended or its communicator was destroyed";
}

bool RecvLink::fail_for_strange_data() {
  fail("it sent something that is not a message: another program's data, or a bug");
  return false;
}

void RecvLink::fail(const std::string& why, int sys_errno) {
  failure_ = Error{Code::kRemoteError, format("tcp link from rank %d: %s", config_.peer, why.c_str()), config_.peer,
                   sys_errno};
}

// Nothing is written to the user's memory from now on.
void RecvLink::revoke() {
  if (!failure_ && posted_.to != nullptr) fail("its operation has failed");
}

bool RecvLink::wait_begin(tuttiWait* wait) {
  look_out_.note_sleep();
  // What is staged already wakes nobody: it goes to the slots that have become free since the last poll.
  receive_all();
  // Who waits for a slot has something to read, which must not wake us.
  *wait = wait_set_.arm([this](size_t i) -> short { return streams_[i].can_receive() ? POLLIN : 0; });
  wait->peer_cpu_plus_1 = sending_cpu_plus_1(streams_[first_].fd.get());
  return !failure_ && received_ == released_;
}

}  // namespace tutti::tcp
