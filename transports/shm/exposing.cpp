// Messages whose bytes stay where they are: in shared memory that the receiver maps or, in the same process, anywhere.
// Other private memory goes through slots: to have the kernel read it from the other process (process_vm_readv) took 34
// us instead of 15 for an all-gather of 256 KiB, and 39 instead of 25 for a broadcast of 300 KB.
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/membarrier.h"
#include "base/tsan.h"
#include "transports/shm/shm_link.h"

namespace tutti::shm {
namespace {

bool send_notice(int socket, const BlockNotice& notice, const Fd& descriptor) {
  char bytes[1 + sizeof notice] = {kNotice};
  memcpy(bytes + 1, &notice, sizeof notice);
  return send_with_descriptor(socket, bytes, sizeof bytes, descriptor);
}

// What a mapping of this file begins and ends at multiples of: one of huge pages is mapped in whole ones.
uint64_t page_bytes_of(const Fd& file) {
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  struct stat info {};
  const uint64_t block_bytes = fstat(file.get(), &info) == 0 ? static_cast<uint64_t>(info.st_blksize) : 0;
  return block_bytes % page_bytes == 0 ? std::max(block_bytes, page_bytes) : page_bytes;
}

uint32_t number_of(const SharedBlock& block) {
  return kFirstBlock + static_cast<uint32_t>(block.id);
}

}  // namespace

bool ShmHalf::describe(const void* data, uint32_t bytes, uint32_t* where, uint64_t* at) {
  if (local_) {
    *where = kAtAddress;
    *at = reinterpret_cast<uintptr_t>(data);
    return true;
  }
  if (!find_block(data, bytes)) return false;
  *where = number_of(*block_);
  *at = reinterpret_cast<uintptr_t>(data) - block_->begin;
  return share_block();
}

char* ShmHalf::locate(uint32_t where, uint64_t at, uint32_t bytes) {
  if (where == kAtAddress) return local_ ? reinterpret_cast<char*>(at) : nullptr;
  if (!peer_memory_.knows(where)) look();  // its notice came before
  return peer_memory_.find(where, at, bytes);
}

bool SendLink::expose(const void* data, uint32_t bytes, const tuttiTag& tag) {
  if (has_access_) end_access();
  SlotLine& line = segment_.line(slot_);
  if (!describe(data, bytes, &line.where, &line.at)) return false;
  chosen_.reset();
  publish_line(line, bytes, tag);
  last_exposed_ = messages_;
  return true;
}

bool ShmHalf::find_block(const void* data, size_t bytes) {
  forget_removed_blocks();
  if (block_ && block_->contains(data, bytes)) return true;
  block_ = SharedMemory::find(data, bytes);
  return block_ != nullptr;
}

bool ShmHalf::share_block() {
  if (shared_.contains(block_->id)) return true;
  if (!send_notice(socket_.get(), {number_of(*block_), block_->offset, block_->end - block_->begin}, block_->fd))
    return false;
  shared_.insert(block_->id);
  return true;
}

void ShmHalf::forget_removed_blocks() {
  const uint64_t removals = SharedMemory::removals();
  if (std::exchange(removals_seen_, removals) == removals) return;
  block_ = nullptr;
  std::erase_if(shared_, [&](uint64_t id) {
    return !SharedMemory::is_live(id) && send_notice(socket_.get(), {kFirstBlock + id, 0, 0}, Fd());
  });
}

bool is_of_this_process(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 && credentials.pid == getpid();
}

RecvLink::RecvLink(int peer, Fd socket, Segment segment, std::shared_ptr<Exchange> exchange,
                   std::unique_ptr<LocalEnd> local)
    : ShmHalf(peer, std::move(exchange), Exchange::Side::kReceive) {
  local_ = std::move(local);
  exchange_->set(Exchange::Side::kReceive, std::move(segment));
  SegmentHeader& header = segment_.header();
  header.receiver_has_barrier = membarrier_is_there();
  barrier_ = SleepBarrier(membarrier_is_there() && header.sender_has_barrier != 0);
  [[maybe_unused]] const ssize_t n = ::send(socket.get(), &kMapped, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (!local_) socket_ = std::move(socket);
}

void PeerMemory::take_notice(const BlockNotice& notice, const Fd& descriptor, int peer) {
  if (notice.bytes > 0 && !descriptor)
    why_not_ = "its descriptor did not come (has this process run out of them? see ulimit -n)";
  mapped_.erase(notice.block);
  if (notice.bytes == 0 || !descriptor || mapped_.size() >= kMostBlocks) return;
  if (!has_pages(descriptor, notice.offset, notice.bytes)) return;
  const uint64_t page_bytes = page_bytes_of(descriptor), lead = notice.offset % page_bytes;
  const uint64_t whole_bytes = (lead + notice.bytes + page_bytes - 1) / page_bytes * page_bytes;
  Mapping pages = map_shared(descriptor, notice.offset - lead, whole_bytes, writes_);
  if (!pages) {
    if (writes_ && errno == EACCES) return;  // a file that the user has opened for reading
    why_not_ =
        system_error(format("mapping its %llu bytes", static_cast<unsigned long long>(notice.bytes)), errno).message;
    log(LogLevel::kWarn, "memory that rank %d shares is not used: %s", peer, why_not_.c_str());
    return;
  }
  char* const data = pages.get() + lead;
  mapped_[notice.block] = {std::move(pages), data, notice.bytes};
}

char* PeerMemory::find(uint64_t block, uint64_t offset, uint64_t bytes) const {
  const auto found = mapped_.find(block);
  if (found == mapped_.end() || offset > found->second.bytes || bytes > found->second.bytes - offset) return nullptr;
  return found->second.data + offset;
}

Result<const void*> RecvLink::read() {
  if (!begin_access()) return unreadable("its operation has failed there");
  const void* data = locate(seen_.where, seen_.at, seen_.bytes);
  if (data == nullptr) return unreadable(peer_memory_.why_not());
  return data;
}

void ShmHalf::end_access() {
  if (!std::exchange(has_access_, false)) return;
  tsan_release(both_know());
  theirs().end();
}

Error RecvLink::unreadable(const std::string& why) const {
  return {Code::kRemoteError, format("memory that rank %d exposes cannot be read: %s", peer_, why.c_str()), peer_};
}

// Where the next message goes its sender has perhaps decided already.
bool RecvLink::post(uint32_t ahead, void* to, uint32_t bytes, bool required) {
  SegmentHeader& header = segment_.header();
  if (ahead == 0 || required || !describe(to, bytes, &header.posted_where, &header.posted_at)) return false;
  posted_at_ = to;
  posted_message_ = messages_ + ahead + 1;
  header.posted_bytes = posted_bytes_ = bytes;
  tsan_release(both_know());
  header.posted.store(posted_message_, std::memory_order_release);
  return true;
}

char* SendLink::posted_place(uint32_t bytes) {
  SegmentHeader& header = segment_.header();
  if (header.posted.load(std::memory_order_acquire) != messages_ + 1 || read_once(header.posted_bytes) != bytes)
    return nullptr;
  tsan_acquire(both_know());
  char* const to = locate(read_once(header.posted_where), read_once(header.posted_at), bytes);
  return to != nullptr && begin_access() ? to : nullptr;
}

// Whoever reads or writes now ends soon, or has died, or is stopped: then this rank does not stop as well. A thread of
// this process is never stopped alone.
bool ShmHalf::revoke_access() {
  constexpr int64_t kLimitNs = 2'000'000'000, kSoonNs = 10'000'000;
  end_access();
  ours().revoke();
  const int64_t begun_ns = now_ns();
  while (ours().is_used() && !gone_) {
    const int64_t waited_ns = now_ns() - begun_ns;
    if (!local_ && waited_ns > kLimitNs) return false;
    if (waited_ns < kSoonNs)
      sched_yield();
    else
      usleep(1000);
    look();
  }
  tsan_acquire(both_know());
  return true;
}

// A peer that goes on later writes the rest of its message.
void RecvLink::revoke() {
  if (!revoke_access())
    log(LogLevel::kWarn,
        "rank %d is stopped while it writes a sum into this rank's registered memory, in an operation that failed: it "
        "may still write there when it continues",
        peer_);
}

// A peer that goes on later finds that what it has read was taken back: see poll().
void SendLink::revoke() {
  end_access();
  if (unsent() > 0) revoke_access();
}

}  // namespace tutti::shm
