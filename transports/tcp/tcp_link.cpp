#include "transports/tcp/tcp_link.h"

#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace tutti::tcp {

void SlotRing::Free::operator()(void* p) const {
  free(p);
}

Result<SlotRing> SlotRing::create(const tuttiLinkConfig& config) {
  constexpr size_t kPage = 4096;
  const size_t bytes = (static_cast<size_t>(config.slots) * config.slot_bytes + kPage - 1) / kPage * kPage;
  SlotRing ring;
  ring.memory_.reset(static_cast<char*>(aligned_alloc(kPage, bytes)));
  if (!ring.memory_)
    return Error{Code::kSystemError, format("no memory for a link with rank %d: %zu bytes", config.peer, bytes),
                 config.peer, ENOMEM};
  ring.slots_.resize(config.slots);
  for (size_t i = 0; i < config.slots; i++) ring.slots_[i].payload = ring.memory_.get() + i * config.slot_bytes;
  return ring;
}

SendLink::SendLink(const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config, SlotRing ring)
    : config_(config), dialer_(call, peer), ring_(std::move(ring)) {}

Result<bool> SendLink::poll() {
  if (!fd_) return advance_connect();
  if (sent_ < published_ && !failure_) flush();
  if (!failure_ && ++polls_ % kPollsPerLook == 0) look();
  if (failure_) return *failure_;
  return true;
}

Result<bool> SendLink::advance_connect() {
  const Dialer::Status status = dialer_.advance();
  if (status == Dialer::Status::kPending) return false;
  if (status == Dialer::Status::kFailed)
    return Error{Code::kRemoteError,
                 format("rank %d cannot be reached over TCP: %s (which networks: TUTTI_SOCKET_IFNAME)", config_.peer,
                        dialer_.story().c_str()),
                 config_.peer};
  fd_ = dialer_.take();
  log(LogLevel::kInfo, "tcp link to rank %d at %s", config_.peer, dialer_.story().c_str());
  return true;
}

void* SendLink::try_acquire() {
  if (published_ - sent_ == ring_.size() || !fd_) return nullptr;
  return ring_[published_].payload;
}

void SendLink::publish(uint32_t bytes, const tuttiTag& tag) {
  ring_[published_++].header = {tag, bytes, kFrameCheck ^ bytes};
  if (!failure_) flush();
}

void SendLink::flush() {
  while (sent_ < published_) {
    Slot& slot = ring_[sent_];
    const size_t frame_bytes = sizeof slot.header + slot.header.bytes;
    const size_t header_left = frame_sent_ < sizeof slot.header ? sizeof slot.header - frame_sent_ : 0;
    const size_t payload_from = frame_sent_ + header_left - sizeof slot.header;
    iovec parts[2] = {{reinterpret_cast<char*>(&slot.header) + (sizeof slot.header - header_left), header_left},
                      {slot.payload + payload_from, slot.header.bytes - payload_from}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) return fail(system_error("sending", errno).message, errno);
    frame_sent_ += static_cast<size_t>(n);
    if (frame_sent_ == frame_bytes) {
      frame_sent_ = 0;
      sent_++;
    }
  }
}

void SendLink::look() {
  char byte;
  const ssize_t n = ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT);
  if (n == 0) fail("it closed the connection", 0);
  if (n > 0) fail("it sent something where nothing is expected", 0);
  if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
    fail(system_error("the connection broke", errno).message, errno);
}

void SendLink::fail(const std::string& why, int sys_errno) {
  failure_ = Error{Code::kRemoteError,
                   format("tcp link to rank %d: %s: its process ended, its communicator was destroyed or the network "
                          "broke",
                          config_.peer, why.c_str()),
                   config_.peer, sys_errno};
}

bool SendLink::wait_begin(bool, tuttiWait* wait) {
  if (!fd_) {
    *wait = {dialer_.fd(), dialer_.events()};
    return !failure_ && dialer_.fd() >= 0;
  }
  *wait = {fd_.get(), POLLOUT};
  return !failure_ && sent_ < published_;
}

RecvLink::RecvLink(const tuttiLinkConfig& config, Fd fd, SlotRing ring)
    : config_(config), fd_(std::move(fd)), ring_(std::move(ring)) {}

Result<bool> RecvLink::poll() {
  receive_all();
  // What arrived before a failure is still to be read.
  if (failure_ && received_ == released_) return *failure_;
  return true;
}

bool RecvLink::try_peek(tuttiMessage* message) {
  if (received_ == released_) return false;
  const Slot& slot = ring_[released_];
  *message = {slot.payload, slot.header.bytes, slot.header.tag};
  return true;
}

void RecvLink::receive_all() {
  while (!failure_ && receive_some()) {
  }
}

// One step of receiving; false when there is nothing more to be done now.
bool RecvLink::receive_some() {
  if (take_staged()) return true;
  if (failure_ || received_ - released_ == ring_.size()) return false;
  if (in_payload_) {
    Slot& slot = ring_[received_];
    if (!receive_into(slot.payload + payload_got_, slot.header.bytes - payload_got_, &payload_got_)) return false;
    if (payload_got_ == slot.header.bytes) {
      in_payload_ = false;
      received_++;
    }
    return true;
  }
  if (stage_begin_ > 0) {
    memmove(stage_, stage_ + stage_begin_, stage_end_ - stage_begin_);
    stage_end_ -= stage_begin_;
    stage_begin_ = 0;
  }
  return receive_into(stage_ + stage_end_, sizeof stage_ - stage_end_, &stage_end_);
}

// Moves what is staged to the next slot; false when the stage is used up or there is no free slot.
bool RecvLink::take_staged() {
  if (received_ - released_ == ring_.size()) return false;
  Slot& slot = ring_[received_];
  if (!in_payload_) {
    if (stage_end_ - stage_begin_ < sizeof slot.header) return false;
    memcpy(&slot.header, stage_ + stage_begin_, sizeof slot.header);
    stage_begin_ += sizeof slot.header;
    if (slot.header.check != (kFrameCheck ^ slot.header.bytes) || slot.header.bytes > config_.slot_bytes) {
      fail("it sent something that is not a message: another program's data, or a bug");
      return false;
    }
    in_payload_ = true;
    payload_got_ = 0;
  }
  const size_t take = std::min(stage_end_ - stage_begin_, slot.header.bytes - payload_got_);
  memcpy(slot.payload + payload_got_, stage_ + stage_begin_, take);
  stage_begin_ += take;
  payload_got_ += take;
  if (payload_got_ < slot.header.bytes) return false;
  in_payload_ = false;
  received_++;
  return true;
}

bool RecvLink::receive_into(void* to, size_t room, size_t* got) {
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), to, room, MSG_DONTWAIT);
    if (n > 0) {
      *got += static_cast<size_t>(n);
      return true;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    const bool torn = in_payload_ || stage_begin_ != stage_end_;
    if (n == 0)
      fail(torn ? "it closed the connection in the middle of a message: its process ended"
                : "it closed the connection: its process ended or its communicator was destroyed");
    else
      fail(system_error("the connection broke", errno).message, errno);
    return false;
  }
}

void RecvLink::fail(const std::string& why, int sys_errno) {
  failure_ = Error{Code::kRemoteError, format("tcp link from rank %d: %s", config_.peer, why.c_str()), config_.peer,
                   sys_errno};
}

bool RecvLink::wait_begin(bool, tuttiWait* wait) {
  *wait = {fd_.get(), POLLIN};
  // What is staged already wakes nobody: it goes to the slots that have become free since the last poll.
  receive_all();
  return !failure_ && received_ == released_;
}

}  // namespace tutti::tcp
