#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/handshake.h"
#include "base/log.h"
#include "transports/verbs/link.h"

namespace tutti::verbs {

Result<std::unique_ptr<LinkHalf>> SendLink::create(Hub& hub, const Dialer::Call& call, const Contact& contact,
                                                   std::vector<PortAddress> peer_ports, const tuttiLinkConfig& config) {
  std::unique_ptr<SendLink> link(new SendLink(hub, call, contact, std::move(peer_ports), config));
  auto made = link->make_queues();
  if (made) return std::unique_ptr<LinkHalf>(std::move(link));
  made.error().culprit_rank = config.peer;
  return std::move(made).error();
}

// Each port takes the path that reaches the peer best, and each of the peer's ports is used once before one is twice.
Result<void> SendLink::make_queues() {
  std::vector<size_t> uses(peer_ports_.size());
  uint32_t largest_message = UINT32_MAX;
  for (const auto& port : hub_.ports) largest_message = std::min(largest_message, port->max_message_bytes());
  writes_per_message_ = static_cast<uint32_t>(stride_of(config_) / largest_message + 2);
  receives_ = 2 * wishes_of(config_);
  const uint32_t writes = 2 * config_.slots * writes_per_message_;
  TUTTI_TRY(open_completions(hub_.queues_per_port * (writes + 1 + receives_)));
  TUTTI_TRY_ASSIGN(
      memory_, Pinned::allocate(hub_.ports, config_.slots * stride_of(config_) + wishes_of(config_) * sizeof(Wish)));
  for (size_t p = 0; p < hub_.ports.size(); p++) {
    Path best;
    size_t best_port = 0;
    for (size_t i = 0; i < peer_ports_.size(); i++) {
      const Path path = find_path(hub_.ports[p]->address(), peer_ports_[i]);
      const bool better =
          best.score == 0 || uses[i] < uses[best_port] || (uses[i] == uses[best_port] && path.score > best.score);
      if (path.score > 0 && better) best = path, best_port = i;
    }
    if (best.score == 0) continue;
    uses[best_port]++;
    for (uint32_t q = 0; q < hub_.queues_per_port && queues_.size() < kMaxQueues; q++) {
      TUTTI_TRY_ASSIGN(Queue queue,
                       Queue::create(*hub_.ports[p], p, best.my_gid, completions_of(p), writes, receives_));
      lines_.push_back({queue.address(memory_.remote_key(p)), static_cast<uint32_t>(best_port),
                        static_cast<uint32_t>(best.peer_gid)});
      queues_.push_back(std::move(queue));
    }
  }
  owed_.resize(queues_.size());
  lent_from_.resize(config_.slots);
  random_bytes(&number_, sizeof number_);
  hub_.senders[number_] = this;
  if (!queues_.empty()) return {};
  return Error{
      Code::kRemoteError,
      format("no port of this rank has an address that reaches one of rank %d (TUTTI_IB_HCA, TUTTI_IB_GID_INDEX)",
             config_.peer)};
}

SendLink::~SendLink() {
  drain();
  hub_.senders.erase(number_);
}

// The others learn that the link has ended when its connection closes, so all has to have arrived by then.
void SendLink::drain() {
  if (!ready_) return;
  for (Queue& queue : queues_)
    if (queue.unsignalled() > 0 && !failure_)
      queue.write({.n_from = 0, .to = slots_at_, .key = queue.peer_key(), .signalled = true});
  while (!failure_ && !closed_ &&
         std::any_of(queues_.begin(), queues_.end(), [](const Queue& q) { return q.under_way() > 0; })) {
    take_completions();
    look_sometimes();
    sched_yield();
  }
}

Result<bool> SendLink::poll() {
  if (!failure_ && !ready_) {
    auto ready = advance_connect();
    if (!ready) failure_ = ready.error();
    return ready;
  }
  if (!failure_) {
    take_completions();
    look_sometimes();
  }
  if (closed_) return gone();
  if (failure_) return *failure_;
  return true;
}

Result<bool> SendLink::advance_connect() {
  TUTTI_TRY_ASSIGN(const bool connected, take_connection(dialer_, &socket_, config_.peer, "for a verbs link"));
  if (!connected) return false;
  if (!offered_) TUTTI_TRY(send_offer());
  TUTTI_TRY_ASSIGN(ready_, take_answer());
  return ready_;
}

// On a fresh connection there is always room for it.
Result<void> SendLink::send_offer() {
  Offer offer{};
  offer.n_queues = static_cast<uint32_t>(queues_.size());
  offer.sender = number_;
  offer.wishes = reinterpret_cast<uintptr_t>(memory_.data() + config_.slots * stride_of(config_));
  std::copy(lines_.begin(), lines_.end(), offer.lines);
  for (size_t p = 0; p < hub_.ports.size(); p++) offer.ports[p] = hub_.ports[p]->address();
  if (::send(socket_.get(), &offer, sizeof offer, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof offer)
    return system_error(format("offering a verbs link to rank %d", config_.peer), errno);
  offered_ = true;
  return {};
}

Result<bool> SendLink::take_answer() {
  char bytes[sizeof(Answer)];
  const ssize_t n = ::recv(socket_.get(), bytes, sizeof(Answer) - answer_.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (n <= 0) return gone();
  answer_.append(bytes, static_cast<size_t>(n));
  if (answer_.size() < sizeof(Answer)) return false;
  Answer answer;
  memcpy(&answer, answer_.data(), sizeof answer);
  answer.refusal[sizeof answer.refusal - 1] = '\0';
  if (answer.n_queues != queues_.size())
    return Error{Code::kRemoteError, format("rank %d takes no verbs link: %s", config_.peer, answer.refusal),
                 config_.peer};
  slots_at_ = answer.slots;
  for (size_t q = 0; q < queues_.size(); q++) {
    const uint32_t port = lines_[q].your_port;
    answer.queues[q].gid = lines_[q].your_gid;
    TUTTI_TRY(queues_[q].connect(answer.queues[q], peer_ports_[port]));
    peer_port_of_.push_back(port);
  }
  TUTTI_TRY(watch_socket());
  log(LogLevel::kInfo, "verbs link to rank %d through %s and %zu more queue pairs", config_.peer,
      queues_[0].port().name().c_str(), queues_.size() - 1);
  return true;
}

// A wish that is in the ring now.
void SendLink::on_arrival(uint32_t number) {
  if (number >= wishes_of(config_)) return fail("it sent something that is not a wish");
  Wish wish;
  memcpy(&wish, memory_.data() + config_.slots * stride_of(config_) + number * sizeof wish, sizeof wish);
  take_released(wish.released);
  if (wish.number != Wish::kNone) wish_ = wish;
}

const Error* SendLink::broken() {
  if (ready_ && !failure_) take_completions();
  return ready_ && failure_ && !closed_ ? &*failure_ : nullptr;
}

void SendLink::take_released(uint64_t released) {
  if (released > published_) return fail("it released more than was sent");
  released_ = std::max(released_, released);
}

bool SendLink::has_slot() {
  return ready_ && !failure_ && published_ - released_ < config_.slots && least_busy().has_room(writes_per_message_);
}

Queue& SendLink::least_busy() {
  return *std::min_element(queues_.begin(), queues_.end(),
                           [](const Queue& a, const Queue& b) { return a.under_way() < b.under_way(); });
}

void* SendLink::try_acquire() {
  if (!has_slot()) {
    if (ready_ && !failure_) take_completions();
    if (!has_slot()) return nullptr;
  }
  return memory_.data() + published_ % config_.slots * stride_of(config_) + sizeof(SlotHeader);
}

bool SendLink::lend(const void* data, uint32_t bytes, const tuttiTag& tag) {
  auto pinned = hub_.user_memory.find(data, bytes);
  if (!pinned) return false;
  send(data, std::move(pinned), bytes, tag);
  return true;
}

uint32_t SendLink::unsent() {
  if (lent_ > 0 && !failure_) take_completions();
  return lent_;
}

// A message, as one range of bytes: its header, then its payload, which follows in the slot or is lent.
struct SendLink::Source {
  char* slot;
  const void* payload;  // null: it is in the slot
  const Pinned* lent;
};

void SendLink::send(const void* data, std::shared_ptr<const Pinned> lent, uint32_t bytes, const tuttiTag& tag) {
  if (failure_) return;
  const uint64_t slot = published_ % config_.slots;
  const bool as_wished = wish_.number == published_ && wish_.bytes == bytes && bytes > 0;
  Source source{memory_.data() + slot * stride_of(config_), data, lent.get()};
  SlotHeader header{tag, published_, bytes, as_wished ? kAsWished : kInSlot, 0, 0};
  if (const auto back = hub_.receivers.find({config_.peer, config_.channel}); back != hub_.receivers.end())
    back->second->pass_released(&header);
  memcpy(source.slot, &header, sizeof header);
  Queue& queue = least_busy();
  const uint64_t to = slots_at_ + slot * stride_of(config_);
  const size_t end = sizeof header + bytes;
  if (lent) lent_++;
  if (as_wished) {
    const uint32_t key = wish_.keys[peer_port_of_[static_cast<size_t>(&queue - queues_.data())]];
    put(queue, source, sizeof header, end, wish_.at, key, false);
    put(queue, source, 0, sizeof header, to, queue.peer_key(), true);
  } else {
    put(queue, source, 0, end, to, queue.peer_key(), true);
  }
  lent_from_[slot] = std::move(lent);
  published_++;
}

// Writes the bytes from `begin` to `end` of a message, in pieces that the port takes. The last one may announce it.
void SendLink::put(Queue& queue, const Source& source, size_t begin, size_t end, uint64_t to, uint32_t key,
                   bool announced) {
  const size_t port = queue.port_index();
  const uint32_t slot_key = memory_.local_key(port);
  for (size_t at = begin; at < end;) {
    const size_t bytes = std::min<size_t>(end - at, queue.port().max_message_bytes());
    Queue::Write write{};
    const auto add = [&](const void* from, size_t n, uint32_t local_key) {
      if (n > 0) write.from[write.n_from++] = {reinterpret_cast<uintptr_t>(from), static_cast<uint32_t>(n), local_key};
    };
    const size_t of_header =
        source.lent != nullptr && at < sizeof(SlotHeader) ? std::min(bytes, sizeof(SlotHeader) - at) : 0;
    if (source.lent == nullptr) {
      add(source.slot + at, bytes, slot_key);
    } else {
      add(source.slot + at, of_header, slot_key);
      add(static_cast<const char*>(source.payload) + at + of_header - sizeof(SlotHeader), bytes - of_header,
          source.lent->local_key(port));
    }
    write.to = to + (at - begin);
    write.key = key;
    at += bytes;
    write.announced = announced && at == end;
    write.number = static_cast<uint32_t>(published_);
    write.lends = write.announced && source.lent != nullptr;
    // With several queues, what is completed tells which of them is fast. Else it is to free the queue's room.
    const bool frees = queues_.size() > 1 || published_ % std::max(1u, config_.slots / 2) == 0;
    write.signalled = write.announced && (write.lends || frees);
    if (!queue.write(write)) return fail(queue.port().name() + ": a write cannot be posted");
  }
}

// What lies there is not read any more once its queue pairs are gone.
void SendLink::recall() {
  if (unsent() == 0) return;
  fail("its operation has failed");
  queues_.clear();
  lent_ = 0;
}

bool SendLink::wait_begin(bool, tuttiWait* wait) {
  if (!socket_) {
    *wait = {dialer_.fd(), dialer_.events()};
    return !failure_ && dialer_.fd() >= 0;
  }
  if (!ready_) {
    *wait = {socket_.get(), POLLIN};
    return !failure_;
  }
  const uint64_t released = released_;
  const uint32_t lent = lent_;
  const bool can_wake = arm(wait);
  return can_wake && !failure_ && !closed_ && released_ == released && lent_ == lent && (lent_ > 0 || !has_slot());
}

}  // namespace tutti::verbs
