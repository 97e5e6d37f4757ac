// One port for a whole host.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/dial.h"
#include "base/env.h"
#include "base/porter.h"
#include "base/socket.h"
#include "catch.h"
#include "contains.h"
#include "sanitized.h"

using namespace tutti;
using tutti_test::contains;

namespace {

// TUTTI_PORT, with a port that is free now.
class OnePort {
 public:
  OnePort() {
    REQUIRE(listen_any(0, &number_));
    setenv("TUTTI_PORT", std::to_string(number_).c_str(), 1);
  }
  ~OnePort() { unsetenv("TUTTI_PORT"); }
  uint16_t number() const { return number_; }

 private:
  uint16_t number_ = 0;
};

template <class Condition>
bool in_time(Condition&& condition) {
  for (const Deadline deadline = Deadline::after_seconds(60); !deadline.passed(); ::poll(nullptr, 0, 2))
    if (condition()) return true;
  return false;
}

constexpr Key kKey{7};

// A rank that others can call.
struct CalledRank {
  explicit CalledRank(int number) {
    auto listener = Listener::open();
    if (!listener) return;
    contact = listener.value().contact;
    acceptor.emplace(std::move(listener.value().fds), kKey, HelloKind::kControl, number);
  }
  Contact contact;
  std::optional<Acceptor> acceptor;
};

// The rank that is heard from when `from` calls `to`; -1 if the call fails.
int call(const Contact& contact, int to, int from, Acceptor& acceptor) {
  Dialer dialer({kKey, HelloKind::kControl, from, to}, contact);
  int heard = -1;
  auto status = Dialer::Status::kPending;
  in_time([&] {
    if (status == Dialer::Status::kPending) status = dialer.advance();
    if (auto accepted = acceptor.next()) heard = accepted->hello.from_rank;
    return status == Dialer::Status::kFailed || (status == Dialer::Status::kDone && heard >= 0);
  });
  return status == Dialer::Status::kDone ? heard : -1;
}

Fd connect_to(const Address& address) {
  auto fd = connect_start(address);
  int why = 0;
  if (!fd || !in_time([&] { return connect_finished(fd.value().get(), &why) != Code::kInProgress; }) || why != 0)
    return {};
  return std::move(fd).value();
}

// A process of its own with a rank at a port that this process may have, too; it answers one call. Its contact comes
// through a pipe.
struct Elsewhere {
  Elsewhere(int rank) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid = fork();
    if (pid == 0) {
      ::close(ends[0]);
      CalledRank called(rank);
      const std::string bytes = called.contact.to_bytes();
      bool good = called.acceptor && ::write(ends[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
      ::close(ends[1]);
      _exit(good && in_time([&] { return called.acceptor->next().has_value(); }) ? 0 : 1);
    }
    ::close(ends[1]);
    char bytes[2048];
    size_t got = 0;
    for (ssize_t n; (n = ::read(ends[0], bytes + got, sizeof bytes - got)) > 0;) got += static_cast<size_t>(n);
    ::close(ends[0]);
    if (const auto read = Contact::from_bytes({bytes, got})) contact = *read;
  }
  int wait() const {
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  pid_t pid;
  Contact contact;
};

bool reaches(const Contact& contact, int rank) {
  Dialer dialer({kKey, HelloKind::kControl, 9, rank}, contact);
  auto status = Dialer::Status::kPending;
  in_time([&] { return (status = dialer.advance()) != Dialer::Status::kPending; });
  return status == Dialer::Status::kDone;
}

// A process of another user, which stays after it has done its deed.
class OtherUser {
 public:
  template <class Deed>
  explicit OtherUser(Deed&& deed) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      const char word = setuid(65534) != 0 ? 's' : deed() ? 'y' : 'n';
      if (::write(ends[1], &word, 1) == 1) ::pause();
      _exit(0);
    }
    REQUIRE(pid_ > 0);
    ::close(ends[1]);
    if (::read(ends[0], &word_, 1) != 1) word_ = 'n';
    ::close(ends[0]);
    if (!is_there()) WARN("skipped: no process can be given another user here (not root)");
  }
  ~OtherUser() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool is_there() const { return word_ != 's'; }
  bool did() const { return word_ == 'y'; }

 private:
  pid_t pid_ = -1;
  char word_ = 'n';
};

// Leaves this process exactly that many descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(size_t left) {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit few{256, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) all_.emplace_back(fd);
    all_.resize(all_.size() - left);
  }
  ~FewDescriptors() {
    all_.clear();
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<Fd> all_;
};

}  // namespace

TEST_CASE("ranks that have a port in common are reached each by its own door") {
  const OnePort port;
  CalledRank first(1), second(1);
  REQUIRE((first.acceptor && second.acceptor));
  for (const CalledRank* rank : {&first, &second})
    for (const Address& address : rank->contact.addresses) CHECK(address.port() == port.number());
  CHECK(first.contact.door != second.contact.door);
  CHECK(call(second.contact, 1, 4, *second.acceptor) == 4);
  CHECK(call(first.contact, 1, 5, *first.acceptor) == 5);
  CHECK(!first.acceptor->next());
}

TEST_CASE("a child has no connection that a porter has brought") {
  const OnePort port;
  CalledRank rank(1);
  REQUIRE(rank.acceptor);
  Dialer dialer({kKey, HelloKind::kControl, 4, 1}, rank.contact);
  auto status = Dialer::Status::kPending;
  std::optional<Acceptor::Accepted> accepted;
  REQUIRE(in_time([&] {
    if (status == Dialer::Status::kPending) status = dialer.advance();
    accepted = rank.acceptor->next();
    return accepted.has_value();
  }));
  const pid_t child = fork();
  if (child == 0) {
    struct stat there {};
    _exit(fstat(accepted->fd.get(), &there) == 0 && S_ISCHR(there.st_mode) ? 0 : 1);
  }
  int ended = -1;
  REQUIRE(waitpid(child, &ended, 0) == child);
  CHECK(ended == 0);
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer lets no child of a process with threads start one
TEST_CASE("processes have a port in common, and whichever ends first, the others are reached") {
  const OnePort port;
  std::optional<CalledRank> first(1);
  REQUIRE(first->acceptor);
  const Elsewhere child(2);
  REQUIRE(child.contact.addresses.size() > 0);
  CHECK(child.contact.addresses[0].port() == port.number());
  CHECK(call(first->contact, 1, 4, *first->acceptor) == 4);
  first.reset();             // this process's porter goes with it, sooner or later
  ::poll(nullptr, 0, 2200);  // until it has gone
  CHECK(reaches(child.contact, 2));
  CHECK(child.wait() == 0);
  CHECK(in_time([&] { return bool(listen_any(port.number(), nullptr)); }));  // nobody has the port any more
  CalledRank again(3);                                                       // with a porter of its own
  REQUIRE(again.acceptor);
  CHECK(call(again.contact, 3, 5, *again.acceptor) == 5);
}

TEST_CASE("a process that is stopped keeps nobody from those that have the port in common with it") {
  const OnePort port;
  const Elsewhere child(2);
  REQUIRE(child.contact.addresses.size() > 0);
  CalledRank here(1);
  REQUIRE(here.acceptor);
  REQUIRE(kill(child.pid, SIGSTOP) == 0);
  int status = 0;  // until its porter has stopped, too: until then it could still take in a caller
  REQUIRE(waitpid(child.pid, &status, WUNTRACED) == child.pid);
  for (int from = 2; from < 6; from++) CHECK(call(here.contact, 1, from, *here.acceptor) == from);
  kill(child.pid, SIGCONT);
  CHECK(reaches(child.contact, 2));
  CHECK(child.wait() == 0);
}

TEST_CASE("a porter whose last door is closed passes on the callers that it has") {
  const OnePort port;
  std::optional<CalledRank> first(1);
  REQUIRE(first->acceptor);
  const Elsewhere child(2);
  REQUIRE(child.contact.addresses.size() > 0);
  REQUIRE(kill(child.pid, SIGSTOP) == 0);  // so that its porter takes nobody in
  int status = 0;
  REQUIRE(waitpid(child.pid, &status, WUNTRACED) == child.pid);
  const Fd caller = connect_to(child.contact.addresses.back());
  REQUIRE(caller);
  ::poll(nullptr, 0, 200);  // until this process's porter has taken it in
  first.reset();
  ::poll(nullptr, 0, 2200);  // until the porter knows that
  kill(child.pid, SIGCONT);
  Handshake hello = Handshake::client(kKey, HelloKind::kControl, 9, 2, {}, child.contact.door);
  auto said = Handshake::Status::kPending;
  CHECK(in_time([&] { return (said = hello.advance(caller.get())) != Handshake::Status::kPending; }));
  CHECK(said == Handshake::Status::kDone);
  if (said != Handshake::Status::kDone) kill(child.pid, SIGKILL);
  CHECK(child.wait() == 0);
}
#endif

TEST_CASE("silent strangers at a host's port keep no rank out, and fill nobody's descriptors") {
  const OnePort port;
  CalledRank rank(1);
  REQUIRE(rank.acceptor);
  const Address at = rank.contact.addresses.back();
  std::vector<Fd> strangers;
  for (int i = 0; i < 40; i++) REQUIRE(strangers.emplace_back(connect_to(at)));
  CHECK(call(rank.contact, 1, 4, *rank.acceptor) == 4);
  CHECK(!rank.acceptor->has_pending());
}

TEST_CASE("who asks for a door that is not there, or says something else, is refused") {
  const OnePort port;
  CalledRank rank(1);
  REQUIRE(rank.acceptor);
  Contact elsewhere = rank.contact;
  elsewhere.door++;
  CHECK_FALSE(reaches(elsewhere, 1));
  for (const std::string& words : {std::string("x"), std::string(300, 'x')}) {
    const Fd stranger = connect_to(rank.contact.addresses.back());
    REQUIRE(stranger);
    REQUIRE(send_all(stranger.get(), words.data(), words.size(), Deadline::after_seconds(60)));
    char byte;
    CHECK_FALSE(recv_all(stranger.get(), &byte, 1, Deadline::after_seconds(60)));
  }
  CHECK(call(rank.contact, 1, 4, *rank.acceptor) == 4);
}

TEST_CASE("a stranger that knows a door is stopped by who listens there") {
  const OnePort port;
  CalledRank rank(1);
  REQUIRE(rank.acceptor);
  Dialer dialer({Key{8}, HelloKind::kControl, 0, 1}, rank.contact);
  auto status = Dialer::Status::kPending;
  CHECK(in_time([&] {
    CHECK(!rank.acceptor->next());
    return (status = dialer.advance()) == Dialer::Status::kFailed;
  }));
  CHECK(contains(dialer.story(), "secret"));
}

TEST_CASE("another user's process gets no host's port, and brings nobody to a door") {
  const OnePort port;
  CalledRank rank(1);
  REQUIRE(rank.acceptor);
  {
    const OtherUser asks([&] {
      const auto line = connect_start(unix_abstract_address("tutti-port-" + std::to_string(port.number())));
      char byte;
      return line && !recv_all(line.value().get(), &byte, 1, Deadline::after_seconds(5));
    });
    if (!asks.is_there()) return;
    CHECK(asks.did());
  }
  Fd held, line;
  const OtherUser brings([&] {
    int ends[2];
    auto to = connect_start(unix_abstract_address(format("tutti-door-%016" PRIx64, rank.contact.door)));
    if (!to || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
    line = std::move(to).value();
    held.reset(ends[0]);
    return send_with_descriptor(line.get(), "", 1, Fd(ends[1]));
  });
  REQUIRE(brings.did());
  std::vector<pollfd> door;
  rank.acceptor->add_waiting(&door);
  REQUIRE(in_time([&] { return ::poll(door.data(), door.size(), 0) > 0; }));
  CHECK(!rank.acceptor->next());
  CHECK(!rank.acceptor->has_pending());
}

TEST_CASE("no caller is sent to another user's door") {
  const OnePort port;
  CalledRank rank(1);
  REQUIRE(rank.acceptor);
  const uint64_t door_number = static_cast<uint64_t>(getpid()) << 8 | 77;  // another process may run these tests
  Fd theirs;
  const OtherUser other([&] {
    auto door = listen_unix_abstract(format("tutti-door-%016" PRIx64, door_number));
    if (door) theirs = std::move(door).value();
    return bool(theirs);
  });
  if (!other.is_there()) return;
  REQUIRE(other.did());
  const Fd caller = connect_to(rank.contact.addresses.back());
  REQUIRE(caller);
  Handshake hello = Handshake::client(kKey, HelloKind::kControl, 4, 1, {}, door_number);
  if (hello.advance(caller.get()) == Handshake::Status::kFailed) return;  // refused at once
  char byte;
  const auto answer = recv_all(caller.get(), &byte, 1, Deadline::after_seconds(5));
  REQUIRE(!answer);
  CHECK(answer.error().code == Code::kRemoteError);  // and not kept by another user's process
}

TEST_CASE("a port that another program has is an error that says so") {
  const OnePort port;
  uint16_t bound = 0;
  const auto other = listen_any(port.number(), &bound);
  REQUIRE(other);
  const auto listener = Listener::open();
  REQUIRE(!listener);
  CHECK(listener.error().sys_errno == EADDRINUSE);
  CHECK(contains(listener.error().message, "TUTTI_PORT=" + std::to_string(bound) + " cannot be used on host "));
  CHECK(contains(listener.error().message, "another program listens there; choose a port that is free there"));
}

TEST_CASE("a fork does not wait for a port that another process is slow to share") {
  const OnePort port;
  auto slow = listen_unix_abstract("tutti-port-" + std::to_string(port.number()));
  REQUIRE(slow);
  std::atomic<bool> is_open = false;
  std::thread opens([&] {
    const CalledRank rank(1);
    is_open = rank.acceptor.has_value();
  });
  pollfd asked{slow.value().get(), POLLIN, 0};
  CHECK(in_time([&] { return ::poll(&asked, 1, 0) == 1; }));
  const pid_t child = fork();
  if (child == 0) _exit(0);
  slow.value().reset();  // now nobody has the port
  opens.join();
  CHECK(is_open);  // if the fork had waited, the other thread would have waited in vain
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
}

TEST_CASE("TUTTI_PORT and TUTTI_PORT_RANGE exclude each other") {
  const OnePort port;
  CHECK(env_check());
  setenv("TUTTI_PORT_RANGE", "4000-4001", 1);
  const auto both = env_check();
  setenv("TUTTI_PORT", "0", 1);  // 0 means no common port
  CHECK(env_check());
  unsetenv("TUTTI_PORT_RANGE");
  REQUIRE(!both);
  CHECK(contains(both.error().message, "TUTTI_PORT and TUTTI_PORT_RANGE are both set"));
}

TEST_CASE("a porter that lacks the descriptor to pass a caller on keeps it until there is one") {
  const OnePort port;
  CalledRank rank(1);
  REQUIRE(rank.acceptor);
  Dialer dialer({kKey, HelloKind::kControl, 4, 1}, rank.contact);
  auto status = Dialer::Status::kPending;
  {
    const FewDescriptors few(2);  // one for the dialer, one for the connection that the porter accepts
    for (int i = 0; i < 50 && status == Dialer::Status::kPending; i++, ::poll(nullptr, 0, 10))
      status = dialer.advance();
  }
  CHECK(status == Dialer::Status::kPending);
  int heard = -1;
  CHECK(in_time([&] {
    if (status == Dialer::Status::kPending) status = dialer.advance();
    if (auto accepted = rank.acceptor->next()) heard = accepted->hello.from_rank;
    return status != Dialer::Status::kPending && heard == 4;
  }));
  CHECK(status == Dialer::Status::kDone);
}

TEST_CASE("a caller that a porter has brought waits for a descriptor") {
  const OnePort port;
  CalledRank rank(1);
  REQUIRE(rank.acceptor);
  // With a single address: the caller could come a second time through another one.
  Dialer dialer({kKey, HelloKind::kControl, 4, 1, {}, rank.contact.door}, std::vector{rank.contact.addresses.back()});
  auto status = Dialer::Status::kPending;
  std::vector<pollfd> door;
  rank.acceptor->add_waiting(&door);
  REQUIRE(in_time([&] {
    if (status == Dialer::Status::kPending) status = dialer.advance();
    return ::poll(door.data(), door.size(), 0) > 0;
  }));
  ::poll(nullptr, 0, 100);  // until the porter has closed its own descriptor
  bool is_in_at_once = false;
  {
    const FewDescriptors few(1);  // for the porter's connection, but none for the caller that it brings
    is_in_at_once = rank.acceptor->next().has_value();
  }
  CHECK_FALSE(is_in_at_once);
  int heard = -1;
  CHECK(in_time([&] {
    if (status == Dialer::Status::kPending) status = dialer.advance();
    if (auto accepted = rank.acceptor->next()) heard = accepted->hello.from_rank;
    return status == Dialer::Status::kFailed || (status == Dialer::Status::kDone && heard == 4);
  }));
  CHECK(status == Dialer::Status::kDone);
}

TEST_CASE("a signal that comes between a porter and what it brings parts nobody") {
  const uint64_t door_number = static_cast<uint64_t>(getpid()) << 8 | 78;
  const Fd door = listen_unix_abstract(format("tutti-door-%016" PRIx64, door_number)).value();
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const Fd caller(ends[0]), brought(ends[1]);
  const Fd porter = connect_to(unix_abstract_address(format("tutti-door-%016" PRIx64, door_number)));
  REQUIRE(porter);
  const auto before = signal(SIGUSR1, [](int) {});
  std::thread slow([&, waits = pthread_self()] {
    for (int i = 0; i < 20; i++, ::poll(nullptr, 0, 10)) pthread_kill(waits, SIGUSR1);
    send_with_descriptor(porter.get(), "", 1, brought);
  });
  const Fd taken = accept_one(door.get());
  slow.join();
  signal(SIGUSR1, before);
  CHECK(taken);
}
