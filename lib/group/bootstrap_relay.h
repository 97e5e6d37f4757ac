// How the ranks of a host reach the root together: the first that comes runs a relay (one thread) behind a UNIX socket
// and connects it to the root, so that there is one connection for all of them. What the root says to all comes to the
// host once, and to its ranks as memory that they share. Of many hosts the root keeps few relays, and sends the others
// to those.
//
//   rank --UNIX socket--+
//   rank --UNIX socket--+-- relay, in a rank's process --TCP--+-- relay of another host --TCP--+-- root
//   rank --UNIX socket--+                                     |                                |
//                                           other relays -----+                                +----- other relays
//
// The relay decides nothing: it passes frames on, and tells the root whose connection has closed. A rank that finds no
// relay soon, or has little time left, goes to the root by itself, as all ranks of a small group do.
#pragma once

#include <map>
#include <optional>

#include "group/bootstrap_connect.h"
#include "group/bootstrap_server.h"

namespace tutti {

class RelayServer final : public FrameServer {
 public:
  // `host`: a rank of this process.
  RelayServer(std::vector<Fd> listening, const Key& key, Deadline deadline, RootConnection root, JoinMessage host);
  bool finished() override;

 private:
  bool take(Client& client, FrameKind kind, int rank, std::string body) override;
  void let_in(Client& client) override;
  void lose(Client& client) override;

  bool take_from_root(FrameKind kind, const std::string& body);
  void pass_up(FrameKind kind, std::string body, int rank);

  const JoinMessage host_;
  const std::optional<JoinMessage> above_;  // the next relay on the way to the root
  Client* root_;                            // or that relay; nullptr: gone
  std::map<int, Client*> ranks_;            // through which each is reached
  std::string first_blob_;                  // that was passed up
  bool had_client_ = false;
};

// Where ranks meet. Of a group with several ids all meet at the first one's root; another one's knows relays of its
// share of the hosts, and sends those that come later to them, so that not all of them call the first.
struct Roots {
  UniqueIdParts root;
  std::optional<UniqueIdParts> other;  // another id's root, to be asked first
  Key key;
};
// A relay's connection to the root, or to the relay that a root sends it to.
Result<RootConnection> connect_relay(const Roots& roots, JoinMessage me, Deadline deadline);
// Through this host's relay, or by itself. As connect_to_root().
Result<RootConnection> reach_root(const Roots& roots, int rank, int n_ranks, Deadline deadline);

}  // namespace tutti
