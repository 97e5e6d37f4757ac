// Creating a communicator: meet through the bootstrap, tell each other where one listens, connect, agree that all are
// connected.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/bytes.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "comm/communicator.h"
#include "debug/trace_signal.h"
#include "kernels/kernels.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

// What a rank tells the others about itself.
struct Introduction {
  uint32_t version = TUTTI_VERSION_CODE;
  uint32_t slot_bytes = 0;
  std::string algo;
  uint32_t deterministic = 0;
  uint32_t on_gpu = 0;  // where its buffers are
  uint32_t encrypts = 0;
  uint64_t wire_bytes_per_second = 0, cache_bytes = 0;
  uint64_t prices = 0;  // their fingerprint
  std::string prices_from;
  std::string order;
  std::vector<uint32_t> path;  // to its place on the host
  std::string host;
  int32_t pid = 0;
  CpuSet cpus;
  HostId machine{};  // whose CPUs these are
  uint32_t machine_cpus = 1;
  Contact control;
  LinkPool::Addresses addresses;

  std::string to_bytes() const {
    ByteWriter w;
    w.put(version)
        .put(slot_bytes)
        .put(deterministic)
        .put(on_gpu)
        .put(encrypts)
        .put(pid)
        .put(wire_bytes_per_second)
        .put(cache_bytes)
        .put(prices)
        .put_string(prices_from)
        .put_string(algo)
        .put_string(order)
        .put_string(host)
        .put_string(tutti::to_bytes(cpus))
        .put(machine)
        .put(machine_cpus)
        .put_string(control.to_bytes());
    w.put(static_cast<uint32_t>(path.size()));
    for (const uint32_t number : path) w.put(number);
    w.put(static_cast<uint32_t>(addresses.size()));
    for (const auto& [name, address] : addresses) w.put_string(name).put_string(address);
    return w.take();
  }

  static Result<Introduction> from_bytes(const std::string& bytes, int rank) {
    Introduction i;
    ByteReader r(bytes);
    i.version = r.get<uint32_t>();
    if (r.ok() && i.version != TUTTI_VERSION_CODE)
      return Error{Code::kInvalidUsage,
                   format("rank %d runs version %u of Tutti, this rank %d: install the same version everywhere", rank,
                          i.version, TUTTI_VERSION_CODE),
                   rank};
    i.slot_bytes = r.get<uint32_t>();
    i.deterministic = r.get<uint32_t>();
    i.on_gpu = r.get<uint32_t>();
    i.encrypts = r.get<uint32_t>();
    i.pid = r.get<int32_t>();
    i.wire_bytes_per_second = r.get<uint64_t>();
    i.cache_bytes = r.get<uint64_t>();
    i.prices = r.get<uint64_t>();
    i.prices_from = r.get_string();
    i.algo = r.get_string();
    i.order = r.get_string();
    i.host = r.get_string();
    const auto cpus = cpus_from_bytes(r.get_string());
    if (cpus) i.cpus = *cpus;
    i.machine = r.get<HostId>();
    i.machine_cpus = r.get<uint32_t>();
    const auto control = Contact::from_bytes(r.get_string());
    if (control) i.control = *control;
    for (uint32_t n = r.get<uint32_t>(); r.ok() && n > 0; n--) i.path.push_back(r.get<uint32_t>());
    for (uint32_t n = r.get<uint32_t>(); r.ok() && n > 0; n--) {
      const std::string name = r.get_string();
      i.addresses[name] = r.get_string();
    }
    if (!r.ok() || !control || !cpus)
      return Error{Code::kRemoteError, format("rank %d sent an invalid introduction", rank), rank};
    return i;
  }
};

Result<void> check_agreement(const Introduction& mine, int my_rank, const Introduction& theirs, int their_rank) {
  const auto differ = [&](const char* what, const std::string& a, const std::string& b) {
    return Error{Code::kInvalidUsage,
                 format("rank %d has %s=%s, rank %d has %s=%s: set it to the same value on all ranks", my_rank, what,
                        a.c_str(), their_rank, what, b.c_str()),
                 their_rank};
  };
  if (mine.encrypts != theirs.encrypts)
    return differ("TUTTI_ENCRYPT (or the configuration's encrypt)", std::to_string(mine.encrypts),
                  std::to_string(theirs.encrypts));
  if (mine.slot_bytes != theirs.slot_bytes)
    return differ("TUTTI_SLOT_BYTES", std::to_string(mine.slot_bytes), std::to_string(theirs.slot_bytes));
  if (mine.deterministic != theirs.deterministic)
    return differ("TUTTI_DETERMINISTIC (or the configuration's deterministic)", std::to_string(mine.deterministic),
                  std::to_string(theirs.deterministic));
  if (mine.on_gpu != theirs.on_gpu)
    return differ("config.cudaDevice", mine.on_gpu ? "a device" : "none", theirs.on_gpu ? "a device" : "none");
  if (mine.prices != theirs.prices) return differ("prices from", mine.prices_from, theirs.prices_from);
  if (mine.order != theirs.order) return differ("TUTTI_ORDER", mine.order, theirs.order);
  if (mine.algo != theirs.algo) return differ("TUTTI_ALGO (or the configuration's algo)", mine.algo, theirs.algo);
  return {};
}

Result<std::vector<Introduction>> read_all(const std::vector<std::string>& blobs) {
  std::vector<Introduction> all;
  for (size_t r = 0; r < blobs.size(); r++) {
    TUTTI_TRY_ASSIGN(Introduction i, Introduction::from_bytes(blobs[r], static_cast<int>(r)));
    all.push_back(std::move(i));
  }
  return all;
}

// What the kernel sends at a time over TCP, less a frame's header: on loopback one packet of 65483 bytes, between hosts
// 45 of Ethernet's 1448. For 101 bytes more, 64 KiB and a header, it does everything twice: all-reduces of 256 KiB by 4
// ranks take 230 us instead of 176.
constexpr uint32_t kTcpSegmentBytes = 65088;

// All ranks come to the same. Measured with all-reduce of two ranks: over TCP on loopback, where a message is one call
// of the kernel's, 512 KiB against 256 are 1.15 times faster at 1 MiB and 1.3 at 4 MiB, and with four ranks the same;
// in shared memory more than 128 KiB make no difference, but take more of the cache. A network device pins them.
// Over TCP there is room beyond 512 KiB for what the last chunk takes of the others.
MessageSizes default_sizes(size_t n_hosts, const std::vector<LinkPool::Addresses>& addresses) {
  const auto all = [&](auto&& holds) { return std::all_of(addresses.begin(), addresses.end(), holds); };
  if (n_hosts == 1 && all([](const auto& a) { return a.contains("shm"); })) return {128 << 10};
  if (!all([](const auto& a) { return !a.contains("verbs") && !a.contains("net"); })) return {256 << 10};
  return {576 << 10, kTcpSegmentBytes};
}

// What the group stands on as seen from one host, whose ranks may be bound to some of its CPUs.
CpuSet cpus_of(const std::vector<int>& ranks, const std::vector<Introduction>& all) {
  CpuSet cpus;
  for (const int rank : ranks) cpus |= all[static_cast<size_t>(rank)].cpus;
  return cpus;
}

// Ranks that share CPUs, though they may be in containers and so hosts of their own.
std::vector<std::vector<int>> by_machine(const std::vector<Introduction>& all) {
  std::vector<std::vector<int>> machines;
  for (int rank = 0; rank < static_cast<int>(all.size()); rank++) {
    const auto found = std::find_if(machines.begin(), machines.end(), [&](const std::vector<int>& ranks) {
      return all[static_cast<size_t>(ranks[0])].machine == all[static_cast<size_t>(rank)].machine;
    });
    (found == machines.end() ? machines.emplace_back() : *found).push_back(rank);
  }
  return machines;
}

// For people and their tools, who see the traces of several groups: what all ranks know and no other group has.
// By words, since every rank does it for all.
uint64_t group_number(const std::vector<std::string>& introductions) {
  uint64_t number = 0xcbf29ce484222325u;
  for (const std::string& bytes : introductions) {
    for (size_t at = 0; at < bytes.size(); at += sizeof number) {
      uint64_t word = 0;
      memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
      number = (number ^ word) * 0x100000001b3u;
      number ^= number >> 32;
    }
  }
  return number;
}

// As `ranks` see it, who share a machine.
Facts facts_of(const std::vector<int>& ranks, const Layout& layout, const std::vector<Introduction>& all) {
  const auto all_offer = [&](const char* transport) {
    return std::all_of(all.begin(), all.end(), [&](const Introduction& i) { return i.addresses.contains(transport); });
  };
  Facts facts;
  facts.n_ranks = static_cast<int>(all.size());
  facts.ranks_here = static_cast<int>(ranks.size());
  facts.cpus_here = std::max(1, static_cast<int>(cpus_of(ranks, all).count()));
  facts.machine_cpus = static_cast<int>(all[static_cast<size_t>(ranks[0])].machine_cpus);
  facts.hosts = static_cast<int>(layout.hosts.size());
  for (const auto& host : layout.hosts)
    facts.largest_host = std::max(facts.largest_host, static_cast<int>(host.size()));
  facts.shares_memory = all_offer("shm");
  facts.has_rdma = all_offer("verbs") || all_offer("net");
  facts.wire_bytes_per_second = facts.cache_bytes = UINT64_MAX;
  for (const Introduction& i : all) {
    facts.wire_bytes_per_second = std::max<uint64_t>(1, std::min(facts.wire_bytes_per_second, i.wire_bytes_per_second));
    facts.cache_bytes = std::min(facts.cache_bytes, i.cache_bytes);
  }
  return facts;
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

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(const UniqueId& id, int rank, int n_ranks,
                                                           const CommOptions& options, Deadline deadline) {
  log_set_thread_rank(rank);
  TUTTI_TRY(parse_algo(options.algo));  // before it waits for anybody
  TUTTI_TRY_ASSIGN(Bootstrap bootstrap, Bootstrap::join(id, rank, n_ranks, deadline, options.encrypt));
  return create(bootstrap, options, deadline);
}

Result<std::unique_ptr<Communicator>> Communicator::create(Meeting& meeting, const CommOptions& options,
                                                           Deadline deadline) {
  log_set_thread_rank(meeting.rank());
  const auto forced = parse_algo(options.algo);
  std::unique_ptr<Communicator> comm(
      new Communicator(meeting.rank(), meeting.n_ranks(), options, forced ? forced.value() : Algo::kAuto));
  // Nobody starts before all are connected, and everybody hears why if one is not.
  TUTTI_TRY(meeting.conclude(forced ? comm->setup(meeting, deadline) : forced.error()));
  log(LogLevel::kInfo, "communicator of %d ranks is ready: kernels %s, %s", comm->n_ranks_, kernels().isa,
      comm->wait_policy_.oversubscribed ? "more ranks than CPUs here" : "a CPU for every rank here");
  const auto& hosts = comm->planner_->layout().hosts;
  const bool leads_host =
      std::any_of(hosts.begin(), hosts.end(), [&](const auto& ranks) { return ranks[0] == comm->rank_; });
  comm->metrics_ = Metrics::start(comm->recorder_, *comm->watch_, *comm->links_, options.metrics_file, leads_host);
  if (options.cuda_device < 0) return comm;
  TUTTI_TRY_ASSIGN(comm->device_, cuda::Device::create(*comm, options.cuda_device));
  return comm;
}

int Communicator::host_of(int rank) const {
  const auto& hosts = planner_->layout().hosts;
  const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
  return static_cast<int>(found - hosts.begin());
}

Result<void> Communicator::setup(Meeting& meeting, Deadline deadline) {
  TUTTI_TRY(env_check());
  TUTTI_TRY(kernels_check());
  TUTTI_TRY_ASSIGN(const int64_t on_sigterm, env_int(Env::kTraceOnSigterm));
  if (on_sigterm != 0) TUTTI_TRY(write_traces_on_sigterm(options_.trace_file));
  TUTTI_TRY_ASSIGN(const int64_t slots, env_int(Env::kSlots));
  TUTTI_TRY_ASSIGN(const int64_t slot_bytes, env_int(Env::kSlotBytes));
  TUTTI_TRY_ASSIGN(const int64_t stream_from, env_int(Env::kNonTemporalBytes));
  sizes_.slot_bytes = static_cast<uint32_t>((slot_bytes + 63) / 64 * 64);
  TUTTI_TRY_ASSIGN(machine_, tutti::machine());
  stream_from_bytes_ = static_cast<uint64_t>(stream_from);

  tuttiEndpointConfig endpoint_config{
      sizeof endpoint_config, rank_,           n_ranks_, {}, find_memory, SharedMemory::removals, is_live_memory,
      dmabuf_of_memory,       options_.encrypt};
  std::copy(meeting.key().begin(), meeting.key().end(), endpoint_config.group_key);
  TUTTI_TRY_ASSIGN(const auto transports, find_transports(options_.transports, options_.encrypt));
  TUTTI_TRY_ASSIGN(
      LinkPool pool,
      LinkPool::open({.rank = rank_, .slots = static_cast<uint32_t>(slots), .by_cost = options_.transports.empty()},
                     transports, endpoint_config));
  links_ = std::make_unique<LinkPool>(std::move(pool));
  TUTTI_TRY_ASSIGN(Listener control, Listener::open());
  TUTTI_TRY_ASSIGN(PriceList prices, find_prices());

  Introduction mine;
  mine.slot_bytes = sizes_.slot_bytes;
  mine.algo = options_.algo;
  mine.order = env_string(Env::kOrder);
  mine.deterministic = options_.deterministic ? 1 : 0;
  mine.encrypts = options_.encrypt ? 1 : 0;
  mine.on_gpu = options_.cuda_device >= 0 ? 1 : 0;
  mine.cache_bytes = machine_->last_level_cache_bytes;
  mine.wire_bytes_per_second = links_->network_bytes_per_second();
  mine.prices = fingerprint(prices.prices);
  mine.prices_from = prices.file.empty() ? "the library itself" : prices.file;
  mine.host = host_name();
  mine.pid = getpid();
  mine.cpus = usable_cpus();
  mine.machine = machine_id();
  mine.machine_cpus = std::max(1u, static_cast<uint32_t>((machine_->whole.cpus | mine.cpus).count()));
  mine.path = path_to(*machine_, mine.cpus);
  log(LogLevel::kInfo, "CPUs %s of the host, which is: %s", to_text(mine.cpus).c_str(),
      place_name(*machine_, mine.path).c_str());
  mine.control = control.contact;
  mine.addresses = links_->addresses();
  descriptors_before_ = open_descriptors();
  TUTTI_TRY_ASSIGN(auto blobs, meeting.all_gather(mine.to_bytes()));
  return meet(meeting, std::move(blobs), std::move(control.fds), std::move(prices), deadline);
}

// What a rank is going to open at least: to be connected, to wake its thread, and to be woken.
size_t Communicator::descriptors_for_rank(int rank) const {
  const Planner planner(rank, planner_->layout(), forced_, options_.deterministic);
  size_t n = 2 + planner.neighbours().size();
  for (const Plan plan : {kTreePlan, kRingPlan})
    n += LinkPool::links_of(planner.schedule(Collective::kAllReduce, plan, 0));
  return n;
}

// The first rank of a process counts for the others: each by itself would take n cubed.
size_t Communicator::descriptors_for(const std::vector<int>& ranks_of_process, uint64_t group) const {
  static std::mutex mutex;
  static uint64_t counted_group = 0;
  static size_t needed = 0;
  const std::lock_guard lock(mutex);
  if (counted_group == group) return needed;
  needed = 0;
  for (const int rank : ranks_of_process) needed += descriptors_for_rank(rank);
  counted_group = group;
  return needed;
}

// Known now, instead of by ranks that wait for each other's connections. Who introduces itself last has counted all
// that the others hold.
Result<void> Communicator::check_room(const std::vector<int>& ranks_of_process, size_t n_doors, uint64_t group) const {
  constexpr size_t kMostTimesMine = 4;  // others may have more neighbours
  const size_t most = kMostTimesMine * descriptors_for_rank(rank_) * ranks_of_process.size();
  if (check_descriptors(descriptors_before_, most, "")) return {};
  size_t needed = descriptors_for(ranks_of_process, group);
  needed -= std::min(needed, ranks_of_process.size() * n_doors);  // some are closed when all are known
  return check_descriptors(
      descriptors_before_, needed,
      format("a group of %d ranks, %zu of them in this process,", n_ranks_, ranks_of_process.size()));
}

Result<void> Communicator::meet(Meeting& meeting, std::vector<std::string> blobs, std::vector<Fd> control_fds,
                                PriceList prices, Deadline deadline) {
  TUTTI_TRY_ASSIGN(const auto all, read_all(blobs));
  const Introduction& mine = all[static_cast<size_t>(rank_)];
  PeerWatch::Config config{.rank = rank_, .key = meeting.key()};
  config.key.encrypts = options_.encrypt;
  std::vector<LinkPool::Addresses> addresses;
  std::vector<Seat> seats;
  std::vector<int> ranks_of_process;
  for (size_t r = 0; r < all.size(); r++) {
    TUTTI_TRY(check_agreement(mine, rank_, all[r], static_cast<int>(r)));
    config.rank_names.push_back(format("rank %zu (host %s, pid %d)", r, all[r].host.c_str(), all[r].pid));
    config.host_names.push_back(all[r].host);
    config.contacts.push_back(all[r].control);
    addresses.push_back(all[r].addresses);
    seats.push_back({all[r].control.host, all[r].path});
    const bool is_here = all[r].pid == mine.pid && all[r].control.host == mine.control.host;
    if (is_here) ranks_of_process.push_back(static_cast<int>(r));
  }
  Layout layout = lay_out(seats);
  const bool leads_host = std::any_of(layout.hosts.begin(), layout.hosts.end(),
                                      [&](const std::vector<int>& ranks) { return ranks[0] == rank_; });
  if (rank_ == 0) log(LogLevel::kInfo, "order of ranks: %s", to_text(layout).c_str());
  if (mine.order == "rank") layout.order = flat_layout(n_ranks_).order;
  const uint32_t asked_bytes = sizes_.slot_bytes;
  sizes_ = default_sizes(layout.hosts.size(), addresses);
  if (asked_bytes != 0) sizes_.slot_bytes = asked_bytes;
  Facts facts{.n_ranks = 0};
  for (const std::vector<int>& ranks : by_machine(all)) {
    const Facts here = facts_of(ranks, layout, all);
    if (facts.n_ranks == 0 || here.crowding() > facts.crowding()) facts = here;
    if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) continue;
    wait_policy_.oversubscribed = here.crowding() > 1;
    // From there on the inputs and outputs of all ranks here leave no room for each other, and a result that goes to
    // the cache is read from memory first, and written there all the same. 16 MiB, registered, 2 and 4 ranks: -50 %,
    // -38 %; at half of these sizes streaming costs 4 ranks 34 %.
    if (stream_from_bytes_ == 0) stream_from_bytes_ = cache_bytes(*machine_, cpus_of(ranks, all)) / (2 * ranks.size());
  }
  planner_.emplace(rank_, std::move(layout), forced_, options_.deterministic);
  const uint64_t group = group_number(blobs);
  recorder_.share(rank_, n_ranks_, group);
  planner_->set_facts(facts, std::move(prices));
  TUTTI_TRY(check_room(ranks_of_process, mine.control.addresses.size() * (1 + mine.addresses.size()), group));
  config.neighbours = planner_->neighbours();
  config.listener = [this](std::string_view question) {
    auto answer = inquiry_.hear(question);
    return answer ? std::move(answer) : comparison_.hear(question);
  };
  const auto here =
      std::count_if(all.begin(), all.end(), [&](const Introduction& i) { return i.control.host == mine.control.host; });
  links_->narrow(here > 1, here < n_ranks_);
  links_->set_peers(std::move(addresses), sizes_.slot_bytes);
  TUTTI_TRY_ASSIGN(watch_, PeerWatch::create(std::move(config), std::move(control_fds), deadline,
                                             [&] { return meeting.is_broken(); }));
  for (const Plan plan : {kTreePlan, kRingPlan})
    TUTTI_TRY(add_program(key_of(plan), deadline, [&] { return meeting.is_broken(); }));
  keep_program({Collective::kFinalize, Algo::kTree, kMostLanes, 0}, programs_.at(key_of(kTreePlan)));
  // Last, because nobody waits for anybody here: who fails can say so.
  if (leads_host && env_is_set(Env::kTopoDump)) TUTTI_TRY(dump_machine(env_string(Env::kTopoDump)));
  return {};
}

}  // namespace tutti
