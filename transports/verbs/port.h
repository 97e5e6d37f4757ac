// verbs: links over RDMA, by reliable connections of libibverbs (InfiniBand, RoCE). A message and the header before it
// are written into the receiver's slot; the same write notifies the receiver. The receiver writes back what it has
// released, and where it would like the next message to be. One thread per endpoint; nothing blocks except the end of a
// link, which waits until everything sent has arrived.
//
// This header: the ports of this machine's devices, and memory registered with them. Ports outlive everything made with
// them.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace tutti::verbs {

inline constexpr size_t kMaxPorts = 4, kMaxGids = 4, kMaxQueues = 8;

// For std::unique_ptr.
struct Destroy {
  void operator()(ibv_context* device) const { ibv_close_device(device); }
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
  void operator()(ibv_cq* completions) const { ibv_destroy_cq(completions); }
  void operator()(ibv_qp* pair) const { ibv_destroy_qp(pair); }
  void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
};

using GidBytes = std::array<uint8_t, 16>;

// What others must know about a port.
struct PortAddress {
  uint8_t is_ethernet = 0;
  uint8_t mtu = 0;  // an ibv_mtu
  uint16_t lid = 0;
  uint32_t n_gids = 0;
  std::array<GidBytes, kMaxGids> gids{};
  std::array<uint8_t, kMaxGids> network_bits{};  // length of a GID's network prefix; 0: unknown
};

class Port {
 public:
  // The active ports that TUTTI_IB_HCA allows, at most kMaxPorts. An error says why there is none; kInvalidUsage: there
  // are some, but it excludes them all.
  static Result<std::vector<std::unique_ptr<Port>>> open_all();

  const std::string& name() const { return name_; }  // "mlx5_0:1"
  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  // The completions of all links wake it, so a rank that sleeps for one link may be woken by another.
  ibv_comp_channel* channel() const { return channel_.get(); }
  uint8_t number() const { return number_; }
  uint32_t max_message_bytes() const { return max_message_bytes_; }
  uint64_t bytes_per_second() const;
  const PortAddress& address() const { return address_; }
  // The index of the address's i-th GID in the device's table.
  uint8_t gid_index(size_t i) const { return gid_indices_[i]; }
  std::string down_because() const;  // "" if the port is active
  // Why the device or the port ends its links, if it does. A port may first be down for `patience_seconds`.
  std::optional<std::string> trouble(double patience_seconds);

 private:
  Port(ibv_context* context, uint8_t number) : context_(context), number_(number) {}
  static Result<std::unique_ptr<Port>> open(ibv_device* device, uint8_t number);
  Result<void> set_up();
  Result<void> find_gids();

  std::unique_ptr<ibv_context, Destroy> context_;
  uint8_t number_;
  std::string name_;
  std::unique_ptr<ibv_pd, Destroy> domain_;
  std::unique_ptr<ibv_comp_channel, Destroy> channel_;
  uint32_t max_message_bytes_ = 0;
  uint32_t active_speed_ = 0, active_width_ = 0;
  PortAddress address_;
  std::array<uint8_t, kMaxGids> gid_indices_{};
  std::optional<std::string> trouble_;  // permanent
  std::optional<int64_t> down_since_ns_;
};

using Ports = std::vector<std::unique_ptr<Port>>;

// How a port of this machine reaches one of a peer's: by which GID of each. The higher the score the better; 0: it does
// not reach it.
struct Path {
  int score = 0;
  size_t my_gid = 0, peer_gid = 0;

  static constexpr int kSure = 500;  // from here on they are in one network, or the kernel has a route
};
Path find_path(const PortAddress& mine, const PortAddress& peer);

// Each port takes its best path to the peer, and each of the peer's ports is used once before any is used twice. Among
// equal paths, one between ports of the same index is likely to be one wire. If some are sure, the others are left out:
// a link whose queue pairs lead nowhere stalls, or is never established.
struct Pairing {
  size_t mine, theirs;
  Path path;
};
std::vector<Pairing> pair_ports(const std::vector<PortAddress>& mine, const std::vector<PortAddress>& theirs);

// Memory that the given ports can read, and peers write to.
class Pinned {
 public:
  static Result<Pinned> allocate(const Ports& ports, size_t bytes);
  // Memory that the caller owns.
  static Result<Pinned> around(const Ports& ports, void* memory, size_t bytes);
  // A device's memory, behind a dmabuf, which is not needed afterwards.
  static Result<Pinned> of_device(const Ports& ports, void* memory, size_t bytes, int dmabuf, uint64_t offset);

  char* data() const { return static_cast<char*>(memory_); }
  uint32_t local_key(size_t port) const { return regions_[port]->lkey; }
  uint32_t remote_key(size_t port) const { return regions_[port]->rkey; }

 private:
  void* memory_ = nullptr;
  MappedMemory owned_;                                     // null: the caller owns the memory
  std::vector<std::unique_ptr<ibv_mr, Destroy>> regions_;  // by port

  template <class Register>
  static Result<Pinned> made(const Ports& ports, void* memory, size_t bytes, Register&& register_with);
};

}  // namespace tutti::verbs
