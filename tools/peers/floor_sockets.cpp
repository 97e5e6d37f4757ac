#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "floor.h"

namespace bench {
namespace {

constexpr size_t kSmallBytes = 32 << 10;   // up to this size a reduction sends whole inputs, which saves a round
constexpr size_t kPieceBytes = 256 << 10;  // per system call
constexpr size_t kPastCacheBytes = 4 << 20;
constexpr int kMaxSocketRanks = 16;  // n (n - 1) descriptors are open at once

// Data that are sent to and received from one peer at the same time.
struct Transfer {
  int peer;
  const float* out;
  size_t out_elems;
  float* in;
  size_t in_elems;
};

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

class Sockets : public Library {
 public:
  Sockets(const std::vector<int>& connections, int rank, size_t largest_bytes)
      : connections_(connections), rank_(rank), n_ranks_(static_cast<int>(connections.size())), waiter_(n_ranks_) {
    const size_t slice_bytes = n_ranks_ == 2 ? largest_bytes : largest_bytes / connections.size() + 128;
    scratch_elems_ = std::max(slice_bytes, kSmallBytes) / sizeof(float);
    scratch_.resize(scratch_elems_ * connections.size());
  }

  void barrier() override {
    float nothing = 0;
    std::vector<float> ignored(static_cast<size_t>(n_ranks_));
    for_each_peer([&](int peer) -> Transfer { return {peer, &nothing, 1, &ignored[static_cast<size_t>(peer)], 1}; });
  }

  void all_reduce(const float* in, float* out, size_t elems) override {
    // With two ranks this sends no more than two rounds would.
    if (elems * sizeof(float) <= kSmallBytes || n_ranks_ == 2) {
      for_each_peer([&](int peer) -> Transfer { return {peer, in, elems, scratch(peer), elems}; });
      return sum(in, out, elems);
    }
    reduce_slices(in, out, elems);
    const auto begin = [&](int rank) { return slice_begin(elems, rank, n_ranks_); };
    const auto size = [&](int rank) { return begin(rank + 1) - begin(rank); };
    for_each_peer([&](int peer) -> Transfer {
      return {peer, out + begin(rank_), size(rank_), out + begin(peer), size(peer)};
    });
  }

  void reduce(const float* in, float* out, size_t elems) override {
    if (elems * sizeof(float) <= kSmallBytes || n_ranks_ == 2) {
      if (rank_ != 0) return move({{0, in, elems, nullptr, 0}});
      for_each_peer([&](int peer) -> Transfer { return {peer, nullptr, 0, scratch(peer), elems}; });
      return sum(in, out, elems);
    }
    reduce_slices(in, out, elems);
    const auto begin = [&](int rank) { return slice_begin(elems, rank, n_ranks_); };
    const auto size = [&](int rank) { return begin(rank + 1) - begin(rank); };
    if (rank_ != 0) return move({{0, out + begin(rank_), size(rank_), nullptr, 0}});
    for_each_peer([&](int peer) -> Transfer { return {peer, nullptr, 0, out + begin(peer), size(peer)}; });
  }

  void broadcast(float* data, size_t elems) override {
    if (rank_ == 0) for_each_peer([&](int peer) -> Transfer { return {peer, data, elems, nullptr, 0}; });
    if (rank_ != 0) move({{0, nullptr, 0, data, elems}});
  }

  void all_gather(const float* in, float* out, size_t elems) override {
    memcpy(out + elems * static_cast<size_t>(rank_), in, elems * sizeof(float));
    for_each_peer([&](int peer) -> Transfer {
      return {peer, in, elems, out + elems * static_cast<size_t>(peer), elems};
    });
  }

  void reduce_scatter(const float* in, float* out, size_t elems) override {
    for_each_peer([&](int peer) -> Transfer {
      return {peer, in + elems * static_cast<size_t>(peer), elems, scratch(peer), elems};
    });
    sum(in + elems * static_cast<size_t>(rank_), out, elems);
  }

  void all_to_all(const float* in, float* out, size_t elems) override {
    const auto block = [&](int peer) { return elems * static_cast<size_t>(peer); };
    std::copy_n(in + block(rank_), elems, out + block(rank_));
    for_each_peer([&](int peer) -> Transfer { return {peer, in + block(peer), elems, out + block(peer), elems}; });
  }

  void round_trip(const float* in, float* out, size_t elems) override {
    if (rank_ == 0) move({{1, in, elems, nullptr, 0}});
    if (rank_ <= 1) move({{1 - rank_, nullptr, 0, out, elems}});
    if (rank_ == 1) move({{0, out, elems, nullptr, 0}});
  }

 private:
  float* scratch(int peer) { return scratch_.data() + scratch_elems_ * static_cast<size_t>(peer); }

  void sum(const float* mine, float* out, size_t elems) {
    const float* ins[kMaxSocketRanks] = {mine};
    for (int i = 1; i < n_ranks_; i++) ins[i] = scratch((rank_ + i) % n_ranks_);
    add(&out, 1, ins, n_ranks_, elems, elems * sizeof(float) >= kPastCacheBytes);
  }

  // Leaves the sum of this rank's slice in `out`.
  void reduce_slices(const float* in, float* out, size_t elems) {
    const auto begin = [&](int rank) { return slice_begin(elems, rank, n_ranks_); };
    const size_t mine = begin(rank_ + 1) - begin(rank_);
    for_each_peer([&](int peer) -> Transfer {
      return {peer, in + begin(peer), begin(peer + 1) - begin(peer), scratch(peer), mine};
    });
    sum(in + begin(rank_), out + begin(rank_), mine);
  }

  template <class Make>
  void for_each_peer(Make make) {
    std::vector<Transfer> transfers;
    for (int i = 1; i < n_ranks_; i++) transfers.push_back(make((rank_ + i) % n_ranks_));
    move(std::move(transfers));
  }

  // All transfers concurrently, until they are done.
  void move(std::vector<Transfer> transfers) {
    for (int idle = 0; !transfers.empty(); idle++) {
      for (Transfer& transfer : transfers) {
        if (send_some(transfer) + receive_some(transfer) > 0) idle = 0;
      }
      std::erase_if(transfers, [](const Transfer& t) { return t.out_elems == 0 && t.in_elems == 0; });
      if (idle > 0) waiter_.pause(idle);
    }
  }

  size_t send_some(Transfer& transfer) {
    if (transfer.out_elems == 0) return 0;
    const size_t bytes = std::min(kPieceBytes, transfer.out_elems * sizeof(float));
    return advance(::send(fd(transfer), transfer.out, bytes, MSG_DONTWAIT | MSG_NOSIGNAL), transfer.out,
                   transfer.out_elems,
                   [&](void* rest, size_t n) { return ::send(fd(transfer), rest, n, MSG_NOSIGNAL); });
  }

  size_t receive_some(Transfer& transfer) {
    if (transfer.in_elems == 0) return 0;
    const size_t bytes = std::min(kPieceBytes, transfer.in_elems * sizeof(float));
    const ssize_t got = ::recv(fd(transfer), transfer.in, bytes, MSG_DONTWAIT);
    if (got == 0) fail("a peer has closed its connection");
    return advance(got, transfer.in, transfer.in_elems,
                   [&](void* rest, size_t n) { return ::recv(fd(transfer), rest, n, MSG_WAITALL); });
  }

  // Counts what a call has moved. `finish` completes an element that was cut.
  template <class Pointer, class Finish>
  static size_t advance(ssize_t moved, Pointer& at, size_t& elems, Finish finish) {
    if (moved < 0 && !would_block()) fail(std::string("socket: ") + strerror(errno));
    if (moved <= 0) return 0;
    size_t bytes = static_cast<size_t>(moved);
    while (bytes % sizeof(float) != 0) {
      char* rest = const_cast<char*>(reinterpret_cast<const char*>(at)) + bytes;
      const ssize_t more = finish(rest, sizeof(float) - bytes % sizeof(float));
      if (more <= 0) fail(std::string("socket: ") + strerror(errno));
      bytes += static_cast<size_t>(more);
    }
    at += bytes / sizeof(float);
    elems -= bytes / sizeof(float);
    return bytes;
  }

  int fd(const Transfer& transfer) const { return connections_[static_cast<size_t>(transfer.peer)]; }

  std::vector<int> connections_;  // by peer
  int rank_;
  int n_ranks_;
  Waiter waiter_;
  size_t scratch_elems_;
  std::vector<float> scratch_;
};

int checked(int result, const char* call) {
  if (result < 0) fail(std::string(call) + ": " + strerror(errno));
  return result;
}

// The address of `socket` on its host.
sockaddr_in address_of(int socket, const char* interface) {
  ifreq request = {};
  strncpy(request.ifr_name, interface, sizeof request.ifr_name - 1);
  checked(ioctl(socket, SIOCGIFADDR, &request), "SIOCGIFADDR");
  sockaddr_in address = {};
  memcpy(&address, &request.ifr_addr, sizeof address);
  return address;
}

// A connected pair; each socket belongs to the host on which it was made.
void connect_pair(const Settings& settings, int rank, int peer, int& one, int& other) {
  enter_host(settings, peer);
  const int listener = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
  sockaddr_in address = address_of(listener, settings.network.empty() ? "lo" : kInterface);
  socklen_t bytes = sizeof address;
  sockaddr* any = reinterpret_cast<sockaddr*>(&address);
  checked(bind(listener, any, bytes), "bind");
  checked(listen(listener, 1), "listen");
  checked(getsockname(listener, any, &bytes), "getsockname");
  enter_host(settings, rank);
  one = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
  checked(connect(one, any, bytes), "connect");
  other = checked(accept(listener, nullptr, nullptr), "accept");
  close(listener);
  const int on = 1;
  for (const int fd : {one, other}) checked(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
}

class Connections : public Shared {
 public:
  explicit Connections(const Settings& settings) {
    if (settings.n_ranks > kMaxSocketRanks) fail("the floor over sockets is for at most 16 ranks");
    largest_bytes_ = *std::max_element(settings.sizes_bytes.begin(), settings.sizes_bytes.end());
    const size_t n = static_cast<size_t>(settings.n_ranks);
    fds_.assign(n, std::vector<int>(n, -1));
    for (size_t a = 0; a < n; a++) {
      for (size_t b = a + 1; b < n; b++)
        connect_pair(settings, static_cast<int>(a), static_cast<int>(b), fds_[a][b], fds_[b][a]);
    }
  }

  std::unique_ptr<Library> library_of(int rank) override {
    return std::make_unique<Sockets>(fds_[static_cast<size_t>(rank)], rank, largest_bytes_);
  }

 private:
  std::vector<std::vector<int>> fds_;
  size_t largest_bytes_;
};

}  // namespace

std::unique_ptr<Shared> share_sockets(const Settings& settings) {
  return std::make_unique<Connections>(settings);
}

}  // namespace bench
