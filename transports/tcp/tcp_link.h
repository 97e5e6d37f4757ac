// tcp: links over TCP connections. TCP's own window is the flow control: a receiver whose slots are all full stops
// reading. A link has one connection, which the link the other way may share for what is small (pairs.h), or several
// side by side (TUTTI_TCP_CONNECTIONS). Several divide each message: the next piece goes to the connection that should
// bring it soonest, and the receiver puts the pieces where they belong. The sender keeps what the peer's kernel has not
// acknowledged, so that the others can bring what a connection that breaks had, and dials again. One thread per
// endpoint; nothing blocks.
#pragma once

#include <poll.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transports/adapter.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/stream.h"

namespace tutti::tcp {

inline constexpr uint32_t kMaxConnections = 16;

// What the hello of one of a link's connections says.
inline constexpr uint32_t kAgain = 1u << 31;  // with its index: of a link that is there, in place of one that broke
inline std::array<uint32_t, 5> hello_args(const tuttiLinkConfig& config, uint32_t index, uint32_t n_connections) {
  auto args = to_hello_args(config);
  args[3] = index;
  args[4] = n_connections;
  return args;
}

// Several connections as one descriptor for poll(2); a single one is its own.
class WaitSet {
 public:
  static Result<WaitSet> create(const std::vector<int>& fds);
  bool empty() const { return fds_.empty(); }
  // Before waiting: which of them to wait for and for what, events(i) of POLLIN and POLLOUT; and for `pause_ns` at
  // most, or without limit if that is 0. One connection has no limit.
  template <class Events>
  tuttiWait arm(Events&& events, int64_t pause_ns = 0) {
    if (fds_.size() == 1) return {fds_[0], events(0)};
    polls_since_arm_ = 0;
    for (size_t i = 0; i < fds_.size(); i++)
      if (fds_[i] >= 0) watch(i, events(i));
    limit(pause_ns);
    return {epoll_.get(), POLLIN};
  }
  Result<void> add(int fd);
  // Whoever has not slept for a while need not be woken: a descriptor that somebody waits for costs the kernel 0.4 us
  // with each message.
  void note_poll() {
    if (epoll_ && polls_since_arm_ < kPollsAwake && ++polls_since_arm_ == kPollsAwake) unwatch();
  }
  // Before it is closed.
  void drop(size_t i);
  // In place of one that was dropped.
  Result<void> replace(size_t i, int fd);

 private:
  Result<void> become_several();
  Result<void> enter(int fd);
  void watch(size_t i, short events);
  void unwatch();
  void limit(int64_t pause_ns);
  static constexpr uint32_t kPollsAwake = 64;
  static constexpr short kUnwatched = -1;
  std::vector<int> fds_;
  std::vector<short> watched_;  // what the kernel has been told to look for
  uint32_t polls_since_arm_ = 0;
  Fd epoll_;
  Fd timer_;
  bool limited_ = false;
};

// What an endpoint's receiving ends share: connections come in by one door, also those that replace what broke.
class Door {
 public:
  Door(const tuttiEndpointConfig& config, const Key& key, std::vector<Fd> listening, Pairs& pairs)
      : n_ranks_(config.n_ranks), pairs_(pairs), acceptor_(std::move(listening), key, HelloKind::kTcp, config.rank) {}
  void look();
  // The next link whose connections are all there; null if there is none.
  std::unique_ptr<LinkHalf> next(tuttiLinkConfig* config);
  Pairs& pairs() { return pairs_; }
  void narrow(bool here, bool elsewhere) { acceptor_.narrow(here, elsewhere); }
  std::optional<Error> shortage() const { return acceptor_.shortage(); }

 private:
  struct Incomplete {
    tuttiLinkConfig config;
    std::vector<SharedFd> connections;
    std::vector<std::pair<uint32_t, SharedFd>> again;  // with the place of the one that broke already
    bool has_all() const {
      return std::all_of(connections.begin(), connections.end(), [](const SharedFd& fd) { return bool(fd); });
    }
  };
  Result<void> take_in(Acceptor::Accepted& incoming);
  Result<std::unique_ptr<LinkHalf>> make_link(Incomplete incomplete);

  int n_ranks_;
  Pairs& pairs_;
  Acceptor acceptor_;
  std::map<Place, Incomplete> incomplete_;
};

// What only a system call can tell is asked for every so often, and after a sleep.
class LookOut {
 public:
  bool is_time() { return ++polls_ % kPollsPerLook == 0 || std::exchange(has_slept_, false); }
  void note_sleep() { has_slept_ = true; }

 private:
  static constexpr uint32_t kPollsPerLook = 256;
  uint32_t polls_ = 0;
  bool has_slept_ = false;
};
inline constexpr int64_t kSilenceCheckNs = 100'000'000;

class SendLink final : public LinkHalf {
 public:
  SendLink(const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config, uint32_t n_connections,
           int64_t timeout_seconds, SlotRing<SendSlot> ring, Pairs& pairs);
  ~SendLink() override;
  // Nothing if there are several.
  SharedFd only_connection() const { return several_ ? SharedFd() : streams_[0].fd; }
  // What is small goes by the connection of the peer's link from now on.
  void answer_by(const SharedFd& connection);
  Result<bool> poll() override;
  void fill(tuttiLinkState* state) override;
  tuttiRoom acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) override;
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag) override;
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;

 private:
  Result<bool> advance_connect();
  bool is_ready() const { return !wait_set_.empty(); }
  bool is_full() const { return published_ - arrived_ == ring_.size(); }
  uint32_t unsent();
  void flush();
  void measure();
  bool write(SendStream& stream);
  bool has_next() const { return !again_.empty() || next_.number < published_; }
  Piece take_next();
  uint32_t size_of(const Piece& piece);
  SendStream* choose(uint32_t bytes);
  void confirm();
  void confirm(SendStream& stream);
  bool awaits_acknowledgements() const { return several_ && arrived_ < published_; }
  void listen();
  void listen(SendStream& stream);
  void look_at_silence();
  void tell_of_lost();
  void redial(SendStream& stream, int64_t now);
  void give_up(SendStream& stream, const std::string& why, int sys_errno = 0);
  void give_to_others(const Piece& piece);
  void fail(const std::string& why, int sys_errno);

  // The largest message that goes by the peer's connection. Of 4, 16, 64 and 256 KiB the best, or as good, at every
  // size; with the larger ones an all-reduce of 64 KiB takes up to a tenth longer.
  static constexpr uint32_t kAnswerBytes = 16 << 10;

  Pairs& pairs_;
  Dialer::Call call_;
  tuttiLinkConfig config_;
  Division division_;
  int64_t timeout_ns_;               // 0: none
  bool several_;                     // connections, among which messages are divided
  std::vector<SendStream> streams_;  // if not several: its own, and perhaps the peer's
  WaitSet wait_set_;
  SlotRing<SendSlot> ring_;
  uint64_t published_ = 0;
  uint64_t arrived_ = 0;        // all before need nothing more of this side
  Piece next_{0, 0};            // the first that no connection has taken
  Fifo<Piece> again_;           // before that: what connections had that broke
  uint64_t waiting_bytes_ = 0;  // of both
  uint64_t resent_ = 0;         // by connections that were given up
  LookOut look_out_;
  int64_t measured_ns_ = 0, next_silence_check_ns_ = 0;
  int64_t pause_ns_ = 0;  // between looks for acknowledgements, which wake nobody
  std::optional<Error> failure_;
};

class RecvLink final : public LinkHalf {
 public:
  static Result<std::unique_ptr<RecvLink>> create(Door& door, const tuttiLinkConfig& config,
                                                  std::vector<SharedFd> connections, int64_t timeout_seconds);
  ~RecvLink() override { door_.pairs().leave(this, config_); }
  // Nothing if there are several.
  SharedFd only_connection() const { return several_ ? SharedFd() : streams_[0].fd; }
  // The peer sends by the connection of the link to it too.
  void hear_also(const SharedFd& connection);
  // In place of a connection that the sender has given up.
  Result<void> rejoin(size_t index, SharedFd connection);
  Result<bool> poll() override;
  bool peek(tuttiMessage* message) override;
  void release() override {
    RecvSlot& slot = ring_[released_++];
    slot.all = slot.there = 0;
  }
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required) override {
    if (ahead > 0 || required) return false;
    posted_ = {released_, static_cast<char*>(to), bytes};
    return true;
  }
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;

 private:
  // Frames are received through a small stage, so that many small ones cost one system call; what a large frame has
  // beyond the stage goes straight to its place.
  static constexpr size_t kStageBytes = 8192;
  struct Stream {
    SharedFd fd;                // until it is lost
    std::deque<SharedFd> next;  // come in its place, one after another, as soon as the kernel has nothing more of it
    std::unique_ptr<char[]> stage = std::make_unique<char[]>(kStageBytes);
    size_t stage_begin = 0, stage_end = 0;
    Silence silence;
    bool torn = false;       // lost in the middle of a frame
    bool drained = false;    // the last read got less than it asked for: another one now would get nothing
    bool in_frame = false;   // whose header was read
    bool was_large = false;  // the frame before: then the next one's payload had better not come through the stage
    bool unwanted = false;   // the frame: another connection has brought this piece
    FrameHeader header;
    uint32_t bytes = 0;  // of its payload
    char* to = nullptr;  // where it goes; null as long as there is no free slot
    size_t got = 0;

    size_t staged() const { return stage_end - stage_begin; }
    bool in_middle() const {
      return in_frame || staged() > 0 || (fd && fd.channel() != nullptr && fd.channel()->has_rest());
    }
    bool can_receive() const { return !in_frame || unwanted || to != nullptr; }
  };
  struct Posted {
    uint64_t number = UINT64_MAX;
    char* to = nullptr;
    uint32_t bytes = 0;
  };
  RecvLink(Door& door, const tuttiLinkConfig& config, size_t n_connections, int64_t timeout_seconds,
           SlotRing<RecvSlot> ring)
      : door_(door),
        config_(config),
        division_(config.slot_bytes, n_connections),
        timeout_seconds_(timeout_seconds),
        several_(n_connections > 1),
        ring_(std::move(ring)) {}
  bool window_has(uint64_t number) { return number - released_ < ring_.size(); }
  bool has_piece(const FrameHeader& header);
  bool is_valid(const FrameHeader& header);
  bool may_come_now(const FrameHeader& header);
  void receive_all();
  void receive_by_turns();
  bool receive(Stream& stream);
  bool receive_some(Stream& stream);
  bool read_header(Stream& stream);
  bool find_place(Stream& stream);
  void start_message(RecvSlot& slot, const FrameHeader& header);
  bool drain(Stream& stream);
  bool end_frame(Stream& stream);
  bool receive_into(Stream& stream, void* to, size_t room, size_t* got);
  void lose(Stream& stream, const std::string& why, int sys_errno);
  void change(Stream& stream);
  void look_at_door();
  void look_at_silence();
  std::string why_closed(const Stream& stream) const;
  bool fail_for_strange_data();  // false
  void fail(const std::string& why, int sys_errno = 0);

  // Of several, between looks for connections that come in place of others.
  static constexpr int64_t kLookNs = 10'000'000;
  // Of two connections, looks at the one that has brought something last, for one at the other.
  static constexpr uint32_t kLooksPerTurn = 4;

  Door& door_;
  tuttiLinkConfig config_;
  Division division_;
  int64_t timeout_seconds_;
  int64_t next_look_ns_ = 0;  // at the door, or for silence
  LookOut look_out_;
  bool several_;                 // connections, among which messages are divided
  std::vector<Stream> streams_;  // if not several: the peer's, and perhaps this side's
  size_t first_ = 0;             // of these two, the one that has brought something last
  uint32_t looks_ = 0;
  WaitSet wait_set_;
  SlotRing<RecvSlot> ring_;
  uint64_t received_ = 0;  // all before are there whole
  uint64_t released_ = 0;
  Posted posted_;
  std::optional<Error> failure_;
};

}  // namespace tutti::tcp
