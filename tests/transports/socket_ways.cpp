// socket_ways [ADDRESS]: what other ways than send and recv gain on a TCP connection, between two processes of this
// host (loopback, or another ADDRESS of the host). Streams: MSG_ZEROCOPY, vmsplice and splice, io_uring; small messages
// back and forth: SO_BUSY_POLL, io_uring. Rounds alternate; prints medians and each way's time as a multiple of send's.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#ifdef HAS_LIBURING
#include <liburing.h>
#endif

namespace {

constexpr size_t kMostAtOnce = 256 << 10, kPipeBytes = 1 << 20;
constexpr int kRounds = 5, kBusyPollUs = 50;

[[noreturn]] void die(const char* what) {
  perror(what);
  _exit(1);
}

size_t checked(ssize_t n, const char* what) {
  if (n <= 0) die(what);
  return static_cast<size_t>(n);
}

// One end of a connection.
class End {
 public:
  explicit End(int fd) : fd_(fd) {}
  virtual ~End() { close(fd_); }
  virtual void send(const char* from, size_t bytes) {
    for (size_t sent = 0; sent < bytes;)
      sent += checked(::send(fd_, from + sent, std::min(bytes - sent, kMostAtOnce), MSG_NOSIGNAL), "send");
  }
  // Like a rank that waits for it: polls all the time.
  virtual void receive(char* to, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
      const ssize_t n = recv(fd_, to + got, bytes - got, MSG_DONTWAIT);
      if (n > 0) got += static_cast<size_t>(n);
      if (n == 0) die("recv");
    }
  }

 protected:
  const int fd_;
};

class ZeroCopy final : public End {
 public:
  explicit ZeroCopy(int fd) : End(fd) {
    const int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) die("SO_ZEROCOPY");
  }
  void send(const char* from, size_t bytes) override {
    for (size_t sent = 0; sent < bytes; take_notices()) {
      const ssize_t n = ::send(fd_, from + sent, std::min(bytes - sent, kMostAtOnce), MSG_NOSIGNAL | MSG_ZEROCOPY);
      if (n < 0 && errno == ENOBUFS) continue;
      sent += checked(n, "send");
      begun_++;
    }
    for (; done_ < begun_; take_notices()) {  // until the sent memory may be overwritten
      pollfd one{fd_, 0, 0};
      poll(&one, 1, 10);
    }
  }

 private:
  void take_notices() {
    std::array<char, 256> control;
    for (;;) {
      msghdr message{};
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        const auto* notice = reinterpret_cast<const sock_extended_err*>(CMSG_DATA(c));
        if (notice->ee_origin == SO_EE_ORIGIN_ZEROCOPY) done_ += notice->ee_data - notice->ee_info + 1;
      }
    }
  }
  uint64_t begun_ = 0, done_ = 0;
};

class Splice final : public End {
 public:
  explicit Splice(int fd) : End(fd) {
    if (pipe(pipe_.data()) != 0 || fcntl(pipe_[1], F_SETPIPE_SZ, kPipeBytes) < 0) die("pipe");
  }
  ~Splice() override { std::for_each(pipe_.begin(), pipe_.end(), close); }
  void send(const char* from, size_t bytes) override {
    for (size_t sent = 0; sent < bytes;) {
      const iovec piece{const_cast<char*>(from) + sent, std::min(bytes - sent, kPipeBytes)};
      const size_t n = checked(vmsplice(pipe_[1], &piece, 1, 0), "vmsplice");
      for (size_t moved = 0; moved < n;)
        moved += checked(splice(pipe_[0], nullptr, fd_, nullptr, n - moved, SPLICE_F_MORE), "splice");
      sent += n;
    }
  }

 private:
  std::array<int, 2> pipe_{};
};

class BusyPoll final : public End {
 public:
  explicit BusyPoll(int fd) : End(fd) {
    if (setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &kBusyPollUs, sizeof kBusyPollUs) != 0) die("SO_BUSY_POLL");
  }
};

#ifdef HAS_LIBURING
class Ring final : public End {
 public:
  explicit Ring(int fd) : End(fd) {
    if (io_uring_queue_init(8, &ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) != 0)
      die("io_uring_queue_init");
  }
  ~Ring() override { io_uring_queue_exit(&ring_); }
  void send(const char* from, size_t bytes) override {
    for (size_t done = 0; done < bytes;)
      done += run([&](io_uring_sqe* e) { io_uring_prep_send(e, fd_, from + done, bytes - done, MSG_NOSIGNAL); });
  }
  void receive(char* to, size_t bytes) override {
    for (size_t done = 0; done < bytes;)
      done += run([&](io_uring_sqe* e) { io_uring_prep_recv(e, fd_, to + done, bytes - done, 0); });
  }

 private:
  template <class Prepare>
  size_t run(Prepare&& prepare) {
    prepare(io_uring_get_sqe(&ring_));
    io_uring_submit(&ring_);
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(&ring_, &done) != 0) io_uring_get_events(&ring_);
    const ssize_t n = done->res;
    io_uring_cqe_seen(&ring_, done);
    return checked(n, "io_uring");
  }
  io_uring ring_{};
};
#endif

template <class Way>
void make(int fd, End** end) {
  *end = new Way(fd);
}

struct Way {
  const char* name;
  void (*make)(int fd, End** end);
  bool streams, answers;  // whether it makes sense for streams, for answers
};
constexpr Way kWays[] = {
    {"send", make<End>, true, true},         {"zerocopy", make<ZeroCopy>, true, false},
    {"vmsplice", make<Splice>, true, false}, {"busy poll", make<BusyPoll>, false, true},
#ifdef HAS_LIBURING
    {"io_uring", make<Ring>, true, true},
#endif
};

std::array<int, 2> connect_to(const char* address) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  socklen_t size = sizeof at;
  const int listener = socket(AF_INET, SOCK_STREAM, 0), caller = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
    fprintf(stderr, "socket_ways: %s is not an IPv4 address\n", address);
    exit(2);
  }
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) != 0 ||
      connect(caller, reinterpret_cast<sockaddr*>(&at), size) != 0)
    die(address);
  const int callee = accept(listener, nullptr, nullptr);
  for (const int fd : {caller, callee}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  close(listener);
  return {caller, callee};
}

// Microseconds per message: half of a round trip, or the mean of many one way.
double time_us(const Way& way, const char* address, size_t bytes, int n, bool answers) {
  const auto fds = connect_to(address);
  std::vector<char> data(bytes, 1);
  const pid_t child = fork();
  if (child < 0) die("fork");
  End* end = nullptr;
  way.make(fds[child == 0 ? 1 : 0], &end);
  if (child == 0) {
    for (int i = 0; i < n; i++) {
      end->receive(data.data(), bytes);
      if (answers) end->send(data.data(), bytes);
    }
    if (!answers) end->send(data.data(), 1);
    _exit(0);
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < n; i++) {
    end->send(data.data(), bytes);
    if (answers) end->receive(data.data(), bytes);
  }
  if (!answers) end->receive(data.data(), 1);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  waitpid(child, nullptr, 0);
  delete end;
  close(fds[1]);
  return took.count() / n / (answers ? 2 : 1);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const address = argc > 1 ? argv[1] : "127.0.0.1";
  struct Size {
    size_t bytes;
    int n;
    bool answers;
  };
  printf("%-14s %10s %10s %10s\n", "way", "bytes", "us", "/ send");
  for (const Size& size : {Size{8, 20000, true},
                           {4096, 20000, true},
                           {65536, 4000, false},
                           {1 << 20, 400, false},
                           {16 << 20, 30, false}}) {
    std::vector<std::vector<double>> times(std::size(kWays));
    for (int round = 0; round < kRounds; round++)
      for (size_t w = 0; w < std::size(kWays); w++)
        if (size.answers ? kWays[w].answers : kWays[w].streams)
          times[w].push_back(time_us(kWays[w], address, size.bytes, size.n, size.answers));
    for (size_t w = 0; w < std::size(kWays); w++) {
      if (times[w].empty()) continue;
      for (const size_t of : {size_t{0}, w}) std::sort(times[of].begin(), times[of].end());
      printf("%-14s %10zu %10.2f %10.2f\n", kWays[w].name, size.bytes, times[w][kRounds / 2],
             times[w][kRounds / 2] / times[0][kRounds / 2]);
    }
  }
  return 0;
}
