// Two ranks with a link each way, of one connection each, share the lower rank's: the higher rank sends small messages
// back on it. So acknowledgements are piggybacked on messages in the other direction: on bare sockets an exchange of 8
// B sends two segments instead of three, and takes 4.6 us instead of 5.2. Large messages have a connection for each
// direction: over a single one 1 MiB takes 1.6 times as long.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "base/fd.h"
#include "base/secure_channel.h"
#include "transports/adapter.h"

namespace tutti::tcp {

class SendLink;
class RecvLink;

// A connection that closes with the last half that uses it.
class SharedFd {
 public:
  SharedFd() = default;
  explicit SharedFd(Fd fd, std::unique_ptr<SecureChannel> channel = nullptr)
      : held_(std::make_shared<Held>(std::move(fd), std::move(channel))) {}
  int get() const { return held_ ? held_->fd.get() : -1; }
  SecureChannel* channel() const { return held_->channel.get(); }  // null: it is not encrypted
  explicit operator bool() const { return held_ != nullptr; }
  void reset() { held_.reset(); }

 private:
  struct Held {
    Held(Fd connected, std::unique_ptr<SecureChannel> secure) : fd(std::move(connected)), channel(std::move(secure)) {}
    Fd fd;
    std::unique_ptr<SecureChannel> channel;
  };
  std::shared_ptr<Held> held_;
};

// Identifies one of an endpoint's links: peer and channel.
using Place = std::pair<int, uint32_t>;
inline Place place_of(const tuttiLinkConfig& config) {
  return {config.peer, config.channel};
}

// The halves of an endpoint's links, to join those that make a pair.
class Pairs {
 public:
  explicit Pairs(int rank) : rank_(rank) {}
  // Enters a SendLink once it is connected, a RecvLink once it is made.
  template <class Half>
  void enter(Half* half, const tuttiLinkConfig& config) {
    Halves& halves = halves_[place_of(config)];
    std::get<Half*>(halves) = half;
    join(halves, config);
  }
  // A place may have a new half already.
  template <class Half>
  void leave(Half* half, const tuttiLinkConfig& config) {
    const auto found = halves_.find(place_of(config));
    if (found == halves_.end()) return;
    if (std::get<Half*>(found->second) == half) std::get<Half*>(found->second) = nullptr;
    if (found->second == Halves{}) halves_.erase(found);
  }
  // Null if there is none.
  RecvLink* receiver(const tuttiLinkConfig& config) const {
    const auto found = halves_.find(place_of(config));
    return found == halves_.end() ? nullptr : std::get<RecvLink*>(found->second);
  }
  // Whether the peer's small messages come back on this side's connection, not the other way round.
  bool is_answered(const tuttiLinkConfig& config) const { return rank_ < config.peer; }

 private:
  using Halves = std::tuple<SendLink*, RecvLink*>;  // null: not there
  void join(const Halves& halves, const tuttiLinkConfig& config);

  int rank_;
  std::map<Place, Halves> halves_;
};

}  // namespace tutti::tcp
