#include "transports/verbs/port.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <tuple>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/sort.h"

// Since rdma-core 34: null if the installed one is older.
extern "C" __attribute__((weak)) ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset, size_t bytes,
                                                           uint64_t address, int fd, int access);

namespace tutti::verbs {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

// By TUTTI_IB_HCA, whose names may have a port after a colon.
bool is_wanted(const std::string& device, int port) {
  const std::string names = env_string("TUTTI_IB_HCA");
  return names.empty() || matches_filter(names, [&](std::string_view part, bool exact) {
           const std::string_view name = part.substr(0, part.find(':'));
           const int only = name == part ? port : atoi(std::string(part.substr(name.size() + 1)).c_str());
           return only == port && (exact ? device == name : device.starts_with(name));
         });
}

bool is_v4(const GidBytes& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return memcmp(gid.data(), kPrefix, sizeof kPrefix) == 0;
}

Address to_address(const GidBytes& gid) {
  constexpr uint16_t kRoceV2Port = 4791;
  return Address::of_ip(std::span(gid).last(is_v4(gid) ? 4 : 16), kRoceV2Port);
}

// Would the kernel send from `mine` to `peer`? Nothing is sent to find out.
bool is_routed(const GidBytes& mine, const GidBytes& peer) {
  const Address to = to_address(peer);
  const Fd fd(socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0) return false;
  const auto from = local_address(fd.get());
  return from && from->same_place(to_address(mine));
}

// Routed paths first, then those within one network: there the kernel sends from one of two ports only. Addresses that
// are valid on one wire only come last. InfiniBand goes by LID within a subnet, whose prefix is the GID's first half.
int score(const PortAddress& mine, size_t my_gid, const GidBytes& peer) {
  constexpr int kSubnetBits = 64, kRouted = 1000;
  const GidBytes& gid = mine.gids[my_gid];
  const Address from = to_address(gid), to = to_address(peer);
  const int common = from.common_bits(to) + (is_v4(gid) ? 96 : 0);  // as IPv6
  if (!mine.is_ethernet) return common >= kSubnetBits ? Path::kSure : 0;
  if (from.family() != to.family() || from.is_link_local() != to.is_link_local()) return 0;
  if (from.is_link_local()) return 1;
  if (is_routed(gid, peer)) return common + kRouted;
  const int network_bits = mine.network_bits[my_gid];
  return common + (network_bits > 0 && common >= network_bits ? Path::kSure : 2);
}

Error cannot_register(const Port& port, size_t bytes, int sys_errno) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  Error error = system_error(format("registering %zu bytes with %s", bytes, port.name().c_str()), sys_errno);
  if (sys_errno == ENOMEM && limit.rlim_cur != RLIM_INFINITY)
    error.message +=
        format(": this process may lock %lu bytes; raise the limit (ulimit -l unlimited, memlock in limits.conf)",
               limit.rlim_cur);
  return error;
}

}  // namespace

Result<Ports> Port::open_all() {
  // Registered memory must stay in place when the process forks; newer kernels ensure that themselves.
  ibv_fork_init();
  int n_devices = 0;
  ibv_device** devices = ibv_get_device_list(&n_devices);
  if (devices == nullptr) return system_error("listing RDMA devices", errno);
  Ports ports;
  std::string refused, excluded;
  const auto refuse = [&](const std::string& why) { refused += (refused.empty() ? "" : "; ") + why; };
  for (int d = 0; d < n_devices; d++) {
    for (uint8_t number = 1; ports.size() < kMaxPorts; number++) {
      auto port = open(devices[d], number);
      if (!port) refuse(port.error().message);
      if (!port || port.value() == nullptr) break;
      const std::string& name = port.value()->name();
      if (!is_wanted(ibv_get_device_name(devices[d]), number))
        excluded += (excluded.empty() ? "" : ", ") + name;
      else if (auto made = port.value()->set_up(); !made)
        refuse(name + " " + made.error().message);
      else
        ports.push_back(std::move(port).value());
    }
  }
  ibv_free_device_list(devices);
  if (!ports.empty()) return ports;
  const bool excludes_all = refused.empty() && !excluded.empty();
  if (!excluded.empty())
    refuse(excludes_all ? "it excludes all that there are: " + excluded +
                              "; correct it, or leave RDMA out: TUTTI_TRANSPORTS=shm,tcp"
                        : "excluded: " + excluded);
  return Error{excludes_all ? Code::kInvalidUsage : Code::kSystemError,
               format("no port of an RDMA device can be used (TUTTI_IB_HCA=%s): %s", env_string("TUTTI_IB_HCA").c_str(),
                      refused.empty() ? "there is no device" : refused.c_str())};
}

// Null if the device has no such port.
Result<std::unique_ptr<Port>> Port::open(ibv_device* device, uint8_t number) {
  ibv_context* context = ibv_open_device(device);
  if (context == nullptr) return system_error(format("opening %s", ibv_get_device_name(device)), errno);
  std::unique_ptr<Port> port(new Port(context, number));
  ibv_device_attr attributes{};
  if (ibv_query_device(context, &attributes) != 0 || number > attributes.phys_port_cnt) return std::unique_ptr<Port>();
  port->name_ = format("%s:%d", ibv_get_device_name(device), number);
  return port;
}

Result<void> Port::set_up() {
  ibv_port_attr attributes{};
  if (ibv_query_port(context_.get(), number_, &attributes) != 0) return system_error("cannot be queried", errno);
  if (attributes.state != IBV_PORT_ACTIVE)
    return Error{Code::kSystemError, format("is %s", ibv_port_state_str(attributes.state))};
  address_.is_ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  address_.mtu = static_cast<uint8_t>(attributes.active_mtu);
  address_.lid = attributes.lid;
  max_message_bytes_ = attributes.max_msg_sz;
  active_speed_ = attributes.active_speed;
  active_width_ = attributes.active_width;
  TUTTI_TRY(find_gids());
  domain_.reset(ibv_alloc_pd(context_.get()));
  if (domain_ == nullptr) return system_error("has no protection domain", errno);
  channel_.reset(ibv_create_comp_channel(context_.get()));
  if (channel_ == nullptr) return system_error("has no completion channel", errno);
  for (const int fd : {context_->async_fd, channel_->fd}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  return {};
}

// RoCE v2 on Ethernet, as it can be routed; TUTTI_IB_GID_INDEX leaves one. IPv4 before IPv6 before link-local.
Result<void> Port::find_gids() {
  TUTTI_TRY_ASSIGN(const int64_t only, env_int("TUTTI_IB_GID_INDEX"));
  std::vector<ibv_gid_entry> table(256);
  const ssize_t n = ibv_query_gid_table(context_.get(), table.data(), table.size(), 0);
  if (n < 0) return system_error("has no GID table", static_cast<int>(-n));
  table.resize(static_cast<size_t>(n));
  std::erase_if(table, [&](const ibv_gid_entry& e) {
    const bool good = !address_.is_ethernet || e.gid_type == IBV_GID_TYPE_ROCE_V2;
    return e.port_num != number_ || e.gid_index > 255 || (only >= 0 ? e.gid_index != only : !good);
  });
  sort_stably(table, [&](const ibv_gid_entry& a, const ibv_gid_entry& b) {
    const auto rank = [&](const GidBytes& gid) { return is_v4(gid) ? 0 : to_address(gid).is_link_local() ? 2 : 1; };
    return rank(std::bit_cast<GidBytes>(a.gid)) < rank(std::bit_cast<GidBytes>(b.gid));
  });
  TUTTI_TRY_ASSIGN(const auto interfaces, all_interfaces());
  for (const ibv_gid_entry& e : table) {
    if (address_.n_gids == kMaxGids) break;
    gid_indices_[address_.n_gids] = static_cast<uint8_t>(e.gid_index);
    const GidBytes gid = std::bit_cast<GidBytes>(e.gid);
    for (const Interface& i : interfaces)
      if (i.address.same_place(to_address(gid)))
        address_.network_bits[address_.n_gids] = static_cast<uint8_t>(i.network_bits + (is_v4(gid) ? 96 : 0));
    address_.gids[address_.n_gids++] = gid;
  }
  if (address_.n_gids > 0) return {};
  return Error{Code::kSystemError, only >= 0 ? format("has no GID at TUTTI_IB_GID_INDEX=%ld", only)
                                             : "has no GID for RoCE v2: its network interface needs an IP address"};
}

uint64_t Port::bytes_per_second() const {
  // By the bit in active_speed: 2.5, 5, 10, 10, 14, 25, 50, 100, 200 Gb/s a lane.
  static constexpr double kGigabits[] = {2.5, 5, 10, 10, 14, 25, 50, 100, 200};
  static constexpr int kLanes[] = {1, 4, 8, 12, 2};
  const auto speed = static_cast<size_t>(std::max(0, 31 - __builtin_clz(active_speed_ | 1)));
  const auto width = static_cast<size_t>(std::max(0, 31 - __builtin_clz(active_width_ | 1)));
  return static_cast<uint64_t>(kGigabits[std::min<size_t>(speed, 8)] * kLanes[std::min<size_t>(width, 4)] * 1e9 / 8);
}

std::string Port::down_because() const {
  ibv_port_attr attributes{};
  if (ibv_query_port(context_.get(), number_, &attributes) != 0) return "not there";
  if (attributes.state == IBV_PORT_DOWN) return "down";
  return attributes.state == IBV_PORT_ACTIVE ? "" : ibv_port_state_str(attributes.state);
}

// Not every device fails what was posted when its port goes down (Soft-RoCE sometimes keeps trying), so this does.
std::optional<std::string> Port::trouble(double patience_seconds) {
  ibv_async_event event{};
  while (ibv_get_async_event(context_.get(), &event) == 0) {
    if (event.event_type == IBV_EVENT_DEVICE_FATAL) trouble_ = "the device has failed (see dmesg)";
    const bool of_port = event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE;
    if (of_port && event.element.port_num == number_) {
      log(LogLevel::kWarn, "%s: %s", name_.c_str(), ibv_event_type_str(event.event_type));
      down_since_ns_.reset();
      if (event.event_type == IBV_EVENT_PORT_ERR) down_since_ns_ = now_ns();
    }
    ibv_ack_async_event(&event);
  }
  if (trouble_ || !down_since_ns_) return trouble_;
  const double seconds = static_cast<double>(now_ns() - *down_since_ns_) * 1e-9;
  if (seconds < patience_seconds) return std::nullopt;
  return format("the port is down, for %.0f s now (check its cable and its switch)", seconds);
}

Path find_path(const PortAddress& mine, const PortAddress& peer) {
  Path best;
  if (mine.is_ethernet != peer.is_ethernet) return best;
  for (size_t i = 0; i < mine.n_gids; i++)
    for (size_t j = 0; j < peer.n_gids; j++)
      if (const int s = score(mine, i, peer.gids[j]); s > best.score) best = {s, i, j};
  return best;
}

std::vector<Pairing> pair_ports(const std::vector<PortAddress>& mine, const std::vector<PortAddress>& theirs) {
  std::vector<size_t> uses(theirs.size());
  std::vector<Pairing> pairings;
  const auto is_sure = [](const Pairing& pairing) { return pairing.path.score >= Path::kSure; };
  for (size_t p = 0; p < mine.size(); p++) {
    Pairing best{p, 0, {}};
    const auto merit = [&](const Pairing& one) {
      return std::tuple(is_sure(one), -static_cast<int64_t>(uses[one.theirs]), one.path.score, one.theirs == p);
    };
    for (size_t i = 0; i < theirs.size(); i++) {
      const Pairing next{p, i, find_path(mine[p], theirs[i])};
      if (next.path.score > 0 && (best.path.score == 0 || merit(next) > merit(best))) best = next;
    }
    if (best.path.score == 0) continue;
    uses[best.theirs]++;
    pairings.push_back(best);
  }
  if (std::any_of(pairings.begin(), pairings.end(), is_sure)) std::erase_if(pairings, std::not_fn(is_sure));
  return pairings;
}

Result<Pinned> Pinned::allocate(const Ports& ports, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return system_error(format("%zu bytes for a link's slots", bytes), errno);
  MappedMemory owned(static_cast<char*>(memory), Unmap{bytes});
  auto pinned = around(ports, memory, bytes);
  if (pinned) pinned.value().owned_ = std::move(owned);
  return pinned;
}

template <class Register>
Result<Pinned> Pinned::made(const Ports& ports, void* memory, size_t bytes, Register&& register_with) {
  Pinned pinned;
  pinned.memory_ = memory;
  for (const auto& port : ports) {
    ibv_mr* region = register_with(port->domain());
    if (region == nullptr) return cannot_register(*port, bytes, errno);
    pinned.regions_.emplace_back(region);
  }
  return pinned;
}

Result<Pinned> Pinned::around(const Ports& ports, void* memory, size_t bytes) {
  return made(ports, memory, bytes, [&](ibv_pd* domain) { return ibv_reg_mr(domain, memory, bytes, kAccess); });
}

// Registered at `memory`, so peers write to the addresses that its owner knows.
Result<Pinned> Pinned::of_device(const Ports& ports, void* memory, size_t bytes, int dmabuf, uint64_t offset) {
  if (ibv_reg_dmabuf_mr == nullptr)
    return Error{Code::kSystemError, "libibverbs has no ibv_reg_dmabuf_mr: it needs rdma-core 34 or later"};
  auto pinned = made(ports, memory, bytes, [&](ibv_pd* domain) {
    return ibv_reg_dmabuf_mr(domain, offset, bytes, reinterpret_cast<uintptr_t>(memory), dmabuf, kAccess);
  });
  if (!pinned)
    pinned.error().message +=
        ": registering memory by its dmabuf needs Linux 5.12 or later and a network device whose driver supports it";
  return pinned;
}

}  // namespace tutti::verbs
