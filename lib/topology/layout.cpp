#include "topology/layout.h"

#include <map>

#include "base/sort.h"

namespace tutti {

Layout lay_out(std::span<const Seat> seats) {
  Layout layout;
  const auto seat = [&](int rank) -> const Seat& { return seats[static_cast<size_t>(rank)]; };
  std::map<std::string, size_t> found;  // hosts by their id
  for (int rank = 0; rank < static_cast<int>(seats.size()); rank++) {
    const uint8_t(&id)[16] = seat(rank).host.bytes;
    const auto [host, is_new] = found.try_emplace(std::string(std::begin(id), std::end(id)), layout.hosts.size());
    if (is_new) layout.hosts.emplace_back();
    layout.hosts[host->second].push_back(rank);
  }
  for (auto& ranks : layout.hosts) {
    sort_stably(ranks.begin(), ranks.end(), [&](int a, int b) { return seat(a).path < seat(b).path; });
    layout.order.insert(layout.order.end(), ranks.begin(), ranks.end());
  }
  return layout;
}

Layout flat_layout(int n_ranks) {
  return lay_out(std::vector<Seat>(static_cast<size_t>(n_ranks)));
}

std::string to_text(const Layout& layout) {
  std::string text;
  for (size_t host = 0; host < layout.hosts.size(); host++) {
    text.append(host == 0 ? "" : " |");
    for (const int rank : layout.hosts[host]) text.append(text.empty() ? "" : " ").append(std::to_string(rank));
  }
  return text;
}

}  // namespace tutti
