// What the two sides of a link have in common besides the segment: the socket that wakes and tells of death, and
// through which memory is made known; within one process a LocalEnd. And by what names each side gets at memory of the
// other's: at shared memory that it maps or, in the same process, at any. Other private memory goes through slots: to
// have the kernel read it from the other process (process_vm_readv) took 34 us instead of 15 for an all-gather of 256
// KiB, and 39 instead of 25 for a broadcast of 300 KB. One thread per side.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/shared_memory.h"
#include "transports/adapter.h"
#include "transports/shm/local_end.h"
#include "transports/shm/segment.h"

namespace tutti::shm {

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
  // What has come through the socket: bells and parts of notices.
  void take_bytes(const char* bytes, size_t n, Fd descriptor, int peer);
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
  std::string notice_;  // what has come of one, its letter first
  Fd notice_descriptor_;
  std::string why_not_ = "it could not be mapped here";
};

// This side's blocks of shared memory, of which the peer is told through the socket.
class OwnMemory {
 public:
  // Whether there is a block that has all of these bytes.
  bool has(const void* data, size_t bytes, int socket);
  // Says in *where and *at which part of which block they are, once the peer knows it: false if it cannot be told.
  bool describe(const void* data, size_t bytes, int socket, uint32_t* where, uint64_t* at);
  void forget_removed(int socket);

 private:
  std::shared_ptr<const SharedBlock> block_;  // the last one that was found
  std::set<uint64_t> shared_;                 // blocks that the peer knows of
  uint64_t removals_seen_ = 0;
};

class Connection {
 public:
  Connection(int peer, bool writes) : peer_(peer), theirs_(writes) {}
  // Both have the segment. Within one process the socket closes.
  void open(Fd socket, std::unique_ptr<LocalEnd> local) {
    local_ = std::move(local);
    if (!local_) socket_ = std::move(socket);
  }
  bool is_open() const { return local_ != nullptr || socket_; }
  bool is_local() const { return local_ != nullptr; }
  int peer() const { return peer_; }

  // The peer sleeps perhaps: what it says of itself.
  void wake(std::atomic<uint32_t>& sleeps) const {
    if (sleeps.load(std::memory_order_relaxed) != 0) [[unlikely]]
      ring(sleeps);
  }
  int fd() const { return local_ ? local_->fd() : socket_.get(); }  // to sleep on
  void look();  // reads the socket dry, to see whether the peer has gone; tells it of memory that has
  // Only after a sleep: the bell is all links', and one that is looked at before may be what another one sleeps on.
  void look_after_sleep() {
    if (local_) local_->hush();
    look();
  }
  // For poll: a failure shows in the socket only.
  void look_sometimes() {
    if (look_out_.is_time()) look();
  }
  bool is_gone() const { return gone_; }
  Error gone() const { return closed_by(peer_, "shared-memory"); }

  // Whether the peer can get at this memory, which need not be there yet.
  bool may_describe(const void* data, uint32_t bytes) { return local_ || ours_.has(data, bytes, socket_.get()); }
  // Says in *where and *at where memory of this side is, for the peer: false if it cannot get there.
  bool describe(const void* data, uint32_t bytes, uint32_t* where, uint64_t* at);
  // Where that is here, or null.
  char* locate(uint32_t where, uint64_t at, uint32_t bytes);
  const std::string& why_not() const { return theirs_.why_not(); }

 private:
  [[gnu::noinline]] void ring(std::atomic<uint32_t>& sleeps) const;

  LookOut look_out_;
  bool gone_ = false;
  int peer_;
  Fd socket_;
  std::unique_ptr<LocalEnd> local_;  // instead of the socket: the peer is in this process
  OwnMemory ours_;
  PeerMemory theirs_;
};

// As the kernel says, whatever the peer does.
bool is_of_this_process(int socket);
// Receives the segment's descriptor. Nothing yet, an error, or the memfd.
Result<std::optional<Fd>> receive_descriptor(int socket);

}  // namespace tutti::shm
