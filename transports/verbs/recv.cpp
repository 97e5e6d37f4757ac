#include <cerrno>

#include "transports/verbs/link.h"

namespace tutti::verbs {
namespace {

// A wish that arrives too late costs a write for nothing, so after a few in vain only an occasional one is tried.
constexpr uint32_t kWishesInVain = 4;
constexpr uint64_t kMessagesPerTrial = 16;
// After this many polls without a message, even too few releases to be worth a write are told.
constexpr uint32_t kIdlePolls = 64;

}  // namespace

Result<std::unique_ptr<LinkHalf>> RecvLink::create(Hub& hub, SideConnection side, const tuttiLinkConfig& config,
                                                   const Offer& offer) {
  std::unique_ptr<RecvLink> link(new RecvLink(hub, std::move(side), config));
  auto accepted = link->accept(offer);
  Answer answer{};
  if (accepted) {
    answer.n_queues = offer.n_queues;
    answer.slots = reinterpret_cast<uintptr_t>(link->memory_.data());
    for (size_t q = 0; q < offer.n_queues; q++) answer.queues[q] = link->pairs_[q].queue.address(link->memory_);
  } else {
    snprintf(answer.refusal, sizeof answer.refusal, "%s", accepted.error().message.c_str());
  }
  if (!link->side_.say(answer) && accepted) return system_error(format("answering rank %d", config.peer), errno);
  if (!accepted) return std::move(accepted).error();
  return std::unique_ptr<LinkHalf>(std::move(link));
}

Result<void> RecvLink::accept(const Offer& offer) {
  if (offer.n_queues == 0 || offer.n_queues > kMaxQueues)
    return Error{Code::kRemoteError,
                 format("rank %d offers %u queue pairs, which is not possible", config_.peer, offer.n_queues)};
  TUTTI_TRY(pairs_.open(hub_.ports, offer.n_queues, 2 * wishes_of(config_), 2 * config_.slots));
  TUTTI_TRY_ASSIGN(memory_, LinkMemory::allocate(hub_.ports, config_));
  for (size_t q = 0; q < offer.n_queues; q++) {
    const Offer::Line& line = offer.lines[q];
    if (line.your_port >= hub_.ports.size() || line.my_port >= kMaxPorts || line.my_gid >= kMaxGids ||
        line.your_gid >= kMaxGids)
      return Error{Code::kRemoteError,
                   format("rank %d offers a queue pair for a port that does not exist", config_.peer)};
    const Route route{hub_.ports[line.your_port].get(), line.your_port, line.your_gid, line.my_port, line.my_gid,
                      offer.ports[line.my_port]};
    TUTTI_TRY_ASSIGN(Queue queue, make_queue(route, line.mine));
    pairs_.add(std::move(queue));
  }
  wish_pair_ = &pairs_[0];
  wishes_at_ = offer.wishes;
  sender_ = offer.sender;
  return {};
}

Result<Queue> RecvLink::make_queue(const Route& route, const QueueAddress& peer) {
  TUTTI_TRY_ASSIGN(Queue queue, pairs_.make(route));
  TUTTI_TRY(queue.connect(peer));
  return queue;
}

RecvLink::~RecvLink() {
  const auto listed = hub_.receivers.find({config_.peer, config_.channel});
  if (listed != hub_.receivers.end() && listed->second == this) hub_.receivers.erase(listed);
}

void RecvLink::pass_released(SlotHeader* header) {
  if (failure_) return;
  header->sender = sender_;
  header->released = released_told_ = messages_.released();
}

bool ReorderBuffer::add(const Announcement& announcement, uint32_t bytes) {
  const uint32_t ahead = low_bits(announcement.number - released_);
  Arrival& arrival = arrivals_[(released_ + ahead) % slots_];
  if (ahead >= slots_ || arrival.is_there) return false;
  arrival = {true, announcement, bytes};
  return true;
}

const SlotHeader* ReorderBuffer::next(const LinkMemory& memory) {
  const Arrival& arrival = arrivals_[next_ % slots_];
  if (next_ >= released_ + slots_ || !arrival.is_there) return nullptr;
  SlotHeader& header = memory.header(next_);
  if (arrival.announcement.is_bare) header = arrival.announcement.header_after(last_, next_, arrival.bytes);
  header.is_placed = arrival.announcement.is_placed;
  last_ = header;
  next_++;
  return &header;
}

uint64_t ReorderBuffer::arrived() const {
  uint64_t bits = 0;
  for (uint64_t i = 0; i < slots_; i++)
    if (arrivals_[(released_ + i) % slots_].is_there) bits |= uint64_t{1} << i;
  return bits;
}

void RecvLink::on_arrival(uint32_t immediate, uint32_t bytes) {
  if (!messages_.add(std::bit_cast<Announcement>(immediate), bytes))
    return fail("it sent a message for a slot that is not free");
  while (const SlotHeader* header = messages_.next(memory_)) {
    const auto back = hub_.senders.find({config_.peer, header->sender});
    if (back != hub_.senders.end()) back->second->on_released(header->released);
  }
}

Result<bool> RecvLink::poll() {
  if (!ready_) {
    const bool closed = side_.look();
    char said = 0;
    ready_ = side_.take(&said);
    if (!ready_ && closed)
      return Error{Code::kRemoteError,
                   "it ended, or could not connect its queue pairs: in that case its log (TUTTI_LOG=info) says what it "
                   "uses instead"};
    if (!ready_) return false;
    hub_.receivers[{config_.peer, config_.channel}] = this;
  }
  if (!failure_) {
    take_completions();
    look_sometimes();
    if (++idle_polls_ >= kIdlePolls) tell_releases();
  }
  // Messages that arrived before a failure must still be read.
  if (messages_.is_there()) return true;
  if (side_.closed) return gone();
  if (failure_) return *failure_;
  return true;
}

bool RecvLink::peek(tuttiMessage* message) {
  if (!messages_.is_there() && !failure_) take_completions();
  if (!messages_.is_there()) {
    if (messages_.released() - released_told_ >= enough_to_tell()) tell_releases();
    return false;
  }
  SlotHeader& h = memory_.header(messages_.released());
  const bool as_wished = h.is_placed != 0 && wish_.number == messages_.released() && h.bytes == wish_.bytes;
  const bool is_misfit = h.is_placed == 0 && is_required_;
  const bool fits = as_wished || is_misfit || (h.is_placed == 0 && h.bytes <= config_.slot_bytes);
  if (h.number != messages_.released() || !fits) {
    messages_.forget();
    fail("it sent something that is not a message");
    return false;
  }
  if (wish_.number == messages_.released()) in_vain_ = as_wished ? 0 : in_vain_ + (wished_ != nullptr ? 1 : 0);
  if (!as_wished && wish_.number == messages_.released()) wished_ = nullptr;  // so that it counts once
  *message = {reinterpret_cast<char*>(&h) + sizeof h, h.bytes, h.tag};
  if (as_wished) message->data = reinterpret_cast<const void*>(wish_.at);
  if (is_misfit) message->data = nullptr;
  return true;
}

void RecvLink::release() {
  messages_.release();
  idle_polls_ = 0;
  wished_ = nullptr;
  is_required_ = false;
  // Told in a stream, so that the sender goes on while the rest is read. Otherwise a reply may be about to leave, which
  // the write would delay; but two slots must stay free in any case.
  const uint64_t untold = messages_.released() - released_told_;
  if (untold + 1 >= config_.slots || (messages_.is_there() && untold >= enough_to_tell())) tell_releases();
  look_sometimes();  // a rank that always finds a message never polls
}

void RecvLink::tell_releases() {
  if (messages_.released() == released_told_) return;
  tell({.released = messages_.released(), .number = Wish::kNone});
}

void RecvLink::tell(const Wish& wish) {
  // First, because this may close that very queue pair.
  if (!failure_ && pairs_.size() > 0 && !wish_pair_->queue.has_room(1)) take_completions();
  if (failure_ || side_.closed || pairs_.size() == 0) return;
  released_told_ = wish.released;
  if (pairs_.unsettled() > 0) return send_notice(Notice::kReleased, pairs_[0]);
  // Always the same queue pair while it works: an old wish must not arrive after a newer one.
  if (!wish_pair_->is_usable()) wish_pair_ = &pairs_.least_busy();
  Queue& queue = wish_pair_->queue;
  const uint32_t place = static_cast<uint32_t>(told_ % wishes_of(config_));
  Wish* from = &memory_.wishes()[place];
  *from = wish;
  Queue::Write write{};
  write.from[0] = {reinterpret_cast<uintptr_t>(from), sizeof wish, memory_.local_key(queue.port_index())};
  write.n_from = 1;
  write.to = wishes_at_ + place * sizeof wish;
  write.key = queue.peer_key();
  write.announced = true;
  write.immediate = place;
  write.signalled = queue.unsignalled() + 1 >= config_.slots;
  told_++;
  if (!queue.write(write)) pairs_.drop(*wish_pair_, "a write cannot be posted");
}

// Only the first wish for a message counts.
bool RecvLink::post(uint32_t ahead, void* to, uint32_t bytes, bool required) {
  if (ahead > 0) return false;
  if (wish_.number == messages_.released() || messages_.is_there() || failure_) return true;
  if (!required && in_vain_ >= kWishesInVain && messages_.released() % kMessagesPerTrial != 0) return true;
  auto pinned = hub_.user_memory.find(to, bytes);
  if (!pinned) return false;
  is_required_ = required;
  wish_ = {.released = messages_.released(),
           .number = messages_.released(),
           .at = reinterpret_cast<uintptr_t>(to),
           .bytes = bytes};
  for (size_t p = 0; p < hub_.ports.size(); p++) wish_.keys[p] = pinned->remote_key(p);
  wished_ = std::move(pinned);
  tell(wish_);
  return true;
}

// Once the queue pairs are gone, nothing is written to the wished place any more.
void RecvLink::revoke() {
  if (!wished_) return;
  fail("its operation has failed");
  pairs_.clear();
  wished_ = nullptr;
}

bool RecvLink::wait_begin(tuttiWait* wait) {
  if (!failure_) tell_releases();
  sleep_on(wait);
  return arm() && !messages_.is_there() && !failure_ && !side_.closed;
}

}  // namespace tutti::verbs
