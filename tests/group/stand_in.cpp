// A large group on the wire: a real root, a real relay for each host, and behind each relay one connection that speaks
// for all ranks of its host, without a thread or socket for each. The ranks join, introduce themselves, hear of all
// others, and leave. Prints how long that took and how many bytes went through the root.
//   stand_in [HOSTS [RANKS_PER_HOST]]
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/dial.h"
#include "group/blobs.h"
#include "group/bootstrap.h"
#include "group/bootstrap_relay.h"

using namespace tutti;

namespace {

std::atomic<uint64_t> g_root_bytes{0};
enum class Part { kRoot, kRelays, kRanks };
thread_local Part t_part = Part::kRoot;  // start_root's thread keeps this value

ssize_t counted(ssize_t n) {
  if (n > 0 && t_part == Part::kRoot) g_root_bytes += static_cast<uint64_t>(n);
  return n;
}

void require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "stand_in: %s\n", what);
  _exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) require(false, result.error().message.c_str());
  return std::move(result).value();
}

// All relays, in one thread.
class Relays {
 public:
  Relays() : epoll_(epoll_create1(EPOLL_CLOEXEC)), thread_([this] { run(); }) {}
  ~Relays() {
    ends_ = true;
    thread_.join();
  }
  void add(std::unique_ptr<RelayServer> relay) {
    const std::lock_guard lock(mutex_);
    relay->turn(0);  // opens its doors
    relays_.push_back(std::move(relay));
    epoll_event event{EPOLLIN, {.ptr = relays_.back().get()}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, relays_.back()->fd(), &event);
  }

 private:
  void run() {
    t_part = Part::kRelays;
    while (!ends_) {
      epoll_event events[64];
      const int n = epoll_wait(epoll_.get(), events, std::size(events), 10);
      for (int i = 0; i < n; i++) static_cast<RelayServer*>(events[i].data.ptr)->turn(0);
    }
  }
  Fd epoll_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<RelayServer>> relays_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

// As long as an introduction: some of it is the same for all ranks, some for a host, and some is the rank's own.
std::string introduction(int host, int rank) {
  ByteWriter w;
  for (uint64_t i = 0; i < 16; i++) w.put(i * 0x9e3779b97f4a7c15u);
  for (uint64_t i = 1; i < 8; i++) w.put(static_cast<uint64_t>(host + 1) * i * 0x9e3779b97f4a7c15u);
  for (uint32_t i = 1; i < 6; i++)
    w.put(static_cast<uint16_t>(static_cast<uint32_t>(rank + 1) * i * 2654435769u >> 16));
  return w.take();
}

// The connection that speaks for a host's ranks.
struct Host {
  Fd fd;
  std::string heard;     // until a header is complete; the body is only counted
  uint64_t to_come = 0;  // bytes of the body
  uint64_t sum = 0;      // of the body's bytes
  int answers = 0;

  // False if there is nothing to read.
  bool read(std::vector<char>& scratch) {
    const ssize_t n = ::recv(fd.get(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    require(n > 0 || (n < 0 && errno == EAGAIN), "a relay closed a connection");
    for (ssize_t at = 0; at < n;) {
      if (to_come == 0) {
        heard += scratch[static_cast<size_t>(at++)];
        if (heard.size() < sizeof(FrameHeader)) continue;
        FrameHeader header;
        memcpy(&header, heard.data(), sizeof header);
        heard.clear();
        require(header.kind == FrameKind::kAll && header.bytes > 0, "a relay sent no answer");
        to_come = header.bytes;
        continue;
      }
      const uint64_t some = std::min(to_come, static_cast<uint64_t>(n - at));
      for (uint64_t i = 0; i < some; i++) sum += static_cast<unsigned char>(scratch[static_cast<size_t>(at) + i]);
      at += static_cast<ssize_t>(some);
      to_come -= some;
      answers += to_come == 0 ? 1 : 0;
    }
    return n > 0;
  }
};

void say(const Host& host, const std::string& frames) {
  require(static_cast<bool>(send_all(host.fd.get(), frames.data(), frames.size(), Deadline::after_seconds(60))),
          "a relay does not read");
}

void hear_answer(std::vector<Host>& hosts, int nth) {
  std::vector<char> scratch(1 << 20);
  const Deadline deadline = Deadline::after_seconds(120);
  for (bool all = false; !all;) {
    require(!deadline.passed(), "no answer");
    all = true;
    bool any = false;
    for (Host& host : hosts) {
      if (host.answers < nth) any |= host.read(scratch);
      all &= host.answers >= nth;
    }
    if (!any) ::poll(nullptr, 0, 1);
  }
}

}  // namespace

extern "C" {
ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  static const auto call = reinterpret_cast<ssize_t (*)(int, const void*, size_t, int)>(dlsym(RTLD_NEXT, "send"));
  return counted(call(fd, data, bytes, flags));
}
ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  static const auto call = reinterpret_cast<ssize_t (*)(int, void*, size_t, int)>(dlsym(RTLD_NEXT, "recv"));
  return counted(call(fd, data, bytes, flags));
}
}

int main(int argc, char** argv) {
  t_part = Part::kRanks;
  const int n_hosts = argc > 1 ? atoi(argv[1]) : 1024, per_host = argc > 2 ? atoi(argv[2]) : 64;
  const int n_ranks = n_hosts * per_host;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const int64_t begin_ns = now_ns();
  const Deadline deadline = Deadline::after_seconds(600);
  const UniqueIdParts parts = must(unpack_unique_id(must(start_root(deadline))));
  const Key key = derive_key(parts.secret, sizeof parts.secret);
  Relays relays;
  std::vector<Host> hosts;
  for (int h = 0; h < n_hosts; h++) {
    Listener doors = must(Listener::open());
    JoinMessage me{h * per_host, n_ranks, 1, 600'000, "host" + std::to_string(h)};
    const JoinMessage speaker = me;
    me.contact = doors.contact.to_bytes();
    RootConnection root = must(connect_relay({parts, std::nullopt, key}, me, deadline));
    relays.add(std::make_unique<RelayServer>(std::move(doors.fds), key, deadline, std::move(root), me));
    Dialer dialer({key, HelloKind::kBootstrap, me.rank, -1}, doors.contact);
    while (dialer.advance() == Dialer::Status::kPending) {
      pollfd polled{dialer.fd(), dialer.events(), 0};
      ::poll(&polled, 1, 10);
    }
    hosts.push_back({dialer.take()});
    std::string welcome(make_join_frame(speaker, FrameKind::kRelay).size(), '\0');
    require(static_cast<bool>(recv_all(hosts.back().fd.get(), welcome.data(), welcome.size(), deadline)), "no welcome");
    std::string frames = make_join_frame(speaker, FrameKind::kRelay);
    for (int r = 0; r < per_host; r++) {
      const int rank = h * per_host + r;
      JoinMessage join = speaker;
      join.rank = rank;
      frames += make_join_frame(join, FrameKind::kJoin);
      frames += make_frame(FrameKind::kBlob, introduction(h, rank), rank);
    }
    say(hosts.back(), frames);
  }
  const double joined = static_cast<double>(now_ns() - begin_ns) / 1e9;
  hear_answer(hosts, 1);
  for (const Host& host : hosts) require(host.sum == hosts[0].sum, "hosts have heard different things");
  for (int h = 0; h < n_hosts; h++) {
    std::string frames;
    for (int r = 0; r < per_host; r++) frames += make_frame(FrameKind::kBlob, "", h * per_host + r);
    say(hosts[static_cast<size_t>(h)], frames);
  }
  hear_answer(hosts, 2);
  const double formed = static_cast<double>(now_ns() - begin_ns) / 1e9;
  const double most_bytes = 100.0 * n_ranks * std::log2(n_ranks);
  printf(
      "%d ranks on %d hosts: all had joined after %.2f s and the group formed in %.2f s; %llu bytes through the root "
      "(%.2f of 100 n log2 n)\n",
      n_ranks, n_hosts, joined, formed, static_cast<unsigned long long>(g_root_bytes), g_root_bytes / most_bytes);
  for (int h = 0; h < n_hosts; h++) {
    std::string frames;
    for (int r = 0; r < per_host; r++) frames += make_frame(FrameKind::kLeave, "", h * per_host + r);
    say(hosts[static_cast<size_t>(h)], frames);
  }
  return g_root_bytes == 0 || static_cast<double>(g_root_bytes) > most_bytes ? 1 : 0;
}
