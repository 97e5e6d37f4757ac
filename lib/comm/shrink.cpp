// A new communicator of the surviving ranks of an old one.
#include <algorithm>

#include "base/clock.h"
#include "comm/communicator.h"
#include "group/shrink_rendezvous.h"

namespace tutti {
namespace {

Error too_few(const PeerWatch& watch, const std::vector<int>& excluded, const std::vector<int>& members, int n_ranks) {
  for (int rank = 0; rank < n_ranks; rank++)
    if (!std::binary_search(excluded.begin(), excluded.end(), rank) &&
        !std::binary_search(members.begin(), members.end(), rank))
      return {Code::kRemoteError,
              watch.rank_name(rank) +
                  " is lost and not in excludeRanksList: give a NULL list, so that the survivors find out who they "
                  "are, or add it to the list on all ranks",
              rank};
  return {Code::kInternalError, "ranks are missing, but no rank has seen them fail"};
}

// At most one part of a partitioned network is a majority.
Result<void> check_majority(const std::vector<int>& members, const std::vector<int>& excluded, int n_ranks) {
  int lowest = 0;
  while (std::binary_search(excluded.begin(), excluded.end(), lowest)) lowest++;
  const size_t all = static_cast<size_t>(n_ranks) - excluded.size(), twice = 2 * members.size();
  if (twice > all || (twice == all && members[0] == lowest)) return {};
  return Error{Code::kRemoteError,
               format("only %zu of %zu ranks are left on this side, which is not a majority%s: with config.majority "
                      "only the others may continue",
                      members.size(), all, twice == all ? format(" without rank %d", lowest).c_str() : "")};
}

}  // namespace

// A rank found to be lost meanwhile is left out of the next attempt, to which all the others come. What fails several
// times although no rank was lost, such as two ranks that no transport connects, fails for good.
Result<std::unique_ptr<Communicator>> Communicator::shrink(uint64_t ticket, const std::vector<int>& excluded,
                                                           const CommOptions& options, const Deadline& limit) {
  const int64_t called_ns = now_ns();
  uint64_t place;
  {
    const TicketLock::Turn turn(*ticket_lock_, ticket);
    place = shrinks_.take_ticket();
    // One that broke during finalize was not finalized.
    if (!monitor_.failed() && finalized_) {
      const TicketLock::Turn none(shrinks_, place);
      return check_open().error();
    }
  }
  const TicketLock::Turn turn(shrinks_, place);
  const Deadline deadline = limit.extended_since(called_ns);  // waiting for its turn does not count
  constexpr int kMostAttempts = 3;
  CommOptions replacing = options;
  replacing.replaces = me_.roster->group;
  std::vector<int> members;
  for (int attempts = 1;; attempts++) {
    TUTTI_TRY_ASSIGN(ShrinkRendezvous rendezvous,
                     ShrinkRendezvous::gather(monitor_.watch(), excluded, options.majority, deadline));
    rendezvous.set_round_trip_ns((*me_.roster)[me_.rank].network.round_trip_ns);
    const size_t expected = static_cast<size_t>(n_ranks()) - excluded.size();
    if (!excluded.empty() && rendezvous.members().size() != expected)
      return too_few(monitor_.watch(), excluded, rendezvous.members(), n_ranks());
    if (rendezvous.needs_majority()) TUTTI_TRY(check_majority(rendezvous.members(), excluded, n_ranks()));
    if (std::exchange(members, rendezvous.members()) != rendezvous.members()) attempts = 1;
    auto made = create(rendezvous, replacing, deadline);
    if (made || !rendezvous.must_restart() || attempts == kMostAttempts || deadline.passed()) return made;
  }
}

}  // namespace tutti
