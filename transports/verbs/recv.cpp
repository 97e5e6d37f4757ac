#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transports/verbs/link.h"

namespace tutti::verbs {
namespace {

// A wish that comes too late costs a write and helps nobody, so after some in vain only every so often one is tried.
constexpr uint32_t kWishesInVain = 4;
constexpr uint64_t kMessagesPerTrial = 16;
// Fewer releases than are worth a write are told when the next message does not come soon.
constexpr uint32_t kIdlePolls = 64;

// To each queue.
uint32_t writes_of(const tuttiLinkConfig& config) {
  return 2 * wishes_of(config);
}

}  // namespace

Result<std::unique_ptr<LinkHalf>> RecvLink::create(Hub& hub, Fd socket, const tuttiLinkConfig& config,
                                                   const Offer& offer) {
  std::unique_ptr<RecvLink> link(new RecvLink(hub, std::move(socket), config));
  auto accepted = link->accept(offer);
  Answer answer{};
  if (accepted) {
    answer.n_queues = offer.n_queues;
    answer.slots = reinterpret_cast<uintptr_t>(link->memory_.data());
    for (size_t q = 0; q < offer.n_queues; q++)
      answer.queues[q] = link->queues_[q].address(link->memory_.remote_key(link->queues_[q].port_index()));
  } else {
    snprintf(answer.refusal, sizeof answer.refusal, "%s", accepted.error().message.c_str());
  }
  if (::send(link->socket_.get(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof answer && accepted)
    return system_error(format("answering rank %d", config.peer), errno);
  if (!accepted) return std::move(accepted).error();
  return std::unique_ptr<LinkHalf>(std::move(link));
}

Result<void> RecvLink::accept(const Offer& offer) {
  if (offer.n_queues == 0 || offer.n_queues > kMaxQueues)
    return Error{Code::kRemoteError, format("rank %d offers %u queue pairs", config_.peer, offer.n_queues)};
  std::copy(std::begin(offer.ports), std::end(offer.ports), peer_ports_);
  std::vector<Queue> queues;
  receives_ = 2 * config_.slots;
  TUTTI_TRY(open_completions(offer.n_queues * (writes_of(config_) + 1 + receives_)));
  TUTTI_TRY_ASSIGN(
      memory_, Pinned::allocate(hub_.ports, config_.slots * stride_of(config_) + wishes_of(config_) * sizeof(Wish)));
  for (size_t q = 0; q < offer.n_queues; q++) {
    const Offer::Line& line = offer.lines[q];
    if (line.your_port >= hub_.ports.size() || line.mine.port >= kMaxPorts || line.mine.gid >= kMaxGids ||
        line.your_gid >= kMaxGids)
      return Error{Code::kRemoteError,
                   format("rank %d offers a queue pair for a port that does not exist", config_.peer)};
    TUTTI_TRY_ASSIGN(Queue queue, make_queue(line.your_port, line.your_gid, line.mine));
    queues.push_back(std::move(queue));
  }
  set_queues(std::move(queues));
  arrivals_.resize(config_.slots);
  wishes_at_ = offer.wishes;
  sender_ = offer.sender;
  return watch_socket();
}

Result<Queue> RecvLink::make_queue(size_t port, size_t gid, const QueueAddress& peer) {
  TUTTI_TRY_ASSIGN(Queue queue,
                   Queue::create(*hub_.ports[port], port, gid, completions_[port], writes_of(config_), receives_));
  TUTTI_TRY(queue.connect(peer, peer_ports_[peer.port]));
  return queue;
}

RecvLink::~RecvLink() {
  const auto listed = hub_.receivers.find({config_.peer, config_.channel});
  if (listed != hub_.receivers.end() && listed->second == this) hub_.receivers.erase(listed);
}

void RecvLink::pass_released(SlotHeader* header) {
  if (failure_) return;
  header->sender = sender_;
  header->released = released_told_ = released_;
}

SlotHeader& RecvLink::header(uint64_t number) const {
  return *reinterpret_cast<SlotHeader*>(memory_.data() + number % config_.slots * stride_of(config_));
}

// Messages of several queues overtake each other, and headers build on those before them.
void RecvLink::on_arrival(uint32_t immediate, uint32_t bytes) {
  const auto announcement = std::bit_cast<Announcement>(immediate);
  const uint32_t ahead = low_bits(announcement.number - released_);
  Arrival& arrival = arrivals_[(released_ + ahead) % config_.slots];
  if (ahead >= config_.slots || arrival.is_there) return fail("it sent a message for a slot that is not free");
  arrival = {true, announcement, bytes};
  while (taken_ < released_ + config_.slots && arrivals_[taken_ % config_.slots].is_there)
    take_header(arrivals_[taken_ % config_.slots]);
}

void RecvLink::take_header(const Arrival& arrival) {
  SlotHeader& h = header(taken_);
  const Announcement& a = arrival.announcement;
  if (a.is_bare) {
    h = last_;
    h.number = taken_;
    h.bytes = arrival.bytes;
    h.tag.word[0] += a.steps;
    h.released += a.releases;
  }
  h.is_placed = a.is_placed;
  last_ = h;
  taken_++;
  const auto back = hub_.senders.find(h.sender);
  if (back != hub_.senders.end() && back->second->peer() == config_.peer) back->second->take_released(h.released);
}

Result<bool> RecvLink::poll() {
  if (!ready_) {
    std::string said;
    if (!take_what_came(socket_, &said, sizeof kReady))
      return Error{
          Code::kRemoteError,
          "it ended, or could not connect its queue pairs: then TUTTI_LOG=info says there what it uses instead"};
    ready_ = !said.empty();
    if (!ready_) return false;
    hub_.receivers[{config_.peer, config_.channel}] = this;
  }
  if (!failure_) {
    take_completions();
    look_sometimes();
    if (++idle_polls_ >= kIdlePolls) tell_releases();
  }
  // What arrived before a failure is still to be read.
  if (is_there()) return true;
  if (closed_) return gone();
  if (failure_) return *failure_;
  return true;
}

bool RecvLink::peek(tuttiMessage* message) {
  if (!is_there() && !failure_) take_completions();
  if (!is_there()) {
    if (released_ - released_told_ >= enough_to_tell()) tell_releases();
    return false;
  }
  SlotHeader& h = header(released_);
  const bool as_wished = h.is_placed != 0 && wish_.number == released_ && h.bytes == wish_.bytes;
  const bool is_misfit = h.is_placed == 0 && is_required_;
  const bool fits = as_wished || is_misfit || (h.is_placed == 0 && h.bytes <= config_.slot_bytes);
  if (h.number != released_ || !fits) {
    taken_ = released_;
    fail("it sent something that is not a message");
    return false;
  }
  if (wish_.number == released_) in_vain_ = as_wished ? 0 : in_vain_ + (wished_ != nullptr ? 1 : 0);
  if (!as_wished && wish_.number == released_) wished_ = nullptr;  // once: it counts once
  *message = {reinterpret_cast<char*>(&h) + sizeof h, h.bytes, h.tag};
  if (as_wished) message->data = reinterpret_cast<const void*>(wish_.at);
  if (is_misfit) message->data = nullptr;
  return true;
}

void RecvLink::release() {
  arrivals_[released_++ % config_.slots].is_there = false;
  idle_polls_ = 0;
  wished_ = nullptr;
  is_required_ = false;
  // In a stream, so that the sender goes on while the rest is read. Else a reply may be about to leave, which it would
  // hold up; but two slots have to stay free, whatever comes.
  const uint64_t untold = released_ - released_told_;
  if (untold + 1 >= config_.slots || (is_there() && untold >= enough_to_tell())) tell_releases();
  look_sometimes();  // who always has a message never polls
}

void RecvLink::tell_releases() {
  if (released_ == released_told_) return;
  tell({.released = released_, .number = Wish::kNone});
}

void RecvLink::tell(const Wish& wish) {
  // First of all, for it may close that very queue pair.
  if (!failure_ && !queues_.empty() && !queues_[wish_queue_].has_room(1)) take_completions();
  if (failure_ || closed_ || queues_.empty()) return;
  released_told_ = wish.released;
  if (unsettled_ > 0) return send_notice(Notice::kReleased, 0);
  // The same as long as it goes: an old wish must not come where a new one is already.
  if (!is_usable(wish_queue_)) wish_queue_ = least_busy();
  Queue& queue = queues_[wish_queue_];
  const uint32_t place = static_cast<uint32_t>(told_ % wishes_of(config_));
  char* from = memory_.data() + config_.slots * stride_of(config_) + place * sizeof wish;
  memcpy(from, &wish, sizeof wish);
  Queue::Write write{};
  write.from[0] = {reinterpret_cast<uintptr_t>(from), sizeof wish, memory_.local_key(queue.port_index())};
  write.n_from = 1;
  write.to = wishes_at_ + place * sizeof wish;
  write.key = queue.peer_key();
  write.announced = true;
  write.immediate = place;
  write.signalled = queue.unsignalled() + 1 >= config_.slots;
  told_++;
  if (!queue.write(write)) drop(wish_queue_, "a write cannot be posted");
}

// The first place that a message is wished at counts.
bool RecvLink::post(uint32_t ahead, void* to, uint32_t bytes, bool required) {
  if (ahead > 0) return false;
  if (wish_.number == released_ || is_there() || failure_) return true;
  if (!required && in_vain_ >= kWishesInVain && released_ % kMessagesPerTrial != 0) return true;
  auto pinned = hub_.user_memory.find(to, bytes);
  if (!pinned) return false;
  is_required_ = required;
  wish_ = {.released = released_, .number = released_, .at = reinterpret_cast<uintptr_t>(to), .bytes = bytes};
  for (size_t p = 0; p < hub_.ports.size(); p++) wish_.keys[p] = pinned->remote_key(p);
  wished_ = std::move(pinned);
  tell(wish_);
  return true;
}

// Nothing is written there any more once the queue pairs are gone.
void RecvLink::revoke() {
  if (!wished_) return;
  fail("its operation has failed");
  queues_.clear();
  wished_ = nullptr;
}

bool RecvLink::wait_begin(tuttiWait* wait) {
  if (!failure_) tell_releases();
  *wait = {epoll_.get(), POLLIN};
  return arm() && !is_there() && !failure_ && !closed_;
}

}  // namespace tutti::verbs
