#include "comm/roster.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "base/at_fork.h"
#include "base/bytes.h"
#include "base/log.h"
#include "plan/planner.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

std::string from_where(const GroupSettings& s) {
  return s.prices_from.empty() ? "no tuning file" : "the tuning file " + s.prices_from;
}

Result<void> check_agreement(const GroupSettings& mine, int my_rank, const GroupSettings& theirs, int their_rank) {
  const auto differ = [&](const char* what, const std::string& a, const std::string& b) {
    return Error{Code::kInvalidUsage,
                 format("rank %d has %s=%s, rank %d has %s=%s: set it to the same value on all ranks", my_rank, what,
                        a.c_str(), their_rank, what, b.c_str()),
                 their_rank};
  };
  const auto numbers_differ = [&](const char* what, uint32_t a, uint32_t b) {
    return differ(what, std::to_string(a), std::to_string(b));
  };
  if (mine.encrypts != theirs.encrypts)
    return numbers_differ("TUTTI_ENCRYPT (or the configuration's encrypt)", mine.encrypts, theirs.encrypts);
  if (mine.slot_bytes != theirs.slot_bytes)
    return numbers_differ("TUTTI_SLOT_BYTES", mine.slot_bytes, theirs.slot_bytes);
  if (mine.deterministic != theirs.deterministic)
    return numbers_differ("TUTTI_DETERMINISTIC (or the configuration's deterministic)", mine.deterministic,
                          theirs.deterministic);
  if (mine.on_gpu != theirs.on_gpu)
    return differ("config.cudaDevice", mine.on_gpu ? "a device" : "none", theirs.on_gpu ? "a device" : "none");
  if (mine.majority != theirs.majority) return numbers_differ("config.majority", mine.majority, theirs.majority);
  if (mine.prices != theirs.prices)
    return Error{
        Code::kInvalidUsage,
        format("rank %d has %s, rank %d has %s, and they, or the networks that they name, do not say the same: "
               "copy them to all hosts, or set TUTTI_TUNE_FILE=/dev/null on all ranks",
               my_rank, from_where(mine).c_str(), their_rank, from_where(theirs).c_str()),
        their_rank};
  if (mine.order != theirs.order) return differ("TUTTI_ORDER", mine.order, theirs.order);
  if (mine.algo != theirs.algo) return differ("TUTTI_ALGO (or the configuration's algo)", mine.algo, theirs.algo);
  return {};
}

// A hash over words instead of bytes, for speed, since every rank takes it over all introductions.
uint64_t number_of(std::string_view bytes) {
  uint64_t number = 0xcbf29ce484222325u;
  for (size_t at = 0; at < bytes.size(); at += sizeof number) {
    uint64_t word = 0;
    memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    number = (number ^ word) * 0x100000001b3u;
    number ^= number >> 32;
  }
  return number;
}

// Collected from one introduction after another, so that those of a large group need not be kept.
class Findings {
 public:
  void add(const Introduction& i) {
    facts_.n_ranks++;
    locations_.push_back({i.control.host, i.place.path, i.network.rack, i.network.bytes_per_second});
    const auto offers = [&](const char* transport) { return i.addresses.contains(transport); };
    facts_.shares_memory &= offers("shm");
    all_verbs_ &= offers("verbs");
    all_net_ &= offers("net");
    any_pins_ |= offers("verbs") || offers("net");
    any_divides_ |= i.connections > 1;
    facts_.racks.bytes_per_second = std::max(facts_.racks.bytes_per_second, i.network.rack_bytes_per_second);
    facts_.racks.latency_ns = std::max(facts_.racks.latency_ns, i.network.rack_latency_ns);
    facts_.wire_latency_ns = std::max(facts_.wire_latency_ns, i.network.latency_ns);
    facts_.cache_bytes = std::min(facts_.cache_bytes, i.place.cache_bytes);
    all_send_by_rate_ &= i.network.sends_by_rate != 0;
    uint64_t& of_host = round_trips_ns_[std::to_array(i.control.host.bytes)];
    of_host = std::max(of_host, i.network.round_trip_ns);
    const auto [found, is_new] = places_.try_emplace(std::to_array(i.place.machine.bytes), machines_.size());
    if (is_new) machines_.push_back({0, {}, i.place.machine_cpus});
    machines_[found->second].ranks++;
    machines_[found->second].cpus |= i.place.cpus;
  }

  Layout layout() const { return lay_out(locations_); }
  MessageSizes sizes(const Layout& layout) const {
    Facts apart = common_facts(layout);
    if (farthest_ns(apart) == 0) apart.wire_latency_ns = distance_ns();
    const MessageSizes sizes = usual_sizes(
        {layout.hosts.size(), apart.shares_memory, any_pins_, any_divides_, under_way_bytes(apart), all_send_by_rate_});
    if (under_way_bytes(apart) > 0 && !any_pins_)
      log(LogLevel::kInfo, "hosts are far apart, %.1f ms one way: messages of up to %u bytes, %u connections per link",
          static_cast<double>(farthest_ns(apart)) * 1e-6, sizes.slot_bytes, std::max(1u, sizes.connections));
    return sizes;
  }
  // As seen by the ranks of each machine.
  std::vector<Facts> facts(const Layout& layout) const {
    const Facts common = common_facts(layout);
    std::vector<Facts> all;
    for (const MachineOfRanks& machine : machines_) {
      all.push_back(common);
      all.back().machine = {machine.ranks, std::max(1, static_cast<int>(machine.cpus.count())),
                            static_cast<int>(machine.cpus_in_all)};
    }
    return all;
  }
  size_t machine(const HostId& id) const { return places_.at(std::to_array(id.bytes)); }
  const CpuSet& cpus(size_t machine) const { return machines_[machine].cpus; }

 private:
  Facts common_facts(const Layout& layout) const {
    Facts facts = facts_;
    facts.has_rdma = all_verbs_ || all_net_;
    add_network(layout, &facts);
    return facts;
  }
  // A lower bound on the latency between hosts, by their round trips to where all ranks met. It decides how large
  // messages are, but never the order of a sum.
  uint64_t distance_ns() const {
    const auto by_time = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto [least, most] = std::minmax_element(round_trips_ns_.begin(), round_trips_ns_.end(), by_time);
    return (most->second - least->second) / 2;
  }

  // Its ranks share CPUs, though they may be in containers, which count as separate hosts.
  struct MachineOfRanks {
    int ranks;
    CpuSet cpus;
    uint32_t cpus_in_all;
  };
  Facts facts_{.n_ranks = 0, .cache_bytes = UINT64_MAX};
  std::vector<RankLocation> locations_;
  bool all_verbs_ = true, all_net_ = true, any_pins_ = false, any_divides_ = false;
  bool all_send_by_rate_ = true;
  std::map<std::array<uint8_t, sizeof(HostId)>, uint64_t> round_trips_ns_;  // the longest of each host
  std::vector<MachineOfRanks> machines_;
  std::map<std::array<uint8_t, sizeof(HostId)>, size_t> places_;  // index in machines_, by machine id
};

std::string to_version(uint32_t code) {
  return format("%u.%u.%u", code / 10000, code / 100 % 100, code % 100);
}

// Plain fields, in this order, behind the version, which says whether the rest can be read.
template <class Bytes, class Any>
void carry_fields(Bytes& bytes, Any& i) {
  bytes.all(i.settings.slot_bytes, i.settings.deterministic, i.settings.on_gpu, i.settings.encrypts,
            i.settings.majority, i.connections, i.place.process, i.network, i.place.cache_bytes, i.settings.prices,
            i.place.machine, i.place.machine_cpus);
  bytes.all(i.settings.prices_from, i.settings.algo, i.settings.order, i.place.host);
}

}  // namespace

std::string Introduction::to_bytes() const {
  ByteWriter w;
  w.put(version);
  carry_fields(w, *this);
  w.all(to_text(place.cpus), control.to_bytes(), place.path, static_cast<uint32_t>(addresses.size()));
  for (const auto& [name, address] : addresses) w.all(name, address);
  return w.take();
}

Result<Introduction> Introduction::from_bytes(const std::string& bytes, int rank) {
  Introduction i;
  ByteReader r(bytes);
  i.version = r.get<uint32_t>();
  if (r.ok() && i.version != TUTTI_VERSION_CODE)
    return Error{Code::kInvalidUsage,
                 format("rank %d runs version %s of Tutti, this rank %s: install the same version everywhere", rank,
                        to_version(i.version).c_str(), to_version(TUTTI_VERSION_CODE).c_str()),
                 rank};
  carry_fields(r, i);
  i.place.cpus = cpus_from_text(r.get_string());
  auto control = Contact::from_bytes(r.get_string());
  r.all(i.place.path);
  for (auto n = r.get<uint32_t>(); r.ok() && n > 0; n--) {
    const std::string name = r.get_string();
    i.addresses[name] = r.get_string();
  }
  if (!r.ok() || !control) return Error{Code::kRemoteError, format("rank %d sent an invalid introduction", rank), rank};
  i.control = *std::move(control);
  return i;
}

struct Roster::Known {
  MutexAcrossForks mutex;
  std::map<uint64_t, std::weak_ptr<const Roster>> rosters;  // by group number
};
// Never destroyed: threads may outlive main.
Roster::Known& Roster::known_ = *new Known;

Result<std::shared_ptr<const Roster>> Roster::of(const Blobs& introductions, int rank) {
  const std::lock_guard lock(known_.mutex);
  const uint64_t number = number_of(introductions.bytes());
  std::shared_ptr<const Roster> roster = known_.rosters[number].lock();
  if (!roster || roster->blobs_.bytes() != introductions.bytes()) {
    TUTTI_TRY_ASSIGN(roster, read(introductions, rank));
    std::erase_if(known_.rosters, [](const auto& entry) { return entry.second.expired(); });
    known_.rosters[number] = roster;
  }
  if (roster->agrees_) return roster;
  const GroupSettings mine = (*roster)[rank].settings;
  for (int r = 0; r < roster->n_ranks(); r++) TUTTI_TRY(check_agreement(mine, rank, (*roster)[r].settings, r));
  return roster;
}

Result<std::shared_ptr<const Roster>> Roster::read(const Blobs& introductions, int rank) {
  std::shared_ptr<Roster> roster(new Roster(introductions));
  const auto introduction = [&](int r) { return Introduction::from_bytes(introductions[static_cast<size_t>(r)], r); };
  TUTTI_TRY_ASSIGN(const Introduction first, introduction(0));
  TUTTI_TRY_ASSIGN(const Introduction mine, introduction(rank));
  Findings findings;
  for (int r = 0; r < roster->n_ranks(); r++) {
    TUTTI_TRY_ASSIGN(const Introduction i, introduction(r));
    findings.add(i);
    if (!check_agreement(first.settings, 0, i.settings, r)) roster->agrees_ = false;
    if (i.control.host != mine.control.host) continue;
    roster->ranks_of_host++;
    if (i.place.process == mine.place.process) roster->ranks_of_process.push_back(r);
  }
  roster->group = number_of(introductions.bytes());
  roster->layout = findings.layout();
  if (mine.settings.order == "rank") roster->layout.order = flat_layout(roster->n_ranks()).order;
  roster->sizes = findings.sizes(roster->layout);
  const std::vector<Facts> all = findings.facts(roster->layout);
  // The first of the most oversubscribed machines. Compared without CPU bindings first, since these must not change a
  // sum's bits.
  roster->facts = *std::max_element(all.begin(), all.end(), [](const Facts& a, const Facts& b) {
    const double unbound_a = a.machine.unbound().oversubscription(), unbound_b = b.machine.unbound().oversubscription();
    return unbound_a != unbound_b ? unbound_a < unbound_b : a.machine.oversubscription() < b.machine.oversubscription();
  });
  const size_t here = findings.machine(mine.place.machine);
  roster->here = all[here];
  roster->cpus_here = findings.cpus(here);
  return std::shared_ptr<const Roster>(std::move(roster));
}

bool Roster::ranks_share_cpus(uint64_t but) {
  const std::lock_guard lock(known_.mutex);
  return std::ranges::any_of(known_.rosters, [but](const auto& entry) {
    const auto roster = entry.second.lock();
    return roster && roster->group != but && roster->is_oversubscribed();
  });
}

PeerWatch::Member Roster::member(int rank) const {
  Introduction i = (*this)[rank];
  return {format("rank %d (host %s, pid %d)", rank, i.place.host.c_str(), i.place.process.pid), std::move(i.control),
          std::move(i.place.host)};
}

}  // namespace tutti
