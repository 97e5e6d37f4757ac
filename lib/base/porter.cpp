#include "base/porter.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <list>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/handshake.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/thread.h"

namespace tutti {
namespace {

constexpr size_t kMostCallers = 16;          // that have not named a door yet
constexpr int64_t kSilenceNs = 100'000'000;  // after which the oldest is dropped if room is short
constexpr int kLookMs = 1000;                // between checks for closed doors
constexpr int kPauseMs = 20;
constexpr int kHandOverMs = 1000;     // from a porter's connection to the one it brings: no time, unless it was stopped
constexpr double kShareSeconds = 10;  // for another process to share the port
constexpr int kRefusals = 50;         // of the port, which an exiting process may still hold for a moment

constexpr const char* kDoorName = "tutti-door-";
std::string name_of(uint64_t door) {
  return format("%s%016" PRIx64, kDoorName, door);
}

bool is_same_user(int socket) {
  ucred who{};
  socklen_t bytes = sizeof who;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid();
}

// Signals do not end the wait: a connection that is not waited for is lost, and its caller refused.
Fd receive_socket(int from, int limit_ms) {
  const Deadline deadline = Deadline::after_seconds(limit_ms / 1e3);
  pollfd waiting{from, POLLIN, 0};
  while (::poll(&waiting, 1, deadline.left_ms(limit_ms)) < 0 && errno == EINTR) continue;
  const std::lock_guard lock(sockets_mutex());
  char byte;
  Fd received;
  receive_with_descriptor(from, &byte, 1, &received);
  if (received) enter_socket(received.get());
  return received;
}

struct Port {
  Fd names;  // where other processes of this host get the port
  Fd calls;
};

Error unusable(uint16_t number, const std::string& why) {
  return {Code::kSystemError,
          format("TUTTI_PORT=%u cannot be used on host %s: %s; choose a port that is free there", number,
                 host_name().c_str(), why.c_str()),
          -1, EADDRINUSE};
}

// An empty Port if the process that holds the port does not share it: it may just have closed it, so try again.
Result<Port> share_port(const std::string& name, uint16_t number, Deadline deadline) {
  auto socket = connect_start(unix_abstract_address(name));
  if (!socket && lacks_resources(socket.error().sys_errno)) return socket.error();
  if (!socket) return Port{};
  if (!is_same_user(socket.value().get())) return unusable(number, "another user's Tutti job uses it");
  Port port;
  port.names = receive_socket(socket.value().get(), deadline.left_ms(INT32_MAX));
  if (port.names) port.calls = receive_socket(socket.value().get(), deadline.left_ms(INT32_MAX));
  return port;
}

Result<Port> open_port(uint16_t number) {
  const std::string name = format("tutti-port-%u", number);
  const Deadline deadline = Deadline::after_seconds(kShareSeconds);
  for (int refusals = 0;; ::poll(nullptr, 0, kPauseMs)) {
    if (auto names = listen_unix_abstract(name)) {
      auto calls = listen_any(number, nullptr);
      if (calls) return Port{std::move(names).value(), std::move(calls).value()};
      if (calls.error().sys_errno != EADDRINUSE) return calls.error();
      if (++refusals == kRefusals) return unusable(number, "another program listens there");
      continue;
    } else if (names.error().sys_errno != EADDRINUSE) {
      return names.error();
    }
    TUTTI_TRY_ASSIGN(Port port, share_port(name, number, deadline));
    if (port.calls) return port;
    if (deadline.passed()) return unusable(number, "a process of this user holds it and did not share it in time");
  }
}

// This process's doors, by port. A porter runs while its port has any. Created when the library is loaded, because the
// first use might coincide with another thread's fork; never destroyed, because porters may outlive main.
struct Doors {
  MutexAcrossForks mutex;
  std::map<uint16_t, std::vector<uint64_t>> of_port;
};
Doors& g_doors = *new Doors;
[[maybe_unused]] const bool g_doors_are_dropped = do_in_children([] { g_doors.of_port.clear(); });

class Porter {
 public:
  Porter(uint16_t number, Port port) : number_(number), port_(std::move(port)) {}
  void run();  // on a thread of its own; goes on after a shortage of memory

 private:
  struct Caller {
    Fd fd;
    int64_t since_ns;
  };
  bool stays();
  void take_turn();
  void share();
  void take_in();
  void serve_all() {
    callers_.remove_if([this](const Caller& caller) { return serve(caller); });
  }
  bool serve(const Caller& caller);

  uint16_t number_;
  Port port_;
  std::list<Caller> callers_;  // oldest first
  int64_t next_look_ns_ = 0;
};

// Callers of other processes' doors are passed on even when the last door here is closed.
void Porter::run() {
  const auto go_on = [this]() -> Result<bool> {
    if (port_.calls && stays()) return take_turn(), true;
    serve_all();
    return !callers_.empty();
  };
  for (;;) {
    const auto goes_on = contained(go_on);
    if (goes_on && !goes_on.value()) return;
    if (!goes_on || !port_.calls) ::poll(nullptr, 0, kPauseMs);
  }
}

void Porter::take_turn() {
  std::vector<pollfd> polled = {{port_.names.get(), POLLIN, 0}};
  for (const Caller& caller : callers_) polled.push_back({caller.fd.get(), POLLIN, 0});
  if (callers_.size() < kMostCallers) polled.push_back({port_.calls.get(), POLLIN, 0});
  ::poll(polled.data(), polled.size(), callers_.empty() ? kLookMs : kPauseMs);
  share();
  take_in();
  serve_all();
}

// If a door's name can be bound, nobody listens there any more.
bool Porter::stays() {
  if (now_ns() < next_look_ns_) return true;
  next_look_ns_ = now_ns() + int64_t{kLookMs} * 1'000'000;
  const std::lock_guard lock(g_doors.mutex);
  auto& mine = g_doors.of_port[number_];
  std::erase_if(mine, [](uint64_t door) { return bool(listen_unix_abstract(name_of(door))); });
  if (!mine.empty()) return true;
  g_doors.of_port.erase(number_);
  port_.calls.reset();  // before others can take the name
  port_.names.reset();
  return false;
}

void Porter::share() {
  while (const Fd other = accept_one(port_.names.get()))
    if (is_same_user(other.get()) && send_with_descriptor(other.get(), "", 1, port_.names))
      send_with_descriptor(other.get(), "", 1, port_.calls);
  if (errno != EAGAIN) ::poll(nullptr, 0, kPauseMs);  // no descriptors are left
}

void Porter::take_in() {
  if (callers_.size() == kMostCallers && now_ns() - callers_.front().since_ns > kSilenceNs) callers_.pop_front();
  while (callers_.size() < kMostCallers) {
    Fd fd = accept_one(port_.calls.get());
    if (!fd && errno != EAGAIN) ::poll(nullptr, 0, kPauseMs);
    if (!fd) return;
    callers_.push_back({std::move(fd), now_ns()});
  }
}

// True when the caller was passed on or is to be dropped. A rank's hello arrives whole.
bool Porter::serve(const Caller& caller) {
  Hello hello{};
  const bool is_late = now_ns() - caller.since_ns > kHandshakePatienceNs;
  const ssize_t n = ::recv(caller.fd.get(), &hello, sizeof hello, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return is_late;
  for (const uint64_t number : {hello.door, uint64_t{number_}}) {
    if (n != sizeof hello) break;
    const auto door = connect_start(unix_abstract_address(name_of(number)));
    if (!door && door.error().sys_errno != ECONNREFUSED) {  // no descriptor is left, or its queue is full: try again
      ::poll(nullptr, 0, kPauseMs);
      return is_late;
    }
    if (door && is_same_user(door.value().get()) && send_with_descriptor(door.value().get(), "", 1, caller.fd))
      return true;
  }
  log(LogLevel::kInfo, "refused a connection from %s: no communicator on this host expects it",
      peer_name(caller.fd.get()).c_str());
  return true;
}

// False if this process has no porter for that port.
bool add_to_porter(uint16_t port, uint64_t door) {
  const auto known = g_doors.of_port.find(port);
  if (known == g_doors.of_port.end()) return false;
  known->second.push_back(door);
  return true;
}

}  // namespace

// Forks of other threads wait for the mutex, so it is not held while the port is being opened, which may take long. If
// two threads do that, one gets the port from the other's porter, as if they were two processes, and then needs none.
Result<Fd> open_door(uint16_t port, uint64_t door) {
  TUTTI_TRY_ASSIGN(Fd fd, listen_unix_abstract(name_of(door)));
  std::unique_lock lock(g_doors.mutex);
  if (add_to_porter(port, door)) return fd;
  lock.unlock();
  TUTTI_TRY_ASSIGN(Port opened, open_port(port));
  lock.lock();
  if (add_to_porter(port, door)) return fd;
  const auto porter = std::make_shared<Porter>(port, std::move(opened));
  TUTTI_TRY_ASSIGN(std::thread thread, start_thread("the thread that serves TUTTI_PORT", [porter] { porter->run(); }));
  thread.detach();
  g_doors.of_port[port] = {door};
  return fd;
}

bool is_door(int listen_fd) {
  const auto address = local_address(listen_fd);
  return address && address->to_string().find(kDoorName) != std::string::npos;
}

// A descriptor that arrives while none is free is lost, so one is reserved first.
Fd accept_at_door(int door) {
  Fd room(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!room) return {};
  const Fd porter(::accept4(door, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!porter) return {};
  room.reset();
  Fd brought = is_same_user(porter.get()) ? receive_socket(porter.get(), kHandOverMs) : Fd();
  errno = EAGAIN;
  return brought;
}

}  // namespace tutti
