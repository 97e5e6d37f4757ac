#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {
namespace {

constexpr int64_t kFirstPauseNs = kMs / 5, kLongestPauseNs = 10 * kMs;
// Payloads up to this size are copied behind their header: one piece of memory costs the kernel 0.2 us less than two.
constexpr uint32_t kJoinBytes = 512;

// While another connection works: moving the pieces costs less than waiting.
constexpr int64_t kShortTimeoutNs = 2'000 * kMs;

constexpr double kPartingSeconds = 0.5;
// For a peer that does not read, when what a connection had waits for room on another one.
constexpr double kMostRoomSeconds = 30;

// Sends what one system call takes of the rest of the frame: returns its bytes, or -1 and errno.
ssize_t hand_over(const SharedFd& fd, SendFrame& frame) {
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  constexpr size_t kHeaderBytes = sizeof frame.header;
  if (fd.channel() == nullptr && frame.sent == 0 && frame.payload_bytes <= kJoinBytes) {
    char together[kHeaderBytes + kJoinBytes];
    memcpy(together, &frame.header, kHeaderBytes);
    if (frame.payload_bytes > 0) memcpy(together + kHeaderBytes, frame.payload, frame.payload_bytes);
    return ::send(fd.get(), together, frame.bytes(), kFlags);
  }
  const size_t header_left = kHeaderBytes - std::min(frame.sent, kHeaderBytes);
  const size_t payload_from = frame.sent + header_left - kHeaderBytes;
  iovec parts[2] = {{reinterpret_cast<char*>(&frame.header) + (kHeaderBytes - header_left), header_left},
                    {const_cast<char*>(frame.payload) + payload_from, frame.payload_bytes - payload_from}};
  if (fd.channel() != nullptr) return fd.channel()->send(fd.get(), {parts[0], parts[1]});
  const msghdr message{.msg_iov = parts, .msg_iovlen = 2};
  return ::sendmsg(fd.get(), &message, kFlags);
}

}  // namespace

SendLink::SendLink(const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config, uint32_t n_connections,
                   int64_t timeout_seconds, SlotRing<SendSlot> ring, Pairs& pairs)
    : pairs_(pairs),
      config_(config),
      timeout_ns_(timeout_seconds * 1000 * kMs),
      several_(n_connections > 1),
      queue_(Division(config.slot_bytes, n_connections), std::move(ring)) {
  for (uint32_t i = 0; i < n_connections; i++) {
    Dialer::Call one = call;
    one.args = hello_args(config, i, n_connections);
    one.door = peer.door;
    streams_.emplace_back(one, Dialer(one, peer, i), queue_.most_pieces());
    streams_.back().is_heard = !several_ && pairs.is_answered(config);
  }
}

Result<bool> SendLink::poll() {
  if (failure_) return *failure_;
  if (!is_ready_) {
    auto ready = advance_connect();
    if (!ready) failure_ = ready.error();
    return ready;
  }
  // While nothing is sent, only a read shows that the peer has gone.
  const bool is_time = look_out_.is_time();
  if (is_time) listen();
  if (is_time || awaits_acknowledgements()) look_at_silence();
  // Last, so that what a connection had that was just given up leaves by another one at once.
  if (!failure_ && !queue_.has_arrived()) flush();
  if (failure_) return *failure_;
  return true;
}

Result<bool> SendLink::advance_connect() {
  for (SendStream& stream : streams_) {
    if (stream.fd) continue;
    Fd fd;
    TUTTI_TRY_ASSIGN(const bool connected, take_connection(stream.redialer.dialer(), &fd, config_.peer, "over TCP",
                                                           " (TUTTI_SOCKET_IFNAME chooses the networks)"));
    if (!connected) continue;
    adopt(stream, std::move(fd));
    log(LogLevel::kInfo, "tcp link to rank %d at %s", config_.peer, stream.redialer.dialer().story().c_str());
  }
  is_ready_ = std::all_of(streams_.begin(), streams_.end(), [](const SendStream& s) { return bool(s.fd); });
  if (is_ready_) pairs_.enter(this, config_);
  return is_ready_;
}

void SendLink::adopt(SendStream& stream, Fd fd) {
  stream.connected(SharedFd(std::move(fd), stream.redialer.dialer().take_channel()));
  if (several_) keep_queue_short(stream.fd.get());
  prepare(stream.fd.get(), timeout_ns_ / (1000 * kMs));
}

void SendLink::send_small_on(const SharedFd& connection) {
  if (streams_.size() > 1) return;
  const Dialer::Call nobody{};
  SendStream& stream = streams_.emplace_back(nobody, Dialer(nobody, std::vector<Address>{}), queue_.most_pieces());
  stream.connected(connection);
  stream.is_heard = true;
}

// The kernel copies from any memory.
tuttiRoom SendLink::acquire(const void* data, uint32_t, tuttiPosting, void** at) {
  if (!is_ready_) return TUTTI_NO_ROOM;
  if (several_ && queue_.is_full()) confirm();
  if (queue_.is_full()) return TUTTI_NO_ROOM;
  *at = queue_.room();
  return data != nullptr ? TUTTI_EXPOSED : TUTTI_SLOT;
}

void SendLink::fill(tuttiLinkState* state) {
  state->unsent = unsent();
  state->resent = 0;
  for (const SendStream& stream : streams_)
    state->resent += stream.resent_before + stream.silence.view.tcpi_total_retrans;
}

// A connection whose kernel takes no more keeps its piece; the others go on with the next ones.
void SendLink::flush() {
  if (several_) measure();
  for (SendStream& stream : streams_)
    if (stream.frame) write(stream);
  while (queue_.has_next() && !failure_) {
    SendStream* stream = choose(queue_.next_bytes());
    if (stream == nullptr) break;
    stream->frame = queue_.take_next();
    write(*stream);
  }
  confirm();
}

void SendLink::measure() {
  const int64_t now = now_ns();
  if (now - measured_ns_ < kMs) return;
  measured_ns_ = now;
  for (SendStream& stream : streams_)
    if (stream.fd) stream.silence.look(stream.fd.get(), now, queue_.last_was_divided());
}

// The connection that should deliver the next piece first. If the kernel takes nothing for that one now, another may
// have the piece, unless all else would be delivered sooner. Null: no connection that should have it has room.
SendStream* SendLink::choose(uint32_t bytes) {
  if (!several_) {
    SendStream& stream = bytes <= kAnswerBytes ? streams_.back() : streams_.front();
    return stream.frame || !stream.fd ? nullptr : &stream;
  }
  SendStream *soonest = nullptr, *free = nullptr;
  double soonest_s = 0, free_s = 0, bytes_per_second = 0;
  uint64_t all_bytes = queue_.waiting_bytes();
  for (SendStream& stream : streams_) {
    if (!stream.fd) continue;
    const double finish_s = stream.finish_seconds(bytes);
    bytes_per_second += stream.bytes_per_second();
    all_bytes += stream.outstanding_bytes();
    if (soonest == nullptr || finish_s < soonest_s) soonest = &stream, soonest_s = finish_s;
    if (!stream.frame && (free == nullptr || finish_s < free_s)) free = &stream, free_s = finish_s;
  }
  return free == soonest || free_s * bytes_per_second <= static_cast<double>(all_bytes) ? free : nullptr;
}

// Hands the kernel as much of a connection's piece as it takes now.
void SendLink::write(SendStream& stream) {
  SendFrame& frame = *stream.frame;
  while (frame.sent < frame.bytes()) {
    const ssize_t n = hand_over(stream.fd, frame);
    if (stream.fd.channel() != nullptr) stream.written = stream.fd.channel()->wire_bytes();
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) return give_up(stream, system_error("sending", errno).message, errno);
    frame.sent += static_cast<size_t>(n);
    if (stream.fd.channel() == nullptr) stream.written += static_cast<size_t>(n);
  }
  stream.in_flight.push({frame.piece(), stream.written});
  queue_.note_handed(frame.piece());
  stream.frame.reset();
}

void SendLink::confirm() {
  for (SendStream& stream : streams_) {
    if (!stream.fd || stream.in_flight.empty()) continue;
    // What a single connection has lost cannot be sent again, so its acknowledgements do not matter.
    stream.acknowledged = stream.written;
    if (several_) stream.acknowledged -= std::min(stream.written, unacknowledged_bytes(stream.fd.get()));
    for (; !stream.in_flight.empty() && stream.in_flight.front().end <= stream.acknowledged; stream.in_flight.pop())
      queue_.note_acknowledged(stream.in_flight.front().piece);
  }
  if (queue_.free_slots()) pause_ns_ = 0;
}

bool SendLink::wait_begin(tuttiWait* wait) {
  if (!is_ready_) {
    const auto pending = std::find_if(streams_.begin(), streams_.end(), [](const SendStream& s) { return !s.fd; });
    return !failure_ && wait_for(pending->redialer.dialer(), wait);
  }
  look_out_.note_sleep();
  const bool waits = unsent() > 0 || queue_.is_full();
  if (several_) pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
  wait->at_most_ns = static_cast<uint64_t>(pause_ns_);
  // Data on a connection that another half reads must not wake this one.
  for (const SendStream& stream : streams_)
    if (stream.fd) add_wait(wait, stream.fd.get(), stream.frame ? POLLRDHUP | POLLOUT : POLLRDHUP);
  return !failure_ && waits;
}

// From here on: connections that break, or whose peer falls silent. How a sender notices, and what becomes of their
// pieces.

// What was handed over and is not counted as unsent must arrive. After the end of this link the kernel ensures that,
// unless a network breaks; if one does, it shows within kPartingSeconds, and the other connections take what it had.
SendLink::~SendLink() {
  pairs_.leave(this, config_);
  if (unsent() > 0) return;
  Deadline parting = Deadline::after_seconds(kPartingSeconds), room = Deadline::after_seconds(kMostRoomSeconds);
  const auto any = [this](auto what) { return std::any_of(streams_.begin(), streams_.end(), what); };
  const auto is_suspect = [](const SendStream& s) { return s.fd && s.silence.is_unanswered(); };
  const auto was_just_lost = [](const SendStream& s) { return !s.lost.empty(); };
  while (!failure_ && awaits_acknowledgements() &&
         (unsent() > 0 ? !room.passed() : !parting.passed() || any(is_suspect))) {
    if (!poll()) return;
    if (any(was_just_lost)) parting = Deadline::after_seconds(kPartingSeconds);
    usleep(50);
  }
}

void SendLink::listen() {
  for (SendStream& stream : streams_) {
    if (!stream.fd || failure_) continue;
    char byte;
    const ssize_t n = ::recv(stream.fd.get(), &byte, 1, MSG_DONTWAIT | (stream.is_heard ? MSG_PEEK : 0));
    if (n == 0) give_up(stream, "it closed the connection");
    if (n > 0 && !stream.is_heard) fail("it sent data where none was expected", 0);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      give_up(stream, system_error("the connection broke", errno).message, errno);
  }
}

void SendLink::look_at_silence() {
  const int64_t now = now_ns();
  if (failure_ || now < next_silence_check_ns_) return;
  next_silence_check_ns_ = now + kSilenceCheckNs;
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

// A network that recovers carries its share again. When a link ends, its connections close one after another, so only
// this later look can tell that one was lost alone.
void SendLink::redial(SendStream& stream, int64_t now) {
  const auto i = static_cast<size_t>(&stream - streams_.data());
  Dialer& dialer = stream.redialer.dialer();
  if (!stream.lost.empty())
    log(LogLevel::kWarn, "tcp link to rank %d: connection %zu of %zu, at %s, was given up: %s; the others carry on",
        config_.peer, i + 1, streams_.size(), dialer.story().c_str(), stream.lost.c_str());
  stream.lost.clear();
  if (!stream.redialer.advance(now)) return;
  adopt(stream, dialer.take());
  log(LogLevel::kInfo, "tcp link to rank %d: connection %zu of %zu is back, at %s", config_.peer, i + 1,
      streams_.size(), dialer.story().c_str());
}

// Takes a connection's pieces back.
void SendLink::give_up(SendStream& stream, const std::string& why, int sys_errno) {
  for (; !stream.in_flight.empty(); stream.in_flight.pop()) queue_.take_back(stream.in_flight.front().piece);
  if (stream.frame) queue_.take_back(stream.frame->piece());
  stream.frame.reset();
  // Closes at once, instead of retrying for minutes what the other connections send.
  const linger at_once{1, 0};
  setsockopt(stream.fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  stream.resent_before += kernel_info(stream.fd.get()).value_or(tcp_info{}).tcpi_total_retrans;
  stream.silence = {};  // its view counts them, too
  stream.fd.reset();
  stream.lost = why;
  stream.redialer.note_lost();
  if (!several_ || std::none_of(streams_.begin(), streams_.end(), [](const SendStream& s) { return bool(s.fd); }))
    fail(why, sys_errno);
}

void SendLink::fail(const std::string& why, int sys_errno) {
  failure_ = Error{Code::kRemoteError,
                   format("tcp link to rank %d: %s: its process ended, its communicator was destroyed or the network "
                          "broke",
                          config_.peer, why.c_str()),
                   config_.peer, sys_errno};
}

}  // namespace tutti::tcp
