#include "transports/shm/shm_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor.h"
#include "base/membarrier.h"
#include "base/tsan.h"

namespace tutti::shm {

void ShmHalf::ring(std::atomic<uint32_t>& sleeps) {
  if (sleeps.exchange(0) == 0) return;
  if (local_) return local_->ring_other();
  // A full socket holds rings enough; a dead peer is noticed by poll.
  [[maybe_unused]] const ssize_t n = ::send(socket_.get(), &kBell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ShmHalf::look() {
  if (local_) {
    gone_ = local_->other_has_left();
    return;
  }
  forget_removed_blocks();  // perhaps nothing is exposed any more
  char bytes[256];
  while (!gone_) {
    Fd descriptor;
    const ssize_t n = receive_with_descriptor(socket_.get(), bytes, sizeof bytes, &descriptor);
    if (n > 0) {
      take_bytes(bytes, static_cast<size_t>(n), std::move(descriptor));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    gone_ = true;
  }
}

// Bells need no more than to have woken us. A notice may come in parts, its descriptor with the first; one descriptor
// at most comes at a time, and it belongs to the notice of a new block.
void ShmHalf::take_bytes(const char* bytes, size_t n, Fd descriptor) {
  if (descriptor) notice_descriptor_ = std::move(descriptor);
  for (size_t i = 0; i < n; i++) {
    if (notice_.empty() && bytes[i] != kNotice) continue;
    notice_.push_back(bytes[i]);
    if (notice_.size() <= sizeof(BlockNotice)) continue;
    BlockNotice notice;
    memcpy(&notice, notice_.data() + 1, sizeof notice);
    notice_.clear();
    peer_memory_.take_notice(notice, notice.bytes > 0 ? std::move(notice_descriptor_) : Fd(), peer_);
  }
}

// Only after a sleep: the bell is all links', and one that is looked at before may be what another one sleeps on.
void ShmHalf::look_after_sleep() {
  if (local_) local_->hush();
  look();
}

Error ShmHalf::gone() const {
  return {Code::kRemoteError,
          format("rank %d closed its shared-memory link: its process ended or its communicator was destroyed", peer_),
          peer_};
}

SendLink::SendLink(const Dialer::Call& call, const Address& peer_address, const tuttiLinkConfig& config,
                   std::shared_ptr<Exchange> exchange, std::shared_ptr<Bell> bell)
    : ShmHalf(config.peer, std::move(exchange), Exchange::Side::kSend),
      config_(config),
      bell_(std::move(bell)),
      dialer_(call, std::vector<Address>{peer_address}) {}

Result<bool> SendLink::poll() {
  if (ready_) {
    look_sometimes();
    if (gone_) return gone();
    return true;
  }
  if (failure_) return *failure_;
  auto ready = advance_connect();
  if (!ready) failure_ = ready.error();
  return ready;
}

Result<bool> SendLink::advance_connect() {
  TUTTI_TRY_ASSIGN(const bool connected, take_connection(dialer_, &socket_, peer_, "through shared memory"));
  if (!connected) return false;
  if (!segment_sent_) TUTTI_TRY(send_segment());
  char answer = 0;
  const ssize_t n = ::recv(socket_.get(), &answer, 1, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (n <= 0 || answer != kMapped)
    return Error{
        Code::kRemoteError,
        format("rank %d did not accept a shared-memory link: its process ended, it has no more descriptors (ulimit "
               "-n), or it could not map %u slots of %u bytes (its log has the reason)",
               peer_, config_.slots, config_.slot_bytes),
        peer_};
  barrier_ = SleepBarrier(membarrier_is_there() && segment_.header().receiver_has_barrier != 0);
  if (local_ && !local_->is_joined()) local_.reset();
  if (local_) socket_.reset();
  ready_ = true;
  return true;
}

Result<void> SendLink::send_segment() {
  Fd memfd;
  TUTTI_TRY_ASSIGN(Segment segment, Segment::create(config_.slots, config_.slot_bytes, &memfd));
  segment.header().sender_has_barrier = membarrier_is_there();
  random_bytes(&segment.header().id, sizeof segment.header().id);
  if (is_of_this_process(socket_.get())) local_ = LocalEnd::offer(segment.header().id, bell_);
  // None is free until the receiver has said how it is woken.
  released_seen_ = uint64_t{0} - segment.slots();
  exchange_->set(Exchange::Side::kSend, std::move(segment));
  // One byte after an acknowledged handshake always fits the socket's buffer.
  if (!send_with_descriptor(socket_.get(), &kMapped, 1, memfd))
    return system_error(format("handing shared memory to rank %d", peer_), errno);
  segment_sent_ = true;
  return {};
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

bool SendLink::slot_is_free() {
  if (messages_ - released_seen_ < segment_.slots()) return true;
  if (!ready_) return false;
  released_seen_ = segment_.header().released.load(std::memory_order_acquire);
  tsan_acquire(both_know());
  return messages_ - released_seen_ < segment_.slots();
}

// The same one until it is published, though others may come in meanwhile.
char* SendLink::choose_payload() {
  if (!acquired_) chosen_ = exchange_->choose();
  acquired_ = true;
  return chosen_ ? exchange_->at(*chosen_) : segment_.payload(slot_);
}

tuttiRoom SendLink::acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) {
  if (has_access_) end_access();
  if (!slot_is_free()) return TUTTI_NO_ROOM;
  if (posting == TUTTI_IF_POSTED && (*at = posted_place(bytes)) != nullptr) return TUTTI_POSTED;
  if (data != nullptr && (local_ || find_block(data, bytes))) return TUTTI_EXPOSED;
  *at = choose_payload();
  return TUTTI_SLOT;
}

void SendLink::note_payload(SlotLine& line) {
  line.where = !chosen_ ? kInSlot : chosen_->mine ? kPassedOn : kPassedBack;
  if (!chosen_) return;
  line.at = chosen_->index;
  exchange_->give(*chosen_);
}

int SendLink::publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
  if (data != nullptr) return expose(data, bytes, tag) ? 1 : 0;
  SlotLine& line = segment_.line(slot_);
  if (has_access_) {
    line.where = kInPlace;
    end_access();
  } else if (bytes <= kLineBytes) {
    line.where = kInLine;
    memcpy(line.small, choose_payload(), kLineBytes);
  } else {
    note_payload(line);
  }
  publish_line(line, bytes, tag);
  return 2;
}

int SendLink::push(const void* data, uint32_t bytes, const tuttiTag& tag) {
  if (!slot_is_free()) return 0;
  SlotLine& line = segment_.line(slot_);
  if (bytes <= kLineBytes) {
    line.where = kInLine;
    if (bytes > 0) memcpy(line.small, data, bytes);  // else it may be null
  } else if (bytes <= kBehindBytes) {
    line.where = kBehindLine;
    memcpy(line.behind, data, bytes);
  } else {
    memcpy(choose_payload(), data, bytes);
    note_payload(line);
  }
  publish_line(line, bytes, tag);
  return 2;
}

void SendLink::publish_line(SlotLine& line, uint32_t bytes, const tuttiTag& tag) {
  acquired_ = false;
  line.tag = tag;
  line.bytes = bytes;
  tsan_release(both_know());
  line.published.store(++messages_, std::memory_order_release);
  if (++slot_ == segment_.slots()) slot_ = 0;
  SegmentHeader& header = segment_.header();
  // The next message will ask for it, and it is on the other core.
  if (messages_ - released_seen_ >= segment_.slots()) __builtin_prefetch(&header.released);
  barrier_.busy_side();
  wake(header.receiver_sleeps);
}

// What is exposed and may not have been read yet.
uint32_t SendLink::unsent() {
  if (last_exposed_ > released_seen_) released_seen_ = segment_.header().released.load(std::memory_order_acquire);
  if (last_exposed_ > 0) tsan_acquire(both_know());
  return last_exposed_ > released_seen_ ? static_cast<uint32_t>(last_exposed_ - released_seen_) : 0;
}

bool SendLink::wait_begin(tuttiWait* wait) {
  if (!ready_) {
    *wait = socket_ ? tuttiWait{socket_.get(), POLLIN} : tuttiWait{dialer_.fd(), dialer_.events()};
    return !failure_ && wait->fd >= 0;
  }
  *wait = {local_ ? local_->fd() : socket_.get(), POLLIN, exchange_->tell_cpu()};
  segment_.header().sender_sleeps.store(1, std::memory_order_relaxed);
  barrier_.sleepy_side();
  // What was released since the caller looked may be what it waits for.
  const uint64_t released = segment_.header().released.load(std::memory_order_acquire);
  const bool changed = std::exchange(released_seen_, released) != released;
  return !changed && (unsent() > 0 || !slot_is_free()) && !gone_;
}

void SendLink::wait_end() {
  if (!ready_) return;
  segment_.header().sender_sleeps.store(0, std::memory_order_relaxed);
  look_after_sleep();
}

Result<bool> RecvLink::poll() {
  look_sometimes();
  // What was published before the peer went is still to be read.
  if (gone_ && !message_is_there()) return gone();
  if (has_access_ && theirs().was_revoked()) return unreadable("its operation has failed there");
  return true;
}

bool RecvLink::peek(tuttiMessage* message) {
  if (!message_is_there()) return false;
  tsan_acquire(both_know());
  const SlotLine& line = segment_.line(slot_);
  seen_.where = read_once(line.where);
  seen_.at = read_once(line.at);
  seen_.bytes = std::min(read_once(line.bytes), most_bytes(seen_.where));
  message->bytes = seen_.bytes;
  message->data = data_of_seen();
  message->tag = line.tag;
  return true;
}

const void* RecvLink::match(uint32_t bytes, const tuttiTag& tag) {
  const SlotLine& line = segment_.line(slot_);
  if (!message_is_there()) return nullptr;
  tsan_acquire(both_know());
  const uint32_t where = read_once(line.where);
  if (line.bytes != bytes || bytes > most_bytes(where) || !is_same(line.tag, tag)) return nullptr;
  seen_.where = where;
  if (where == kInLine) [[likely]]  // the shortest way for those that have no other time to spend
    return line.small;
  seen_.at = read_once(line.at);
  seen_.bytes = bytes;
  return data_of_seen();
}

// Null: it is to be read elsewhere, or what its sender says of it is not so.
const void* RecvLink::data_of_seen() const {
  const SlotLine& line = segment_.line(slot_);
  if (seen_.where == kInLine) return line.small;
  if (seen_.where == kBehindLine) return line.behind;
  if (seen_.where == kInSlot) return segment_.payload(slot_);
  if (is_passed(seen_.where)) return exchange_->at(passed(seen_));
  const bool is_posted = posted_message_ == messages_ + 1 && posted_bytes_ == seen_.bytes;
  return seen_.where == kInPlace && is_posted ? posted_at_ : nullptr;
}

void RecvLink::release() {
  if (has_access_) end_access();
  if (is_passed(seen_.where)) exchange_->take_in(passed(seen_));
  SegmentHeader& header = segment_.header();
  tsan_release(both_know());
  header.released.store(++messages_, std::memory_order_release);
  if (++slot_ == segment_.slots()) slot_ = 0;
  barrier_.busy_side();
  wake(header.sender_sleeps);
}

bool RecvLink::wait_begin(tuttiWait* wait) {
  *wait = {local_ ? local_->fd() : socket_.get(), POLLIN, exchange_->tell_cpu()};
  segment_.header().receiver_sleeps.store(1, std::memory_order_relaxed);
  barrier_.sleepy_side();
  return !message_is_there() && !gone_;
}

void RecvLink::wait_end() {
  segment_.header().receiver_sleeps.store(0, std::memory_order_relaxed);
  look_after_sleep();
}

}  // namespace tutti::shm
