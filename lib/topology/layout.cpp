#include "topology/layout.h"

#include <algorithm>
#include <map>

#include "base/sort.h"

namespace tutti {
namespace {

// Makes the hosts of a rack adjacent, with racks in order of their first hosts.
void sort_by_rack(Layout& layout, std::span<const RankLocation> locations) {
  const auto rack = [&](const std::vector<int>& ranks) { return locations[static_cast<size_t>(ranks[0])].rack; };
  std::map<uint32_t, size_t> found;  // a rack's position by its number
  for (const auto& ranks : layout.hosts) found.try_emplace(rack(ranks), found.size());
  sort_stably(layout.hosts, [&](const auto& a, const auto& b) { return found.at(rack(a)) < found.at(rack(b)); });
  layout.hosts_of_rack.assign(found.size(), 0);
  for (const auto& ranks : layout.hosts) layout.hosts_of_rack[found.at(rack(ranks))]++;
}

void find_slow_hosts(Layout& layout, std::span<const RankLocation> locations) {
  std::vector<uint64_t>& speeds = layout.bytes_per_second;
  for (const auto& ranks : layout.hosts) {
    speeds.push_back(UINT64_MAX);
    for (const int rank : ranks)
      speeds.back() = std::min(speeds.back(), locations[static_cast<size_t>(rank)].bytes_per_second);
  }
  std::vector<uint64_t> sorted = speeds;
  std::sort(sorted.begin(), sorted.end());
  for (size_t host = 0; host < speeds.size(); host++)
    if (speeds[host] < sorted[sorted.size() / 2] / 2) layout.slow_hosts.push_back(static_cast<int>(host));
}

}  // namespace

int Layout::host_of(int rank) const {
  const auto has_it = [&](const std::vector<int>& ranks) { return std::ranges::count(ranks, rank) > 0; };
  return static_cast<int>(std::ranges::find_if(hosts, has_it) - hosts.begin());
}

Layout lay_out(std::span<const RankLocation> locations) {
  Layout layout;
  const auto location = [&](int rank) -> const RankLocation& { return locations[static_cast<size_t>(rank)]; };
  std::map<std::string, size_t> found;  // hosts by their id
  for (int rank = 0; rank < static_cast<int>(locations.size()); rank++) {
    const uint8_t(&id)[16] = location(rank).host.bytes;
    const auto [host, is_new] = found.try_emplace(std::string(std::begin(id), std::end(id)), layout.hosts.size());
    if (is_new) layout.hosts.emplace_back();
    layout.hosts[host->second].push_back(rank);
  }
  sort_by_rack(layout, locations);
  find_slow_hosts(layout, locations);
  for (auto& ranks : layout.hosts) {
    sort_stably(ranks, [&](int a, int b) { return location(a).path < location(b).path; });
    layout.order.insert(layout.order.end(), ranks.begin(), ranks.end());
  }
  return layout;
}

Layout flat_layout(int n_ranks) {
  return lay_out(std::vector<RankLocation>(static_cast<size_t>(n_ranks)));
}

std::vector<std::vector<int>> by_rack(const Layout& layout) {
  std::vector<std::vector<int>> racks;
  auto host = layout.hosts.begin();
  for (const int n : layout.hosts_of_rack) {
    std::vector<int>& rack = racks.emplace_back();
    for (const auto end = host + n; host != end; ++host) rack.insert(rack.end(), host->begin(), host->end());
  }
  return racks;
}

std::string to_text(const Layout& layout) {
  std::string text;
  size_t host = 0;
  for (const int n : layout.hosts_of_rack)
    for (const size_t first = host; host < first + static_cast<size_t>(n); host++) {
      text.append(host == 0 ? "" : host == first ? " ||" : " |");
      for (const int rank : layout.hosts[host]) text.append(text.empty() ? "" : " ").append(std::to_string(rank));
    }
  return text;
}

}  // namespace tutti
