// How the ranks of a host share one connection to the root: the first rank to arrive runs a relay (one thread) behind a
// UNIX socket and connects it to the root. What the root sends to all ranks reaches the host once, and its ranks as
// shared memory. If there are many hosts, the root keeps only a few relays and redirects the others to these.
//
//   rank --UNIX socket--+
//   rank --UNIX socket--+-- relay, in a rank's process --TCP--+-- relay of another host --TCP--+-- root
//   rank --UNIX socket--+                                     |                                |
//                                           other relays -----+                                +----- other relays
//
// The relay decides nothing: it passes frames on, and tells the root which ranks have closed their connections. A rank
// that finds no relay soon, or has little time left, connects to the root itself, as all ranks of a small group do.
#pragma once

#include <map>
#include <optional>

#include "group/bootstrap_connect.h"
#include "group/bootstrap_server.h"

namespace tutti {

class RelayServer final : public FrameServer {
 public:
  // `host`: the rank whose process runs the relay.
  RelayServer(std::vector<Fd> listening, const Key& key, Deadline deadline, RootConnection root, JoinMessage host);
  bool finished() override;

 private:
  bool take(Client& client, FrameKind kind, int rank, std::string body) override;
  void let_in(Client& client) override;
  void lose(Client& client) override;

  bool take_from_root(FrameKind kind, const std::string& body);
  void pass_up(FrameKind kind, std::string body, int rank);

  const JoinMessage host_;
  const std::optional<JoinMessage> above_;  // the next relay on the way to the root, if any
  Client* root_;                            // the connection to it, or to that relay; nullptr: lost
  std::map<int, Client*> ranks_;            // the connection that leads to each rank
  std::string first_blob_;                  // passed up; the base of Like frames
  bool had_client_ = false;
};

// Where ranks meet. All ranks of a group with several ids meet at the first id's root; the root of another id knows the
// relays of its share of the hosts and sends later relays to these, so that not every relay calls the first root.
struct Roots {
  UniqueIdParts root;
  std::optional<UniqueIdParts> other;  // another id's root, to be asked first
  Key key;
};
// A relay's connection to the root, or to the relay that a root sends it to.
Result<RootConnection> connect_relay(const Roots& roots, JoinMessage me, Deadline deadline);
// A rank's connection, through this host's relay or straight to the root. Errors as connect_to_root().
Result<RootConnection> reach_root(const Roots& roots, int rank, int n_ranks, Deadline deadline);

}  // namespace tutti
