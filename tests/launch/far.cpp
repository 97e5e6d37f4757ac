// far DEVICE DEVICE MILLISECONDS PERCENT SEED: a long cable. Frames that come in on one device leave by the other after
// that many milliseconds, except that percentage, which is lost. The devices pass on whole packets (lossy.py --plain).
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <vector>

namespace {

[[noreturn]] void die(const char* what) {
  perror(what);
  exit(1);
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int open_device(const char* name) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(name));
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) die(name);
  const int on = 1, room_bytes = 64 << 20;
  if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0) die("PACKET_IGNORE_OUTGOING");
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room_bytes, sizeof room_bytes) != 0) die("SO_RCVBUFFORCE");
  return fd;
}

struct Frame {
  int64_t leaves_ns;
  std::vector<char> bytes;
};

// One direction.
struct Way {
  int from, to;
  std::deque<Frame> frames = {};

  template <class Loses>
  void take(int64_t delay_ns, Loses&& loses) {
    std::array<char, 65536> frame;
    ssize_t n;
    while ((n = recv(from, frame.data(), frame.size(), 0)) > 0)
      if (!loses()) frames.push_back({now_ns() + delay_ns, {frame.data(), frame.data() + n}});
  }
  // Frames for which the device has no room are lost, as on any network.
  void give() {
    for (; !frames.empty() && frames.front().leaves_ns <= now_ns(); frames.pop_front())
      if (send(to, frames.front().bytes.data(), frames.front().bytes.size(), 0) < 0 && errno != ENOBUFS) die("sending");
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const int ends[2] = {open_device(argv[1]), open_device(argv[2])};
  const auto delay_ns = static_cast<int64_t>(atof(argv[3]) * 1e6);
  std::mt19937_64 random(strtoull(argv[5], nullptr, 10));
  std::bernoulli_distribution loses(atof(argv[4]) / 100);
  Way ways[2] = {{ends[0], ends[1]}, {ends[1], ends[0]}};
  for (;;) {
    int64_t next_ns = now_ns() + 1'000'000'000;
    for (const Way& way : ways)
      if (!way.frames.empty()) next_ns = std::min(next_ns, way.frames.front().leaves_ns);
    const int64_t pause_ns = std::max<int64_t>(0, next_ns - now_ns());
    const timespec pause{pause_ns / 1'000'000'000, pause_ns % 1'000'000'000};
    pollfd looks[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
    if (ppoll(looks, 2, &pause, nullptr) < 0 && errno != EINTR) die("ppoll");
    for (Way& way : ways) {
      way.take(delay_ns, [&] { return loses(random); });
      way.give();
    }
  }
}
