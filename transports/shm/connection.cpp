#include "transports/shm/connection.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/socket.h"

namespace tutti::shm {
namespace {

bool send_notice(int socket, const BlockNotice& notice, const Fd& descriptor) {
  char bytes[1 + sizeof notice] = {kNotice};
  memcpy(bytes + 1, &notice, sizeof notice);
  return send_with_descriptor(socket, bytes, sizeof bytes, descriptor);
}

// The page size of this file's mappings: a file of huge pages is mapped in whole huge pages.
uint64_t page_bytes_of(const Fd& file) {
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  struct stat info {};
  const uint64_t block_bytes = fstat(file.get(), &info) == 0 ? static_cast<uint64_t>(info.st_blksize) : 0;
  return block_bytes % page_bytes == 0 ? std::max(block_bytes, page_bytes) : page_bytes;
}

}  // namespace

void PeerMemory::take_notice(const BlockNotice& notice, const Fd& descriptor, int peer) {
  if (notice.bytes > 0 && !descriptor)
    why_not_ = {Code::kSystemError, "its descriptor did not arrive (has this process run out of them? see ulimit -n)"};
  mapped_.erase(notice.block);
  if (notice.bytes == 0 || !descriptor || mapped_.size() >= kMostBlocks) return;
  if (!has_pages(descriptor, notice.offset, notice.bytes)) return;
  const uint64_t page_bytes = page_bytes_of(descriptor), lead = notice.offset % page_bytes;
  const uint64_t whole_bytes = (lead + notice.bytes + page_bytes - 1) / page_bytes * page_bytes;
  MappedMemory pages = map_shared(descriptor, notice.offset - lead, whole_bytes, writes_);
  if (!pages) {
    if (writes_ && errno == EACCES) return;  // a file that the user has opened read-only
    why_not_ = system_error(format("mapping its %lu bytes", notice.bytes), errno);
    log(LogLevel::kWarn, "memory that rank %d shares is not used: %s", peer, why_not_.message.c_str());
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

bool OwnMemory::has(const void* data, size_t bytes) {
  if (owes_news()) block_ = nullptr;
  if (block_ && block_->contains(data, bytes)) return true;
  block_ = SharedMemory::find(data, bytes);
  return block_ != nullptr;
}

bool OwnMemory::describe(const void* data, size_t bytes, int socket, uint32_t* where, uint64_t* at) {
  if (!has(data, bytes) || !has_number(block_->id)) return false;
  const uint32_t number = kFirstBlock + static_cast<uint32_t>(block_->id);
  *where = number;
  *at = reinterpret_cast<uintptr_t>(data) - block_->begin;
  if (shared_.contains(block_->id)) return true;
  if (shared_.size() >= kMostBlocks) return false;
  if (!send_notice(socket, {number, block_->offset, block_->end - block_->begin}, block_->fd)) return false;
  shared_.insert(block_->id);
  return true;
}

void OwnMemory::tell_news(int socket) {
  const uint64_t removals = SharedMemory::removals();
  if (removals_told_ == removals) return;
  block_ = nullptr;
  bool has_room = true;
  std::erase_if(shared_, [&](uint64_t id) {
    if (!has_room || SharedMemory::is_live(id)) return false;
    return has_room = send_notice(socket, {kFirstBlock + id, 0, 0}, Fd());
  });
  if (has_room) removals_told_ = removals;
}

void Connection::meet(Segment& segment, int end, const Fd& socket) {
  ucred credentials{};  // the kernel's word, which the peer cannot fake
  socklen_t bytes = sizeof credentials;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0 || credentials.pid != getpid())
    return;
  if (!*bell_) bell_->reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!*bell_) return;
  // If the write fails, the eventfd's counter is full: the bell has been rung often enough.
  const auto ring = [bell = bell_] { (void)eventfd_write(bell->get(), 1); };
  local_ = std::make_unique<LocalPipe>(read_once(segment.header().id), end, 1 - end, ring);
  segment.use(std::static_pointer_cast<char>(local_->agree_on(segment.base())));
}

void Connection::ring(std::atomic<uint32_t>& sleeps) const {
  if (sleeps.exchange(0) == 0) return;
  if (local_) return local_->write("");
  // A full socket holds rings enough; a dead peer is noticed by poll.
  [[maybe_unused]] const ssize_t n = ::send(socket_.get(), &kBell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// A notice is sent by one call, of which a UNIX socket takes all or nothing. Its descriptor comes with its first byte.
void Connection::look() {
  if (local_) {
    char nothing;
    gone_ = local_->read(&nothing, 1) == 0;
    return;
  }
  while (!gone_) {
    char what = 0;
    Fd descriptor;
    const ssize_t n = receive_with_descriptor(socket_.get(), &what, 1, &descriptor);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    gone_ = n == 0 || (n < 0 && errno != EINTR);
    if (n <= 0 || what != kNotice) continue;  // a bell has done its work by waking this rank
    BlockNotice notice;
    gone_ = ::recv(socket_.get(), &notice, sizeof notice, MSG_DONTWAIT) != sizeof notice;
    if (!gone_) theirs_.take_notice(notice, descriptor, peer_);
  }
}

void Connection::look_after_sleep() {
  eventfd_t rings;
  if (local_) (void)eventfd_read(bell_->get(), &rings);
  look();
}

bool Connection::describe(const void* data, uint32_t bytes, uint32_t* where, uint64_t* at) {
  if (!local_) return ours_.describe(data, bytes, socket_.get(), where, at);
  *where = kAtAddress;
  *at = reinterpret_cast<uintptr_t>(data);
  return true;
}

char* Connection::locate(uint32_t where, uint64_t at, uint32_t bytes) {
  if (where == kAtAddress) return local_ ? reinterpret_cast<char*>(at) : nullptr;
  if (!theirs_.knows(where)) look();  // its notice was sent before the message
  return theirs_.find(where, at, bytes);
}

Result<std::optional<Fd>> receive_descriptor(int socket) {
  char byte = 0;
  Fd descriptor;
  const ssize_t n = receive_with_descriptor(socket, &byte, 1, &descriptor);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return std::optional<Fd>();
  if (n <= 0)
    return Error{Code::kRemoteError, n < 0
                                         ? system_error("its connection broke before its memory arrived", errno).message
                                         : "it closed its connection before its memory arrived"};
  if (!descriptor)
    return Error{Code::kRemoteError,
                 "its memory arrived without a descriptor (has this process run out of them? see ulimit -n)"};
  return std::optional<Fd>(std::move(descriptor));
}

}  // namespace tutti::shm
