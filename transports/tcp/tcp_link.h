// tcp: links over TCP connections. TCP's own window is the flow control: a receiver whose slots are all full stops
// reading. A link has one connection, which the link in the other direction may share for small messages (stream.h), or
// several side by side (TUTTI_TCP_CONNECTIONS). Several divide each message: the next piece goes to the connection that
// should deliver it first, and the receiver puts the pieces together. The sender keeps what the peer's kernel has not
// acknowledged, so that the other connections can resend what a broken one had, and redials it. One thread per
// endpoint; nothing blocks.
#pragma once

#include <poll.h>

#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transports/adapter.h"
#include "transports/tcp/messages.h"
#include "transports/tcp/stream.h"

namespace tutti::tcp {

inline constexpr uint32_t kMaxConnections = 16;
static_assert(kMaxConnections <= 1 + std::size(tuttiWait{}.more));

// Shared by an endpoint's receiving ends: all connections come in by one door, including replacements for broken ones.
class Door : public DiallingEndpoint {
 public:
  Door(const tuttiEndpointConfig& config, Listener listener)
      : DiallingEndpoint(config, HelloKind::kTcp, std::move(listener)), pairs_(config.rank) {}
  void look();
  // The next link whose connections are all there; null if there is none.
  std::unique_ptr<LinkHalf> accept(tuttiLinkConfig* config);
  Pairs& pairs() { return pairs_; }
  std::optional<Error> shortage() const { return refusal_ ? refusal_ : DiallingEndpoint::shortage(); }

 private:
  struct Incomplete {
    Hello hello;
    tuttiLinkConfig config;
    std::vector<SharedFd> connections;
    std::vector<std::pair<uint32_t, SharedFd>> again;  // replacements, with the index of the broken one
    bool has_all() const {
      return std::all_of(connections.begin(), connections.end(), [](const SharedFd& fd) { return bool(fd); });
    }
  };
  Result<void> take_in(Acceptor::Accepted& incoming);
  Result<std::unique_ptr<LinkHalf>> make_link(Incomplete& incomplete);

  Pairs pairs_;
  std::list<Incomplete> incomplete_;
  std::optional<Error> refusal_;  // why a link that the peer believes to exist could not be made
};

class SendLink final : public LinkHalf {
 public:
  SendLink(const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config, uint32_t n_connections,
           int64_t timeout_seconds, SlotRing<SendSlot> ring, Pairs& pairs);
  ~SendLink() override;
  // Empty if there are several.
  SharedFd only_connection() const { return several_ ? SharedFd() : streams_[0].fd; }
  // From now on small messages go by the connection of the peer's link.
  void send_small_on(const SharedFd& connection);
  Result<bool> poll() override;
  void fill(tuttiLinkState* state) override;
  tuttiRoom acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at);
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
    queue_.publish(data, bytes, tag);
    if (!failure_) flush();
    return 1;
  }
  // What has not left yet never will, and nobody stays to send again what is lost.
  void revoke() override {
    const bool is_done = unsent() == 0 && !awaits_acknowledgements();
    if (!failure_ && !is_done) fail("its operation has failed", 0);
  }
  bool wait_begin(tuttiWait* wait) override;

 private:
  Result<bool> advance_connect();
  void adopt(SendStream& stream, Fd fd);
  uint32_t unsent() {
    if (several_ && !failure_) confirm();
    return queue_.unsent();
  }
  void flush();
  void measure();
  void write(SendStream& stream);
  SendStream* choose(uint32_t bytes);
  void confirm();
  bool awaits_acknowledgements() const { return several_ && !queue_.has_arrived(); }
  void listen();
  void look_at_silence();
  void redial(SendStream& stream, int64_t now);
  void give_up(SendStream& stream, const std::string& why, int sys_errno = 0);
  void fail(const std::string& why, int sys_errno);

  // The largest message that goes by the peer's connection. Among 4, 16, 64 and 256 KiB it is the best, or as good, at
  // every size; with the larger ones an all-reduce of 64 KiB takes up to a tenth longer.
  static constexpr uint32_t kAnswerBytes = 16 << 10;

  Pairs& pairs_;
  tuttiLinkConfig config_;
  int64_t timeout_ns_;               // 0: none
  bool several_;                     // whether messages are divided among several connections
  std::vector<SendStream> streams_;  // if not several: its own, and perhaps the peer's
  bool is_ready_ = false;            // all of them were connected
  SendQueue queue_;
  LookOut look_out_;
  int64_t measured_ns_ = 0, next_silence_check_ns_ = 0;
  int64_t pause_ns_ = 0;  // between checks for acknowledgements, which wake nobody
  std::optional<Error> failure_;
};

class RecvLink final : public LinkHalf {
 public:
  static Result<std::unique_ptr<RecvLink>> create(Door& door, const tuttiLinkConfig& config,
                                                  std::vector<SharedFd> connections, int64_t timeout_seconds);
  ~RecvLink() override { door_.pairs().leave(this, config_); }
  // Empty if there are several.
  SharedFd only_connection() const { return several_ ? SharedFd() : streams_[0].fd; }
  // The peer also sends by the connection of the link to it.
  void receive_also_on(const SharedFd& connection);
  // In place of a connection that the sender has given up.
  Result<void> rejoin(size_t index, SharedFd connection);
  Result<bool> poll() override;
  bool peek(tuttiMessage* message) {
    if (messages_.is_empty()) return false;
    *message = messages_.front();
    return true;
  }
  void release() { messages_.release(); }
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required) {
    if (ahead > 0 || required) return false;
    messages_.post(static_cast<char*>(to), bytes);
    return true;
  }
  // Nothing is written to the user's memory from now on.
  void revoke() override {
    if (!failure_ && messages_.was_posted_to()) fail("its operation has failed");
  }
  bool wait_begin(tuttiWait* wait) override;

 private:
  RecvLink(Door& door, const tuttiLinkConfig& config, size_t n_connections, int64_t timeout_seconds,
           SlotRing<RecvSlot> ring)
      : door_(door),
        config_(config),
        timeout_seconds_(timeout_seconds),
        several_(n_connections > 1),
        messages_(Division(config.slot_bytes, n_connections), std::move(ring)) {}
  void receive_all();
  void receive_by_turns();
  // Receives all that there is; returns whether there was anything.
  bool receive(RecvStream& stream) {
    bool any = false;
    while (!failure_ && stream.fd && receive_some(stream)) any = true;
    return any;
  }
  bool receive_some(RecvStream& stream);
  bool read_header(RecvStream& stream);
  size_t receive_into(RecvStream& stream, void* to, size_t room);
  // `why` is empty if the peer has closed the connection.
  void lose(RecvStream& stream, std::string why, int sys_errno);
  void change(RecvStream& stream);
  void look();
  bool fail_for_strange_data() {
    fail("it sent something that is not a message: another program's data, or a bug");
    return false;
  }
  void fail(const std::string& why, int sys_errno = 0);

  // With several connections, time between looks for replacements.
  static constexpr int64_t kLookNs = 10 * kMs;
  // With two connections, looks at the one that delivered last, per look at the other.
  static constexpr uint32_t kLooksPerTurn = 4;

  Door& door_;
  tuttiLinkConfig config_;
  int64_t timeout_seconds_;
  int64_t next_look_ns_ = 0;  // at the door, or for silent connections
  LookOut look_out_;
  bool several_;                     // whether messages are divided among several connections
  std::vector<RecvStream> streams_;  // if not several: the peer's, and perhaps this side's
  size_t first_ = 0;                 // index of the stream that delivered last
  uint32_t looks_ = 0;
  Reassembly messages_;
  std::optional<Error> failure_;
};

}  // namespace tutti::tcp
