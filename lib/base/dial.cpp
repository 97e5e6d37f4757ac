#include "base/dial.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/sort.h"

namespace tutti {
namespace {

// For one address: a firewall that drops packets must not use up the whole init.
constexpr int64_t kAttemptNs = 3'000'000'000;
// For all addresses, tried again if one did not answer: an attempt sends two SYNs, and neither is answered in one
// attempt of 4 if 30 % of all packets are lost, and in one of 2,500 if 1 % are.
constexpr double kDialSeconds = 20;
constexpr int kMostEarlyCuts = 3;  // by porters, which also hang up on who asks for a door that is gone
// How long an Acceptor that is short of room waits for a proof: from a connection that has said nothing yet (a rank
// speaks as soon as it is connected), and from one in the middle of its handshake.
constexpr int64_t kSilenceNs = 100'000'000;
constexpr int64_t kHurryNs = 1'000'000'000;
constexpr int64_t kLongestLookNs = 500'000'000;
constexpr int64_t kRootsPatienceNs = 5'000'000'000;  // callers of a group's root try again
constexpr size_t kMostMisfits = 8;
constexpr int kKernelSilenceMs = 10'000;        // in a handshake
constexpr int64_t kShortageNs = 1'000'000'000;  // without descriptors, which others may free

enum Family : uint8_t { kV4 = 4, kV6 = 6, kV6LinkLocal = 7 };  // on the wire

// How much of its address a candidate shares with the closest of this host's addresses, in 1/128: a peer in the same
// network shares the most. Link-local addresses share half by definition, which says nothing (-1), and an address of
// this host leads to this host (-2).
int nearness(const Address& candidate, const std::vector<Interface>& mine) {
  if (candidate.is_link_local()) return -1;
  int best = 0;
  for (const Interface& i : mine) {
    if (i.address.same_place(candidate)) return -2;
    const int width = candidate.family() == AF_INET ? 32 : 128;
    best = std::max(best, i.address.common_bits(candidate) * (128 / width));
  }
  return best;
}

// The networks of about the fastest speed that this host shares with a peer at these addresses: one address in each.
// Not container bridges: they have the same addresses on every host but are separate networks. Two devices in one
// network count once, because the kernel sends through only one of them.
struct SharedNetworks {
  std::vector<Address> addresses;
  bool speeds_known = false;
  size_t count() const { return speeds_known ? addresses.size() : 1; }
};
SharedNetworks shared_networks(const std::vector<Address>& addresses, const std::vector<Interface>& mine,
                               bool are_mine = false) {
  struct Network {
    Address address;
    const Interface* device;
    int64_t speed;
  };
  std::vector<Network> networks;
  int64_t fastest = 0;
  for (const Address& address : addresses) {
    if (!are_mine && nearness(address, mine) < 0) continue;
    const auto device = std::find_if(mine.begin(), mine.end(), [&](const Interface& i) {
      return preference(i) == kRealNetwork && i.network_bits > 0 && i.address.common_bits(address) >= i.network_bits;
    });
    if (device == mine.end()) continue;
    const bool known = std::any_of(networks.begin(), networks.end(), [&](const Network& n) {
      return n.device->name == device->name || n.address.common_bits(address) >= device->network_bits;
    });
    if (known) continue;
    networks.push_back({address, &*device, megabits_per_second(*device)});
    fastest = std::max(fastest, networks.back().speed);
  }
  SharedNetworks shared{{}, fastest > 0};
  for (const Network& n : networks)
    if (n.speed * 2 >= fastest) shared.addresses.push_back(n.address);
  return shared;
}

// During a handshake the peer may be busy, but its kernel has to answer: else the network has failed. Afterwards the
// connection's owner looks after that.
void limit_silence(int fd, bool is_limited) {
  const int on = is_limited, second = 1, most_ms = is_limited ? kKernelSilenceMs : 0;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof second);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &second, sizeof second);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof most_ms);
}

}  // namespace

std::vector<Address> ways_to(const Contact& peer, size_t nth) {
  std::vector<Address> ordered = peer.addresses;
  if (peer.host == host_id()) {
    sort_stably(ordered, [](const Address& a, const Address& b) { return a.is_loopback() > b.is_loopback(); });
    return ordered;
  }
  std::erase_if(ordered, [](const Address& a) { return a.is_loopback(); });
  const auto mine = local_interfaces();
  return mine ? ways_from(mine.value(), std::move(ordered), nth) : ordered;
}

// Sorts by speed first, if it is known: a host's first address is often in a slow management network.
std::vector<Address> ways_from(const std::vector<Interface>& mine, std::vector<Address> ordered, size_t nth) {
  sort_stably(ordered, [&](const Address& a, const Address& b) { return nearness(a, mine) > nearness(b, mine); });
  const SharedNetworks shared = shared_networks(ordered, mine);
  if (shared.speeds_known || (nth > 0 && shared.addresses.size() > 1)) {
    const Address& first = shared.addresses[nth % shared.addresses.size()];
    sort_stably(ordered, [&](const Address& a, const Address& b) { return a.same_place(first) > b.same_place(first); });
  }
  return through_local_interfaces(ordered, mine);
}

std::vector<Address> through_local_interfaces(const std::vector<Address>& addresses,
                                              const std::vector<Interface>& mine) {
  std::vector<Address> expanded;
  for (const Address& address : addresses) {
    if (!address.is_link_local()) {
      expanded.push_back(address);
      continue;
    }
    for (const Interface& i : mine) {
      if (!i.address.is_link_local()) continue;
      expanded.push_back(address);
      auto* v6 = reinterpret_cast<sockaddr_in6*>(&expanded.back().storage);
      v6->sin6_scope_id = reinterpret_cast<const sockaddr_in6*>(&i.address.storage)->sin6_scope_id;
    }
  }
  return expanded;
}

void put_address(const Address& address, ByteWriter* to) {
  const auto ip = address.ip();
  to->put(ip.size() == 4 ? kV4 : address.is_link_local() ? kV6LinkLocal : kV6);
  if (address.is_link_local()) to->put(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_scope_id);
  for (const uint8_t byte : ip) to->put(byte);
}

std::optional<Address> get_address(ByteReader* from) {
  const auto family = from->get<uint8_t>();
  if (family == kV4) {
    const auto address = Address::of_ip(from->get<std::array<uint8_t, 4>>());
    return from->ok() ? std::optional(address) : std::nullopt;
  }
  const uint32_t interface = family == kV6LinkLocal ? from->get<uint32_t>() : 0;
  auto address = Address::of_ip(from->get<std::array<uint8_t, 16>>());
  reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_scope_id = interface;
  return from->ok() && (family == kV6 || family == kV6LinkLocal) ? std::optional(address) : std::nullopt;
}

std::string Contact::to_bytes() const {
  ByteWriter w;
  w.put(host).put(door);
  for (const Address& address : addresses) {
    w.put(address.port());
    put_address(address, &w);
  }
  return w.take();
}

std::optional<Contact> Contact::from_bytes(std::string_view bytes) {
  Contact contact;
  ByteReader r(bytes);
  r.all(contact.host, contact.door);
  while (r.ok() && !r.at_end()) {
    const auto port = r.get<uint16_t>();
    auto address = get_address(&r);
    if (!address) return std::nullopt;
    address->set_port(port);
    contact.addresses.push_back(*address);
  }
  return r.ok() ? std::optional(contact) : std::nullopt;
}

size_t networks_between(const Contact& peer) {
  if (peer.host == host_id()) return 1;
  const auto mine = local_interfaces();
  return mine ? shared_networks(peer.addresses, mine.value()).count() : 1;
}

size_t networks_of(const Listener& mine) {
  return shared_networks(mine.contact.addresses, mine.interfaces, true).count();
}

Dialer::Dialer(const Call& call, const Contact& peer, size_t nth) : Dialer(call, ways_to(peer, nth)) {
  call_.door = peer.door;
}

Dialer::Dialer(const Call& call, std::vector<Address> candidates)
    : call_(call), candidates_(std::move(candidates)), patience_(Deadline::after_seconds(kDialSeconds)) {}

Dialer::Status Dialer::advance() {
  for (;;) {
    if (!fd_) {
      if (const Status started = start_next(); started != Status::kDone) return started;
    }
    if (!handshake_) {
      int sys_errno = 0;
      const Code code = connect_finished(fd_.get(), &sys_errno);
      if (code == Code::kInProgress && now_ns() - began_ns_ < kAttemptNs) return Status::kPending;
      if (code != Code::kSuccess) {
        was_silent_ |= code == Code::kInProgress;
        give_up_on_current(code == Code::kInProgress ? "no answer" : system_error("connect", sys_errno).message);
        continue;
      }
      handshake_ = Handshake::client(call_.key, call_.kind, call_.from_rank, call_.to_rank, call_.args, call_.door);
    }
    switch (handshake_->advance(fd_.get())) {
      case Handshake::Status::kPending: return Status::kPending;  // the peer may be busy: init's deadline covers this
      case Handshake::Status::kFailed:
        note_cut();
        give_up_on_current(handshake_->why());
        continue;
      case Handshake::Status::kDone: limit_silence(fd_.get(), false);
    }
    story_ = candidates_[next_ - 1].to_string() +
             format(" (address %zu of %zu%s%s)", next_, candidates_.size(), story_.empty() ? "" : "; ", story_.c_str());
    return Status::kDone;
  }
}

short Dialer::events() const {
  return !handshake_ || handshake_->wants_write() ? POLLOUT : POLLIN;
}

Dialer::Status Dialer::start_next() {
  if (next_ == candidates_.size() && std::exchange(was_silent_, false) && !patience_.passed()) {
    next_ = 0;
    story_.clear();
    lacked_resources_ = false;
  }
  while (next_ < candidates_.size()) {
    auto fd = connect_start(candidates_[next_], call_.kind == HelloKind::kTcp ? 0 : kSmallSegmentBytes);
    // Connecting to a UNIX socket whose queue is full fails at once: retry later, as TCP does on its own.
    if (!fd && fd.error().sys_errno == EAGAIN) return Status::kPending;
    next_++;
    if (fd) {
      fd_ = std::move(fd).value();
      limit_silence(fd_.get(), true);
      handshake_.reset();
      began_ns_ = now_ns();
      return Status::kDone;
    }
    lacked_resources_ |= lacks_resources(fd.error().sys_errno);
    give_up_on_current(fd.error().message);
  }
  if (candidates_.empty()) story_ = "it has no address to try";
  return Status::kFailed;
}

// A peer drops connections that do not prove themselves in time, those of a process that was stopped, too; or the
// network has failed. The time of the handshake does not count, because the peer may be busy. One that hangs up at once
// is not waited for. But a porter that does may have been killed before it passed the call on: another one may do so.
void Dialer::note_cut() {
  if (!handshake_->is_cut()) return;
  const bool is_early = now_ns() - began_ns_ < kSilenceNs;
  if (is_early && (call_.door == 0 || early_cuts_++ >= kMostEarlyCuts)) return;
  was_silent_ = true;
  patience_ = patience_.extended_since(began_ns_);
}

void Dialer::give_up_on_current(std::string why) {
  fd_.reset();
  why_ = std::move(why);
  story_ += (story_.empty() ? "" : "; ") + candidates_[next_ - 1].to_string() + ": " + why_;
}

std::optional<Acceptor::Accepted> Acceptor::next() {
  // Time counts only up to kLongestLookNs per call: a process that was stopped has not read what arrived meanwhile.
  const int64_t now = now_ns(), looked_ns = std::min(now - std::exchange(looked_ns_, now), kLongestLookNs);
  for (Pending& p : pending_) p.waited_ns += looked_ns;
  take_in();
  for (auto p = pending_.begin(); p != pending_.end();) {
    const auto status = p->handshake.advance(p->fd.get());
    if (status == Handshake::Status::kDone) {
      Accepted accepted{std::move(p->fd), p->handshake.hello(), p->handshake.take_channel()};
      pending_.erase(p);
      return accepted;
    }
    const bool failed = status == Handshake::Status::kFailed;
    if (failed || p->waited_ns > (is_roots() ? kRootsPatienceNs : kHandshakePatienceNs)) {
      const std::string who = peer_name(p->fd.get());
      log(LogLevel::kInfo, "refused a connection from %s: %s", who.c_str(),
          failed ? p->handshake.why().c_str() : "it did not prove in time that it belongs to the group");
      // Without the port, which is another one for each attempt.
      if (p->handshake.is_misfit() && misfits_.size() < kMostMisfits)
        misfits_[who.substr(0, who.rfind(':'))] = p->handshake.why();
      p = pending_.erase(p);
    } else {
      ++p;
    }
  }
  return std::nullopt;
}

void Acceptor::add_waiting(std::vector<pollfd>* fds) const {
  for (const Fd& fd : listening_) fds->push_back({fd.get(), static_cast<short>(is_full_ ? 0 : POLLIN), 0});
  for (const Pending& p : pending_)
    fds->push_back({p.fd.get(), static_cast<short>(p.handshake.wants_write() ? POLLOUT : POLLIN), 0});
}

// Accepts waiting connections, up to one more than most_pending(): only then is it known that room is short.
void Acceptor::take_in() {
  is_full_ = true;
  while (pending_.size() <= most_pending() || turn_away_one()) {
    Fd fd = accept_any();
    if (fd) {
      pending_.push_back({std::move(fd), Handshake::server(key_, kind_, my_rank_)});
      shortage_.reset();
      continue;
    }
    is_full_ = lacks_resources(errno);
    if (!is_full_) return shortage_.reset();
    if (!shortage_) {
      shortage_ = system_error("accepting a connection", errno);
      short_since_ns_ = now_ns();
    }
    if (!shortage_logged_) log(LogLevel::kWarn, "%s; peers wait until there is room again", shortage_->message.c_str());
    shortage_logged_ = true;
    if (!turn_away_one()) return;
  }
}

std::optional<Error> Acceptor::shortage() const {
  return shortage_ && now_ns() - short_since_ns_ > kShortageNs ? shortage_ : std::nullopt;
}

// Tries each socket in turn. If none has a connection, errno is that of the last failure other than EAGAIN.
Fd Acceptor::accept_any() {
  int why = EAGAIN;
  for (const Fd& door : listening_) {
    if (Fd fd = accept_one(door.get())) return fd;
    if (errno != EAGAIN) why = errno;
  }
  errno = why;
  return {};
}

// Peers of this host connect through the loopback, if it is there.
void Acceptor::narrow(bool here, bool elsewhere) {
  const auto is_loopback = [](const Fd& fd) {
    const auto address = local_address(fd.get());
    return address && address->is_loopback();
  };
  const bool has_loopback = std::any_of(listening_.begin(), listening_.end(), is_loopback);
  std::erase_if(listening_,
                [&](const Fd& fd) { return is_loopback(fd) ? !here : !elsewhere && (!here || has_loopback); });
}

// Makes room: drops the oldest that has said nothing, else the oldest. False if that one still has time left.
bool Acceptor::turn_away_one() {
  auto victim = std::find_if(pending_.begin(), pending_.end(), [](Pending& p) {
    p.handshake.advance(p.fd.get());  // it may have spoken since we last listened
    return !p.handshake.heard();
  });
  const int64_t patience_ns = victim != pending_.end() ? kSilenceNs : kHurryNs;
  if (victim == pending_.end()) victim = pending_.begin();
  if (victim == pending_.end() || victim->waited_ns < patience_ns) return false;
  log(LogLevel::kInfo, "refused a connection: too many others have not yet proved that they belong to the group");
  pending_.erase(victim);
  return true;
}

}  // namespace tutti
