#include <algorithm>

#include "picture.h"
#include "schedule/double_tree.h"

namespace tutti::topo {
namespace {

std::string size_text(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (unit < 4 && bytes >= 1024 && (bytes % 1024 == 0 || bytes >= 10240)) bytes /= 1024, unit++;
  return format("%llu %s", static_cast<unsigned long long>(bytes), units[unit]);
}

// Whether it is a core, possibly with parts that belong only to it.
bool is_core(const Part& part) {
  if (part.kind == Part::Kind::kCore || part.kind == Part::Kind::kCpu) return true;
  return part.parts.size() == 1 && is_core(part.parts[0]);
}

bool alike(const Part& a, const Part& b) {
  if (a.kind != b.kind || a.bytes != b.bytes || a.details() != b.details() || a.cpus.count() != b.cpus.count())
    return false;
  return a.parts.size() == b.parts.size() && (is_core(a) && is_core(b)) &&
         (a.parts.empty() || a.kind == Part::Kind::kCore || alike(a.parts[0], b.parts[0]));
}

const Part& core_of(const Part& part) {
  return part.kind == Part::Kind::kCore || part.parts.empty() ? part : core_of(part.parts[0]);
}

struct Tree {
  const Picture& picture;
  size_t host;
  std::string text;

  // Ranks in the part at the end of `path`; with `below` also those deeper inside.
  std::string ranks_at(const std::vector<uint32_t>& path, bool below) const {
    std::string list;
    for (const int rank : picture.layout.hosts[host]) {
      const std::vector<uint32_t>& location = picture.ranks[static_cast<size_t>(rank)].path;
      const bool inside = location.size() >= path.size() && std::equal(path.begin(), path.end(), location.begin());
      if (inside && (below || location.size() == path.size())) list.append(" ").append(std::to_string(rank));
    }
    return list;
  }

  void add(const Part& part, const std::string& name, const CpuSet& cpus, const std::string& ranks, size_t depth) {
    text.append(2 * depth, ' ').append(name);
    if (part.bytes > 0) text += ", " + size_text(part.bytes);
    if (!part.detail.empty()) text += ", " + part.details();
    if (cpus.any()) text += ", CPUs " + tutti::to_text(cpus);
    if (!ranks.empty()) text += "  <- ranks" + ranks;
    text += "\n";
  }

  void add_parts(const Part& part, const std::vector<uint32_t>& path, size_t depth) {
    for (size_t i = 0; i < part.parts.size();) {
      const Part& first = part.parts[i];
      size_t end = i + 1;
      while (end < part.parts.size() && is_core(first) && alike(first, part.parts[end])) end++;
      std::vector<uint32_t> inner = path;
      inner.push_back(0);
      CpuSet cpus;
      std::string ranks;
      for (; i < end; i++) {
        inner.back() = static_cast<uint32_t>(i);
        cpus |= part.parts[i].cpus;
        if (first.kind != Part::Kind::kDevice && !picture.ranks.empty()) ranks += ranks_at(inner, is_core(first));
      }
      const std::string last = core_of(part.parts[end - 1]).name;
      std::string name = is_core(first) ? core_of(first).name : first.name;
      if (name != last && is_core(first)) name += " to " + last;
      if (is_core(first) && first.kind == Part::Kind::kCache)
        name += (core_of(first).detail.empty() ? "" : ", " + core_of(first).detail) + ", each with a cache of its own";
      add(first, name, cpus, ranks, depth);
      if (!is_core(first)) add_parts(first, inner, depth + 1);
    }
  }
};

std::string hosts_text(const Picture& picture) {
  std::string text;
  for (size_t host = 0; host < picture.hosts.size(); host++) {
    const Host& one = picture.hosts[host];
    Tree tree{picture, host, {}};
    const std::string anywhere = picture.ranks.empty() ? "" : tree.ranks_at({}, false);
    tree.add(one.machine.whole, one.name + " (found through " + one.machine.source + ")", one.machine.whole.cpus,
             anywhere, 0);
    tree.add_parts(one.machine.whole, {}, 1);
    text += tree.text;
  }
  return text;
}

void add_node(const Picture& picture, int tree, int position, size_t depth, std::string& text) {
  const int n = static_cast<int>(picture.layout.order.size());
  text.append(2 * depth, ' ').append(std::to_string(picture.layout.order[static_cast<size_t>(position)])).append("\n");
  for (const int child : double_tree_node(tree, n, position).child)
    if (child >= 0) add_node(picture, tree, child, depth + 1, text);
}

std::string route(const Picture& picture, int from, int to) {
  const Rank& rank = picture.ranks[static_cast<size_t>(from)];
  if (const auto known = rank.routes.find(to); known != rank.routes.end()) return known->second;
  return rank.host == picture.ranks[static_cast<size_t>(to)].host ? "shm" : "tcp, because shm: it is on another host";
}

}  // namespace

std::string to_text(const Picture& picture) {
  std::string text = hosts_text(picture);
  if (picture.ranks.empty()) return text;
  text += "\nranks\n";
  for (size_t rank = 0; rank < picture.ranks.size(); rank++) {
    const Rank& one = picture.ranks[rank];
    const Host& host = picture.hosts[one.host];
    const bool leads = picture.layout.hosts[one.host][0] == static_cast<int>(rank);
    text += format("  %zu: %s, %s (CPUs %s)%s\n", rank, host.name.c_str(), place_name(host.machine, one.path).c_str(),
                   tutti::to_text(one.cpus).c_str(), leads ? ", leader" : "");
  }
  text += "\nring, host by host: " + tutti::to_text(picture.layout) + "\n";
  const int n = static_cast<int>(picture.layout.order.size());
  for (int tree = 0; tree < 2 && n > 1; tree++) {
    text += format("tree %d\n", tree);
    add_node(picture, tree, double_tree_top(tree, n), 1, text);
  }
  if (n > 1) text += "paths between neighbours in the ring and the trees\n";
  for (const auto& [from, to] : neighbours(picture.layout))
    text += format("  %d -> %d: %s; they share %s\n", from, to, route(picture, from, to).c_str(),
                   shared_by(picture, from, to).c_str());
  return text;
}

}  // namespace tutti::topo
