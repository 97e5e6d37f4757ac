// Connections between ranks: a Dialer tries a peer's addresses in turn until one connects and authenticates, and again
// where the network was silent; an Acceptor accepts connections and drops those that cannot prove that they belong to
// the group. Both are non-blocking state machines: call them again until they have something. Not thread-safe.
#pragma once

#include <poll.h>

#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/handshake.h"
#include "base/socket.h"

namespace tutti {

// Where a rank listens: which host it is, all addresses with their port, and at which door if it has that port in
// common with others (porter.h). Travels between ranks as bytes.
struct Contact {
  HostId host{};
  std::vector<Address> addresses;
  uint64_t door = 0;

  std::string to_bytes() const;
  static std::optional<Contact> from_bytes(std::string_view bytes);  // nothing if these are not a Contact's bytes
};

// An address without its port as bytes: one that says what follows, then 4 or 16, and before them the interface of a
// link-local one.
void put_address(const Address& address, ByteWriter* to);
std::optional<Address> get_address(ByteReader* from);  // nothing if there is none

// Those of this host's interfaces that others are told of: of the ones that TUTTI_SOCKET_IFNAME names all, else (also
// of those that it does not exclude) the ones in real networks, never a container's bridge; and the loopback's, for
// ranks of this host.
std::vector<Interface> advertised(std::vector<Interface> interfaces);

// TCP sockets at these addresses, all with one port (of TUTTI_PORT_RANGE), and the contact that leads to them. With
// TUTTI_PORT instead this door of the host's port, or one that nobody else has.
struct Listener {
  std::vector<Fd> fds;
  Contact contact;
  std::vector<Interface> interfaces = {};  // that have these addresses
  static Result<Listener> open(uint64_t door = 0);
};

// How many networks of about the same speed this host and the peer's are both in: for how many connections side by side
// it is worth to be asked for nothing else. At least 1; 1 on the same host, and where speeds are not known.
size_t networks_between(const Contact& peer);
// At most, with whichever peer: how many this host is in by the addresses where it listens.
size_t networks_of(const Listener& mine);

// The addresses to try, best first. Same host: loopback first. Else one in the fastest network that this host is in
// too, then those in others, then the rest. Connections side by side have different numbers `nth`, and begin with
// different networks as far as there are any that are as fast.
std::vector<Address> ways_to(const Contact& peer, size_t nth = 0);
// Of another host's addresses, for a host that has these.
std::vector<Address> ways_from(const std::vector<Interface>& mine, std::vector<Address> theirs, size_t nth);

// A link-local address only means something together with the interface to leave by, so it is tried through each.
std::vector<Address> through_local_interfaces(const std::vector<Address>& addresses,
                                              const std::vector<Interface>& mine);

class Dialer {
 public:
  enum class Status { kPending, kDone, kFailed };

  struct Call {
    Key key;
    HelloKind kind;
    int from_rank;
    int to_rank;
    std::array<uint32_t, 5> args{};
    uint64_t door = 0;  // of those at one port; who calls a contact has its
  };
  // Tries ways_to(peer, nth).
  Dialer(const Call& call, const Contact& peer, size_t nth = 0);
  Dialer(const Call& call, std::vector<Address> candidates);

  Status advance();
  Fd take() { return std::move(fd_); }  // once done
  std::unique_ptr<SecureChannel> take_channel() { return handshake_->take_channel(); }
  const std::string& story() const { return story_; }  // what was tried and why it was given up; the choice at the end
  const std::string& why() const { return why_; }      // the last address was given up
  // For poll(2) while pending; -1 if there is nothing to wait for. Sleep for a limited time only: addresses that do not
  // answer are given up by the clock.
  int fd() const { return fd_.get(); }
  short events() const;
  bool is_connected() const { return handshake_.has_value(); }  // or was, where the handshake failed last
  // It failed because this process can have no more sockets: that says nothing of the peer.
  bool lacked_resources() const { return lacked_resources_; }

 private:
  Status start_next();
  void give_up_on_current(std::string why);

  Call call_;
  std::vector<Address> candidates_;
  size_t next_ = 0;
  Fd fd_;
  std::optional<Handshake> handshake_;
  bool lacked_resources_ = false;
  bool was_silent_ = false;  // one of the candidates, in this round through them
  Deadline patience_, attempt_ = Deadline::never();
  std::string story_, why_;
};

class Acceptor {
 public:
  struct Accepted {
    Fd fd;
    Hello hello;
    std::unique_ptr<SecureChannel> channel = nullptr;
  };
  Acceptor(std::vector<Fd> listening, const Key& key, HelloKind kind, int my_rank)
      : listening_(std::move(listening)), key_(key), kind_(kind), my_rank_(my_rank) {}

  // The next authenticated connection, if there is one. A connection that does not authenticate in time is dropped, and
  // sooner if there are more than most_pending(): silent connections must not keep ranks out.
  std::optional<Accepted> next();
  size_t descriptors() const { return listening_.size(); }
  // From now on nobody comes but peers of this host, or of others: sockets that only the rest would use are closed.
  void narrow(bool here, bool elsewhere);
  // Why nobody was taken in for a while, if this process has no descriptor left.
  std::optional<Error> shortage() const;
  // For poll(2): the doors, and those that have yet to show who they are. What they do not say is known by the clock.
  bool has_pending() const { return !pending_.empty(); }
  // Somebody may wait whom it had no room for: the doors stay readable and add_waiting() asks nothing of them, so ask
  // by the clock.
  bool is_full() const { return is_full_; }
  void add_waiting(std::vector<pollfd>* fds) const;
  // Some of the hosts whose connections were refused for another secret or version, and why.
  const std::map<std::string, std::string>& misfits() const { return misfits_; }

 private:
  struct Pending {
    Fd fd;
    Handshake handshake;
    int64_t waited_ns = 0;  // as far as this side looked
  };
  bool is_roots() const { return kind_ == HelloKind::kBootstrap; }
  size_t most_pending() const { return is_roots() ? 256 : 16; }
  void take_in();
  Fd accept_any();
  bool turn_away_one();

  std::vector<Fd> listening_;
  Key key_;
  HelloKind kind_;
  int my_rank_;
  std::list<Pending> pending_;  // oldest first
  int64_t looked_ns_ = 0;
  bool is_full_ = false, shortage_logged_ = false;
  std::optional<Error> shortage_;
  int64_t short_since_ns_ = 0;
  std::map<std::string, std::string> misfits_;
};

}  // namespace tutti
