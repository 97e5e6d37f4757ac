#include "network.h"

#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/handshake.h"
#include "base/socket.h"

namespace tutti::doctor {
namespace {

constexpr size_t kMostAddresses = 8;
constexpr int kProbes = 100, kUnansweredAtOnce = 4;
constexpr int kPatienceMs = 100;  // then a packet counts as lost
constexpr int kLeastMtu = 576;    // guaranteed by IPv4

// What ranks first tell each other.
struct Card {
  HostId host;
  char name[48];
  uint64_t token;  // packets without it are not answered
  uint32_t n_addresses;
  Address addresses[kMostAddresses];
};

// A probe is padded to its size; the answer is not.
struct Packet {
  uint64_t token;
  uint32_t number;
  uint32_t is_answer;
  int64_t clock_ns;  // of the answering host
};

int64_t wall_clock_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

Fd udp_socket(int family) {
  return Fd(socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Answers on every address until it is destroyed.
class Answers {
 public:
  explicit Answers(uint64_t token) : token_(token) {
    const auto interfaces = local_interfaces();
    if (!interfaces) return;
    for (const Interface& i : interfaces.value()) {
      Fd fd = udp_socket(i.address.family());
      const bool is_bound =
          ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&i.address.storage), i.address.length) == 0;
      if (preference(i) != kRealNetwork || !is_bound || fds_.size() == kMostAddresses) continue;
      addresses_.push_back(*local_address(fd.get()));
      fds_.push_back(std::move(fd));
    }
    thread_ = std::thread([this] { answer(); });
  }
  ~Answers() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }
  const std::vector<Address>& addresses() const { return addresses_; }

 private:
  void answer() {
    std::vector<pollfd> polled;
    for (const Fd& fd : fds_) polled.push_back({fd.get(), POLLIN, 0});
    while (!ends_) {
      ::poll(polled.data(), polled.size(), 10);
      for (const Fd& fd : fds_) {
        Packet packet{};
        sockaddr_storage from{};
        socklen_t length = sizeof from;
        while (recvfrom(fd.get(), &packet, sizeof packet, 0, reinterpret_cast<sockaddr*>(&from), &length) ==
               sizeof packet) {
          if (packet.token != token_ || packet.is_answer != 0) continue;
          packet.is_answer = 1;
          packet.clock_ns = wall_clock_ns();
          sendto(fd.get(), &packet, sizeof packet, 0, reinterpret_cast<sockaddr*>(&from), length);
          length = sizeof from;
        }
      }
    }
  }

  uint64_t token_;
  std::vector<Fd> fds_;
  std::vector<Address> addresses_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// Sends packets to one address of another host.
class Probe {
 public:
  Probe(const Card& peer, const Address& to) : token_(peer.token), fd_(udp_socket(to.family())) {
    is_v6_ = to.family() == AF_INET6;
    is_connected_ = ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) == 0;
  }
  bool is_connected() const { return is_connected_; }
  int fd() const { return fd_.get(); }

  struct Answer {
    int64_t round_trip_ns, ahead_ns;
  };
  // Sends a packet of that many bytes, including headers, and waits for the answer.
  std::optional<Answer> send(int packet_bytes, int patience_ms) {
    std::vector<char> data(static_cast<size_t>(std::max(int{sizeof(Packet)}, packet_bytes - header_bytes())));
    const Packet packet{token_, ++number_, 0, 0};
    memcpy(data.data(), &packet, sizeof packet);
    const int64_t begun = now_ns(), clock = wall_clock_ns();
    if (::send(fd_.get(), data.data(), data.size(), MSG_NOSIGNAL) < 0) return {};  // too large, or unreachable
    const Deadline limit = Deadline::after_seconds(patience_ms / 1e3);
    while (!limit.passed()) {
      pollfd polled{fd_.get(), POLLIN, 0};
      ::poll(&polled, 1, 1);
      Packet answer{};
      if (recv(fd_.get(), &answer, sizeof answer, 0) != sizeof answer || answer.number != number_) continue;
      const int64_t took = now_ns() - begun;
      return Answer{took, answer.clock_ns - (clock + took / 2)};
    }
    return {};
  }
  // Packets are never fragmented. With `may_tell` none is sent that is larger than the network has reported.
  void do_not_fragment(bool may_tell) {
    const int value4 = may_tell ? IP_PMTUDISC_DO : IP_PMTUDISC_PROBE;
    const int value6 = may_tell ? IPV6_PMTUDISC_DO : IPV6_PMTUDISC_PROBE;
    if (is_v6_)
      setsockopt(fd_.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, &value6, sizeof value6);
    else
      setsockopt(fd_.get(), IPPROTO_IP, IP_MTU_DISCOVER, &value4, sizeof value4);
  }
  int told_mtu() const {
    int mtu = 0;
    socklen_t length = sizeof mtu;
    getsockopt(fd_.get(), is_v6_ ? IPPROTO_IPV6 : IPPROTO_IP, is_v6_ ? IPV6_MTU : IP_MTU, &mtu, &length);
    return mtu;
  }

 private:
  int header_bytes() const { return (is_v6_ ? 40 : 20) + 8; }

  uint64_t token_;
  Fd fd_;
  bool is_v6_ = false, is_connected_ = false;
  uint32_t number_ = 0;
};

void name(char* out, size_t bytes, const std::string& host, const Address& address) {
  Address place = address;
  place.set_port(0);
  std::string where = place.to_string();
  where.erase(where.rfind(':'));
  snprintf(out, bytes, "%s (%s)", host.c_str(), where.c_str());
}

void find_interface(const Probe& probe, Path* path) {
  const auto interfaces = local_interfaces();
  const auto mine = local_address(probe.fd());
  if (!interfaces || !mine) return;
  for (const Interface& i : interfaces.value()) {
    if (!i.address.same_place(*mine)) continue;
    snprintf(path->interface, sizeof path->interface, "%s", i.name.c_str());
    std::ifstream("/sys/class/net/" + i.name + "/mtu") >> path->mtu_bytes;
  }
}

void measure_delay(Probe& probe, Path* path) {
  std::vector<int64_t> round_trips;
  int64_t shortest = INT64_MAX;
  for (int i = 0; i < kProbes; i++) {
    if (i == kUnansweredAtOnce && path->answered == 0) return;
    path->sent++;
    const auto answer = probe.send(0, kPatienceMs);
    if (!answer) continue;
    path->answered++;
    round_trips.push_back(answer->round_trip_ns);
    if (answer->round_trip_ns >= shortest) continue;
    shortest = answer->round_trip_ns;
    path->ahead_seconds = static_cast<double>(answer->ahead_ns) / 1e9;
  }
  if (round_trips.empty()) return;
  std::nth_element(round_trips.begin(), round_trips.begin() + path->answered / 2, round_trips.end());
  path->round_trip_us = static_cast<double>(round_trips[static_cast<size_t>(path->answered) / 2]) / 1e3;
}

// A packet may also be lost for another reason, so each size is tried several times.
bool arrives(Probe& probe, int bytes) {
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; i++)
    if (probe.send(bytes, kPatienceMs / 2)) return true;
  return false;
}

void find_largest(Probe& probe, Path* path) {
  path->largest_bytes = path->mtu_bytes;
  probe.do_not_fragment(true);
  if (path->answered == 0 || path->mtu_bytes == 0 || arrives(probe, path->mtu_bytes)) return;
  path->is_told_largest = probe.told_mtu() < path->mtu_bytes;
  probe.do_not_fragment(false);
  if (arrives(probe, path->mtu_bytes)) {  // many packets are lost for other reasons
    path->is_told_largest = 0;
    return;
  }
  int most = path->mtu_bytes - 1, least = std::min(kLeastMtu, most);
  while (least < most) {
    const int middle = (least + most + 1) / 2;
    if (arrives(probe, middle))
      least = middle;
    else
      most = middle - 1;
  }
  path->largest_bytes = least;
}

// Probes those of the other host's addresses to which this host has a route.
std::vector<Path> probe_host(const Card& mine, const Card& peer) {
  std::vector<Path> paths;
  for (uint32_t a = 0; a < peer.n_addresses; a++) {
    Probe probe(peer, peer.addresses[a]);
    if (!probe.is_connected()) continue;
    Path path{};
    name(path.from, sizeof path.from, mine.name, *local_address(probe.fd()));
    name(path.to, sizeof path.to, peer.name, peer.addresses[a]);
    find_interface(probe, &path);
    measure_delay(probe, &path);
    find_largest(probe, &path);
    paths.push_back(path);
  }
  return paths;
}

}  // namespace

std::vector<Path> probe_paths(tuttiComm_t comm, Trouble* trouble) {
  int rank = 0, n_ranks = 0;
  trouble->take(tuttiCommUserRank(comm, &rank));
  trouble->take(tuttiCommCount(comm, &n_ranks));
  Card mine{};
  mine.host = host_id();
  snprintf(mine.name, sizeof mine.name, "%s", host_name().c_str());
  random_bytes(&mine.token, sizeof mine.token);
  const Answers answers(mine.token);
  mine.n_addresses = static_cast<uint32_t>(answers.addresses().size());
  std::copy(answers.addresses().begin(), answers.addresses().end(), mine.addresses);
  const std::vector<Card> cards = gather(comm, n_ranks, std::vector{mine}, trouble);
  const auto is_first = [&](size_t r) {
    return std::none_of(cards.begin(), cards.begin() + static_cast<ptrdiff_t>(r),
                        [&](const Card& before) { return before.host == cards[r].host; });
  };
  std::vector<Path> paths;
  const auto n = static_cast<size_t>(n_ranks), me = static_cast<size_t>(rank);
  // Each host begins with the next one, so that they do not all probe the same one.
  for (size_t ahead = 1; ahead < n && is_first(me); ahead++)
    if (const size_t r = (me + ahead) % n; is_first(r))
      for (const Path& path : probe_host(mine, cards[r])) paths.push_back(path);
  auto most = static_cast<int64_t>(paths.size());
  trouble->take(tuttiAllReduce(&most, &most, 1, tuttiInt64, tuttiMax, comm, nullptr));  // and nobody probes any more
  paths.resize(static_cast<size_t>(most));
  std::vector<Path> all = gather(comm, n_ranks, paths, trouble);
  std::erase_if(all, [](const Path& path) { return path.sent == 0; });
  return all;
}

}  // namespace tutti::doctor
