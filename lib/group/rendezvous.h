// How a group is formed: what its ranks tell each other until they are connected.
// Threading: one thread. Every call blocks at most until the deadline that the object was made with.
#pragma once

#include <string>

#include "base/handshake.h"
#include "base/result.h"
#include "group/blobs.h"

namespace tutti {

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

}  // namespace tutti
