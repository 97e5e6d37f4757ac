#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {
namespace {

// The kernel takes megabytes from whoever sends, so a slow connection would soon hold as many messages as a fast one,
// and all would wait for these. Measured, one of four connections at half of its share: 28 % of the rate without, 40 %
// with.
void keep_queue_short(int fd) {
  const int bytes = 64 << 10;
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

}  // namespace

SendLink::SendLink(const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config, uint32_t n_connections,
                   SlotRing ring)
    : config_(config), ring_(std::move(ring)) {
  for (uint32_t i = 0; i < n_connections; i++) {
    Dialer::Call one = call;
    one.args = hello_args(config, i, n_connections);
    streams_.push_back({Dialer(one, peer), Fd()});
  }
}

Result<bool> SendLink::poll() {
  if (failure_) return *failure_;
  if (!is_ready()) return advance_connect();
  if (sent_ < published_) flush();
  if (++polls_ % kPollsPerLook == 0)
    for (Stream& stream : streams_) look(stream);
  if (failure_) return *failure_;
  return true;
}

Result<bool> SendLink::advance_connect() {
  std::vector<int> fds;
  for (Stream& stream : streams_) {
    if (!stream.fd) {
      TUTTI_TRY_ASSIGN(const bool connected, take_connection(stream.dialer, &stream.fd, config_.peer, "over TCP",
                                                             " (which networks: TUTTI_SOCKET_IFNAME)"));
      if (!connected) continue;
      if (streams_.size() > 1) keep_queue_short(stream.fd.get());
      log(LogLevel::kInfo, "tcp link to rank %d at %s", config_.peer, stream.dialer.story().c_str());
    }
    fds.push_back(stream.fd.get());
  }
  if (fds.size() < streams_.size()) return false;
  TUTTI_TRY_ASSIGN(wait_set_, WaitSet::create(std::move(fds)));
  return true;
}

void* SendLink::try_acquire() {
  if (published_ - sent_ == ring_.size() || !is_ready()) return nullptr;
  return ring_[published_].room;
}

void SendLink::publish(uint32_t bytes, const tuttiTag& tag) {
  send_frame(ring_[published_].room, bytes, tag);
}

bool SendLink::lend(const void* data, uint32_t bytes, const tuttiTag& tag) {
  send_frame(static_cast<const char*>(data), bytes, tag);
  return true;
}

void SendLink::send_frame(const char* data, uint32_t bytes, const tuttiTag& tag) {
  Slot& slot = ring_[published_];
  slot.header = make_header(tag, published_++, bytes);
  slot.data = data;
  slot.done = false;
  if (!failure_) flush();
}

// A connection that the kernel takes no more from keeps its message; the others go on with the next ones.
void SendLink::flush() {
  for (Stream& stream : streams_) {
    do {
      if (!stream.busy && taken_ == published_) break;
      if (!stream.busy) stream.number = taken_++;
      stream.busy = true;
      flush(stream);
    } while (!stream.busy && !failure_);
  }
  while (sent_ < taken_ && ring_[sent_].done) sent_++;
}

// As much of its message as the kernel takes now.
void SendLink::flush(Stream& stream) {
  Slot& slot = ring_[stream.number];
  const size_t frame_bytes = sizeof slot.header + slot.header.bytes;
  while (stream.frame_sent < frame_bytes) {
    const size_t header_left = sizeof slot.header - std::min(stream.frame_sent, sizeof slot.header);
    const size_t payload_from = stream.frame_sent + header_left - sizeof slot.header;
    iovec parts[2] = {{reinterpret_cast<char*>(&slot.header) + (sizeof slot.header - header_left), header_left},
                      {const_cast<char*>(slot.data) + payload_from, slot.header.bytes - payload_from}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = ::sendmsg(stream.fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) return fail(system_error("sending", errno).message, errno);
    stream.frame_sent += static_cast<size_t>(n);
  }
  slot.done = true;
  stream.busy = false;
  stream.frame_sent = 0;
}

void SendLink::look(Stream& stream) {
  char byte;
  const ssize_t n = ::recv(stream.fd.get(), &byte, 1, MSG_DONTWAIT);
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

// What has not left by now never does.
void SendLink::recall() {
  if (!failure_ && unsent() > 0) fail("its operation has failed", 0);
}

bool SendLink::wait_begin(bool, tuttiWait* wait) {
  if (!is_ready()) {
    const auto pending = std::find_if(streams_.begin(), streams_.end(), [](const Stream& s) { return !s.fd; });
    *wait = {pending->dialer.fd(), pending->dialer.events()};
    return !failure_ && pending->dialer.fd() >= 0;
  }
  *wait = wait_set_.arm(POLLOUT, [this](size_t i) { return streams_[i].busy; });
  return !failure_ && sent_ < published_;
}

}  // namespace tutti::tcp
