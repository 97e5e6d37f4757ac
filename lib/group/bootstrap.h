// group: how ranks find each other and learn of each other's loss.
// This header: the rendezvous. The process that makes a UniqueId runs a Root (one thread) on a TCP port; every rank
// joins it, proves knowledge of the secret, and may then exchange blobs through it until the group has formed.
// Threading: a Rendezvous belongs to one thread. Everything blocks at most until the deadline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/handshake.h"
#include "base/result.h"
#include "base/socket.h"
#include "group/blobs.h"
#include "group/bootstrap_wire.h"

namespace tutti {

// 128 bytes, the same layout on every machine (little-endian): magic "TUID", version, port, number of addresses, 16
// bytes of secret, then the addresses (family byte, scope id for link-local, 4 or 16 bytes each), as many as fit, best
// first.
struct UniqueId {
  uint8_t bytes[128];
};

struct UniqueIdParts {
  std::vector<Address> addresses;  // with port
  uint8_t secret[16];
};
UniqueId pack_unique_id(const UniqueIdParts& parts);
// kInvalidArgument if these are not the bytes of a UniqueId.
Result<UniqueIdParts> unpack_unique_id(const UniqueId& id);

// Starts a Root on a free port (or on `fixed_port` if not 0) with `secret`, and a detached thread that serves it until
// every rank has joined and left, or until the deadline, when it tells the ranks that have joined which are absent. The
// root learns the number of ranks from the first one that joins; ranks that disagree, or two that claim one rank, get
// kInvalidUsage naming both. Survives garbage, wrong secrets and silent connections on its port. As soon as one
// has joined, the root's deadline is that of the most impatient rank, so that this rank still hears which are absent.
// `seconds_once_used`: if not 0, the deadline becomes that much once a rank or host has come.
// The thread stays in this process: a parent may start a root and then fork the ranks (the children do not serve it),
// but must live until they have their last answer. Ranks of this process are answered after all others, so that the
// process may end at once. kSystemError when there is no socket or thread to be had.
Result<UniqueId> start_root(Deadline deadline, uint16_t fixed_port = 0, const uint8_t* secret = nullptr,
                            double seconds_once_used = 0);

// How a group is formed: what its ranks tell each other until they are connected.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Collective: every rank contributes a blob and receives all of them in rank order; any number of times.
  virtual Result<Blobs> all_gather(const std::string& blob) = 0;
  // Is it known that a rank will not come? To be polled while this rank waits for others by other means.
  virtual bool is_broken() = 0;
  // Collective, and the last call, even after another call has failed. `here` is how it went on this rank. Success if
  // it went well everywhere, else what went wrong; ranks that still wait for this one hear of its failure at once.
  virtual Result<void> conclude(Result<void> here) = 0;

  int rank() const { return rank_; }
  int n_ranks() const { return n_ranks_; }
  const Key& key() const { return key_; }
  // Round trip to where the ranks meet, or to the next relay on the way there; 0: unknown, taken as near.
  uint64_t round_trip_ns() const { return round_trip_ns_; }

 protected:
  Rendezvous() = default;
  Rendezvous(Rendezvous&&) = default;
  Rendezvous& operator=(Rendezvous&&) = default;

  int rank_ = 0;
  int n_ranks_ = 1;
  Key key_{};
  uint64_t round_trip_ns_ = 0;
};

// One rank's connection to the root.
class Bootstrap final : public Rendezvous {
 public:
  // Tries the id's addresses (this host's loopback first if the root runs here) until one really connects and
  // authenticates; logs which and why. Retries until the deadline: the root may not listen yet when the port is fixed.
  // kInvalidUsage when the last answer was a refusal (another secret, another version), kTimeout when there was none.
  // `other`: of a group with several ids, the one whose root this rank's host asks first for a relay to join.
  static Result<Bootstrap> join(const UniqueId& id, int rank, int n_ranks, Deadline deadline, bool encrypts = false,
                                const UniqueId* other = nullptr);

  // kTimeout lists the ranks that did not come; kRemoteError names the rank whose connection broke. Blobs of at most
  // 64 KiB.
  Result<Blobs> all_gather(const std::string& blob) override;
  // True if the root has said why no group will form, or is gone.
  bool is_broken() override;
  Result<void> conclude(Result<void> here) override;

 private:
  Bootstrap() = default;
  Result<Blobs> receive_all();
  Result<Blobs> receive_frame(Deadline deadline);
  Result<void> receive_header(FrameHeader* header, Fd* descriptor, Deadline deadline);
  Error root_lost(const Error& error) const;
  void send(FrameKind kind, const std::string& body);
  bool has_news(int limit_ms) const;

  RootConnection root_;
  bool is_over_ = false;
  Deadline deadline_ = Deadline::never();
};

}  // namespace tutti
