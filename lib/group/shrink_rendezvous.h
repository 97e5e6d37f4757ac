// How the ranks of a possibly broken group form a new one: a meeting over the old group's control connections, of the
// ranks that are left and call it. Whatever happens meanwhile, all of them get the same result: a group, an error, or
// must_restart() because fewer are left.
//
//   agree: who is here?          -> members, and a nonce, from which the new group's key is derived
//   agree: introductions         -> all_gather(); the ranks connect
//   agree: did it go well?       -> conclude(): all have a group, or none
//   agree: all have heard that   -> nobody leaves with a group before the others know that they have one, too
#pragma once

#include <vector>

#include "group/bootstrap.h"
#include "group/peers.h"

namespace tutti {

class ShrinkRendezvous final : public Rendezvous {
 public:
  // `old` outlives this. `asks_majority`: that only a majority of the old group may go on.
  static Result<ShrinkRendezvous> gather(PeerWatch& old, const Council::Without& without, bool asks_majority,
                                         const Deadline& deadline);
  // As measured when the old group met.
  void set_round_trip_ns(uint64_t known_ns) { round_trip_ns_ = known_ns; }

  Result<Blobs> all_gather(const std::string& blob) override;
  bool is_broken() override;
  Result<void> conclude(Result<void> here) override;

  const std::vector<int>& members() const { return members_; }  // by their ranks in the old group
  bool needs_majority() const { return needs_majority_; }       // some member asks for it
  // After an error: true if some ranks are lost and all others go back to gather().
  bool must_restart() const { return must_restart_; }

 private:
  ShrinkRendezvous(PeerWatch& old, const Council::Without& without, const Deadline& deadline)
      : old_(&old), without_(without), deadline_(deadline) {}
  Result<Blobs> next_votes(const Result<std::string>& mine);

  PeerWatch* old_;
  Council::Without without_;
  Deadline deadline_;
  Nonce nonce_{};
  std::vector<int> members_;
  uint32_t phase_ = 0;
  bool needs_majority_ = false, is_over_ = false, must_restart_ = false;
};

}  // namespace tutti
