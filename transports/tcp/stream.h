// One of the connections of a link: what it holds, and what the kernel says about it.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/dial.h"
#include "base/tcp_info.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/pairs.h"

namespace tutti::tcp {

inline constexpr int64_t kMs = 1'000'000;  // in ns

// What the hello of one of a link's connections says.
inline constexpr uint32_t kAgain = 1u << 31;  // with its index: of a link that is there, in place of one that broke
inline std::array<uint32_t, 5> hello_args(const tuttiLinkConfig& config, uint32_t index, uint32_t n_connections) {
  auto args = to_hello_args(config);
  args[3] = index;
  args[4] = n_connections;
  return args;
}

// Bytes written that the peer's kernel has not acknowledged. Once it has, the peer reads them, whatever becomes of the
// connection.
uint64_t unacknowledged_bytes(int fd);

// The kernel takes megabytes from whoever sends, so a slow connection would soon hold more than a fast one.
void keep_queue_short(int fd);
// A connection that is new: an idle peer is asked now and then, and within a host congestion is not looked for.
void prepare(int fd, int64_t timeout_seconds);

// The kernel waits with acknowledgements where it expects an answer to take them along, as during the handshake.
void acknowledge_soon(int fd);

// 1 more than the CPU that the last packet was sent on, if that was on this host; else 0.
uint32_t sending_cpu_plus_1(int fd);

// How fast a connection is, from what it had acknowledged while it had something to do, of late. The kernel's own
// figure is of one moment: where a network lets a burst pass it is ten times too high, and soon after ten times too
// low.
class AckRate {
 public:
  void add(double bytes, double busy_seconds);
  // It had nothing to do for so long, while others had.
  void rest(double seconds);
  double bytes_per_second() const { return bytes_per_second_; }  // 0: not known

 private:
  double bytes_per_second_ = 0;
  double seen_bytes_ = 0, seen_seconds_ = 0;  // of late
  double gap_seconds_ = 0;                    // since something was acknowledged
};

inline constexpr int64_t kSilenceCheckNs = 100 * kMs;
// What is in flight by a connection, and how long nothing has been heard of it.
struct Silence {
  // Asks the kernel. `is_loaded`: of late the connection has had its part of what is large.
  void look(int fd, int64_t now, bool is_loaded = false);
  // For so long that others should do its work; never with a limit of 0.
  bool lasts(int64_t limit_ns) const { return is_unanswered() && limit_ns > 0 && silent_ns >= limit_ns; }
  // And after so many tries that no bad cable explains it, or for three times as long.
  bool means_loss(int64_t limit_ns) const;
  // Something was sent since the last acknowledgement, and time enough to answer has passed. Also the kernel of a
  // stopped process answers.
  bool is_unanswered() const;
  std::string story() const;

  tcp_info view{};           // the kernel's, at the last look
  uint64_t waiting_for = 0;  // bytes not acknowledged, at the last look
  int64_t moved_ns = 0;      // since when no more were acknowledged
  int64_t silent_ns = 0;
  AckRate rate;

 private:
  bool was_loaded_ = false;
};

// Dials a connection, and once that was given up, dials it again at growing intervals: to the same address, or that
// would say nothing of its network.
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
  Address address_;  // where it led to
  bool is_under_way_ = false;
  uint32_t looks_ = 0;                  // at the attempt
  int64_t next_ns_ = 0, pause_ns_ = 0;  // when the next one begins, and for how long after that
};

// That a link sends by.
struct SendStream {
  SendStream(const Dialer::Call& call, Dialer first, size_t most_pieces)
      : redialer(call, std::move(first)), in_flight(most_pieces) {}

  // Given to this connection and not acknowledged.
  uint64_t outstanding_bytes() const { return written - acknowledged + (frame ? frame->bytes() - frame->sent : 0); }
  double bytes_per_second() const;
  // When it would have brought `bytes` more. As long as nothing is heard of it, it may take as long again.
  double finish_seconds(uint64_t bytes) const {
    return static_cast<double>(silence.silent_ns) * 1e-9 +
           static_cast<double>(outstanding_bytes() + bytes) / bytes_per_second();
  }
  // For the first time, or anew: then all that it had is with others.
  void connected(SharedFd connection) {
    fd = std::move(connection);
    redialer.note_connected(fd.get());
    written = acknowledged = 0;
  }

  Redialer redialer;
  SharedFd fd;                     // once connected, until it is given up
  bool is_heard = false;           // by a receiving half: what comes by it is not this one's
  std::optional<SendFrame> frame;  // of which the kernel has not taken all

  struct InFlight {
    Piece piece;
    uint64_t end;  // acknowledged once this many bytes of the connection are
  };
  Fifo<InFlight> in_flight;
  uint64_t written = 0, acknowledged = 0;

  Silence silence;
  uint64_t resent_before = 0;  // by those that were given up
  std::string lost;            // why it was given up, until that is told
};

// Frames are received through a small stage, so that many small ones cost one system call; what a large frame has
// beyond the stage goes straight to its place.
class Stage {
 public:
  static constexpr size_t kBytes = 8192;
  size_t bytes() const { return end_ - begin_; }
  // Up to so many of the first, and where to: null: nowhere.
  size_t take(void* to, size_t most) {
    const size_t n = std::min(most, bytes());
    if (to != nullptr) memcpy(to, buffer_.get() + begin_, n);
    begin_ += n;
    return n;
  }
  // Behind them, for kBytes in all.
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

// That a link receives by.
struct RecvStream {
  bool in_middle() const {
    return frame || stage.bytes() > 0 || (fd && fd.channel() != nullptr && fd.channel()->has_rest());
  }
  bool can_receive() const { return !frame || frame->unwanted || frame->to != nullptr; }

  SharedFd fd;                // until it is lost
  std::deque<SharedFd> next;  // come in its place, one after another, as soon as the kernel has nothing more of it
  Stage stage = {};
  std::optional<RecvFrame> frame = {};
  Silence silence = {};
  bool torn = false;       // lost in the middle of a frame
  bool drained = false;    // the last read got less than it asked for: another one now would get nothing
  bool was_large = false;  // the frame before: then the next one's payload had better not come through the stage
};

}  // namespace tutti::tcp
