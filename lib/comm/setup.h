// This header: how a rank takes its place in a group: it tells the others where it listens, hears where they do, works
// out its place, and makes its control connections. Once for each communicator.
#pragma once

#include <vector>

#include "comm/link_pool.h"
#include "comm/membership.h"
#include "comm/monitor.h"
#include "group/bootstrap.h"

namespace tutti {

class Setup {
 public:
  // Fills in `me`, `links` and `monitor`.
  Setup(Rendezvous& rendezvous, Deadline deadline, Membership& me, LinkPool& links, Monitor& monitor)
      : rendezvous_(rendezvous), deadline_(deadline), me_(me), links_(links), monitor_(monitor) {}
  Result<void> run();

 private:
  Result<void> open_links();
  Introduction introduction(const PriceList& prices, const Contact& control) const;
  void take_place(PriceList prices);
  Result<void> check_room(size_t n_doors) const;
  size_t descriptors_for_rank(int rank) const;
  size_t descriptors_for_process() const;
  Result<void> connect(std::vector<Fd> control_fds);

  Rendezvous& rendezvous_;
  const Deadline deadline_;
  Membership& me_;
  LinkPool& links_;
  Monitor& monitor_;
  size_t descriptors_before_ = 0;  // open in this process before any rank of the group connected
};

}  // namespace tutti
