// One of the connections that a link sends by: what it holds, and what the kernel says about it.
#pragma once

#include <string>

#include "base/dial.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/pairs.h"

namespace tutti::tcp {

inline constexpr int64_t kMs = 1'000'000;  // in ns

// What TCP knows about a connection.
struct KernelView {
  int64_t silent_ns = 0;  // since the last acknowledgement
  uint64_t acknowledged_bytes = 0;
  uint64_t packet_bytes = 0;  // of data in a packet that is full
  uint32_t tries = 0;         // to send the same again, since the last acknowledgement
  // Something was sent since, and time enough to answer has passed. Also the kernel of a stopped process answers.
  bool unanswered = false;
  uint64_t resent = 0;      // segments, since it was connected
  double busy_seconds = 0;  // in which something was not acknowledged
};
KernelView kernel_view(int fd);
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

struct Piece {
  uint64_t number;  // of its message
  uint32_t index;
};

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

// What is in flight by a connection, and how long nothing has been heard of it.
struct Silence {
  // Asks the kernel. `is_loaded`: of late the connection has had its part of what is large.
  void look(int fd, int64_t now, bool is_loaded = false);
  // For so long that others should do its work; never with a limit of 0.
  bool lasts(int64_t limit_ns) const { return view.unanswered && limit_ns > 0 && silent_ns >= limit_ns; }
  // And after so many tries that no bad cable explains it, or for three times as long.
  bool means_loss(int64_t limit_ns) const;
  std::string story() const;

  KernelView view;
  uint64_t waiting_for = 0;  // bytes not acknowledged, at the last look
  int64_t moved_ns = 0;      // since when no more were acknowledged
  int64_t silent_ns = 0;
  AckRate rate;

 private:
  bool was_loaded_ = false;
};

class SendStream {
 public:
  SendStream(Dialer to_peer, size_t most_pieces) : dialer(std::move(to_peer)), in_flight(most_pieces) {}

  size_t frame_bytes() const { return sizeof header + payload_bytes; }
  // Given to this connection and not acknowledged.
  uint64_t outstanding_bytes() const { return written - acknowledged + (busy ? frame_bytes() - frame_sent : 0); }
  double bytes_per_second() const;
  // When it would have brought `bytes` more.
  double finish_seconds(uint64_t bytes) const;
  void connected(SharedFd connection);
  void begin(const Piece& next, const FrameHeader& its_header, const char* data, uint32_t bytes);

  Dialer dialer;
  SharedFd fd;            // once connected, until it is given up
  bool is_heard = false;  // by a receiving half: what comes by it is not this one's

  bool busy = false;  // with a frame of which the kernel has not taken all
  Piece piece{};
  FrameHeader header{};
  const char* payload = nullptr;
  uint32_t payload_bytes = 0;
  size_t frame_sent = 0;

  struct InFlight {
    Piece piece;
    uint64_t end;  // acknowledged once this many bytes of the connection are
  };
  Fifo<InFlight> in_flight;
  uint64_t written = 0, acknowledged = 0;

  Silence silence;
  std::string lost;  // why it was given up, until that is told

  // While it is given up.
  Address address;  // where it led to
  struct Redial {
    bool is_under_way = false;
    uint32_t looks = 0;                 // at the attempt
    int64_t next_ns = 0, pause_ns = 0;  // when the next one begins, and for how long after that
  } redial;
};

}  // namespace tutti::tcp
