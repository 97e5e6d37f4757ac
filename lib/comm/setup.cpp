// How a rank takes its place in a group: it tells the others where it listens, hears where they do, works out its
// place, and makes its control connections. Once for each communicator.
#include <algorithm>
#include <mutex>

#include "base/at_fork.h"
#include "base/cgroups.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "base/socket.h"
#include "comm/communicator.h"
#include "debug/trace_json.h"
#include "kernels/kernels.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

// What a file says about this host overrides what its interfaces say.
void find_in_network(const Cluster& network, const std::string& file, NetworkPlace* mine) {
  const int host = network.find_host(host_name());
  if (host < 0)
    return log(LogLevel::kWarn, "the network in %s has no host %s, so its rack is unknown; add it to \"hosts\"",
               file.c_str(), host_name().c_str());
  mine->rack = 1 + static_cast<uint32_t>(host / network.hosts_per_rack);
  mine->rack_bytes_per_second = static_cast<uint64_t>(network.rack_bytes_per_second());
  mine->bytes_per_second = static_cast<uint64_t>(network.host_bytes_per_second(host));
  mine->latency_ns = static_cast<uint64_t>(network.nic.latency_ns);
  mine->rack_latency_ns = static_cast<uint64_t>(network.rack.latency_ns);
}

// What transports may ask about the user's memory.
uint64_t find_memory(const void* data, uint64_t bytes, uintptr_t* begin, uintptr_t* end) {
  const auto block = SharedMemory::find_registered(data, bytes);
  if (!block) return 0;
  *begin = block->begin;
  *end = block->end;
  return block->id;
}
int is_live_memory(uint64_t number) {
  return SharedMemory::is_live(number);
}
int dmabuf_of_memory(uint64_t number, uint64_t* offset_bytes) {
  return SharedMemory::dmabuf(number, offset_bytes).release();
}

Result<void> open_links(const Rendezvous& rendezvous, Membership& me, LinkPool& links) {
  TUTTI_TRY_ASSIGN(const int64_t slots, env_int("TUTTI_SLOTS"));
  TUTTI_TRY_ASSIGN(const int64_t slot_bytes, env_int("TUTTI_SLOT_BYTES"));
  TUTTI_TRY_ASSIGN(const int64_t stream_from, env_int("TUTTI_NT_BYTES"));
  me.sizes.slot_bytes = static_cast<uint32_t>((slot_bytes + 63) / 64 * 64);
  me.sizes.slots = static_cast<uint32_t>(slots);
  me.stream_from_bytes = static_cast<uint64_t>(stream_from);
  const CommOptions& options = me.options;
  tuttiEndpointConfig endpoint_config{
      sizeof endpoint_config, me.rank,          me.n_ranks,     {}, find_memory, SharedMemory::removals,
      is_live_memory,         dmabuf_of_memory, options.encrypt};
  std::copy(rendezvous.key().begin(), rendezvous.key().end(), endpoint_config.group_key);
  TUTTI_TRY_ASSIGN(const auto transports, find_transports(options.transports, options.encrypt));
  TUTTI_TRY_ASSIGN(links.endpoints(), open_endpoints(endpoint_config, transports, options.transports.empty()));
  return {};
}

Introduction introduction(const Rendezvous& rendezvous, const Membership& me, LinkPool& links, const PriceList& prices,
                          const Contact& control) {
  Introduction mine{.version = TUTTI_VERSION_CODE};
  mine.settings = {.slot_bytes = me.sizes.slot_bytes,
                   .algo = algo_name(me.options.algo),
                   .deterministic = me.options.deterministic,
                   .on_gpu = me.is_on_gpu(),
                   .encrypts = me.options.encrypt,
                   .majority = me.options.majority,
                   .prices = fingerprint(prices.prices, prices.network_text),
                   .prices_from = prices.file,
                   .order = env_string("TUTTI_ORDER")};
  mine.network.bytes_per_second = network_bytes_per_second(links.endpoints());
  if (prices.network) find_in_network(*prices.network, prices.network_file, &mine.network);
  mine.network.round_trip_ns = rendezvous.round_trip_ns();
  mine.network.sends_by_rate = sends_by_rate() ? 1 : 0;
  HostPlace& place = mine.place;
  place.host = host_name();
  place.process = this_process();
  place.cpus = usable_cpus();
  place.machine = machine_id();
  place.machine_cpus = std::max(1u, static_cast<uint32_t>((me.machine->whole.cpus | place.cpus).count()));
  place.cache_bytes = last_level_cache_bytes(*me.machine);
  place.path = path_to(*me.machine, place.cpus);
  log(LogLevel::kInfo, "this rank may use CPUs %s: %s", to_text(place.cpus).c_str(),
      place_name(*me.machine, place.path).c_str());
  mine.control = control;
  mine.addresses = addresses_of(links.endpoints());
  return mine;
}

// What a rank will open at least: its connections, and two more to be woken by the group and by links.
size_t descriptors_for_rank(const Membership& me, const LinkPool& links, int rank) {
  const Planner planner(rank, me.planner->layout(), me.options.algo, me.options.deterministic);
  const std::vector<int>& here = me.roster->ranks_of_process;
  const std::vector<int> neighbours = planner.neighbours();
  size_t n = 2 + static_cast<size_t>(std::count_if(neighbours.begin(), neighbours.end(), [&](int peer) {
               return !std::binary_search(here.begin(), here.end(), peer);
             }));
  for (const Algo algo : Collectives::kFirst) n += links.sockets_of(planner.schedule(Collective::kAllReduce, algo, 0));
  return n;
}

MutexAcrossForks g_count_mutex;

// The first rank of a process counts for the others: if each rank counted, it would take O(n^3).
size_t descriptors_for_process(const Membership& me, const LinkPool& links) {
  static uint64_t counted_group = 0;
  static size_t needed = 0;
  const std::lock_guard lock(g_count_mutex);
  if (counted_group == me.roster->group) return needed;
  needed = 0;
  for (const int rank : me.roster->ranks_of_process) needed += descriptors_for_rank(me, links, rank);
  counted_group = me.roster->group;
  return needed;
}

// Found out now, instead of by ranks that wait for each other's connections. The rank that introduces itself last has
// counted all that the others hold.
Result<void> check_room(const Membership& me, const LinkPool& links, size_t descriptors_before, size_t n_doors) {
  constexpr size_t kMostTimesMine = 4;  // others may have more neighbours
  const size_t n_here = me.roster->ranks_of_process.size();
  if (check_descriptors(descriptors_before, kMostTimesMine * descriptors_for_rank(me, links, me.rank) * n_here, ""))
    return {};
  size_t needed = descriptors_for_process(me, links);
  needed -= std::min(needed, n_here * n_doors);  // some are closed once all ranks are known
  return check_descriptors(descriptors_before, needed,
                           format("a group of %d ranks, %zu of them in this process,", me.n_ranks, n_here));
}

// Works out how this rank operates, from what all ranks know.
void take_place(PriceList prices, Membership& me, LinkPool& links) {
  const Roster& roster = *me.roster;
  if (me.rank == 0) log(LogLevel::kInfo, "order of ranks: %s", to_text(roster.layout).c_str());
  const MessageSizes asked = me.sizes;
  me.sizes = roster.sizes;
  if (asked.slot_bytes != 0) me.sizes.slot_bytes = asked.slot_bytes;
  if (env_is_set("TUTTI_SLOTS")) me.sizes.slots = asked.slots;
  // From this size on the inputs and outputs of all ranks here do not fit into the cache together, and a result that is
  // stored there is first read from memory, and later written back anyway. 16 MiB, registered, 2 and 4 ranks: -50 %,
  // -38 %; at half of these sizes streaming costs 4 ranks 34 %.
  const uint64_t beyond_cache_bytes =
      cache_bytes(*me.machine, roster.cpus_here) / (2 * static_cast<uint64_t>(roster.here.machine.ranks));
  if (me.stream_from_bytes == 0) me.stream_from_bytes = beyond_cache_bytes;
  // A rank that writes where another rank has read or written last waits for each cache line. So smaller results go
  // through slots, which take turns between the two. All-reduces by 2 ranks, registered, in place / through slots: 256
  // KiB 7.0 / 7.0 us where CPUs are near each other, 30 / 13 where they are not; 1 MiB 22 / 31 and 98 / 48; 4 MiB 96 /
  // 126 and 363 / 187; 8 MiB 430 / 650 and 440 / 660.
  const bool near = share_cache(*me.machine, roster.cpus_here);
  if (roster.facts.all_share_memory() && is_shared_memory(links.endpoints().front()))
    me.expose_sums_from_bytes = near ? std::min<uint64_t>(512 << 10, beyond_cache_bytes) : beyond_cache_bytes;
  me.shares_cpus = Roster::ranks_share_cpus(me.options.replaces);
  // From this size on one-way data, to ranks that have CPUs of their own, is copied piece by piece (Combiner).
  if (!me.shares_cpus) me.one_way_from_bytes = 32 << 10;
  me.planner.emplace(me.rank, roster.layout, me.options.algo, me.options.deterministic, roster.facts,
                     std::move(prices));
  links.yielding() = Yielding(roster.is_oversubscribed(), cpu_quota() > 0, me.shares_cpus);
}

Result<void> connect_neighbours(Rendezvous& rendezvous, const Deadline& deadline, const Membership& me, LinkPool& links,
                                Monitor& monitor, std::vector<Fd> control_fds) {
  const auto roster = me.roster;
  PeerWatch::Config config{
      .rank = me.rank, .n_ranks = me.n_ranks, .n_here = roster->ranks_of_host, .key = rendezvous.key()};
  config.key.encrypts = me.options.encrypt;
  config.member = [roster](int rank) { return roster->member(rank); };
  config.group = roster->group;
  config.of_process = roster->ranks_of_process;
  config.neighbours = me.planner->neighbours();
  for (Endpoint& endpoint : links.endpoints())
    endpoint.narrow(roster->ranks_of_host > 1, roster->ranks_of_host < me.n_ranks);
  return monitor.connect(std::move(config), std::move(control_fds), deadline,
                         [&rendezvous] { return rendezvous.is_broken(); });
}

}  // namespace

Result<void> Communicator::setup(Rendezvous& rendezvous, Deadline deadline) {
  TUTTI_TRY(env_check());
  TUTTI_TRY(kernels_check());
  TUTTI_TRY_ASSIGN(const int64_t on_sigterm, env_int("TUTTI_TRACE_ON_SIGTERM"));
  if (on_sigterm != 0 && me_.options.trace_file.empty())
    return Error{Code::kInvalidUsage, "TUTTI_TRACE_ON_SIGTERM=1 writes traces to TUTTI_TRACE_FILE, which is not set"};
  if (on_sigterm != 0) TUTTI_TRY(write_traces_on_sigterm());
  TUTTI_TRY_ASSIGN(me_.machine, tutti::machine());
  TUTTI_TRY(open_links(rendezvous, me_, links_));
  TUTTI_TRY_ASSIGN(Listener control, Listener::open());
  TUTTI_TRY_ASSIGN(PriceList prices, find_prices());
  TUTTI_TRY_ASSIGN(const int64_t connections, env_int("TUTTI_TCP_CONNECTIONS"));
  Introduction mine = introduction(rendezvous, me_, links_, prices, control.contact);
  mine.connections = static_cast<uint32_t>(connections > 0 ? connections : networks_of(control));
  const size_t descriptors_before = open_descriptors();  // before any rank of the group connects
  TUTTI_TRY_ASSIGN(const Blobs introductions, rendezvous.all_gather(mine.to_bytes()));
  TUTTI_TRY_ASSIGN(me_.roster, Roster::of(introductions, me_.rank));
  take_place(std::move(prices), me_, links_);
  monitor_.take_place();
  TUTTI_TRY(check_room(me_, links_, descriptors_before, mine.control.addresses.size() * (1 + mine.addresses.size())));
  TUTTI_TRY(connect_neighbours(rendezvous, deadline, me_, links_, monitor_, std::move(control.fds)));
  TUTTI_TRY(collectives_.connect(deadline, [&] { return rendezvous.is_broken(); }));
  // Last, because no rank waits for another here, so a rank that fails can report it.
  if (me_.leads_host() && env_is_set("TUTTI_TOPO_DUMP")) return dump_machine(env_string("TUTTI_TOPO_DUMP"));
  return {};
}

}  // namespace tutti
