// linear: the first rank adds everything up and sends the sum to all. So it is two shots with a single chunk, the first
// rank's.
#include "schedule/algorithms.h"

namespace tutti {
namespace {

Cost linear_cost(const Workload& b) {
  const double whole = b.messages_for(b.bytes, 1);
  // The first rank goes on once all others have run: 4 ranks on 2 CPUs take 4.7 us for 4 KiB, where one hop fewer
  // predicts 3.7, and one shot takes 3.9. Over sockets 13.5 us for 8 B, with doubling 15.5.
  const double until_all_sent = b.shares_memory ? 2 : std::min(1.5, waits_for_all(b));
  Cost e = b.hops((1 + until_all_sent) * b.rounds(b.bytes), 2 * b.rounds(b.bytes));
  const double moved = b.moves_of_sum() * b.others() * b.bytes;
  // The first rank begins when the others have sent, and they go on when it has. Not counting that, 4 ranks on 2 CPUs
  // took 15 us for 32 KiB instead of 11. Over sockets most of that is hidden: 64 KiB take 52 us, with doubling 78.
  const double at_first = moved / 2 + (b.shares_memory ? moved / 2 / b.others() : b.bytes / 2);
  b.with_one(e, {2 * b.others() * whole, 4 * b.others() * whole}, {at_first, moved});
  e.summed = {b.n * b.bytes, b.n * b.bytes};
  e.out = b.elsewhere() * b.bytes;
  return e;
}

}  // namespace

extern const Algorithm kLinear = {.name = "linear",
                                  .all_reduce = {[](const Ranks& r) { return two_shots(r, 1); }, linear_cost},
                                  .otherwise = Algo::kDirect,
                                  .keeps_rank_order = true,
                                  .meets_all = true,
                                  .least_ranks = 3};  // two ranks need only one hop

}  // namespace tutti
