// This header: the links of one rank to its peers, made when an operation first needs them and kept for the rest.
// Belongs to one thread at a time. Links close before their endpoints.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "exec/chunks.h"
#include "schedule/schedule.h"
#include "transports/transport.h"

namespace tutti {

class LinkPool {
 public:
  LinkPool() = default;  // of no transport yet

  // What a peer published: the address of each transport's endpoint, by name.
  using Addresses = std::map<std::string, std::string>;

  // The transports' order is the order of preference, unless it is `by_cost`.
  static Result<LinkPool> open(const tuttiEndpointConfig& config, const std::vector<const tuttiTransport*>& transports,
                               bool by_cost);
  Addresses addresses() const;
  struct Peers {
    int n_ranks = 0;
    std::function<Addresses(int rank)> addresses = {};
    std::vector<int> of_process = {};  // this rank's, in rising order
  };
  void set_peers(Peers peers, MessageSizes sizes) {
    peers_ = std::move(peers);
    sizes_ = sizes;
  }

  // Notes which links of `schedule` are to be made. find() knows their places from now on.
  void request(const Schedule& schedule, bool delivers = false);
  // Makes the links of `schedule` that are missing: offers the outgoing ones, waits for the incoming ones. All ranks
  // call it for the same operation. `interrupted` ends it early (then the error is its caller's to find). With
  // `delivers` they are to be of transports that move data between devices.
  Result<void> connect(const Schedule& schedule, Deadline deadline, const std::function<bool()>& interrupted,
                       bool delivers = false);
  // Which links are missing.
  Error late() const;
  // Whether there is such a transport to all peers, which can move data from and to this registered memory.
  Result<void> check_delivery(const void* memory, size_t bytes);
  // Nobody comes but peers of this host, or of others.
  void narrow(bool here, bool elsewhere);
  // How many sockets the schedule's links keep: one each, but for those of shared memory within this process.
  size_t sockets_of(const Schedule& schedule) const;
  // What they have kept of registrations that have ended.
  void forget_delivery();

  // While this rank waits for something else: takes in links that peers make early, for an operation that it has yet to
  // begin, and lets its own bring what is on its way from earlier ones.
  void keep_up();
  // Notes what was sent again, for resent(): now and then in keep_up(), and where somebody is about to ask.
  void count_resent();
  // The fastest of its transports that lead to other hosts.
  uint64_t network_bytes_per_second() const;
  // The first transport that should reach the peer, and why none before it does: "tcp, because shm: ...".
  std::string route(int peer);
  Link* find(int peer, uint32_t channel, bool sending);
  const std::vector<Link*>& incoming() const { return incoming_; }

  // From any thread.
  size_t links() const { return held_->links.load(std::memory_order_relaxed); }
  size_t link_bytes() const { return held_->bytes.load(std::memory_order_relaxed); }
  std::map<int, uint64_t> resent() const;  // by peer that is reached over a network, when it was noted last
  // Those who listen, sockets of links, and what all links without one wake.
  size_t descriptors() const {
    const size_t sockets = held_->sockets.load(std::memory_order_relaxed);
    return endpoints_.size() + sockets + (links() > sockets ? 1 : 0);
  }

 private:
  using Name = std::pair<int, uint32_t>;  // peer, channel
  // An outgoing link on its way: the transports not yet tried, in order of preference.
  struct Attempt {
    std::unique_ptr<Link> link;
    size_t next_transport = 0;
    std::string story;
    bool delivers = false;
  };

  using Links = std::map<Name, std::unique_ptr<Link>>;

  Link& place_in(Links& links, const Name& name) const;
  Result<bool> advance();  // true when nothing requested is missing
  Result<bool> advance_attempt(const Name& name, Attempt& attempt);
  Result<bool> next_transport(const Name& name, Attempt& attempt);
  Result<bool> accept_all();
  void count(const Link& link);

  int rank_ = 0;
  MessageSizes sizes_;  // known with the peers
  std::vector<Endpoint> endpoints_;
  Peers peers_;
  Links sends_, recvs_;
  std::map<Name, Attempt> attempts_;
  std::vector<Name> awaited_;
  std::vector<Link*> incoming_;
  int64_t counted_ns_ = 0;
  struct Held {
    std::atomic<size_t> links{0}, bytes{0}, sockets{0};
    std::mutex mutex;
    std::map<int, uint64_t> resent;
  };
  std::unique_ptr<Held> held_ = std::make_unique<Held>();
};

}  // namespace tutti
