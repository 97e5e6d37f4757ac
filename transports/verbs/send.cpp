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
namespace {

// More than all retries take; a peer that does not look at its link may hold up the closing of a queue pair.
constexpr double kLongestDrainSeconds = 60;

// As they are now: what is down reaches nobody, unless all are.
std::vector<PortAddress> addresses_of(const Ports& ports) {
  const auto is_up = [](const std::unique_ptr<Port>& port) { return port->down_because().empty(); };
  const bool some_up = std::any_of(ports.begin(), ports.end(), is_up);
  std::vector<PortAddress> addresses;
  for (const auto& port : ports) addresses.push_back(some_up && !is_up(port) ? PortAddress{} : port->address());
  return addresses;
}

}  // namespace

Result<std::unique_ptr<LinkHalf>> SendLink::create(Hub& hub, const Dialer::Call& call, const Contact& contact,
                                                   std::vector<PortAddress> peer_ports, const tuttiLinkConfig& config) {
  std::unique_ptr<SendLink> link(new SendLink(hub, call, contact, std::move(peer_ports), config));
  auto made = link->make_queues();
  if (made) return std::unique_ptr<LinkHalf>(std::move(link));
  made.error().culprit_rank = config.peer;
  return std::move(made).error();
}

Result<void> SendLink::make_queues() {
  for (const auto& port : hub_.ports) most_bytes_at_once_ = std::min(most_bytes_at_once_, port->max_message_bytes());
  const size_t most_bytes = std::max<size_t>(stride_of(config_), TUTTI_DELIVERY_MAX_BYTES);
  writes_per_message_ = static_cast<uint32_t>(most_bytes / most_bytes_at_once_ + 2);
  receives_ = 2 * wishes_of(config_);
  writes_ = 3 * config_.slots * writes_per_message_;
  TUTTI_TRY(open_completions(hub_.queues_per_port * (writes_ + 1 + receives_)));
  TUTTI_TRY_ASSIGN(
      memory_, Pinned::allocate(hub_.ports, config_.slots * stride_of(config_) + wishes_of(config_) * sizeof(Wish)));
  std::vector<Queue> queues;
  const std::vector<Pairing> pairings = pair_ports(addresses_of(hub_.ports), peer_ports_);
  for (uint32_t q = 0; q < hub_.queues_per_port; q++) {  // first of all one on each port
    for (const Pairing& pairing : pairings) {
      if (queues.size() == kMaxQueues) break;
      TUTTI_TRY_ASSIGN(Queue queue, Queue::create(*hub_.ports[pairing.mine], pairing.mine, pairing.path.my_gid,
                                                  completions_[pairing.mine], writes_, receives_));
      lines_.push_back({queue.address(memory_.remote_key(pairing.mine)), static_cast<uint32_t>(pairing.theirs),
                        static_cast<uint32_t>(pairing.path.peer_gid)});
      queues.push_back(std::move(queue));
    }
  }
  set_queues(std::move(queues));
  sent_.resize(config_.slots);
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

bool SendLink::is_under_way() const {
  for (size_t q = 0; q < queues_.size(); q++)
    if (queues_[q].is_open() && is_proved(q) && queues_[q].under_way() > 0) return true;
  return unsettled_ > 0;
}

// The others learn that the link has ended when its connection closes, so all has to have arrived by then.
void SendLink::drain() {
  if (!ready_) return;
  for (size_t q = 0; q < queues_.size(); q++)
    if (is_usable(q) && queues_[q].unsignalled() > 0 && !failure_)
      queues_[q].write({.n_from = 0, .to = slots_at_, .key = queues_[q].peer_key(), .signalled = true});
  const Deadline limit = Deadline::after_seconds(kLongestDrainSeconds);
  while (!failure_ && !closed_ && is_under_way() && !limit.passed()) {
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
  if (!take_what_came(socket_, &answer_, sizeof(Answer))) return gone();
  if (answer_.size() < sizeof(Answer)) return false;
  Answer answer;
  memcpy(&answer, answer_.data(), sizeof answer);
  answer.refusal[sizeof answer.refusal - 1] = '\0';
  if (answer.n_queues != queues_.size())
    return Error{Code::kRemoteError, format("rank %d does not accept a verbs link: %s", config_.peer, answer.refusal),
                 config_.peer};
  slots_at_ = answer.slots;
  for (size_t q = 0; q < queues_.size(); q++) {
    answer.queues[q].gid = lines_[q].your_gid;
    TUTTI_TRY(queues_[q].connect(answer.queues[q], peer_ports_[lines_[q].your_port]));
  }
  TUTTI_TRY(watch_socket());
  if (::send(socket_.get(), &kReady, sizeof kReady, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof kReady) return gone();
  log(LogLevel::kInfo, "verbs link to rank %d through %s and %zu more queue pairs", config_.peer,
      queues_[0].port().name().c_str(), queues_.size() - 1);
  return true;
}

// A wish that is in the ring now.
void SendLink::on_arrival(uint32_t place, uint32_t) {
  if (place >= wishes_of(config_)) return fail("it sent an invalid request");
  Wish wish;
  memcpy(&wish, memory_.data() + config_.slots * stride_of(config_) + place * sizeof wish, sizeof wish);
  take_released(wish.released);
  if (wish.number != Wish::kNone) wish_ = wish;
}

void SendLink::take_released(uint64_t released) {
  if (released > published_) return fail("it released more than was sent");
  released_ = std::max(released_, released);
}

// A slot whose message is read where it lies has to know it until it is read.
bool SendLink::has_slot() const {
  return ready_ && !failure_ && published_ - released_ < config_.slots && !sent_[published_ % config_.slots].exposed &&
         queues_[least_busy()].has_room((1 + config_.slots) * writes_per_message_);
}

tuttiRoom SendLink::acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) {
  is_required_ = posting == TUTTI_REQUIRED;
  if (!has_slot() || !is_due()) {
    if (ready_ && !failure_) take_completions();
    if (!has_slot() || !is_due()) return TUTTI_NO_ROOM;
  }
  *at = slot(published_) + sizeof(SlotHeader);
  return is_required_ || (data != nullptr && hub_.user_memory.find(data, bytes)) ? TUTTI_EXPOSED : TUTTI_SLOT;
}

int SendLink::publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
  const bool is_misfit = is_required_ && wish_.bytes != bytes;
  auto pinned = data != nullptr && !is_misfit ? hub_.user_memory.find(data, bytes) : nullptr;
  if (data != nullptr && !is_misfit && !pinned) return 0;
  send(is_misfit ? nullptr : data, std::move(pinned), bytes, tag, std::exchange(is_required_, false));
  return 1;
}

// Also what waits for a queue pair to be closed at both ends, because this end then has to send it again.
uint32_t SendLink::unsent() {
  if ((exposed_ > 0 || unsettled_ > 0) && !failure_) take_completions();
  if (unsettled_ == 0 || failure_) return exposed_;
  return static_cast<uint32_t>(std::count_if(sent_.begin(), sent_.end(), [&](const Sent& message) {
    return message.exposed ||
           (message.queue != Sent::kNoQueue && !queues_[message.queue].is_open() && message.number >= released_);
  }));
}

void SendLink::on_read(uint32_t slot) {
  if (sent_[slot].exposed) give_back(sent_[slot]);
}

void SendLink::give_back(Sent& message) {
  message.exposed = nullptr;
  exposed_--;
}

void SendLink::send(const void* data, std::shared_ptr<const Pinned> exposed, uint32_t bytes, const tuttiTag& tag,
                    bool is_required) {
  if (failure_) return;
  SlotHeader& header = this->header(published_);
  header = {tag, published_, bytes, 0, 0, 0};
  if (const auto back = hub_.receivers.find({config_.peer, config_.channel}); back != hub_.receivers.end())
    back->second->pass_released(&header);
  Announcement announcement = announce(header);
  const bool is_misfit = is_required && announcement.is_placed == 0;  // only its header goes
  if (is_misfit) announcement.is_bare = 0;
  if (exposed) exposed_++;
  Sent& message = sent_[published_ % config_.slots];
  message = {published_, is_misfit ? 0 : bytes, Sent::kNoQueue, data, std::move(exposed), is_required && !is_misfit};
  published_++;
  set_place(message, announcement);
  look_sometimes();  // who always has a slot never polls
}

// How many bytes there are is seen only of what comes in one write.
Announcement SendLink::announce(const SlotHeader& header) const {
  Announcement a{.number = low_bits(header.number)};
  a.is_placed = wish_.number == header.number && wish_.bytes == header.bytes && header.bytes > 0;
  if (header.number == 0 || header.bytes > most_bytes_at_once_) return a;
  const SlotHeader& before = this->header(header.number - 1);
  const uint64_t steps = header.tag.word[0] - before.tag.word[0], releases = header.released - before.released;
  a.is_bare = steps <= Announcement::kMost && releases <= Announcement::kMost && header.sender == before.sender &&
              memcmp(&header.tag.word[1], &before.tag.word[1], sizeof header.tag - sizeof header.tag.word[0]) == 0;
  a.steps = static_cast<uint8_t>(steps);
  a.releases = static_cast<uint8_t>(releases);
  return a;
}

void SendLink::set_place(Sent& message, const Announcement& announcement) {
  message.queue = static_cast<uint32_t>(least_busy());
  const uint32_t key = queues_[message.queue].peer_key();
  const uint64_t to = slots_at_ + message.number % config_.slots * stride_of(config_);
  const size_t payload = sizeof(SlotHeader), end = payload + message.bytes, begin = announcement.is_bare ? payload : 0;
  if (!announcement.is_placed) return put(message, begin, end, to + begin, key, &announcement);
  const uint32_t wish_key = wish_.keys[lines_[message.queue].your_port];
  put(message, payload, end, wish_.at, wish_key, announcement.is_bare ? &announcement : nullptr);
  if (!announcement.is_bare) put(message, 0, payload, to, key, &announcement);
}

// Writes the bytes from `begin` to `end` of a message, its header and then its payload, in pieces that the port takes.
// The last one may announce it.
void SendLink::put(const Sent& message, size_t begin, size_t end, uint64_t to, uint32_t key,
                   const Announcement* announcement) {
  Queue& queue = queues_[message.queue];
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
    add(slot(message.number) + at, of_slot, memory_.local_key(port));
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
    // With several queues, what is completed tells which of them is fast. Else it is to free the queue's room.
    const bool frees = queues_.size() > 1 || message.number % std::max(1u, config_.slots / 2) == 0;
    write.signalled = write.announced && (write.exposes || frees);
    if (!queue.write(write)) return drop(message.queue, "a write cannot be posted");
  } while (at < end);
}

// What lies there is not read any more once its queue pairs are gone.
void SendLink::revoke() {
  if (unsent() == 0) return;
  fail("its operation has failed");
  queues_.clear();
  for (Sent& message : sent_) message.exposed = nullptr;
  exposed_ = 0;
}

// What was released may come with a message the other way, and is not said again then.
bool SendLink::wait_begin(tuttiWait* wait) {
  if (!socket_) {
    *wait = {dialer_.fd(), dialer_.events()};
    return !failure_ && dialer_.fd() >= 0;
  }
  if (!ready_) {
    *wait = {socket_.get(), POLLIN};
    return !failure_;
  }
  const uint64_t released = released_;
  const uint32_t waiting = unsent();
  *wait = {epoll_.get(), POLLIN};
  const auto back = hub_.receivers.find({config_.peer, config_.channel});
  const bool can_wake = arm() && (back == hub_.receivers.end() || back->second->arm());
  const uint32_t still = unsent();
  return can_wake && !failure_ && !closed_ && released_ == released && still == waiting && (still > 0 || !is_due());
}

}  // namespace tutti::verbs
