// The two halves of a shared-memory link. See segment.h for what they share.
#pragma once

#include <optional>
#include <string>

#include "base/dial.h"
#include "transports/adapter.h"
#include "transports/shm/segment.h"

namespace tutti::shm {

// What an endpoint's address says.
struct ShmAddress {
  HostId host;
  char name[32];  // of an abstract UNIX socket: nothing to clean up, and it lives in the network namespace
};

// Both halves: the socket that wakes and tells of death.
class ShmHalf : public LinkHalf {
 protected:
  explicit ShmHalf(int peer) : peer_(peer) {}
  void ring();
  void look();  // reads the socket dry, to see whether the peer has gone
  // A failure shows in the socket only, and looking costs a system call, so poll looks every so often.
  void look_sometimes() {
    if (++polls_ % kPollsPerLook == 0) look();
  }
  Error gone() const;

  static constexpr uint32_t kPollsPerLook = 64;

  int peer_;
  Fd socket_;
  Segment segment_;
  uint64_t messages_ = 0;  // published or released so far
  uint32_t slot_ = 0;      // messages_ % slots
  uint32_t polls_ = 0;
  bool gone_ = false;
};

class SendLink final : public ShmHalf {
 public:
  SendLink(const Dialer::Call& call, const Address& peer_address, const tuttiLinkConfig& config);
  Result<bool> poll() override;
  void* try_acquire() override;
  void publish(uint32_t bytes, const tuttiTag& tag) override;
  bool wait_begin(bool for_slot, tuttiWait* wait) override;
  void wait_end() override;

 private:
  Result<bool> advance_connect();
  Result<void> send_segment();
  bool slot_is_free();

  tuttiLinkConfig config_;
  Dialer dialer_;
  bool segment_sent_ = false;
  bool ready_ = false;
  uint64_t released_seen_ = 0;  // the receiver's count when last looked: spares the cache line
  std::optional<Error> failure_;
};

class RecvLink final : public ShmHalf {
 public:
  RecvLink(int peer, Fd socket, Segment segment);
  Result<bool> poll() override;
  bool try_peek(tuttiMessage* message) override;
  void release() override;
  bool wait_begin(bool for_slot, tuttiWait* wait) override;
  void wait_end() override;

 private:
  bool message_is_there() const;
};

// Receives the segment's descriptor. Nothing yet, an error, or the memfd.
Result<std::optional<Fd>> receive_descriptor(int socket);

}  // namespace tutti::shm
