#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {
namespace {

constexpr int64_t kFirstPauseNs = kMs / 5, kLongestPauseNs = 10 * kMs;
// Payloads that are copied behind their header: one piece of memory costs the kernel 0.2 us less than two.
constexpr uint32_t kTogetherBytes = 512;

// One system call's part of what is left of the frame: its bytes, or -1 and errno.
ssize_t hand_over(SendStream& stream) {
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  constexpr size_t kHeaderBytes = sizeof stream.header;
  SecureChannel* const channel = stream.fd.channel();
  if (channel == nullptr && stream.frame_sent == 0 && stream.payload_bytes <= kTogetherBytes) {
    char frame[kHeaderBytes + kTogetherBytes];
    memcpy(frame, &stream.header, kHeaderBytes);
    if (stream.payload_bytes > 0) memcpy(frame + kHeaderBytes, stream.payload, stream.payload_bytes);
    return ::send(stream.fd.get(), frame, stream.frame_bytes(), kFlags);
  }
  const size_t header_left = kHeaderBytes - std::min(stream.frame_sent, kHeaderBytes);
  const size_t payload_from = stream.frame_sent + header_left - kHeaderBytes;
  iovec parts[2] = {{reinterpret_cast<char*>(&stream.header) + (kHeaderBytes - header_left), header_left},
                    {const_cast<char*>(stream.payload) + payload_from, stream.payload_bytes - payload_from}};
  if (channel != nullptr) return channel->send(stream.fd.get(), {parts[0], parts[1]});
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return ::sendmsg(stream.fd.get(), &message, kFlags);
}

}  // namespace

SendLink::SendLink(const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config, uint32_t n_connections,
                   int64_t timeout_seconds, SlotRing<SendSlot> ring, Pairs& pairs)
    : pairs_(pairs),
      call_(call),
      config_(config),
      division_(config.slot_bytes, n_connections),
      timeout_ns_(timeout_seconds * 1000 * kMs),
      several_(n_connections > 1),
      ring_(std::move(ring)),
      again_(division_.most(config.slots)) {
  call_.door = peer.door;
  for (uint32_t i = 0; i < n_connections; i++) {
    Dialer::Call one = call;
    one.args = hello_args(config, i, n_connections);
    streams_.emplace_back(Dialer(one, peer, i), division_.most(config.slots));
    streams_.back().is_heard = !several_ && pairs.is_answered(config);
  }
}

Result<bool> SendLink::poll() {
  if (failure_) return *failure_;
  if (!is_ready()) {
    auto ready = advance_connect();
    if (!ready) failure_ = ready.error();
    return ready;
  }
  wait_set_.note_poll();
  if (arrived_ < published_) flush();
  // While nothing is sent, only a read shows that the peer has gone.
  const bool is_time = look_out_.is_time();
  if (is_time) listen();
  if (is_time || awaits_acknowledgements()) look_at_silence();
  if (failure_) return *failure_;
  return true;
}

Result<bool> SendLink::advance_connect() {
  std::vector<int> fds;
  for (SendStream& stream : streams_) {
    if (!stream.fd) {
      Fd fd;
      TUTTI_TRY_ASSIGN(const bool connected, take_connection(stream.dialer, &fd, config_.peer, "over TCP",
                                                             " (which networks: TUTTI_SOCKET_IFNAME)"));
      if (!connected) continue;
      stream.connected(SharedFd(std::move(fd), stream.dialer.take_channel()));
      if (several_) keep_queue_short(stream.fd.get());
      prepare(stream.fd.get(), timeout_ns_ / (1000 * kMs));
      log(LogLevel::kInfo, "tcp link to rank %d at %s", config_.peer, stream.dialer.story().c_str());
    }
    fds.push_back(stream.fd.get());
  }
  if (fds.size() < streams_.size()) return false;
  TUTTI_TRY_ASSIGN(wait_set_, WaitSet::create(fds));
  pairs_.enter(this, config_);
  return true;
}

// Where that is not possible everything goes by its own: the peer hears both.
void SendLink::answer_by(const SharedFd& connection) {
  if (streams_.size() > 1 || !wait_set_.add(connection.get())) return;
  SendStream& stream = streams_.emplace_back(Dialer(call_, std::vector<Address>{}), division_.most(config_.slots));
  stream.connected(connection);
  stream.is_heard = true;
}

// The kernel copies from any memory.
tuttiRoom SendLink::acquire(const void* data, uint32_t, tuttiPosting, void** at) {
  if (!is_ready()) return TUTTI_NO_ROOM;
  if (several_ && is_full()) confirm();
  if (is_full()) return TUTTI_NO_ROOM;
  *at = ring_[published_].room;
  return data != nullptr ? TUTTI_EXPOSED : TUTTI_SLOT;
}

int SendLink::publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
  SendSlot& slot = ring_[published_];
  slot.header = make_header(tag, published_++, bytes);
  slot.data = data != nullptr ? static_cast<const char*>(data) : slot.room;
  slot.all = division_.all_of(bytes);
  slot.handed = slot.acknowledged = 0;
  waiting_bytes_ += bytes;
  if (!failure_) flush();
  return 1;
}

// A copy that a kernel has taken is on its way, and who has published it need not stay: what a connection that breaks
// later has lost is sent again when this side looks at its link the next time, or leaves it. The user's memory is only
// given back when it will never be read again.
uint32_t SendLink::unsent() {
  if (several_ && !failure_) confirm();
  uint32_t messages = 0;
  for (uint64_t i = arrived_; i < published_; i++) {
    const SendSlot& slot = ring_[i];
    messages += (slot.is_exposed() ? slot.acknowledged : slot.handed) != slot.all;
  }
  return messages;
}

void SendLink::fill(tuttiLinkState* state) {
  state->unsent = unsent();
  state->resent = resent_;
  for (const SendStream& stream : streams_) state->resent += stream.silence.view.resent;
}

// A connection that the kernel takes no more from keeps its piece; the others go on with the next ones.
void SendLink::flush() {
  if (several_) measure();
  for (SendStream& stream : streams_)
    if (stream.busy) write(stream);
  while (has_next() && !failure_) {
    const uint32_t bytes = size_of(again_.empty() ? next_ : again_.front());
    SendStream* stream = choose(bytes);
    if (stream == nullptr) break;
    const Piece piece = take_next();
    const SendSlot& slot = ring_[piece.number];
    stream->begin(piece, make_header(slot.header.tag, piece.number, slot.header.bytes, piece.index),
                  slot.data + division_.begin(piece.index), bytes);
    write(*stream);
  }
  confirm();
}

void SendLink::measure() {
  const int64_t now = now_ns();
  if (now - measured_ns_ < kMs) return;
  measured_ns_ = now;
  const bool is_loaded = published_ > 0 && division_.pieces(ring_[published_ - 1].header.bytes) > 1;
  for (SendStream& stream : streams_)
    if (stream.fd) stream.silence.look(stream.fd.get(), now, is_loaded);
}

uint32_t SendLink::size_of(const Piece& piece) {
  return division_.size(ring_[piece.number].header.bytes, piece.index);
}

Piece SendLink::take_next() {
  Piece piece = next_;
  if (!again_.empty()) {
    piece = again_.front();
    again_.pop();
  } else if (++next_.index == division_.pieces(ring_[piece.number].header.bytes)) {
    next_ = {piece.number + 1, 0};
  }
  waiting_bytes_ -= size_of(piece);
  return piece;
}

// The connection that should bring the next piece soonest. If the kernel takes nothing for that one now, another may
// have it, unless all the rest would be through before. Null: none has room that should have it.
SendStream* SendLink::choose(uint32_t bytes) {
  if (!several_) {
    SendStream& stream = bytes <= kAnswerBytes ? streams_.back() : streams_.front();
    return stream.busy || !stream.fd ? nullptr : &stream;
  }
  SendStream *soonest = nullptr, *free = nullptr;
  double soonest_s = 0, free_s = 0, bytes_per_second = 0;
  uint64_t all_bytes = waiting_bytes_;
  for (SendStream& stream : streams_) {
    if (!stream.fd) continue;
    const double finish_s = stream.finish_seconds(bytes);
    bytes_per_second += stream.bytes_per_second();
    all_bytes += stream.outstanding_bytes();
    if (soonest == nullptr || finish_s < soonest_s) soonest = &stream, soonest_s = finish_s;
    if (!stream.busy && (free == nullptr || finish_s < free_s)) free = &stream, free_s = finish_s;
  }
  return free == soonest || free_s * bytes_per_second <= static_cast<double>(all_bytes) ? free : nullptr;
}

// Hands the kernel as much of a connection's piece as it takes now; true if that was all.
bool SendLink::write(SendStream& stream) {
  while (stream.frame_sent < stream.frame_bytes()) {
    const ssize_t n = hand_over(stream);
    if (stream.fd.channel() != nullptr) stream.written = stream.fd.channel()->wire_bytes();
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n < 0) {
      give_up(stream, system_error("sending", errno).message, errno);
      return false;
    }
    stream.frame_sent += static_cast<size_t>(n);
    if (stream.fd.channel() == nullptr) stream.written += static_cast<size_t>(n);
  }
  stream.busy = false;
  stream.in_flight.push({stream.piece, stream.written});
  ring_[stream.piece.number].handed |= bit_of(stream.piece.index);
  return true;
}

void SendLink::confirm() {
  const uint64_t before = arrived_;
  for (SendStream& stream : streams_)
    if (stream.fd && !stream.in_flight.empty()) confirm(stream);
  while (arrived_ < published_ && ring_[arrived_].acknowledged == ring_[arrived_].all) arrived_++;
  if (arrived_ != before) pause_ns_ = 0;
}

// What a single connection has lost could not be sent again, so nobody asks.
void SendLink::confirm(SendStream& stream) {
  stream.acknowledged = stream.written;
  if (several_) stream.acknowledged -= std::min(stream.written, unacknowledged_bytes(stream.fd.get()));
  while (!stream.in_flight.empty() && stream.in_flight.front().end <= stream.acknowledged) {
    const Piece& piece = stream.in_flight.front().piece;
    ring_[piece.number].acknowledged |= bit_of(piece.index);
    stream.in_flight.pop();
  }
}

// What has not left by now never does.
void SendLink::revoke() {
  if (!failure_ && unsent() > 0) fail("its operation has failed", 0);
}

bool SendLink::wait_begin(tuttiWait* wait) {
  if (!is_ready()) {
    const auto pending = std::find_if(streams_.begin(), streams_.end(), [](const SendStream& s) { return !s.fd; });
    *wait = {pending->dialer.fd(), pending->dialer.events()};
    return !failure_ && pending->dialer.fd() >= 0;
  }
  look_out_.note_sleep();
  const bool waits = unsent() > 0 || is_full();
  if (several_) pause_ns_ = std::min(std::max(2 * pause_ns_, kFirstPauseNs), kLongestPauseNs);
  // What comes by a connection that another half hears must not wake this one.
  *wait = wait_set_.arm([this](size_t i) -> short { return streams_[i].busy ? POLLRDHUP | POLLOUT : POLLRDHUP; },
                        pause_ns_);
  return !failure_ && waits;
}

}  // namespace tutti::tcp
