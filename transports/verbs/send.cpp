#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>

#include "base/handshake.h"
#include "base/log.h"
#include "transports/verbs/link.h"

namespace tutti::verbs {
namespace {

// Longer than all retries take; a peer that does not look at its link may delay the closing of a queue pair.
constexpr double kLongestDrainSeconds = 60;

// The ports' addresses; a port that is down has none, unless all are down.
std::vector<PortAddress> addresses_of(const Ports& ports) {
  const auto is_up = [](const std::unique_ptr<Port>& port) { return port->down_because().empty(); };
  const bool some_up = std::any_of(ports.begin(), ports.end(), is_up);
  std::vector<PortAddress> addresses;
  for (const auto& port : ports) addresses.push_back(some_up && !is_up(port) ? PortAddress{} : port->address());
  return addresses;
}

}  // namespace

Result<std::unique_ptr<LinkHalf>> SendLink::create(Hub& hub, const Dialer::Call& call, const Contact& contact,
                                                   const std::vector<PortAddress>& peer_ports,
                                                   const tuttiLinkConfig& config) {
  std::unique_ptr<SendLink> link(new SendLink(hub, call, contact, config));
  auto made = link->make_queues(peer_ports);
  if (made) return std::unique_ptr<LinkHalf>(std::move(link));
  made.error().culprit_rank = config.peer;
  return std::move(made).error();
}

Result<void> SendLink::make_queues(const std::vector<PortAddress>& peer_ports) {
  for (const auto& port : hub_.ports) most_bytes_at_once_ = std::min(most_bytes_at_once_, port->max_message_bytes());
  const size_t most_bytes = std::max<size_t>(stride_of(config_), TUTTI_DELIVERY_MAX_BYTES);
  writes_per_message_ = static_cast<uint32_t>(most_bytes / most_bytes_at_once_ + 2);
  TUTTI_TRY(
      pairs_.open(hub_.ports, hub_.queues_per_port, 3 * config_.slots * writes_per_message_, 2 * wishes_of(config_)));
  TUTTI_TRY_ASSIGN(memory_, LinkMemory::allocate(hub_.ports, config_));
  const std::vector<Pairing> pairings = pair_ports(addresses_of(hub_.ports), peer_ports);
  for (uint32_t q = 0; q < hub_.queues_per_port; q++) {  // first one on each port
    for (const auto& [mine, theirs, path] : pairings) {
      if (pairs_.size() == kMaxQueues) break;
      const Route route{hub_.ports[mine].get(), mine, path.my_gid, theirs, path.peer_gid, peer_ports[theirs]};
      TUTTI_TRY_ASSIGN(Queue queue, pairs_.make(route));
      pairs_.add(std::move(queue));
    }
  }
  random_bytes(&number_, sizeof number_);
  hub_.senders[{config_.peer, number_}] = this;
  if (pairs_.size() > 0) return {};
  return Error{
      Code::kRemoteError,
      format("no port of this rank has an address that can reach a port of rank %d (TUTTI_IB_HCA, TUTTI_IB_GID_INDEX)",
             config_.peer)};
}

// The peer learns of the link's end when the connection beside it closes, so everything must have arrived by then.
SendLink::~SendLink() {
  const auto is_under_way = [](const QueuePair& pair) {
    return pair.queue.is_open() && pair.is_proved && pair.queue.under_way() > 0;
  };
  for (QueuePair& pair : pairs_)
    if (pair.is_usable() && pair.queue.unsignalled() > 0 && !failure_) pair.queue.write_nothing(slots_at_);
  const Deadline limit = Deadline::after_seconds(kLongestDrainSeconds);
  while (!failure_ && !side_.closed &&
         (pairs_.unsettled() > 0 || std::any_of(pairs_.begin(), pairs_.end(), is_under_way)) && !limit.passed()) {
    take_completions();
    look_sometimes();
    sched_yield();
  }
  hub_.senders.erase({config_.peer, number_});
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
  if (side_.closed) return gone();
  if (failure_) return *failure_;
  return true;
}

Result<bool> SendLink::advance_connect() {
  if (!side_.socket) {
    TUTTI_TRY_ASSIGN(const bool connected, take_connection(dialer_, &side_.socket, config_.peer, "for a verbs link"));
    if (!connected) return false;
    Offer offer{};
    offer.sender = number_;
    offer.wishes = reinterpret_cast<uintptr_t>(memory_.wishes());
    for (const QueuePair& pair : pairs_) {
      const Route& route = pair.queue.route();
      offer.lines[offer.n_queues++] = {pair.queue.address(memory_), static_cast<uint32_t>(route.port_index),
                                       static_cast<uint32_t>(route.my_gid), static_cast<uint32_t>(route.peer_port),
                                       static_cast<uint32_t>(route.peer_gid)};
    }
    for (size_t p = 0; p < hub_.ports.size(); p++) offer.ports[p] = hub_.ports[p]->address();
    // A fresh connection always has room for it.
    if (!side_.say(offer)) return system_error(format("offering a verbs link to rank %d", config_.peer), errno);
  }
  TUTTI_TRY_ASSIGN(ready_, take_answer());
  return ready_;
}

Result<bool> SendLink::take_answer() {
  side_.look();
  Answer answer;
  if (!side_.take(&answer)) return side_.closed ? Result<bool>(gone()) : false;
  answer.refusal[sizeof answer.refusal - 1] = '\0';
  if (answer.n_queues != pairs_.size())
    return Error{Code::kRemoteError, format("rank %d did not accept a verbs link: %s", config_.peer, answer.refusal),
                 config_.peer};
  slots_at_ = answer.slots;
  for (size_t q = 0; q < pairs_.size(); q++) TUTTI_TRY(pairs_[q].queue.connect(answer.queues[q]));
  if (!side_.say(kReady)) return gone();
  log(LogLevel::kInfo, "verbs link to rank %d through %s and %zu more queue pairs", config_.peer,
      pairs_[0].queue.port().name().c_str(), pairs_.size() - 1);
  return true;
}

// A wish has arrived in the ring.
void SendLink::on_arrival(uint32_t place, uint32_t) {
  if (place >= wishes_of(config_)) return fail("it sent an invalid request");
  const Wish wish = memory_.wishes()[place];
  on_released(wish.released);
  if (wish.number != Wish::kNone) wish_ = wish;
}

void SendLink::on_released(uint64_t released) {
  if (released > published_) return fail("it released more than was sent");
  released_ = std::max(released_, released);
}

// A slot whose message is exposed must keep track of it until it has been read.
bool SendLink::has_slot() {
  return ready_ && !failure_ && published_ - released_ < config_.slots && !sent_[published_ % config_.slots].exposed &&
         pairs_.least_busy().queue.has_room((1 + config_.slots) * writes_per_message_);
}

tuttiRoom SendLink::acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) {
  is_required_ = posting == TUTTI_REQUIRED;
  if (!has_slot() || !is_due()) {
    if (ready_ && !failure_) take_completions();
    if (!has_slot() || !is_due()) return TUTTI_NO_ROOM;
  }
  *at = memory_.slot(published_) + sizeof(SlotHeader);
  return is_required_ || (data != nullptr && hub_.user_memory.find(data, bytes)) ? TUTTI_EXPOSED : TUTTI_SLOT;
}

int SendLink::publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
  if (is_required_ && wish_.bytes != bytes) data = nullptr;
  auto exposed = data != nullptr ? hub_.user_memory.find(data, bytes) : nullptr;
  if (data != nullptr && !exposed) return 0;
  const bool is_required = std::exchange(is_required_, false);
  if (failure_) return 1;
  SlotHeader& header = memory_.header(published_);
  header = {tag, published_, bytes, 0, 0, 0};
  if (const auto back = hub_.receivers.find({config_.peer, config_.channel}); back != hub_.receivers.end())
    back->second->pass_released(&header);
  Announcement announcement{.number = low_bits(published_)};
  announcement.is_placed = wish_.number == published_ && wish_.bytes == bytes && bytes > 0;
  // The receiver sees the number of bytes only of messages that come in one write.
  if (published_ > 0 && bytes <= most_bytes_at_once_) announcement.spare(header, memory_.header(published_ - 1));
  const bool is_misfit = is_required && announcement.is_placed == 0;  // only its header is sent
  if (is_misfit) announcement.is_bare = 0;
  if (exposed) exposed_++;
  Sent& message = sent_[published_ % config_.slots];
  message = {published_, is_misfit ? 0 : bytes, nullptr, data, std::move(exposed), is_required && !is_misfit};
  published_++;
  set_place(message, announcement);
  look_sometimes();  // a rank that always finds a slot never polls
  return 1;
}

// Includes messages that wait for a queue pair to be closed at both ends, because this end must then resend them.
uint32_t SendLink::unsent() {
  if ((exposed_ > 0 || pairs_.unsettled() > 0) && !failure_) take_completions();
  if (pairs_.unsettled() == 0 || failure_) return exposed_;
  return static_cast<uint32_t>(std::count_if(sent_.begin(), sent_.end(), [&](const Sent& message) {
    return message.exposed ||
           (message.pair != nullptr && !message.pair->queue.is_open() && message.number >= released_);
  }));
}

void SendLink::on_read(uint32_t slot) {
  if (std::exchange(sent_[slot].exposed, nullptr)) exposed_--;
}

void SendLink::set_place(Sent& message, const Announcement& announcement) {
  message.pair = &pairs_.least_busy();
  const Queue& queue = message.pair->queue;
  const uint32_t key = queue.peer_key();
  const uint64_t to = slots_at_ + memory_.slot_offset(message.number);
  const size_t payload = sizeof(SlotHeader), end = payload + message.bytes, begin = announcement.is_bare ? payload : 0;
  if (!announcement.is_placed) return put(message, begin, end, to + begin, key, &announcement);
  const uint32_t wish_key = wish_.keys[queue.route().peer_port];
  put(message, payload, end, wish_.at, wish_key, announcement.is_bare ? &announcement : nullptr);
  if (!announcement.is_bare) put(message, 0, payload, to, key, &announcement);
}

// Writes the bytes from `begin` to `end` of a message, its header and then its payload, in pieces that the port takes.
// The last one may announce the message.
void SendLink::put(const Sent& message, size_t begin, size_t end, uint64_t to, uint32_t key,
                   const Announcement* announcement) {
  Queue& queue = message.pair->queue;
  const size_t port = queue.port_index();
  const bool is_exposed = message.exposed != nullptr;
  size_t at = begin;
  do {
    const size_t bytes = std::min<size_t>(end - at, queue.port().max_message_bytes());
    Queue::Write write{};
    const auto add = [&](const void* from, size_t n, uint32_t local_key) {
      if (n > 0) write.from[write.n_from++] = {reinterpret_cast<uintptr_t>(from), static_cast<uint32_t>(n), local_key};
    };
    const size_t of_slot = !is_exposed ? bytes : at < sizeof(SlotHeader) ? std::min(bytes, sizeof(SlotHeader) - at) : 0;
    add(memory_.slot(message.number) + at, of_slot, memory_.local_key(port));
    if (bytes > of_slot)
      add(static_cast<const char*>(message.payload) + at + of_slot - sizeof(SlotHeader), bytes - of_slot,
          message.exposed->local_key(port));
    write.is_device = message.is_required && bytes > of_slot;
    write.to = to + (at - begin);
    write.key = key;
    at += bytes;
    write.announced = announcement != nullptr && at == end;
    if (write.announced) write.immediate = std::bit_cast<uint32_t>(*announcement);
    write.slot = static_cast<uint32_t>(message.number % config_.slots);
    write.exposes = write.announced && is_exposed;
    // With several queues, completions tell which of them is fast. Otherwise they only free the queue's room.
    const bool frees = pairs_.size() > 1 || message.number % std::max(1u, config_.slots / 2) == 0;
    write.signalled = write.announced && (write.exposes || frees);
    if (!queue.write(write)) return pairs_.drop(*message.pair, "a write cannot be posted");
  } while (at < end);
}

// Exposed memory is not read any more once the queue pairs are gone.
void SendLink::revoke() {
  if (unsent() == 0) return;
  fail("its operation has failed");
  pairs_.clear();
  for (Sent& message : sent_) message.exposed = nullptr;
  exposed_ = 0;
}

// A release may arrive with a message in the other direction, and is then not repeated.
bool SendLink::wait_begin(tuttiWait* wait) {
  if (!side_.socket) return !failure_ && wait_for(dialer_, wait);
  if (!ready_) {
    *wait = {side_.socket.get(), POLLIN};
    return !failure_;
  }
  const uint64_t released = released_;
  const uint32_t waiting = unsent();
  sleep_on(wait);
  const auto back = hub_.receivers.find({config_.peer, config_.channel});
  const bool can_wake = arm() && (back == hub_.receivers.end() || back->second->arm());
  const uint32_t still = unsent();
  return can_wake && !failure_ && !side_.closed && released_ == released && still == waiting &&
         (still > 0 || !is_due());
}

}  // namespace tutti::verbs
