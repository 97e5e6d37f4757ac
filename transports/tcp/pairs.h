// Two ranks with a link each way, of one connection each, share the lower rank's: the higher rank sends what is small
// back on it. So acknowledgements ride on the messages of the other direction: an exchange of 8 B sends two segments
// instead of three, and takes 4.6 us instead of 5.2. What is large has a connection for each way: from 64 KiB on an
// exchange by one takes up to 1.6 times as long.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "transports/adapter.h"

namespace tutti::tcp {

class SendLink;
class RecvLink;

// A connection that closes with the last half that uses it.
class SharedFd {
 public:
  SharedFd() = default;
  explicit SharedFd(Fd fd) : fd_(std::make_shared<Fd>(std::move(fd))) {}
  int get() const { return fd_ ? fd_->get() : -1; }
  explicit operator bool() const { return fd_ != nullptr; }
  void reset() { fd_.reset(); }

 private:
  std::shared_ptr<Fd> fd_;
};

// The halves of an endpoint's links, to bring those together that make a pair.
class Pairs {
 public:
  explicit Pairs(int rank) : rank_(rank) {}
  void enter(SendLink* half, const tuttiLinkConfig& config);  // once connected
  void enter(RecvLink* half, const tuttiLinkConfig& config);
  void leave(const SendLink* half, const tuttiLinkConfig& config);
  void leave(const RecvLink* half, const tuttiLinkConfig& config);
  RecvLink* receiver(const tuttiLinkConfig& config);  // null: none is there
  // The peer's messages come back on this side's connections, not the other way round.
  bool is_answered(const tuttiLinkConfig& config) const { return rank_ < config.peer; }

 private:
  using Place = std::pair<int, uint32_t>;  // peer and channel
  static Place place_of(const tuttiLinkConfig& config) { return {config.peer, config.channel}; }
  struct Halves {
    SendLink* send = nullptr;
    RecvLink* recv = nullptr;
  };
  template <class Half>
  void leave(Half* Halves::*which, const Half* half, const tuttiLinkConfig& config);
  void join(const Halves& halves, const tuttiLinkConfig& config);

  int rank_;
  std::map<Place, Halves> halves_;
};

}  // namespace tutti::tcp
