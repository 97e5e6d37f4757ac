// Connections between ranks: a Dialer tries a peer's addresses in turn until one connects and authenticates, and again
// if the network was silent or the peer lost patience; an Acceptor accepts connections and drops those that cannot
// prove that they belong to the group. Both are non-blocking state machines: call them again until they have something.
// Not thread-safe.
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

// Where a rank listens: its host, all its addresses with their ports, and its door if it shares the port with others
// (porter.h). Travels between ranks as bytes.
struct Contact {
  HostId host{};
  std::vector<Address> addresses;
  uint64_t door = 0;

  std::string to_bytes() const;
  static std::optional<Contact> from_bytes(std::string_view bytes);  // nothing if these are not a Contact's bytes
};

// An address without its port as bytes: the family, the interface if it is a link-local address, then 4 or 16 bytes.
void put_address(const Address& address, ByteWriter* to);
std::optional<Address> get_address(ByteReader* from);  // nothing if it is not valid

// The interfaces that others are told of. If TUTTI_SOCKET_IFNAME names some: all of those. Otherwise, or if it only
// excludes some: those in real networks, or if there are none the link-local ones, never container bridges; and the
// first loopback, for ranks of this host.
std::vector<Interface> advertised(std::vector<Interface> interfaces);

// TCP sockets at these addresses, all with one port (of TUTTI_PORT_RANGE), and the contact that leads to them. With
// TUTTI_PORT instead a door of the host's port: `door`, or a random one if that is 0.
struct Listener {
  std::vector<Fd> fds;
  Contact contact;
  std::vector<Interface> interfaces = {};  // that have these addresses
  static Result<Listener> open(uint64_t door = 0);
};

// How many networks of about the same speed this host shares with the peer's, and so how many parallel connections are
// worthwhile by default. At least 1; 1 on the same host, and if speeds are not known.
size_t networks_between(const Contact& peer);
// The most that networks_between() can be for any peer: the number of networks that this host listens in.
size_t networks_of(const Listener& mine);

// The addresses to try, best first. Same host: loopback first. Otherwise one in the fastest network that both hosts are
// in, then those in other shared networks, then the rest. Parallel connections have different numbers `nth` and start
// with different networks, as far as there are several of that speed.
std::vector<Address> ways_to(const Contact& peer, size_t nth = 0);
// The same for another host's addresses `theirs`, on a host with the interfaces `mine`.
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
    uint64_t door = 0;  // behind a shared port; calling a Contact sets it
  };
  // Tries ways_to(peer, nth).
  Dialer(const Call& call, const Contact& peer, size_t nth = 0);
  Dialer(const Call& call, std::vector<Address> candidates);

  Status advance();
  Fd take() { return std::move(fd_); }  // once done
  std::unique_ptr<SecureChannel> take_channel() { return handshake_->take_channel(); }
  const std::string& story() const { return story_; }  // what was tried and why it was given up; the choice at the end
  const std::string& why() const { return why_; }      // why the last address was given up
  // For poll(2) while pending; -1 if there is nothing to wait for. Sleep for a limited time only: addresses that do not
  // answer are given up after a time-out.
  int fd() const { return fd_.get(); }
  short events() const;
  bool is_connected() const { return handshake_.has_value(); }  // or was, if the handshake failed last
  // It failed because this process cannot open more sockets, which says nothing about the peer.
  bool lacked_resources() const { return lacked_resources_; }

 private:
  Status start_next();
  void note_cut();
  void give_up_on_current(std::string why);

  Call call_;
  std::vector<Address> candidates_;
  size_t next_ = 0;
  Fd fd_;
  std::optional<Handshake> handshake_;
  bool lacked_resources_ = false;
  bool was_silent_ = false;  // a candidate did not answer in this pass over them, or no more
  int early_cuts_ = 0;       // how often somebody has hung up at once
  int64_t began_ns_ = 0;     // with the current candidate
  Deadline patience_;
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
  // From now on only peers of this host (`here`) or of others (`elsewhere`) come: closes sockets that none would use.
  void narrow(bool here, bool elsewhere);
  // The error if this process has had no descriptor left for a while and so accepted nobody.
  std::optional<Error> shortage() const;
  // Whether some connections have not authenticated yet: next() drops silent ones, but only when it is called.
  bool has_pending() const { return !pending_.empty(); }
  // Connections may be waiting that it has no room for: the doors stay readable, so add_waiting() does not poll them;
  // call next() again after a while.
  bool is_full() const { return is_full_; }
  void add_waiting(std::vector<pollfd>* fds) const;  // for poll(2): the doors and the pending connections
  // Some hosts whose connections were refused for another secret, version or encryption setting, and why.
  const std::map<std::string, std::string>& misfits() const { return misfits_; }

 private:
  struct Pending {
    Fd fd;
    Handshake handshake;
    int64_t waited_ns = 0;  // only while this side kept looking
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
