#include "transports/shm/shm_link.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/membarrier.h"
#include "base/socket.h"

namespace tutti::shm {
namespace {

Error revoked() {
  return {Code::kRemoteError, "its operation has failed there"};
}

}  // namespace

void ShmHalf::fall_asleep(tuttiWait* wait) {
  *wait = {connection_.fd(), POLLIN, exchange_->tell_cpu()};
  sleeps().store(1, std::memory_order_relaxed);
  barrier_.sleepy_side();
}

void ShmHalf::wait_end() {
  if (!connection_.is_open()) return;
  sleeps().store(0, std::memory_order_relaxed);
  connection_.look_after_sleep();
}

void ShmHalf::end_access() {
  if (!std::exchange(has_access_, false)) return;
  theirs().end();
}

// A peer that is accessing the memory ends soon, has died, or is stopped: this rank must not hang with it. A thread of
// this process is never stopped alone.
bool ShmHalf::revoke_access() {
  constexpr int64_t kLimitNs = 2'000'000'000, kSoonNs = 10'000'000;
  end_access();
  ours().revoke();
  const int64_t begun_ns = now_ns();
  while (ours().is_used() && !connection_.is_gone()) {
    const int64_t waited_ns = now_ns() - begun_ns;
    if (!connection_.is_local() && waited_ns > kLimitNs) return false;
    if (waited_ns < kSoonNs)
      sched_yield();
    else
      usleep(1000);
    connection_.look();
  }
  return true;
}

SendLink::SendLink(const Dialer::Call& call, const Address& peer_address, const tuttiLinkConfig& config,
                   std::shared_ptr<Exchange> exchange, std::shared_ptr<Fd> bell)
    : ShmHalf(config.peer, std::move(exchange), Exchange::Side::kSend, std::move(bell)),
      config_(config),
      dialer_(call, std::vector<Address>{peer_address}) {}

Result<bool> SendLink::poll() {
  if (connection_.is_open()) {
    connection_.look_sometimes();
    tell_news();  // nothing else does if no more memory is exposed
    if (connection_.is_gone()) return connection_.gone();
    return true;
  }
  if (failure_) return *failure_;
  auto ready = advance_connect();
  if (!ready) failure_ = ready.error();
  return ready;
}

Result<bool> SendLink::advance_connect() {
  TUTTI_TRY_ASSIGN(const bool connected, take_connection(dialer_, &socket_, config_.peer, "through shared memory"));
  if (!connected) return false;
  if (!segment_) TUTTI_TRY(send_segment());
  char answer = 0;
  const ssize_t n = ::recv(socket_.get(), &answer, 1, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (n <= 0 || answer != kMapped)
    return Error{Code::kRemoteError,
                 format("rank %d did not accept a shared-memory link: its process ended, it has run out of descriptors "
                        "(ulimit -n), or it could not map %u slots of %u bytes (its log has the reason)",
                        config_.peer, config_.slots, config_.slot_bytes),
                 config_.peer};
  barrier_ = SleepBarrier(membarrier_is_there() && segment_.header().receiver_has_barrier != 0);
  connection_.open(std::move(socket_));
  return true;
}

Result<void> SendLink::send_segment() {
  Fd memfd;
  TUTTI_TRY_ASSIGN(Segment segment, Segment::create(config_.slots, config_.slot_bytes, &memfd));
  segment.header().sender_has_barrier = membarrier_is_there();
  random_bytes(&segment.header().id, sizeof segment.header().id);
  connection_.meet(segment, 0, socket_);
  // No slot is free until the receiver has said how it is woken.
  released_seen_ = uint64_t{0} - segment.lines();
  exchange_->set(Exchange::Side::kSend, std::move(segment));
  // One byte after an acknowledged handshake always fits the socket's buffer.
  if (send_with_descriptor(socket_.get(), &kMapped, 1, memfd)) return {};
  if (errno == EPIPE || errno == ECONNRESET) return closed_by(config_.peer, "shared-memory");
  return system_error(format("handing shared memory to rank %d", config_.peer), errno);
}

// Twice as many messages can be in flight if none needs a whole payload. In a stream one way, where the sender waits to
// hear of releases, broadcasts of 8 B by 2 ranks take 0.08 us instead of 0.12, of 32 KiB 2.4 instead of 3.8.
bool SendLink::finds_room(uint32_t bytes) {
  const auto has_room = [&] {
    const bool in_halves = bytes <= segment_.half_bytes() && last_whole_ <= released_seen_;
    return messages_ - released_seen_ < (in_halves ? segment_.lines() : segment_.slots());
  };
  if (has_room()) return true;
  if (!connection_.is_open()) return false;
  released_seen_ = segment_.header().released.load(std::memory_order_acquire);
  return has_room();
}

// The same payload until it is published, even if others are received meanwhile.
char* SendLink::choose_payload(uint32_t bytes) {
  if (!acquired_) chosen_ = exchange_->choose();
  acquired_ = true;
  in_half_ = bytes <= segment_.half_bytes();
  return chosen_payload();
}

char* SendLink::chosen_payload() const {
  return chosen_ ? exchange_->at(*chosen_) : segment_.payload_of(line_, in_half_);
}

char* SendLink::posted_place(uint32_t bytes) {
  SegmentHeader& header = segment_.header();
  if (header.posted.load(std::memory_order_acquire) != messages_ + 1 || read_once(header.posted_bytes) != bytes)
    return nullptr;
  char* const to = connection_.locate(read_once(header.posted_where), read_once(header.posted_at), bytes);
  return to != nullptr && begin_access() ? to : nullptr;
}

tuttiRoom SendLink::acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) {
  if (has_access_) end_access();
  const uint32_t most_bytes = bytes > 0 ? bytes : segment_.slot_bytes();
  if (!slot_is_free(most_bytes)) return TUTTI_NO_ROOM;
  if (posting == TUTTI_IF_POSTED && (*at = posted_place(bytes)) != nullptr) return TUTTI_POSTED;
  if (data != nullptr && connection_.may_describe(data, bytes)) return TUTTI_EXPOSED;
  *at = choose_payload(most_bytes);
  return TUTTI_SLOT;
}

void SendLink::note_payload(SlotLine& line) {
  line.where = !chosen_ ? (in_half_ ? kInHalf : kInSlot) : chosen_->mine ? kPassedOn : kPassedBack;
  if (line.where == kInSlot) last_whole_ = messages_ + 1;
  if (!chosen_) return;
  line.at = chosen_->index;
  exchange_->give(*chosen_);
}

int SendLink::publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
  SlotLine& line = segment_.line(line_);
  if (data != nullptr) {
    if (has_access_) end_access();
    tell_news();
    if (!connection_.describe(data, bytes, &line.where, &line.at)) return 0;
    chosen_.reset();
    last_exposed_ = messages_ + 1;
  } else if (has_access_) {
    line.where = kInPlace;
    end_access();
  } else if (bytes <= kLineBytes) {
    line.where = kInLine;
    memcpy(line.small, chosen_payload(), kLineBytes);
  } else {
    note_payload(line);
  }
  publish_line(line, bytes, tag);
  return data != nullptr ? 1 : 2;
}

int SendLink::push(const void* data, uint32_t bytes, const tuttiTag& tag) {
  if (!slot_is_free(bytes)) return 0;
  SlotLine& line = segment_.line(line_);
  if (bytes <= kLineBytes) {
    line.where = kInLine;
    if (bytes > 0) memcpy(line.small, data, bytes);  // else data may be null
  } else if (bytes <= kBehindBytes) {
    line.where = kBehindLine;
    memcpy(line.behind, data, bytes);
  } else {
    memcpy(choose_payload(bytes), data, bytes);
    note_payload(line);
  }
  publish_line(line, bytes, tag);
  return 2;
}

void SendLink::publish_line(SlotLine& line, uint32_t bytes, const tuttiTag& tag) {
  acquired_ = false;
  line.tag = tag;
  line.bytes = bytes;
  line.published.store(++messages_, std::memory_order_release);
  if (++line_ == segment_.lines()) line_ = 0;
  SegmentHeader& header = segment_.header();
  // The next message will need its cache line, which is on the other core.
  if (messages_ - released_seen_ >= segment_.lines()) __builtin_prefetch(&header.released);
  barrier_.busy_side();
  connection_.wake(header.receiver_sleeps);
}

// Messages that are exposed and may not have been read yet.
uint32_t SendLink::unsent() {
  if (last_exposed_ > released_seen_) released_seen_ = segment_.header().released.load(std::memory_order_acquire);
  return last_exposed_ > released_seen_ ? static_cast<uint32_t>(last_exposed_ - released_seen_) : 0;
}

// Memory that the peer has not read may be gone here: the communicator that it was registered with may be destroyed
// while another one sends it. To be told would make the peer unmap it.
void SendLink::tell_news() {
  if (connection_.owes_news() && unsent() == 0) connection_.tell_news();
}

// A peer that continues later finds that what it has read was revoked: see poll().
void SendLink::revoke() {
  end_access();
  if (unsent() > 0) revoke_access();
}

bool SendLink::wait_begin(tuttiWait* wait) {
  if (!connection_.is_open()) {
    *wait = {socket_.get(), POLLIN};
    return !failure_ && (socket_ || wait_for(dialer_, wait));
  }
  fall_asleep(wait);
  // The caller may be waiting for messages that were released since it last looked.
  const uint64_t released = segment_.header().released.load(std::memory_order_acquire);
  const bool changed = std::exchange(released_seen_, released) != released;
  return !changed && (unsent() > 0 || !slot_is_free(segment_.slot_bytes())) && !connection_.is_gone();
}

RecvLink::RecvLink(int peer, Fd socket, Segment segment, std::shared_ptr<Exchange> exchange, std::shared_ptr<Fd> bell)
    : ShmHalf(peer, std::move(exchange), Exchange::Side::kReceive, std::move(bell)) {
  connection_.meet(segment, 1, socket);
  exchange_->set(Exchange::Side::kReceive, std::move(segment));
  SegmentHeader& header = segment_.header();
  header.receiver_has_barrier = membarrier_is_there();
  barrier_ = SleepBarrier(membarrier_is_there() && header.sender_has_barrier != 0);
  [[maybe_unused]] const ssize_t n = ::send(socket.get(), &kMapped, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  connection_.open(std::move(socket));
}

Result<bool> RecvLink::poll() {
  connection_.look_sometimes();
  connection_.tell_news();
  // Messages published before the peer left must still be read.
  if (connection_.is_gone() && !message_is_there()) return connection_.gone();
  if (has_access_ && theirs().was_revoked()) return unreadable(revoked());
  return true;
}

bool RecvLink::peek(tuttiMessage* message) {
  if (!message_is_there()) return false;
  const SlotLine& line = segment_.line(line_);
  seen_.where = read_once(line.where);
  seen_.at = read_once(line.at);
  seen_.bytes = std::min(read_once(line.bytes), most_bytes(seen_.where));
  message->bytes = seen_.bytes;
  message->data = data_of_seen();
  message->tag = line.tag;
  return true;
}

const void* RecvLink::match(uint32_t bytes, const tuttiTag& tag) {
  const SlotLine& line = segment_.line(line_);
  if (!message_is_there()) return nullptr;
  const uint32_t where = read_once(line.where);
  if (line.bytes != bytes || !is_same(line.tag, tag)) return nullptr;
  seen_.where = where;
  if (where == kInLine) [[likely]]  // the shortest path for the smallest messages
    return bytes <= kLineBytes ? line.small : nullptr;
  if (bytes > most_bytes(where)) return nullptr;
  seen_.at = read_once(line.at);
  seen_.bytes = bytes;
  return data_of_seen();
}

// Null: the bytes must be fetched with read(), or the sender's description of them is wrong.
const void* RecvLink::data_of_seen() const {
  const SlotLine& line = segment_.line(line_);
  if (seen_.where == kInLine) return line.small;
  if (seen_.where == kBehindLine) return line.behind;
  if (seen_.where <= kInHalf) return segment_.payload_of(line_, seen_.where == kInHalf);
  if (is_passed(seen_.where)) return exchange_->at(passed(seen_));
  const bool is_posted = posted_message_ == messages_ + 1 && posted_bytes_ == seen_.bytes;
  return seen_.where == kInPlace && is_posted ? posted_at_ : nullptr;
}

Result<const void*> RecvLink::read() {
  if (!begin_access()) return unreadable(revoked());
  const void* data = connection_.locate(seen_.where, seen_.at, seen_.bytes);
  if (data == nullptr) return unreadable(connection_.why_not());
  return data;
}

Error RecvLink::unreadable(const Error& why) const {
  const int peer = connection_.peer();
  return {why.code, format("memory that rank %d exposes cannot be read: %s", peer, why.message.c_str())};
}

// Refuses `ahead` 0: the sender may have decided already where the next message goes.
bool RecvLink::post(uint32_t ahead, void* to, uint32_t bytes, bool required) {
  SegmentHeader& header = segment_.header();
  if (ahead == 0 || required || !connection_.describe(to, bytes, &header.posted_where, &header.posted_at)) return false;
  posted_at_ = to;
  posted_message_ = messages_ + ahead + 1;
  header.posted_bytes = posted_bytes_ = bytes;
  header.posted.store(posted_message_, std::memory_order_release);
  return true;
}

void RecvLink::release() {
  if (has_access_) end_access();
  if (is_passed(seen_.where)) exchange_->take_in(passed(seen_));
  SegmentHeader& header = segment_.header();
  header.released.store(++messages_, std::memory_order_release);
  if (++line_ == segment_.lines()) line_ = 0;
  barrier_.busy_side();
  connection_.wake(header.sender_sleeps);
}

// A peer that continues later writes the rest of its message.
void RecvLink::revoke() {
  if (!revoke_access())
    log(LogLevel::kWarn,
        "rank %d was stopped while writing a sum into this rank's registered memory, in an operation that failed: it "
        "may still write there when it continues",
        connection_.peer());
}

bool RecvLink::wait_begin(tuttiWait* wait) {
  fall_asleep(wait);
  return !message_is_there() && !connection_.is_gone();
}

}  // namespace tutti::shm
