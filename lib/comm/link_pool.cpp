#include "comm/link_pool.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "base/sort.h"

namespace tutti {
namespace {

// Empty if a peer with these addresses may be reached from the endpoint, else why not.
std::string unreachable_because(const Endpoint& endpoint, const LinkPool::Addresses& peer) {
  const auto address = peer.find(endpoint.name());
  return address == peer.end() ? "the peer does not have it" : endpoint.unreachable_because(address->second);
}

bool is_shared_memory(const Endpoint& endpoint) {
  return endpoint.name() == std::string_view("shm");
}

// Whether a link to this peer does.
bool keeps_socket(const std::vector<Endpoint>& endpoints, const LinkPool::Peers& peers, int peer) {
  const bool is_here = std::binary_search(peers.of_process.begin(), peers.of_process.end(), peer);
  return !is_here || std::none_of(endpoints.begin(), endpoints.end(), is_shared_memory);
}

// What the endpoint presumably takes to bring a message of a slot's size. To ranks of this host a network's device may
// say that it is faster than a core copies, but it is farther, and shared by all.
double cost_ns(const Endpoint& endpoint) {
  if (is_shared_memory(endpoint)) return 0;
  const tuttiEndpointInfo& info = endpoint.info();
  return info.latency_ns + (128 << 10) * 1e9 / static_cast<double>(info.bytes_per_second);
}

}  // namespace

Result<LinkPool> LinkPool::open(const tuttiEndpointConfig& config, const std::vector<const tuttiTransport*>& transports,
                                bool by_cost) {
  LinkPool pool;
  pool.rank_ = config.rank;
  std::string refused;
  for (const tuttiTransport* transport : transports) {
    auto endpoint = Endpoint::open(transport, config);
    if (endpoint) {
      pool.endpoints_.push_back(std::move(endpoint).value());
      continue;
    }
    log(LogLevel::kWarn, "transport %s is not usable here: %s", transport->name, endpoint.error().message.c_str());
    refused += format("%s%s: %s", refused.empty() ? "" : "; ", transport->name, endpoint.error().message.c_str());
    if (pool.endpoints_.empty() && transport == transports.back())
      return Error{endpoint.error().code, "no transport is usable here: " + refused};
  }
  if (by_cost)
    sort_stably(pool.endpoints_.begin(), pool.endpoints_.end(),
                [](const Endpoint& a, const Endpoint& b) { return cost_ns(a) < cost_ns(b); });
  return pool;
}

uint64_t LinkPool::network_bytes_per_second() const {
  uint64_t fastest = 0;
  for (const Endpoint& endpoint : endpoints_)
    if (!is_shared_memory(endpoint)) fastest = std::max(fastest, endpoint.info().bytes_per_second);
  constexpr uint64_t kUsual = 1'000'000'000;
  return fastest > 0 ? fastest : kUsual;
}

LinkPool::Addresses LinkPool::addresses() const {
  Addresses all;
  for (const Endpoint& endpoint : endpoints_) all[endpoint.name()] = endpoint.address();
  return all;
}

std::string LinkPool::route(int peer) {
  const Addresses addresses = peers_.addresses(peer);
  std::string story;
  for (Endpoint& endpoint : endpoints_) {
    const std::string why = unreachable_because(endpoint, addresses);
    if (why.empty()) return std::string(endpoint.name()) + (story.empty() ? "" : ", because " + story);
    story += format("%s%s: %s", story.empty() ? "" : "; ", endpoint.name(), why.c_str());
  }
  return "no transport: " + story;
}

Link* LinkPool::find(int peer, uint32_t channel, bool sending) {
  auto& links = sending ? sends_ : recvs_;
  const auto found = links.find({peer, channel});
  return found == links.end() ? nullptr : found->second.get();
}

Result<void> LinkPool::check_delivery(const void* memory, size_t bytes) {
  std::vector<Endpoint*> able;
  std::string story;
  for (Endpoint& endpoint : endpoints_) {
    const Result<void> registered =
        endpoint.delivers() ? endpoint.registers(memory, bytes) : Error{Code::kSystemError, "it cannot bypass the CPU"};
    if (registered)
      able.push_back(&endpoint);
    else
      story += format("%s%s: %s", story.empty() ? "" : "; ", endpoint.name(), registered.error().message.c_str());
  }
  for (int peer = 0; peer < peers_.n_ranks; peer++) {
    const Addresses addresses = peers_.addresses(peer);
    std::string why = story;
    const bool is_reached = std::any_of(able.begin(), able.end(), [&](const Endpoint* endpoint) {
      const std::string not_because = unreachable_because(*endpoint, addresses);
      if (!not_because.empty())
        why += format("%s%s to rank %d: %s", why.empty() ? "" : "; ", endpoint->name(), peer, not_because.c_str());
      return not_because.empty();
    });
    if (!is_reached && peer != rank_) return Error{Code::kSystemError, why};
  }
  return {};
}

void LinkPool::forget_delivery() {
  for (Endpoint& endpoint : endpoints_)
    if (endpoint.delivers()) (void)endpoint.registers(nullptr, 0);
}

void LinkPool::narrow(bool here, bool elsewhere) {
  for (Endpoint& endpoint : endpoints_) endpoint.narrow(here, elsewhere);
}

size_t LinkPool::sockets_of(const Schedule& schedule) const {
  std::set<Name> out, in;
  for (const Lane& lane : schedule.lanes) {
    for (const auto& [step, from] : lane.steps.patterns()) {
      if (step.send >= 0 && keeps_socket(endpoints_, peers_, step.send)) out.emplace(step.send, lane.channel);
      for_each_sender(schedule, step, [&](int peer) {
        if (keeps_socket(endpoints_, peers_, peer)) in.emplace(peer, lane.channel);
      });
    }
  }
  return out.size() + in.size();
}

Link& LinkPool::place_in(Links& links, const Name& name) const {
  std::unique_ptr<Link>& place = links[name];
  if (!place)
    place = std::make_unique<Link>(
        &kNoTransport, nullptr,
        tuttiLinkConfig{sizeof(tuttiLinkConfig), name.first, name.second, sizes_.slots, sizes_.slot_bytes, 0});
  return *place;
}

void LinkPool::request(const Schedule& schedule, bool delivers) {
  for (const Lane& lane : schedule.lanes) {
    for (const auto& [step, from_time] : lane.steps.patterns()) {
      const Name to{step.send, lane.channel};
      if (step.send >= 0 && !place_in(sends_, to).is_made())
        attempts_.try_emplace(to).first->second.delivers = delivers;
      for_each_sender(schedule, step, [&](int peer) {
        const Name from{peer, lane.channel};
        if (!place_in(recvs_, from).is_made() && std::find(awaited_.begin(), awaited_.end(), from) == awaited_.end())
          awaited_.push_back(from);
      });
    }
  }
}

// Pauses between two looks, longer the longer nothing has come: or a thousand ranks that look do nothing else.
Result<void> LinkPool::connect(const Schedule& schedule, Deadline deadline, const std::function<bool()>& interrupted,
                               bool delivers) {
  constexpr uint32_t kFirstUs = 50, kLastUs = 20'000;
  request(schedule, delivers);
  uint32_t pause_us = kFirstUs;
  while (!attempts_.empty() || !awaited_.empty()) {
    TUTTI_TRY_ASSIGN(const bool progress, advance());
    if (interrupted()) return {};
    if (!progress && deadline.passed()) return late();
    if (!progress) usleep(pause_us);
    pause_us = progress ? kFirstUs : std::min(2 * pause_us, kLastUs);
  }
  return {};
}

Result<bool> LinkPool::advance() {
  TUTTI_TRY_ASSIGN(bool progress, accept_all());
  for (auto i = attempts_.begin(); i != attempts_.end();) {
    TUTTI_TRY_ASSIGN(const bool ready, advance_attempt(i->first, i->second));
    if (!ready) {
      ++i;
      continue;
    }
    count(*i->second.link);
    place_in(sends_, i->first) = std::move(*i->second.link);
    i = attempts_.erase(i);
    progress = true;
  }
  return progress;
}

Result<bool> LinkPool::advance_attempt(const Name& name, Attempt& attempt) {
  if (!attempt.link) return next_transport(name, attempt);
  tuttiTransportError error{};
  const tuttiResult_t code = attempt.link->poll(&error);
  if (code == tuttiInProgress) return false;
  const char* transport = attempt.link->transport();
  if (code == tuttiSuccess) {
    log(LogLevel::kInfo, "link to rank %d channel %u through %s%s%s", name.first, name.second, transport,
        attempt.story.empty() ? "" : ", because ", attempt.story.c_str());
    return true;
  }
  attempt.story += format("%s%s: %s", attempt.story.empty() ? "" : "; ", transport, error.text);
  attempt.link.reset();
  return next_transport(name, attempt);
}

// Starts on the next transport that reaches the peer. False, since it takes time; an error when none is left.
Result<bool> LinkPool::next_transport(const Name& name, Attempt& attempt) {
  const Addresses peer = peers_.addresses(name.first);
  while (attempt.next_transport < endpoints_.size()) {
    Endpoint& endpoint = endpoints_[attempt.next_transport++];
    std::string why =
        attempt.delivers && !endpoint.delivers() ? "it cannot bypass the CPU" : unreachable_because(endpoint, peer);
    if (why.empty()) {
      const tuttiLinkConfig config{sizeof config, name.first,        name.second,
                                   sizes_.slots,  sizes_.slot_bytes, sizes_.connections};
      auto link = endpoint.connect(config, peer.at(endpoint.name()));
      if (link) {
        attempt.link = std::make_unique<Link>(std::move(link).value());
        return false;
      }
      why = link.error().message;
    }
    attempt.story += format("%s%s: %s", attempt.story.empty() ? "" : "; ", endpoint.name(), why.c_str());
  }
  return Error{Code::kRemoteError,
               format("no transport reaches rank %d: %s (allowed transports: TUTTI_TRANSPORTS)", name.first,
                      attempt.story.c_str()),
               name.first};
}

Result<bool> LinkPool::accept_all() {
  bool progress = false;
  for (Endpoint& endpoint : endpoints_) {
    for (;;) {
      Link link;
      TUTTI_TRY_ASSIGN(const bool arrived, endpoint.accept(&link));
      if (!arrived) break;
      const Name name{link.peer(), link.config().channel};
      if (link.config().slot_bytes != sizes_.slot_bytes) continue;  // not one of this group's
      Link& place = place_in(recvs_, name);
      if (place.is_made()) continue;  // nor that
      count(link);
      place = std::move(link);
      incoming_.push_back(&place);
      std::erase(awaited_, name);
      progress = true;
    }
  }
  return progress;
}

// A link that fails is the concern of who uses it next.
void LinkPool::keep_up() {
  (void)accept_all();
  tuttiTransportError ignored{};
  for (auto& [name, link] : sends_) (void)link->poll(&ignored);
  constexpr int64_t kEveryNs = 1'000'000'000;
  if (const int64_t now = now_ns(); now - counted_ns_ >= kEveryNs) {
    counted_ns_ = now;
    count_resent();
  }
}

void LinkPool::count_resent() {
  std::map<int, uint64_t> all;
  for (auto& [name, link] : sends_)
    if (const uint64_t n = link->state().resent; n != Link::kNotCounted) all[name.first] += n;
  if (all.empty()) return;
  const std::lock_guard lock(held_->mutex);
  held_->resent = std::move(all);
}

std::map<int, uint64_t> LinkPool::resent() const {
  const std::lock_guard lock(held_->mutex);
  return held_->resent;
}

void LinkPool::count(const Link& link) {
  held_->links++;
  if (keeps_socket(endpoints_, peers_, link.peer())) held_->sockets++;
  held_->bytes += size_t{link.config().slots} * link.config().slot_bytes;
}

Error LinkPool::late() const {
  std::string missing;
  for (const auto& [name, attempt] : attempts_)
    missing += format("%sto rank %d (%s)", missing.empty() ? "" : ", ", name.first,
                      attempt.link ? attempt.link->transport() : "no transport");
  for (const Name& name : awaited_) missing += format("%sfrom rank %d", missing.empty() ? "" : ", ", name.first);
  return {Code::kTimeout, "links were not ready in time: " + missing};
}

}  // namespace tutti
