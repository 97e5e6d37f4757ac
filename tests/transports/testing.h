// The contract suite runs every available transport through the same tests. Helpers: endpoints, links, processes.
// Every wait ends: what has not come after kPatienceSeconds is a failure, not a hang.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/env.h"
#include "base/shared_memory.h"
#include "base/socket.h"
#include "catch.h"
#include "sanitized.h"
#include "transports/transport.h"

namespace tutti::test {

// Sets an environment variable while it lives.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }

 private:
  const char* name_;
};

inline constexpr double kPatienceSeconds = 30;
inline constexpr int64_t kPatienceMs = 30'000;

// `n` repetitions, fewer where each takes ten times as long (under sanitizers), or CONTRACT_TEST_DIVISOR times as long
// (in an emulated machine).
inline uint64_t times(uint64_t n) {
  static const char* divisor = getenv("CONTRACT_TEST_DIVISOR");
  const uint64_t by = divisor != nullptr ? std::max(1ul, strtoul(divisor, nullptr, 10)) : kSanitized ? 10 : 1;
  return std::max<uint64_t>(1, n / by);
}

// The transports that TUTTI_TRANSPORTS names, perhaps a plugin; else all.
inline std::vector<const tuttiTransport*> transports() {
  const auto found = find_transports(env_string("TUTTI_TRANSPORTS"));
  if (found) return found.value();
  fprintf(stderr, "%s\n", found.error().message.c_str());
  exit(1);
}

// Between two looks at something that has not come yet. It does not yield: that gives up the rest of a time slice,
// which is milliseconds next to a busy process.
class Patience {
 public:
  void wait() {
    if (++looks_ > 50) usleep(20);
  }
  void restore() { looks_ = 0; }

 private:
  int looks_ = 0;
};

template <class Predicate>
bool until(Deadline deadline, Predicate&& predicate) {
  Patience patience;
  while (!predicate()) {
    if (deadline.passed()) return false;
    patience.wait();
  }
  return true;
}
template <class Predicate>
bool until(Predicate&& predicate) {
  return until(Deadline::after_seconds(kPatienceSeconds), predicate);
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline uint64_t find_memory(const void* data, uint64_t bytes, uintptr_t* begin, uintptr_t* end) {
  const auto block = SharedMemory::find_registered(data, bytes);
  if (!block) return 0;
  *begin = block->begin;
  *end = block->end;
  return block->id;
}
inline int is_live_memory(uint64_t number) {
  return SharedMemory::is_live(number);
}
inline int dmabuf_of_memory(uint64_t number, uint64_t* offset_bytes) {
  return SharedMemory::dmabuf(number, offset_bytes).release();
}

inline Result<Endpoint> open_endpoint(const tuttiTransport* table, int rank, int n_ranks = 2, uint8_t secret = 7) {
  tuttiEndpointConfig config{sizeof config,          rank,           n_ranks,         {}, find_memory,
                             SharedMemory::removals, is_live_memory, dmabuf_of_memory};
  memset(config.group_key, secret, sizeof config.group_key);
  config.encrypt = env_int("TUTTI_ENCRYPT").value() != 0;
  return Endpoint::open(table, config);
}

// The parameters with which a link is requested.
struct Ask {
  int peer = 1;
  uint32_t channel = 0;
  uint32_t slots = 4;
  uint32_t slot_bytes = 4096;
  operator tuttiLinkConfig() const { return {sizeof(tuttiLinkConfig), peer, channel, slots, slot_bytes, 0}; }
};

// The receiver's place for the next message, or null.
inline void* posted_place(Link& link, uint32_t bytes) {
  void* at = nullptr;
  return link.acquire(nullptr, bytes, TUTTI_IF_POSTED, &at) == TUTTI_POSTED ? at : nullptr;
}

// The result of polling a link once: ready, not ready yet, or its error.
struct Health {
  bool ready = false;
  tuttiTransportError error{};
  explicit operator bool() const { return error.code == tuttiSuccess; }
};
inline Health poll_once(Link& link) {
  Health health;
  const tuttiResult_t code = link.poll(&health.error);
  health.ready = code == tuttiSuccess;
  health.error.code = code == tuttiInProgress ? tuttiSuccess : code;
  return health;
}
// Polls until the link fails; nothing if it does not.
inline std::optional<tuttiTransportError> poll_to_failure(Link& link) {
  Health health;
  if (!until([&] { return !(health = poll_once(link)); })) return std::nullopt;
  return health.error;
}
// Checks that the link fails, names its rank, and stays failed.
inline void check_gone(Link& link, const std::string& rank) {
  const auto error = poll_to_failure(link);
  REQUIRE(error);
  CHECK(error->code == tuttiRemoteError);
  INFO(error->text);
  CHECK(contains(error->text, rank));
  for (int i = 0; i < 200; i++) REQUIRE_FALSE(poll_once(link));
}

// Sleeps as an executor does: false if nothing, not even a signal, has ended that after so many milliseconds.
inline bool wakes(const tuttiWait& wait, int64_t ms) {
  std::vector<pollfd> fds{{wait.fd, wait.events, 0}};
  for (uint32_t i = 0; i < wait.n_more; i++) fds.push_back({wait.more[i].fd, wait.more[i].events, 0});
  const int64_t limit_ns = static_cast<int64_t>(wait.at_most_ns);
  int64_t most_ns = ms * 1'000'000;
  const bool is_limited = limit_ns > 0 && limit_ns <= most_ns;
  if (is_limited) most_ns = limit_ns;
  const timespec most{most_ns / 1'000'000'000, most_ns % 1'000'000'000};
  return ::ppoll(fds.data(), fds.size(), &most, nullptr) != 0 || is_limited;
}

inline void close(Link& link) {
  const Link closed = std::move(link);
}

// The next incoming link, if there is one.
inline bool take(Endpoint& endpoint, Link* link) {
  return endpoint.accept(link).value();
}

// Makes one link, with both sides alternating.
inline bool join(Endpoint& from, const Ask& ask, Endpoint& to, Link* out, Link* in,
                 Deadline deadline = Deadline::after_seconds(kPatienceSeconds)) {
  auto connected = from.connect(ask, to.address());
  if (!connected) return false;
  *out = std::move(connected).value();
  bool ready = false, accepted = false, failed = false;
  return until(deadline,
               [&] {
                 if (!accepted) accepted = take(to, in);
                 const Health health = poll_once(*out);
                 ready = health.ready;
                 failed = !health;
                 return failed || (ready && accepted);
               }) &&
         !failed;
}

// Two ranks in this thread and a link from rank 0 to rank 1. Links are destroyed before endpoints.
struct Pair {
  Endpoint sender, receiver;
  Link out, in;
};
inline Pair make_pair(const tuttiTransport* table, const Ask& ask = {}) {
  auto sender = open_endpoint(table, 0), receiver = open_endpoint(table, 1);
  REQUIRE(sender);
  REQUIRE(receiver);
  Pair pair{std::move(sender).value(), std::move(receiver).value(), {}, {}};
  REQUIRE(join(pair.sender, ask, pair.receiver, &pair.out, &pair.in));
  return pair;
}

// Exchanges whole strings between a process and its child.
class Mailbox {
 public:
  explicit Mailbox(Fd fd) : fd_(std::move(fd)) {}
  bool send(const std::string& text) {
    const auto bytes = static_cast<uint32_t>(text.size());
    return send_all(fd_.get(), &bytes, sizeof bytes, limit()) && send_all(fd_.get(), text.data(), bytes, limit());
  }
  std::optional<std::string> receive() {
    uint32_t bytes = 0;
    if (!recv_all(fd_.get(), &bytes, sizeof bytes, limit())) return std::nullopt;
    std::string text(bytes, '\0');
    if (!recv_all(fd_.get(), text.data(), bytes, limit())) return std::nullopt;
    return text;
  }

 private:
  static Deadline limit() { return Deadline::after_seconds(kPatienceSeconds); }
  Fd fd_;
};

// A child process. Its body returns "" or what went wrong; it must not use Catch's assertions. Fork while there is only
// one thread.
class Child {
 public:
  using Body = std::function<std::string(Mailbox&)>;
  explicit Child(const Body& body) : mail_(Fd()) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      Mailbox mail{Fd(ends[1])};
      const std::string trouble = body(mail);
      if (!trouble.empty()) fprintf(stderr, "child: %s\n", trouble.c_str());
      _exit(trouble.empty() ? 0 : 1);
    }
    ::close(ends[1]);
    mail_ = Mailbox(Fd(ends[0]));
  }
  Child(const Child&) = delete;
  ~Child() { kill_now(); }

  // A body for who sends: with the sending end of a link to the endpoint at `peer`, once that is connected.
  static Body sender(const tuttiTransport* table, const std::string& peer, const Ask& ask,
                     const std::function<std::string(Link&, Mailbox&)>& send) {
    return [=](Mailbox& mail) -> std::string {
      auto mine = open_endpoint(table, 0);
      if (!mine) return "no endpoint";
      auto out = mine.value().connect(ask, peer);
      if (!out || !until([&] { return poll_once(out.value()).ready; })) return "could not connect";
      return send(out.value(), mail);
    };
  }

  Mailbox& mail() { return mail_; }
  pid_t pid() const { return pid_; }
  bool ended_well() {
    int status = -1;
    const bool ended = until([&] { return pid_ <= 0 || waitpid(pid_, &status, WNOHANG) == pid_; });
    if (ended) pid_ = -1;
    return ended && status == 0;
  }
  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  Mailbox mail_;
};

}  // namespace tutti::test
