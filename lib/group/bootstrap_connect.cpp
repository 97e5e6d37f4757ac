#include "group/bootstrap_connect.h"

#include <poll.h>

#include <algorithm>
#include <span>

#include "base/dial.h"
#include "base/log.h"
#include "base/tcp_info.h"

namespace tutti {
namespace {

constexpr double kHeadStartSeconds = 0.25;  // before the next address is tried as well
constexpr double kAnswerSeconds = 1;        // the same once it has connected: a root of many ranks is busy
constexpr double kAttemptSeconds = 3;
constexpr int kMaxPauseMs = 250;  // between rounds; the first pause is 10 ms

// One address being tried.
struct Attempt {
  Address address;
  std::optional<Dialer> dialer = {};  // set while the address is tried
  Deadline until = Deadline::never();
  std::string why = "not tried";  // why it failed the last time
  std::string shortage = {};      // the last failure for lack of this process's resources, kept whatever follows
  bool refused = false;           // somebody answered there, but the handshake failed

  bool active() const { return dialer.has_value(); }
  bool answers() const { return dialer && dialer->is_connected(); }
  void start(const Dialer::Call& call);
  bool advance();
};

void Attempt::start(const Dialer::Call& call) {
  until = Deadline::after_seconds(kAttemptSeconds);
  dialer.emplace(call, std::vector{address});
  advance();
}

// True when the connection is made and authenticated.
bool Attempt::advance() {
  const Dialer::Status status = dialer->advance();
  if (status == Dialer::Status::kDone) return true;
  const bool failed = status == Dialer::Status::kFailed;
  if (!failed && !until.passed()) return false;
  why = failed      ? dialer->why()
        : answers() ? "it accepts connections but does not answer"
                    : "no answer (a firewall, or the wrong network?)";
  if (dialer->lacked_resources()) shortage = why;
  refused = failed && answers();
  dialer.reset();
  return false;
}

void wait_for_any(const std::vector<Attempt>& attempts, int timeout_ms) {
  std::vector<pollfd> polled;
  for (const Attempt& a : attempts)
    if (a.active()) polled.push_back({a.dialer->fd(), a.dialer->events(), 0});
  ::poll(polled.data(), polled.size(), timeout_ms);
}

// Tries every address once and returns the first that connects and authenticates, or null.
Attempt* try_all(std::vector<Attempt>& attempts, const Dialer::Call& call, Deadline deadline) {
  size_t next = 0;
  Deadline started = Deadline::never();  // when the last attempt began
  while (!deadline.passed()) {
    const bool idle = std::ranges::none_of(attempts, &Attempt::active), any_left = next < attempts.size();
    if (idle && !any_left) return nullptr;
    const bool answers = next > 0 && attempts[next - 1].answers();
    const Deadline due = started.plus_seconds(answers ? kAnswerSeconds : kHeadStartSeconds);
    if (any_left && (idle || due.passed())) {
      attempts[next++].start(call);
      started = Deadline::after_seconds(0);
      continue;  // it may have been refused at once
    }
    wait_for_any(attempts, std::min(deadline.left_ms(100), any_left ? due.left_ms(100) : 100));
    for (Attempt& attempt : attempts)
      if (attempt.active() && attempt.advance()) return &attempt;
  }
  return nullptr;
}

std::string describe_failures(std::span<const Attempt> attempts) {
  std::string text;
  for (const Attempt& attempt : attempts) {
    text += "; " + attempt.address.to_string() + ": " + attempt.why;
    if (!attempt.shortage.empty() && attempt.shortage != attempt.why) text += ", before that " + attempt.shortage;
  }
  return text;
}

Error give_up(const std::vector<Attempt>& attempts, int rank) {
  const bool refused = std::ranges::any_of(attempts, &Attempt::refused);
  return Error{refused ? Code::kInvalidUsage : Code::kTimeout,
               format("rank %d could not join the group's root in time%s%s", rank,
                      with_secret_remedy(describe_failures(attempts)).c_str(),
                      refused ? ""
                              : "; is the process that made the unique id alive, and do TUTTI_SOCKET_IFNAME and the "
                                "firewalls let this host reach it?")};
}

}  // namespace

std::string with_secret_remedy(std::string text) {
  if (text.find("secret") != text.npos) text += " (is TUTTI_SECRET, or the unique id, the same everywhere?)";
  return text;
}

bool is_local_address(const Address& address) {
  Address probe = address;
  probe.set_port(0);
  const Fd fd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Only an address of this host can be bound.
  return fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&probe.storage), probe.length) == 0;
}

std::vector<Address> root_candidates(const UniqueIdParts& parts) {
  std::vector<Address> found;
  const auto add = [&](const Address& a) {
    const auto is_same = [name = a.to_string()](const Address& b) { return b.to_string() == name; };
    if (std::none_of(found.begin(), found.end(), is_same)) found.push_back(a);
  };
  for (const Address& a : parts.addresses)
    if (is_local_address(a)) {
      const auto loopback = resolve(a.family() == AF_INET ? "127.0.0.1" : "::1", a.port());
      if (loopback) add(loopback.value()[0]);
    }
  std::vector<Interface> mine;
  if (std::any_of(parts.addresses.begin(), parts.addresses.end(), [](const Address& a) { return a.is_link_local(); }))
    if (auto all = all_interfaces()) mine = std::move(all).value();  // none without a file descriptor
  for (const Address& a : through_local_interfaces(parts.addresses, mine)) add(a);
  return found;
}

Result<RootConnection> connect_to_root(const UniqueIdParts& parts, const Key& key, int rank, Deadline deadline,
                                       Deadline* tell_at) {
  Deadline soon = Deadline::after_seconds(kQuietSeconds);
  if (tell_at == nullptr) tell_at = &soon;
  std::vector<Attempt> attempts;
  for (const Address& address : root_candidates(parts)) attempts.push_back({.address = address});
  const Dialer::Call call{key, HelloKind::kBootstrap, rank, -1, {}, root_door(key)};
  for (int pause_ms = 10;; pause_ms = std::min(2 * pause_ms, kMaxPauseMs)) {
    if (Attempt* const winner = try_all(attempts, call, deadline)) {
      const std::span<const Attempt> before(attempts.data(), winner);
      const std::string how = winner->address.to_string() + format(" (address %zu of %zu%s)", before.size() + 1,
                                                                   attempts.size(), describe_failures(before).c_str());
      Dialer& dialer = *winner->dialer;
      const uint64_t there_and_back_ns = round_trip_ns(dialer.fd());
      return RootConnection{dialer.take(), dialer.take_channel(), how, {}, there_and_back_ns};
    }
    if (deadline.passed()) return give_up(attempts, rank);
    if (tell_at->passed()) {
      *tell_at = Deadline::never();
      log(LogLevel::kWarn, "rank %d has not reached the group's root for %.0f s%s; still trying", rank, kQuietSeconds,
          describe_failures(attempts).c_str());
    }
    ::poll(nullptr, 0, deadline.left_ms(pause_ms));  // the root may not listen yet
  }
}

Result<void> RootSearch::ask(const UniqueId& id) {
  TUTTI_TRY_ASSIGN(const UniqueIdParts parts, unpack_unique_id(id));
  const double left = deadline_.left_ms(INT32_MAX) / 1e3;
  const Deadline until = Deadline::after_seconds(left < 2 * patience_seconds_ ? left : patience_seconds_);
  patience_seconds_ *= 2;
  TUTTI_TRY(connect_to_root(parts, derive_key(parts.secret, sizeof parts.secret), rank_, until, &tell_at_));
  return {};
}

}  // namespace tutti
