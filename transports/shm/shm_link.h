// The two halves of a shared-memory link. See segment.h for what they share.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "base/dial.h"
#include "transports/adapter.h"
#include "transports/shm/connection.h"
#include "transports/shm/exchange.h"

namespace tutti::shm {

// What an endpoint's address says.
struct ShmAddress {
  HostId host;
  char name[32];  // of an abstract UNIX socket: nothing to clean up, and it lives in the network namespace
};

// Both halves: how far this side is in the segment, how it sleeps, and its access to memory of the other's.
class ShmHalf : public LinkHalf {
 public:
  void wait_end() override;

 protected:
  ShmHalf(int peer, std::shared_ptr<Exchange> exchange, Exchange::Side side)
      : exchange_(std::move(exchange)),
        side_(side),
        segment_(exchange_->segment(side)),
        connection_(peer, side == Exchange::Side::kSend) {}
  // Whoever says that it sleeps looks once more before it does.
  void fall_asleep(tuttiWait* wait);
  // To the peer's memory. False if it has taken that back.
  bool begin_access() { return has_access_ = theirs().begin(); }
  void end_access();
  // The peer's to this side's memory, and ends this side's own. False if the peer goes on for too long.
  bool revoke_access();
  bool is_sender() const { return side_ == Exchange::Side::kSend; }
  RevocableAccess<>& theirs() { return is_sender() ? segment_.header().placing : segment_.header().reading; }
  RevocableAccess<>& ours() { return is_sender() ? segment_.header().reading : segment_.header().placing; }
  // Whether this side sleeps.
  std::atomic<uint32_t>& sleeps() {
    return is_sender() ? segment_.header().sender_sleeps : segment_.header().receiver_sleeps;
  }
  // A number that stands for this link in both halves: for ThreadSanitizer.
  uint64_t both_know() const { return segment_.header().id; }

  std::shared_ptr<Exchange> exchange_;
  const Exchange::Side side_;
  Segment& segment_;
  SleepBarrier barrier_;
  uint64_t messages_ = 0;    // published or released so far
  uint32_t line_ = 0;        // messages_ % lines
  bool has_access_ = false;  // a sender: what is published next is where the receiver posted it
  Connection connection_;    // after what each message needs
};

class SendLink final : public ShmHalf {
 public:
  SendLink(const Dialer::Call& call, const Address& peer_address, const tuttiLinkConfig& config,
           std::shared_ptr<Exchange> exchange, std::shared_ptr<Bell> bell);
  ~SendLink() override { SendLink::revoke(); }
  Result<bool> poll() override;
  void fill(tuttiLinkState* state) override { state->unsent = unsent(); }
  tuttiRoom acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at);
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag);
  int push(const void* data, uint32_t bytes, const tuttiTag& tag);
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;

 private:
  Result<bool> advance_connect();
  Result<void> send_segment();
  bool slot_is_free(uint32_t bytes) { return messages_ - released_seen_ < segment_.slots() || finds_room(bytes); }
  [[gnu::noinline]] bool finds_room(uint32_t bytes);
  uint32_t unsent();
  char* posted_place(uint32_t bytes);
  char* choose_payload(uint32_t bytes);
  char* chosen_payload() const;
  void note_payload(SlotLine& line);
  void publish_line(SlotLine& line, uint32_t bytes, const tuttiTag& tag);

  uint64_t released_seen_ = 0;               // the receiver's count when last looked: spares the cache line
  uint64_t last_exposed_ = 0;                // the number of the last message whose bytes are read where they lie
  std::optional<Exchange::Payload> chosen_;  // since acquire, instead of the slot's own
  bool acquired_ = false, in_half_ = false;
  uint64_t last_whole_ = 0;  // the number of the last message in the whole of a slot's own payload

  // Until the connection is open:
  tuttiLinkConfig config_;
  std::shared_ptr<Bell> bell_;
  Dialer dialer_;
  Fd socket_;
  std::unique_ptr<LocalEnd> local_;  // offered, in case that the peer is in this process
  std::optional<Error> failure_;
};

class RecvLink final : public ShmHalf {
 public:
  RecvLink(int peer, Fd socket, Segment segment, std::shared_ptr<Exchange> exchange, std::unique_ptr<LocalEnd> local);
  Result<bool> poll() override;
  bool peek(tuttiMessage* message);
  void release();
  const void* match(uint32_t bytes, const tuttiTag& tag);
  Result<const void*> read();
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required);
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;

 private:
  bool message_is_there() const {
    return segment_.line(line_).published.load(std::memory_order_acquire) == messages_ + 1;
  }
  // Of the message that was looked at last, and checked.
  struct Seen {
    uint32_t where = kInSlot, bytes = 0;
    uint64_t at = 0;
  };
  const void* data_of_seen() const;
  // What it has room for, where it is.
  uint32_t most_bytes(uint32_t where) const {
    if (where == kInLine) return kLineBytes;
    if (where == kBehindLine) return std::min(kBehindBytes, segment_.slot_bytes());
    return where == kInHalf ? segment_.half_bytes() : segment_.slot_bytes();
  }
  static bool is_passed(uint32_t where) { return where == kPassedOn || where == kPassedBack; }
  static Exchange::Payload passed(const Seen& seen) {
    return {seen.where == kPassedBack, static_cast<uint32_t>(seen.at)};
  }
  Error unreadable(const std::string& why) const;

  Seen seen_;
  void* posted_at_ = nullptr;
  uint64_t posted_message_ = 0;
  uint32_t posted_bytes_ = 0;
};

}  // namespace tutti::shm
