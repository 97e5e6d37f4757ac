// What the two sides of a link share besides the segment: the socket that wakes the peer, tells of its death and
// announces memory; within one process a LocalPipe instead. And how each side refers to the other's memory: to shared
// memory that it maps or, within one process, to any. Other private memory goes through slots: having the kernel read
// it from the other process (process_vm_readv) took 34 us instead of 15 for an all-gather of 256 KiB, and 39 instead of
// 25 for a broadcast of 300 KB. One thread per side.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/local_pipe.h"
#include "base/shared_memory.h"
#include "transports/adapter.h"
#include "transports/shm/segment.h"

namespace tutti::shm {

// The first byte of each message on the socket.
inline constexpr char kMapped = 'R';  // sender: here is the segment; receiver: I have mapped it
inline constexpr char kBell = 'B';    // both directions: wake up
inline constexpr char kNotice = 'M';  // both directions: a BlockNotice follows

// Announces a block of one side's shared memory through the socket, before the other side reads or writes it.
struct BlockNotice {
  uint64_t block;   // its number, from kFirstBlock up
  uint64_t offset;  // in the file whose descriptor is sent along
  uint64_t bytes;   // 0: forget this block
};

// That a peer has mapped: a process can have only a few times as many mappings. Memory in more goes through slots.
inline constexpr size_t kMostBlocks = 1 << 14;

// The peer's blocks of shared memory that have been mapped here.
class PeerMemory {
 public:
  explicit PeerMemory(bool writes) : writes_(writes) {}  // false: it only reads
  void take_notice(const BlockNotice& notice, const Fd& descriptor, int peer);
  // Null if the block is not mapped or does not have that many bytes at `offset`.
  char* find(uint64_t block, uint64_t offset, uint64_t bytes) const;
  bool knows(uint64_t block) const { return mapped_.contains(block); }
  // Why the last block that failed could not be mapped: kRemoteError if that is the peer's fault.
  const Error& why_not() const { return why_not_; }

 private:
  struct Mapped {
    MappedMemory pages;
    char* data = nullptr;
    size_t bytes = 0;
  };
  bool writes_;
  std::map<uint64_t, Mapped> mapped_;
  Error why_not_{Code::kRemoteError, "it could not be mapped here"};
};

// This side's blocks of shared memory, of which the peer is told through the socket.
class OwnMemory {
 public:
  // Blocks are numbered in 32 bits. A process that has registered memory so often that they do not suffice shares no
  // more.
  static bool has_number(uint64_t id) { return id <= UINT32_MAX - kFirstBlock; }
  // Whether there is a block that has all of these bytes.
  bool has(const void* data, size_t bytes);
  // Sets *where and *at to these bytes' block and offset, once the peer knows the block: false if it cannot be told.
  bool describe(const void* data, size_t bytes, int socket, uint32_t* where, uint64_t* at);
  // Whether the peer has not been told of all blocks that are gone.
  bool owes_news() const { return removals_told_ != SharedMemory::removals(); }
  // Tells it, so that it unmaps them; of those for which the socket has no room now, the next time.
  void tell_news(int socket);

 private:
  std::shared_ptr<const SharedBlock> block_;  // the last block found
  std::set<uint64_t> shared_;                 // blocks that the peer knows of
  uint64_t removals_told_ = 0;
};

class Connection {
 public:
  // `bell`: the eventfd that wakes this thread, whichever of its links within this process rings; opened when needed.
  Connection(int peer, bool writes, std::shared_ptr<Fd> bell) : peer_(peer), bell_(std::move(bell)), theirs_(writes) {}
  // If the peer is in this process, looks for it by the segment's random number: the sender (`end` 0) before it hands
  // the segment over, the receiver (1) once it has it. Both then use one mapping, so that ThreadSanitizer sees that
  // they share memory.
  void meet(Segment& segment, int end, const Fd& socket);
  // Called once both sides have the segment. Within one process the socket is closed.
  void open(Fd socket) {
    is_open_ = true;
    if (local_ && !local_->has_met()) local_.reset();  // one side has no descriptor for a bell
    if (!local_) socket_ = std::move(socket);
  }
  bool is_open() const { return is_open_; }
  bool is_local() const { return local_ != nullptr; }
  int peer() const { return peer_; }

  // Wakes the peer if its flag, `sleeps`, says that it sleeps.
  void wake(std::atomic<uint32_t>& sleeps) const {
    if (sleeps.load(std::memory_order_relaxed) != 0) [[unlikely]]
      ring(sleeps);
  }
  int fd() const { return (local_ ? *bell_ : socket_).get(); }  // to sleep on
  // Drains the socket and notes whether the peer has gone.
  void look();
  // Only after a sleep: all links share the bell, and hushing it earlier may swallow another link's ring.
  void look_after_sleep();
  // For poll: only the socket shows a failure.
  void look_sometimes() {
    if (look_out_.is_time()) look();
  }
  bool is_gone() const { return gone_; }
  Error gone() const { return closed_by(peer_, "shared-memory"); }

  // Whether the peer can access this memory, whose contents need not be there yet.
  bool may_describe(const void* data, uint32_t bytes) { return local_ || ours_.has(data, bytes); }
  // Sets *where and *at to a reference by which the peer can locate() this memory: false if it cannot access it.
  bool describe(const void* data, uint32_t bytes, uint32_t* where, uint64_t* at);
  // Where the peer's memory with this reference is mapped here, or null.
  char* locate(uint32_t where, uint64_t at, uint32_t bytes);
  const Error& why_not() const { return theirs_.why_not(); }
  // Of memory that is gone here: not while the peer may be reading there.
  bool owes_news() const { return ours_.owes_news(); }
  void tell_news() { ours_.tell_news(socket_.get()); }

 private:
  [[gnu::noinline]] void ring(std::atomic<uint32_t>& sleeps) const;

  LookOut look_out_;
  bool is_open_ = false, gone_ = false;
  int peer_;
  Fd socket_;
  std::shared_ptr<Fd> bell_;
  std::unique_ptr<LocalPipe> local_;  // instead of the socket: the peer is in this process
  OwnMemory ours_;
  PeerMemory theirs_;
};

// Receives the segment's memfd; nullopt if it has not arrived yet.
Result<std::optional<Fd>> receive_descriptor(int socket);

}  // namespace tutti::shm
