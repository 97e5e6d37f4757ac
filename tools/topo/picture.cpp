#include "picture.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/bytes.h"
#include "base/socket.h"
#include "comm/communicator.h"
#include "group/launcher.h"
#include "schedule/double_tree.h"

namespace tutti::topo {
namespace {

constexpr int kMostRanks = 65536;  // in an invented group

void put_part(ByteWriter& w, const Part& part) {
  w.put(part.kind)
      .put(part.bytes)
      .put_string(part.name)
      .put_string(part.detail)
      .put_string(part.bus)
      .put_string(tutti::to_text(part.cpus));
  w.put(static_cast<uint32_t>(part.parts.size()));
  for (const Part& inner : part.parts) put_part(w, inner);
}

Part get_part(ByteReader& r) {
  Part part;
  part.kind = r.get<Part::Kind>();
  part.bytes = r.get<uint64_t>();
  part.name = r.get_string();
  part.detail = r.get_string();
  part.bus = r.get_string();
  part.cpus = cpus_from_text(r.get_string());
  for (uint32_t n = r.get<uint32_t>(); r.ok() && n > 0; n--) part.parts.push_back(get_part(r));
  return part;
}

// All ranks' `mine`, by rank. The ranks run the same program, so the bytes that arrive can be trusted.
Result<std::vector<std::string>> all_gather(Communicator& comm, const std::string& mine) {
  const auto n = static_cast<size_t>(comm.n_ranks());
  const uint64_t length = mine.size();
  std::vector<uint64_t> lengths(n);
  Operation operation{.collective = Collective::kAllGather, .input = &length, .output = lengths.data(), .count = 1};
  operation.dtype = DataType::kUint64;
  TUTTI_TRY(comm.run(comm.take_ticket(), operation));
  const uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = mine, all(longest * n, '\0');
  padded.resize(longest);
  operation = {.collective = Collective::kAllGather, .input = padded.data(), .output = all.data(), .count = longest};
  TUTTI_TRY(comm.run(comm.take_ticket(), operation));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < n; rank++) texts.push_back(all.substr(rank * longest, lengths[rank]));
  return texts;
}

const Part* find_core(const Part& part, size_t& skip) {
  if (part.kind == Part::Kind::kCore || (part.kind == Part::Kind::kCpu)) return skip-- == 0 ? &part : nullptr;
  for (const Part& inner : part.parts)
    if (const Part* found = find_core(inner, skip)) return found;
  return nullptr;
}

size_t count_cores(const Part& part) {
  if (part.kind == Part::Kind::kCore || part.kind == Part::Kind::kCpu) return 1;
  size_t count = 0;
  for (const Part& inner : part.parts) count += count_cores(inner);
  return count;
}

}  // namespace

Result<Machine> machine_named(const std::string& name) {
  if (name.empty()) return discover_all();
  if (access(name.c_str(), F_OK) == 0) return read_machine(name);
  const bool looks_like_file =
      name.find('/') != std::string::npos || name.ends_with(".xml") || name.find_first_of(": ") == std::string::npos;
  if (looks_like_file)
    return Error{Code::kInvalidUsage, "--host " + name + ": there is no such file (and hwloc's short form looks like " +
                                          "'pack:2 numa:2 core:8 pu:1')"};
  return synthetic_machine(name);
}

Result<Picture> picture_of_group(int* rank) {
  TUTTI_TRY_ASSIGN(LaunchInfo info, detect_launcher());
  TUTTI_TRY_ASSIGN(const CommOptions options, CommOptions::from_env());
  info.encrypts = options.encrypt;
  const Deadline deadline = Deadline::after_seconds(options.init_timeout_seconds);
  TUTTI_TRY_ASSIGN(const UniqueId id, unique_id_from_launcher(info, deadline));
  TUTTI_TRY_ASSIGN(const auto comm, Communicator::create(id, info.rank, info.n_ranks, options, deadline));
  *rank = info.rank;
  Picture picture{.layout = comm->membership().planner->layout(), .is_real = true};
  bool leads = false;
  for (const auto& ranks : picture.layout.hosts) leads = leads || ranks[0] == info.rank;
  const CpuSet cpus = usable_cpus();
  ByteWriter w;
  w.put(leads).put_string(host_name()).put_string(tutti::to_text(cpus));
  for (int peer = 0; peer < info.n_ranks; peer++) w.put_string(peer == info.rank ? "" : comm->route(peer));
  if (leads) {
    TUTTI_TRY_ASSIGN(const Machine all, discover_all());
    w.put_string(all.source);
    put_part(w, all.whole);
  }
  TUTTI_TRY_ASSIGN(const auto texts, all_gather(*comm, w.take()));
  picture.hosts.resize(picture.layout.hosts.size());
  picture.ranks.resize(texts.size());
  for (size_t host = 0; host < picture.hosts.size(); host++) {
    for (const int member : picture.layout.hosts[host]) {
      Rank& one = picture.ranks[static_cast<size_t>(member)];
      ByteReader r(texts[static_cast<size_t>(member)]);
      const bool has_machine = r.get<bool>();
      one.host = host;
      picture.hosts[host].name = r.get_string();
      one.cpus = cpus_from_text(r.get_string());
      for (int peer = 0; peer < info.n_ranks; peer++) one.routes[peer] = r.get_string();
      if (has_machine) {  // sent by the first rank of a host
        picture.hosts[host].machine.source = r.get_string();
        picture.hosts[host].machine.whole = get_part(r);
      }
      one.path = path_to(picture.hosts[host].machine, one.cpus);
    }
  }
  TUTTI_TRY(comm->finalize(comm->take_ticket()));
  return picture;
}

Result<Picture> invented_picture(const Invented& wish) {
  Picture picture;
  for (const std::string& name : wish.hosts) {
    TUTTI_TRY_ASSIGN(Machine machine, machine_named(name));
    picture.hosts.push_back({wish.hosts.size() == 1 ? "host" : format("host %zu", picture.hosts.size()), machine});
  }
  const size_t n_hosts = picture.hosts.size(), here = static_cast<size_t>(wish.ranks_per_host);
  if (here * n_hosts > kMostRanks)
    return Error{Code::kInvalidUsage,
                 format("--ranks %zu on %zu hosts: at most %d ranks in all", here, n_hosts, kMostRanks)};
  std::vector<RankLocation> locations;
  for (size_t rank = 0; rank < here * n_hosts; rank++) {
    const size_t host = wish.cyclic ? rank % n_hosts : rank / here;
    const Machine& machine = picture.hosts[host].machine;
    Rank one{.host = host, .path = {}, .cpus = machine.whole.cpus};
    const size_t cores = count_cores(machine.whole);
    size_t core = cores == 0 ? 0 : (wish.cyclic ? rank / n_hosts : rank % here) % cores;
    if (const Part* bound = find_core(machine.whole, core)) one.cpus = bound->cpus;
    one.path = path_to(machine, one.cpus);
    RankLocation location{{}, one.path};
    location.host.bytes[0] = static_cast<uint8_t>(host), location.host.bytes[1] = static_cast<uint8_t>(host >> 8);
    locations.push_back(location);
    picture.ranks.push_back(one);
  }
  picture.layout = lay_out(locations);
  return picture;
}

std::vector<std::pair<int, int>> neighbours(const Layout& layout) {
  std::set<std::pair<int, int>> pairs;
  const int n = static_cast<int>(layout.order.size());
  const auto at = [&](int position) { return layout.order[static_cast<size_t>(position)]; };
  for (int position = 0; position < n; position++) {
    if (n > 1) pairs.emplace(at(position), at((position + 1) % n));
    for (int tree = 0; tree < 2; tree++)
      if (const int parent = double_tree_node(tree, n, position).parent; parent >= 0)
        pairs.emplace(at(position), at(parent));
  }
  return {pairs.begin(), pairs.end()};
}

std::string shared_by(const Picture& picture, int a, int b) {
  const Rank &one = picture.ranks[static_cast<size_t>(a)], &other = picture.ranks[static_cast<size_t>(b)];
  if (one.host != other.host) return "the network";
  const auto ends = std::mismatch(one.path.begin(), one.path.end(), other.path.begin(), other.path.end());
  if (ends.first == one.path.begin()) return "the host";
  return place_name(picture.hosts[one.host].machine, std::vector<uint32_t>(one.path.begin(), ends.first));
}

}  // namespace tutti::topo
