// One of the connections of a link: what it holds, and what the kernel says about it; and which links share one.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/dial.h"
#include "base/fd.h"
#include "base/secure_channel.h"
#include "base/tcp_info.h"
#include "transports/adapter.h"
#include "transports/tcp/frame.h"

namespace tutti::tcp {

class SendLink;
class RecvLink;

inline constexpr int64_t kMs = 1'000'000;  // in ns

// A connection that closes with the last half that uses it.
class SharedFd {
 public:
  SharedFd() = default;
  explicit SharedFd(Fd fd, std::unique_ptr<SecureChannel> channel = nullptr)
      : held_(std::make_shared<Held>(std::move(fd), std::move(channel))) {}
  int get() const { return held_ ? held_->fd.get() : -1; }
  SecureChannel* channel() const { return held_->channel.get(); }  // null: it is not encrypted
  explicit operator bool() const { return held_ != nullptr; }
  void reset() { held_.reset(); }

 private:
  struct Held {
    Held(Fd connected, std::unique_ptr<SecureChannel> secure) : fd(std::move(connected)), channel(std::move(secure)) {}
    Fd fd;
    std::unique_ptr<SecureChannel> channel;
  };
  std::shared_ptr<Held> held_;
};

// What the hello of one of a link's connections says.
inline constexpr uint32_t kAgain = 1u << 31;  // with the index: replaces a broken connection of an existing link
inline std::array<uint32_t, 5> hello_args(const tuttiLinkConfig& config, uint32_t index, uint32_t n_connections) {
  auto args = to_hello_args(config);
  args[3] = index;
  args[4] = n_connections;
  return args;
}

// Bytes written that the peer's kernel has not acknowledged. The peer reads all that it has, whatever becomes of the
// connection.
uint64_t unacknowledged_bytes(int fd);

// The kernel buffers megabytes for a sender, so a slow connection would soon hold more than a fast one.
void keep_queue_short(int fd);
// Sets up a new connection: an idle peer is probed now and then; within a host there is no congestion: Reno is used.
void prepare(int fd, int64_t timeout_seconds);

// The kernel delays acknowledgements where it expects to piggyback them on an answer, as during the handshake.
void acknowledge_soon(int fd);

// 1 + the CPU that the last packet was sent on, if that was on this host; else 0.
uint32_t sending_cpu_plus_1(int fd);

// How fast a connection has been of late: bytes acknowledged per time in which it had something to send. The kernel's
// own figure is a snapshot: where a network lets a burst pass it is ten times too high, and soon after ten times too
// low.
class AckRate {
 public:
  void add(double bytes, double busy_seconds);
  // The connection was idle for that long, while others were not.
  void rest(double seconds);
  double bytes_per_second() const { return bytes_per_second_; }  // 0: not known

 private:
  double bytes_per_second_ = 0;
  double seen_bytes_ = 0, seen_seconds_ = 0;  // recent, older ones count less
  double gap_seconds_ = 0;                    // busy time since the last acknowledgement
};

inline constexpr int64_t kSilenceCheckNs = 100 * kMs;
// What a connection has in flight, and how long its peer has been silent.
struct Silence {
  // Asks the kernel. `is_loaded`: the connection has recently had its share of large messages.
  void look(int fd, int64_t now, bool is_loaded = false);
  // Long enough that other connections should do its work; never with a limit of 0.
  bool lasts(int64_t limit_ns) const { return is_unanswered() && limit_ns > 0 && silent_ns >= limit_ns; }
  // And after more tries than a bad cable explains, or for three times the limit.
  bool means_loss(int64_t limit_ns) const;
  // Something was sent since the last acknowledgement, and there was time enough to answer. Even the kernel of a
  // stopped process answers.
  bool is_unanswered() const;
  std::string story() const;

  tcp_info view{};           // the kernel's, at the last look
  uint64_t waiting_for = 0;  // bytes not acknowledged, at the last look
  int64_t moved_ns = 0;      // when bytes were last acknowledged
  int64_t silent_ns = 0;
  AckRate rate;

 private:
  bool was_loaded_ = false;
};

// Dials a connection and, once that was given up, redials it at growing intervals: always the same address, because
// another would say nothing about its network.
class Redialer {
 public:
  Redialer(const Dialer::Call& call, Dialer first) : again_(call), dialer_(std::move(first)) {
    again_.args[3] |= kAgain;
  }
  Dialer& dialer() { return dialer_; }
  void note_connected(int fd) { address_ = peer_address(fd).value_or(address_); }
  void note_lost() { next_ns_ = now_ns() + std::max(pause_ns_, kFirstPauseNs); }
  // True once the dialer has another connection.
  bool advance(int64_t now);

 private:
  static constexpr int64_t kFirstPauseNs = 500 * kMs, kLongestPauseNs = 10'000 * kMs;
  Dialer::Call again_;
  Dialer dialer_;
  Address address_;  // of the peer, as it was reached
  bool is_under_way_ = false;
  uint32_t looks_ = 0;                  // at the current attempt
  int64_t next_ns_ = 0, pause_ns_ = 0;  // when the next attempt begins, and the pause after it
};

// A connection that a link sends by.
struct SendStream {
  SendStream(const Dialer::Call& call, Dialer first, size_t most_pieces)
      : redialer(call, std::move(first)), in_flight(most_pieces) {}

  // Given to this connection and not acknowledged.
  uint64_t outstanding_bytes() const { return written - acknowledged + (frame ? frame->bytes() - frame->sent : 0); }
  double bytes_per_second() const;
  // How long until it would have delivered `bytes` more. A silent connection may stay silent as long again.
  double finish_seconds(uint64_t bytes) const {
    return static_cast<double>(silence.silent_ns) * 1e-9 +
           static_cast<double>(outstanding_bytes() + bytes) / bytes_per_second();
  }
  // For the first time or again; then other connections have taken all that it had.
  void connected(SharedFd connection) {
    fd = std::move(connection);
    redialer.note_connected(fd.get());
    written = acknowledged = 0;
  }

  Redialer redialer;
  SharedFd fd;                     // once connected, until it is given up
  bool is_heard = false;           // a receiving half reads it: what arrives on it is not for this half
  std::optional<SendFrame> frame;  // that the kernel has not taken completely

  struct InFlight {
    Piece piece;
    uint64_t end;  // acknowledged once this many bytes of the connection are
  };
  Fifo<InFlight> in_flight;
  uint64_t written = 0, acknowledged = 0;

  Silence silence;
  uint64_t resent_before = 0;  // by its connections that were given up
  std::string lost;            // why it was given up, until that is logged
};

// Frames are received through a small stage, so that many small ones cost one system call; what a large frame has
// beyond the stage goes straight to its destination.
class Stage {
 public:
  static constexpr size_t kBytes = 8192;
  size_t bytes() const { return end_ - begin_; }
  // Takes up to `most` of the first bytes, to `to`, or discards them if that is null.
  size_t take(void* to, size_t most) {
    const size_t n = std::min(most, bytes());
    if (to != nullptr) memcpy(to, buffer_.get() + begin_, n);
    begin_ += n;
    return n;
  }
  // Free room behind the staged bytes, for kBytes in all.
  char* room() {
    memmove(buffer_.get(), buffer_.get() + begin_, bytes());
    end_ -= std::exchange(begin_, 0);
    return buffer_.get() + end_;
  }
  void add(size_t n) { end_ += n; }

 private:
  std::unique_ptr<char[]> buffer_ = std::make_unique<char[]>(kBytes);
  size_t begin_ = 0, end_ = 0;
};

// A connection that a link receives by.
struct RecvStream {
  bool in_middle() const {
    return frame || stage.bytes() > 0 || (fd && fd.channel() != nullptr && fd.channel()->has_rest());
  }
  bool can_receive() const { return !frame || frame->unwanted || frame->to != nullptr; }

  SharedFd fd;                // until it is lost
  std::deque<SharedFd> next;  // replacements, each used once all of the one before has been read
  Stage stage = {};
  std::optional<RecvFrame> frame = {};
  Silence silence = {};
  bool torn = false;       // lost in the middle of a frame
  bool drained = false;    // the last read got less than it asked for: another one now would get nothing
  bool was_large = false;  // the previous frame was: keep the next one's payload out of the stage
};

// Identifies one of an endpoint's links: peer and channel.
using Place = std::pair<int, uint32_t>;
inline Place place_of(const tuttiLinkConfig& config) {
  return {config.peer, config.channel};
}

// The halves of an endpoint's links, to join those that make a pair.
//
// Two ranks with a link each way, of one connection each, share the lower rank's: the higher rank sends small messages
// back on it. So acknowledgements are piggybacked on messages in the other direction: on bare sockets an exchange of 8
// B sends two segments instead of three, and takes 4.6 us instead of 5.2. Large messages have a connection for each
// direction: over a single one 1 MiB takes 1.6 times as long.
class Pairs {
 public:
  explicit Pairs(int rank) : rank_(rank) {}
  // Enters a SendLink once it is connected, a RecvLink once it is made.
  template <class Half>
  void enter(Half* half, const tuttiLinkConfig& config) {
    Halves& halves = halves_[place_of(config)];
    std::get<Half*>(halves) = half;
    join(halves, config);
  }
  // A place may have a new half already.
  template <class Half>
  void leave(Half* half, const tuttiLinkConfig& config) {
    const auto found = halves_.find(place_of(config));
    if (found == halves_.end()) return;
    if (std::get<Half*>(found->second) == half) std::get<Half*>(found->second) = nullptr;
    if (found->second == Halves{}) halves_.erase(found);
  }
  // Null if there is none.
  RecvLink* receiver(const tuttiLinkConfig& config) const {
    const auto found = halves_.find(place_of(config));
    return found == halves_.end() ? nullptr : std::get<RecvLink*>(found->second);
  }
  // Whether the peer's small messages come back on this side's connection, not the other way round.
  bool is_answered(const tuttiLinkConfig& config) const { return rank_ < config.peer; }

 private:
  using Halves = std::tuple<SendLink*, RecvLink*>;  // null: not there
  void join(const Halves& halves, const tuttiLinkConfig& config);

  int rank_;
  std::map<Place, Halves> halves_;
};

}  // namespace tutti::tcp
