// tcp: links over TCP connections. TCP's own window is the flow control: a receiver whose slots are all full stops
// reading. A link has one connection or several side by side (TUTTI_TCP_CONNECTIONS): whichever is free takes the next
// message, so that a slow one does not set the rate, and the receiver puts them back in order. One thread per endpoint;
// nothing blocks.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/dial.h"
#include "transports/adapter.h"
#include "transports/tcp/frame.h"

namespace tutti::tcp {

inline constexpr uint32_t kMaxConnections = 16;

// What the hello of one of a link's connections says.
inline std::array<uint32_t, 5> hello_args(const tuttiLinkConfig& config, uint32_t index, uint32_t n_connections) {
  auto args = to_hello_args(config);
  args[3] = index;
  args[4] = n_connections;
  return args;
}

// Several connections as one descriptor for poll(2); a single one is its own.
class WaitSet {
 public:
  static Result<WaitSet> create(std::vector<int> fds);
  bool empty() const { return fds_.empty(); }
  // Before waiting: which of them to wait for, wanted(i), for POLLIN or POLLOUT.
  template <class Wanted>
  tuttiWait arm(short events, Wanted&& wanted) const {
    if (fds_.size() == 1) return {fds_[0], events};
    for (size_t i = 0; i < fds_.size(); i++) watch(fds_[i], wanted(i) ? events : 0);
    return {epoll_.get(), POLLIN};
  }

 private:
  void watch(int fd, short events) const;
  std::vector<int> fds_;
  Fd epoll_;
};

class SendLink final : public LinkHalf {
 public:
  SendLink(const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config, uint32_t n_connections,
           SlotRing ring);
  Result<bool> poll() override;
  void* try_acquire() override;
  void publish(uint32_t bytes, const tuttiTag& tag) override;
  bool lend(const void* data, uint32_t bytes, const tuttiTag& tag) override;
  uint32_t unsent() override { return static_cast<uint32_t>(published_ - sent_); }
  void recall() override;
  bool wait_begin(bool for_slot, tuttiWait* wait) override;
  void wait_end() override {}

 private:
  struct Stream {
    Dialer dialer;
    Fd fd;              // once connected
    bool busy = false;  // with the message `number`, of which the kernel has taken frame_sent bytes
    uint64_t number = 0;
    size_t frame_sent = 0;
  };
  Result<bool> advance_connect();
  bool is_ready() const { return !wait_set_.empty(); }
  void send_frame(const char* data, uint32_t bytes, const tuttiTag& tag);
  void flush();
  void flush(Stream& stream);
  void look(Stream& stream);
  void fail(const std::string& why, int sys_errno);

  // While nothing is sent, only a read shows that the peer has gone. It costs a system call, so every so often.
  static constexpr uint32_t kPollsPerLook = 256;

  tuttiLinkConfig config_;
  std::vector<Stream> streams_;
  WaitSet wait_set_;
  SlotRing ring_;
  uint64_t published_ = 0;
  uint64_t taken_ = 0;  // by some connection
  uint64_t sent_ = 0;   // all before were handed to the kernel whole
  uint32_t polls_ = 0;
  std::optional<Error> failure_;
};

class RecvLink final : public LinkHalf {
 public:
  static Result<std::unique_ptr<RecvLink>> create(const tuttiLinkConfig& config, std::vector<Fd> connections);
  Result<bool> poll() override;
  bool try_peek(tuttiMessage* message) override;
  void release() override { ring_[released_++].done = false; }
  void expect(void* to, uint32_t bytes) override { expected_ = {released_, static_cast<char*>(to), bytes}; }
  void recall() override;
  bool wait_begin(bool for_slot, tuttiWait* wait) override;
  void wait_end() override {}

 private:
  // Frames are received through a small stage, so that many small ones cost one system call; what a large frame has
  // beyond the stage goes straight to its place.
  static constexpr size_t kStageBytes = 8192;
  struct Stream {
    Fd fd;
    std::unique_ptr<char[]> stage = std::make_unique<char[]>(kStageBytes);
    size_t stage_begin = 0, stage_end = 0;
    bool closed = false;     // by the peer
    bool drained = false;    // the last read got less than it asked for: another one now would get nothing
    bool in_frame = false;   // whose header was read
    bool was_large = false;  // the frame before: then the next one's payload had better not come through the stage
    FrameHeader header;
    char* to = nullptr;  // where its payload goes; null as long as there is no free slot
    size_t got = 0;

    size_t staged() const { return stage_end - stage_begin; }
  };
  struct Expected {
    uint64_t number = UINT64_MAX;
    char* to = nullptr;
    uint32_t bytes = 0;
  };
  RecvLink(const tuttiLinkConfig& config, SlotRing ring) : config_(config), ring_(std::move(ring)) {}
  bool window_has(uint64_t number) { return number - released_ < ring_.size(); }
  void receive_all();
  bool receive_some(Stream& stream);
  bool read_header(Stream& stream);
  void place(Stream& stream);
  bool end_frame(Stream& stream);
  bool receive_into(Stream& stream, void* to, size_t room, size_t* got);
  void end_stream(Stream& stream);
  void fail(const std::string& why, int sys_errno = 0);

  tuttiLinkConfig config_;
  std::vector<Stream> streams_;
  WaitSet wait_set_;
  SlotRing ring_;
  uint64_t received_ = 0;  // all before are there whole
  uint64_t released_ = 0;
  Expected expected_;
  std::optional<Error> failure_;
};

}  // namespace tutti::tcp
