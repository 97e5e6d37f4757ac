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

// Common to both halves: this side's position in the segment, how it sleeps, and its access to the other side's memory.
class ShmHalf : public LinkHalf {
 public:
  void wait_end() override;

 protected:
  ShmHalf(int peer, std::shared_ptr<Exchange> exchange, Exchange::Side side, std::shared_ptr<Fd> bell)
      : exchange_(std::move(exchange)),
        side_(side),
        segment_(exchange_->segment(side)),
        connection_(peer, side == Exchange::Side::kSend, std::move(bell)) {}
  // A side that has announced its sleep must look once more before it sleeps.
  void fall_asleep(tuttiWait* wait);
  // Access to the peer's memory. False if the peer has revoked it.
  bool begin_access() { return has_access_ = theirs().begin(); }
  void end_access();
  // Revokes the peer's access to this side's memory, and ends this side's own. False if that takes the peer too long.
  bool revoke_access();
  bool is_sender() const { return side_ == Exchange::Side::kSend; }
  RevocableAccess<>& theirs() { return is_sender() ? segment_.header().placing : segment_.header().reading; }
  RevocableAccess<>& ours() { return is_sender() ? segment_.header().reading : segment_.header().placing; }
  // The flag that says whether this side sleeps.
  std::atomic<uint32_t>& sleeps() {
    return is_sender() ? segment_.header().sender_sleeps : segment_.header().receiver_sleeps;
  }

  std::shared_ptr<Exchange> exchange_;
  const Exchange::Side side_;
  Segment& segment_;
  SleepBarrier barrier_;
  uint64_t messages_ = 0;    // published or released so far
  uint32_t line_ = 0;        // messages_ % lines
  bool has_access_ = false;  // at a sender: the next message is written to the posted place
  Connection connection_;    // last: not needed for each message
};

class SendLink final : public ShmHalf {
 public:
  SendLink(const Dialer::Call& call, const Address& peer_address, const tuttiLinkConfig& config,
           std::shared_ptr<Exchange> exchange, std::shared_ptr<Fd> bell);
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
  void tell_news();
  char* posted_place(uint32_t bytes);
  char* choose_payload(uint32_t bytes);
  char* chosen_payload() const;
  void note_payload(SlotLine& line);
  void publish_line(SlotLine& line, uint32_t bytes, const tuttiTag& tag);

  uint64_t released_seen_ = 0;               // the receiver's count as last read, to spare the cache line
  uint64_t last_exposed_ = 0;                // number of the last exposed message
  std::optional<Exchange::Payload> chosen_;  // chosen at acquire, instead of the slot's own payload
  bool acquired_ = false, in_half_ = false;
  uint64_t last_whole_ = 0;  // number of the last message that took a slot's own payload whole

  // Until the connection is open:
  tuttiLinkConfig config_;
  Dialer dialer_;
  Fd socket_;
  std::optional<Error> failure_;
};

class RecvLink final : public ShmHalf {
 public:
  RecvLink(int peer, Fd socket, Segment segment, std::shared_ptr<Exchange> exchange, std::shared_ptr<Fd> bell);
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
  // The description, checked, of the message that was looked at last.
  struct Seen {
    uint32_t where = kInSlot, bytes = 0;
    uint64_t at = 0;
  };
  const void* data_of_seen() const;
  // The most bytes that a message at `where` can have.
  uint32_t most_bytes(uint32_t where) const {
    if (where == kInLine) return kLineBytes;
    if (where == kBehindLine) return std::min(kBehindBytes, segment_.slot_bytes());
    return where == kInHalf ? segment_.half_bytes() : segment_.slot_bytes();
  }
  static bool is_passed(uint32_t where) { return where == kPassedOn || where == kPassedBack; }
  static Exchange::Payload passed(const Seen& seen) {
    return {seen.where == kPassedBack, static_cast<uint32_t>(seen.at)};
  }
  Error unreadable(const Error& why) const;

  Seen seen_;
  void* posted_at_ = nullptr;
  uint64_t posted_message_ = 0;
  uint32_t posted_bytes_ = 0;
};

}  // namespace tutti::shm
