#include "topology/layout.h"

#include <algorithm>

namespace tutti {

Layout lay_out(std::span<const Seat> seats) {
  Layout layout;
  const auto seat = [&](int rank) -> const Seat& { return seats[static_cast<size_t>(rank)]; };
  for (int rank = 0; rank < static_cast<int>(seats.size()); rank++) {
    const auto host = std::find_if(layout.hosts.begin(), layout.hosts.end(),
                                   [&](const auto& ranks) { return seat(ranks[0]).host == seat(rank).host; });
    if (host != layout.hosts.end())
      host->push_back(rank);
    else
      layout.hosts.push_back({rank});
  }
  for (auto& ranks : layout.hosts) {
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return seat(a).path < seat(b).path; });
    layout.order.insert(layout.order.end(), ranks.begin(), ranks.end());
  }
  return layout;
}

Layout flat_layout(int n_ranks) {
  return lay_out(std::vector<Seat>(static_cast<size_t>(n_ranks)));
}

}  // namespace tutti
