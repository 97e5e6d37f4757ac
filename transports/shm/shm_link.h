// The two halves of a shared-memory link. See segment.h for what they share.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/dial.h"
#include "base/shared_memory.h"
#include "transports/adapter.h"
#include "transports/shm/exchange.h"
#include "transports/shm/local_end.h"

namespace tutti::shm {

// What an endpoint's address says.
struct ShmAddress {
  HostId host;
  char name[32];  // of an abstract UNIX socket: nothing to clean up, and it lives in the network namespace
};

// The first bytes of what goes through the socket.
inline constexpr char kMapped = 'R';  // sender: here is the segment; receiver: I have mapped it
inline constexpr char kBell = 'B';    // either way: wake up
inline constexpr char kNotice = 'M';  // either way: a BlockNotice follows

// What a side says about its shared memory through the socket, before the other is to read or write any of it.
struct BlockNotice {
  uint64_t block;   // kFirstBlock and up
  uint64_t offset;  // in the file whose descriptor comes along
  uint64_t bytes;   // 0: forget this block
};

// The peer's blocks of shared memory that have been mapped here.
class PeerMemory {
 public:
  explicit PeerMemory(bool writes) : writes_(writes) {}  // else it is read only
  void take_notice(const BlockNotice& notice, const Fd& descriptor, int peer);
  // Null if it is not mapped or has not so many bytes at `offset`.
  char* find(uint64_t block, uint64_t offset, uint64_t bytes) const;
  bool knows(uint64_t block) const { return mapped_.contains(block); }
  const std::string& why_not() const { return why_not_; }  // one could not be mapped, the last time

 private:
  struct Mapped {
    Mapping pages;
    char* data = nullptr;
    size_t bytes = 0;
  };
  static constexpr size_t kMostBlocks = 1 << 14;  // a process has no more than a few times as many mappings
  bool writes_;
  std::map<uint64_t, Mapped> mapped_;
  std::string why_not_ = "it could not be mapped here";
};

// Both halves: the socket that wakes and tells of death, and through which shared memory is made known. Within one
// process it closes as soon as both have the segment: see local_end.h.
class ShmHalf : public LinkHalf {
 protected:
  ShmHalf(int peer, std::shared_ptr<Exchange> exchange, Exchange::Side side)
      : peer_(peer), exchange_(std::move(exchange)), side_(side), segment_(exchange_->segment(side)) {}
  // The peer sleeps perhaps: what it says of itself.
  void wake(std::atomic<uint32_t>& sleeps) {
    if (sleeps.load(std::memory_order_relaxed) != 0) [[unlikely]]
      ring(sleeps);
  }
  [[gnu::noinline]] void ring(std::atomic<uint32_t>& sleeps);
  void look();  // reads the socket dry, to see whether the peer has gone; tells it of memory that has
  void look_after_sleep();
  // Says in *where and *at where memory of this side is, for the peer: false if it cannot get there.
  bool describe(const void* data, uint32_t bytes, uint32_t* where, uint64_t* at);
  // Where that is here, or null.
  char* locate(uint32_t where, uint64_t at, uint32_t bytes);
  // A failure shows in the socket only, and looking costs a system call, so poll looks every so often.
  void look_sometimes() {
    if (++polls_ % 256 == 0) look();
  }
  Error gone() const;
  // To the peer's memory. False if it has taken that back.
  bool begin_access() { return has_access_ = theirs().begin(); }
  void end_access();
  // The peer's to this side's memory, and ends this side's own. False if the peer goes on for too long.
  bool revoke_access();
  bool is_sender() const { return side_ == Exchange::Side::kSend; }
  RevocableAccess<>& theirs() { return is_sender() ? segment_.header().placing : segment_.header().reading; }
  RevocableAccess<>& ours() { return is_sender() ? segment_.header().reading : segment_.header().placing; }
  bool find_block(const void* data, size_t bytes);
  // A number that stands for this link in both halves: for ThreadSanitizer.
  uint64_t both_know() const { return segment_.header().id; }

  int peer_;
  Fd socket_;
  std::shared_ptr<Exchange> exchange_;
  const Exchange::Side side_;
  Segment& segment_;
  std::unique_ptr<LocalEnd> local_;  // instead of the socket: the peer is in this process
  SleepBarrier barrier_;
  uint64_t messages_ = 0;  // published or released so far
  uint32_t slot_ = 0;      // messages_ % slots
  uint32_t polls_ = 0;
  bool gone_ = false;
  bool has_access_ = false;  // a sender: what is published next is where the receiver posted it
  PeerMemory peer_memory_{is_sender()};

 private:
  void take_bytes(const char* bytes, size_t n, Fd descriptor);
  bool share_block();
  void forget_removed_blocks();

  std::string notice_;  // what has come of one, its letter first
  Fd notice_descriptor_;
  std::shared_ptr<const SharedBlock> block_;  // the last one that was described
  std::set<uint64_t> shared_;                 // blocks that the peer knows of
  uint64_t removals_seen_ = 0;
};

class SendLink final : public ShmHalf {
 public:
  SendLink(const Dialer::Call& call, const Address& peer_address, const tuttiLinkConfig& config,
           std::shared_ptr<Exchange> exchange, std::shared_ptr<Bell> bell);
  ~SendLink() override { SendLink::revoke(); }
  Result<bool> poll() override;
  void fill(tuttiLinkState* state) override { state->unsent = unsent(); }
  tuttiRoom acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) override;
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag) override;
  int push(const void* data, uint32_t bytes, const tuttiTag& tag);
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;
  void wait_end() override;

 private:
  Result<bool> advance_connect();
  Result<void> send_segment();
  bool slot_is_free();
  uint32_t unsent();
  char* posted_place(uint32_t bytes);
  bool expose(const void* data, uint32_t bytes, const tuttiTag& tag);
  char* choose_payload();
  void note_payload(SlotLine& line);
  void publish_line(SlotLine& line, uint32_t bytes, const tuttiTag& tag);

  tuttiLinkConfig config_;
  std::shared_ptr<Bell> bell_;
  Dialer dialer_;
  bool segment_sent_ = false;
  bool ready_ = false;
  uint64_t released_seen_ = 0;               // the receiver's count when last looked: spares the cache line
  uint64_t last_exposed_ = 0;                // the number of the last message whose bytes are read where they lie
  std::optional<Exchange::Payload> chosen_;  // since acquire, instead of the slot's own
  bool acquired_ = false;
  std::optional<Error> failure_;
};

class RecvLink final : public ShmHalf {
 public:
  RecvLink(int peer, Fd socket, Segment segment, std::shared_ptr<Exchange> exchange, std::unique_ptr<LocalEnd> local);
  Result<bool> poll() override;
  bool peek(tuttiMessage* message) override;
  void release() override;
  const void* match(uint32_t bytes, const tuttiTag& tag);
  Result<const void*> read();
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required) override;
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;
  void wait_end() override;

 private:
  bool message_is_there() const {
    return segment_.line(slot_).published.load(std::memory_order_acquire) == messages_ + 1;
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
    return where == kBehindLine ? std::min(kBehindBytes, segment_.slot_bytes()) : segment_.slot_bytes();
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

// As the kernel says, whatever the peer does.
bool is_of_this_process(int socket);
// Receives the segment's descriptor. Nothing yet, an error, or the memfd.
Result<std::optional<Fd>> receive_descriptor(int socket);

}  // namespace tutti::shm
