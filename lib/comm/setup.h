// This header: how a rank takes its place in a group: it tells the others where it listens, hears where they do, works
// out its place, and makes its control connections. Once for each communicator.
#pragma once

#include "comm/link_pool.h"
#include "comm/membership.h"
#include "comm/monitor.h"
#include "group/bootstrap.h"

namespace tutti {

// Fills in `me`, `links` and `monitor`.
Result<void> set_up(Rendezvous& rendezvous, const Deadline& deadline, Membership& me, LinkPool& links,
                    Monitor& monitor);

}  // namespace tutti
