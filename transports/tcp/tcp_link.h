// tcp: links over TCP connections, one connection per link. Frames of {tag, length} and payload; TCP's own window is
// the flow control: a receiver whose slots are all full stops reading. One thread per endpoint; nothing blocks.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/dial.h"
#include "transports/adapter.h"

namespace tutti::tcp {

struct FrameHeader {
  tuttiTag tag;
  uint32_t bytes;
  uint32_t check;  // kFrameCheck ^ bytes: a stream that lost its frame boundaries is found out
};
inline constexpr uint32_t kFrameCheck = 0x54545431;

// One frame's room on either side.
struct Slot {
  FrameHeader header;
  char* payload;
};

// The slots of one half, used as a ring.
class SlotRing {
 public:
  static Result<SlotRing> create(const tuttiLinkConfig& config);
  Slot& operator[](uint64_t message) { return slots_[message % slots_.size()]; }
  uint64_t size() const { return slots_.size(); }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<char, Free> memory_;
  std::vector<Slot> slots_;
};

class SendLink final : public LinkHalf {
 public:
  SendLink(const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config, SlotRing ring);
  Result<bool> poll() override;
  void* try_acquire() override;
  void publish(uint32_t bytes, const tuttiTag& tag) override;
  uint32_t unsent() override { return static_cast<uint32_t>(published_ - sent_); }
  bool wait_begin(bool for_slot, tuttiWait* wait) override;
  void wait_end() override {}

 private:
  Result<bool> advance_connect();
  void flush();
  void look();
  void fail(const std::string& why, int sys_errno);

  // While nothing is sent, only a read shows that the peer has gone. It costs a system call, so every so often.
  static constexpr uint32_t kPollsPerLook = 64;

  tuttiLinkConfig config_;
  Dialer dialer_;
  Fd fd_;
  SlotRing ring_;
  uint64_t published_ = 0;
  uint64_t sent_ = 0;      // frames that the kernel has taken whole
  size_t frame_sent_ = 0;  // bytes of the frame `sent_` that it has taken
  uint32_t polls_ = 0;
  std::optional<Error> failure_;
};

class RecvLink final : public LinkHalf {
 public:
  RecvLink(const tuttiLinkConfig& config, Fd fd, SlotRing ring);
  Result<bool> poll() override;
  bool try_peek(tuttiMessage* message) override;
  void release() override { released_++; }
  bool wait_begin(bool for_slot, tuttiWait* wait) override;
  void wait_end() override {}

 private:
  void receive_all();
  bool receive_some();
  bool take_staged();
  bool receive_into(void* to, size_t room, size_t* got);
  void fail(const std::string& why, int sys_errno = 0);

  tuttiLinkConfig config_;
  Fd fd_;
  SlotRing ring_;
  uint64_t received_ = 0;  // whole frames
  uint64_t released_ = 0;
  // Frames are received through a small stage, so that many small ones cost one system call; what a large frame has
  // beyond the stage goes straight to its slot.
  static constexpr size_t kStageBytes = 4096;
  char stage_[kStageBytes];
  size_t stage_begin_ = 0, stage_end_ = 0;
  bool in_payload_ = false;
  size_t payload_got_ = 0;
  std::optional<Error> failure_;
};

}  // namespace tutti::tcp
