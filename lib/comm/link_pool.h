// This header: the links of one rank to its peers, made when an operation first needs them and then kept. Belongs to
// one thread at a time.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "comm/endpoints.h"
#include "exec/yielding.h"
#include "schedule/schedule.h"

namespace tutti {

class LinkPool {
 public:
  explicit LinkPool(const Membership& me) : me_(me) {}
  Endpoints& endpoints() { return endpoints_; }  // empty at first

  // Notes which links of `schedule` must be made: keep_up() makes them, offers the outgoing ones and waits for the
  // incoming ones. From now on find() returns them, even before they are made, when they take and deliver nothing.
  // `all_at_once`: else few at a time, in the order of the schedule, so that many ranks of one process do not run out
  // of descriptors; for operations that all ranks are in, because a peer that is not holds up the links after its own.
  // `delivers`: only transports that move data between devices.
  void request(const Schedule& schedule, bool all_at_once = false, bool delivers = false);
  size_t missing() const { return attempts_.size() + awaited_.size(); }  // how many requested links are not made yet
  // Requests the links of `schedule` and waits until they are made. `stops`: whether to stop early, without an error:
  // the caller has to find that.
  Result<void> connect(const Schedule& schedule, Deadline deadline, const std::function<bool()>& stops,
                       bool delivers = false);
  // How many sockets the schedule's links keep: one each, except links in shared memory within this process.
  size_t sockets_of(const Schedule& schedule) const;

  // While this rank waits: goes on with requested links, and accepts those that peers make early, for an operation that
  // this rank has not begun yet; lets its links send what is left of earlier operations. An error if a requested link
  // cannot be made.
  Result<void> keep_up();
  // Updates resent(): now and then in keep_up(), and before it is about to be read.
  void count_resent();
  Link* find(int peer, uint32_t channel, bool sending);
  const std::vector<Link*>& incoming() const { return incoming_; }
  Yielding& yielding() { return yielding_; }  // whether to yield to the peers while waiting for them

  // From any thread.
  size_t links() const { return held_.links.load(std::memory_order_relaxed); }
  size_t link_bytes() const { return held_.bytes.load(std::memory_order_relaxed); }
  std::map<int, uint64_t> resent() const;  // by peer, over networks; as of the last count_resent()
  // Listeners, the sockets of links, and one eventfd for all links without a socket.
  size_t descriptors() const {
    const size_t sockets = held_.sockets.load(std::memory_order_relaxed);
    return endpoints_.size() + sockets + (links() > sockets ? 1 : 0);
  }

 private:
  using Name = std::pair<int, uint32_t>;  // peer, channel
  using Links = std::map<Name, std::unique_ptr<Link>>;
  struct Held {
    std::atomic<size_t> links{0}, bytes{0}, sockets{0};
    mutable std::mutex mutex;
    std::map<int, uint64_t> resent;
  };

  tuttiLinkConfig config_of(const Name& name) const;
  Link& place_in(Links& links, const Name& name) const;
  Result<bool> advance();  // true if a link was made; accept_all() likewise
  Result<bool> accept_all();
  bool keeps_socket(int peer) const;  // whether a link to this peer does
  void count(const Link& link);
  void warn_of_detour(const LinkAttempt& link);  // once per process
  void poll_sends();
  Error late() const;  // names the missing links

  const Membership& me_;
  Endpoints endpoints_;
  Links sends_, recvs_;
  std::list<std::pair<Name, LinkAttempt>> attempts_;
  size_t most_at_once_ = 0;  // of the attempts
  std::vector<Name> awaited_;
  std::vector<Link*> incoming_;
  int64_t counted_ns_ = 0;
  Yielding yielding_;
  Held held_;
};

}  // namespace tutti
