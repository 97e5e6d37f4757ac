// For transports written in C++: implement LinkHalf and an endpoint class, and make_transport fills in the C table.
//
// An Endpoint class has
//   static Result<std::unique_ptr<Endpoint>> open(const tuttiEndpointConfig&);
//   std::string address() const;                                    // at most TUTTI_ADDRESS_MAX_BYTES
//   Speed speed() const;
//   std::string unreachable_because(std::string_view peer) const;   // "" if the peer may be reached
//   Result<std::unique_ptr<LinkHalf>> connect(const tuttiLinkConfig&, std::string_view peer);
//   std::unique_ptr<LinkHalf> accept(tuttiLinkConfig*);             // null when nothing is ready
// and, if it delivers to devices' memory,
//   Result<void> registers(const void*, uint64_t bytes);
// and, if it listens at several addresses (DiallingEndpoint has this function and the next),
//   void narrow(bool here, bool elsewhere);
// and, if it may know why no peer connects,
//   std::optional<Error> shortage() const;
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/dial.h"
#include "base/handshake.h"
#include "base/log.h"
#include "transports/transport.h"

namespace tutti {

// As in tuttiEndpointInfo.
struct Speed {
  uint32_t latency_ns;
  uint64_t bytes_per_second;
};

// One end of a link. A sending end also has acquire and publish, and perhaps push; a receiving one has peek and
// release, and perhaps post, match and read. Contract: tutti/transport.h.
class LinkHalf {
 public:
  virtual ~LinkHalf() = default;
  virtual Result<bool> poll() = 0;  // true: ready, false: still connecting
  virtual void fill(tuttiLinkState*) {}
  virtual bool wait_begin(tuttiWait* wait) = 0;
  virtual void wait_end() {}
  virtual void revoke() {}
};

// Paces checks that need a system call: one every kPollsPerLook polls, and one after a sleep.
class LookOut {
 public:
  bool is_time() {
    if (--polls_left_ > 0) return false;
    polls_left_ = kPollsPerLook;
    return true;
  }
  void note_sleep() { polls_left_ = 1; }

 private:
  static constexpr uint32_t kPollsPerLook = 256;
  uint32_t polls_left_ = kPollsPerLook;
};

// The limits that every link keeps.
inline Result<void> check_link_config(const tuttiLinkConfig& c) {
  if (c.slots >= 2 && c.slots <= 64 && c.slot_bytes > 0 && c.slot_bytes % 64 == 0 && c.slot_bytes <= (64u << 20))
    return {};
  return Error{Code::kInvalidArgument,
               format("a link with rank %d of %u slots of %u bytes is not possible: it needs 2 to 64 slots of a "
                      "multiple of 64 bytes, at most 64 MiB",
                      c.peer, c.slots, c.slot_bytes),
               c.peer};
}

// Fields that a shorter struct does not have are 0.
inline tuttiEndpointConfig whole(const tuttiEndpointConfig& config) {
  tuttiEndpointConfig all{};
  memcpy(&all, &config, std::min<size_t>(config.struct_bytes, sizeof all));
  return all;
}

inline Key key_of(const tuttiEndpointConfig& config) {
  Key key;
  memcpy(key.data(), config.group_key, key.size());
  key.encrypts = config.encrypt != 0;
  return key;
}

// What a connecting rank says about the link in its hello, and how the accepting rank reads that.
inline std::array<uint32_t, 5> to_hello_args(const tuttiLinkConfig& c) {
  return {c.channel, c.slots, c.slot_bytes};
}
inline Result<tuttiLinkConfig> link_config_of(const Hello& hello, int n_ranks) {
  const tuttiLinkConfig c{sizeof c, hello.from_rank, hello.args[0], hello.args[1], hello.args[2], 0};
  if (c.peer < 0 || c.peer >= n_ranks)
    return Error{Code::kRemoteError, format("rank %d of %d wants a link: there is no such rank", c.peer, n_ranks)};
  TUTTI_TRY(check_link_config(c));
  return c;
}

// `kind` of link: "verbs".
inline Error closed_by(int peer, const char* kind) {
  return {Code::kRemoteError,
          format("rank %d closed its %s link: its process ended or its communicator was destroyed", peer, kind), peer};
}

// Advances a sending end's connection; true once it is in *socket. `how`: "over TCP".
inline Result<bool> take_connection(Dialer& dialer, Fd* socket, int peer, const char* how, const char* remedy = "") {
  if (*socket) return true;
  const Dialer::Status status = dialer.advance();
  if (status == Dialer::Status::kPending) return false;
  if (status == Dialer::Status::kFailed)
    return Error{dialer.lacked_resources() ? Code::kSystemError : Code::kRemoteError,
                 format("rank %d cannot be reached %s: %s%s", peer, how, dialer.story().c_str(), remedy), peer};
  *socket = dialer.take();
  return true;
}

// Adds a descriptor to those that a rank sleeps on.
inline void add_wait(tuttiWait* wait, int fd, short events) {
  if (wait->fd < 0)
    wait->fd = fd, wait->events = events;
  else
    wait->more[wait->n_more++] = {fd, events};
}

// Before sleeping until the dialer can advance.
inline bool wait_for(const Dialer& dialer, tuttiWait* wait) {
  *wait = {dialer.fd(), dialer.events()};
  return wait->fd >= 0;
}

// The connection beside a link whose messages go another way: its ends meet there, and learn of each other's death.
struct SideConnection {
  // Makes a system call. True: the peer has closed the connection.
  bool look() {
    char some[512];
    ssize_t n = 0;
    while (!closed && (n = ::recv(socket.get(), some, sizeof some, MSG_DONTWAIT)) > 0)
      inbox.append(some, static_cast<size_t>(n));
    return closed = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }
  // Takes the next item that the peer has said; false until look() has received all of it.
  template <class T>
  bool take(T* what) {
    if (inbox.size() < sizeof *what) return false;
    memcpy(what, inbox.data(), sizeof *what);
    inbox.erase(0, sizeof *what);
    return true;
  }
  // The socket always has room for the little that is ever said. False: the peer has gone.
  template <class T>
  bool say(const T& what) const {
    return ::send(socket.get(), &what, sizeof what, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof what;
  }

  Fd socket;
  bool closed = false;     // by the peer, as of the last look
  std::string inbox = {};  // received and not yet taken
};

// Base of endpoints whose links begin with an authenticated connection: they dial peers and accept their calls.
class DiallingEndpoint {
 public:
  void narrow(bool here, bool elsewhere) { acceptor_.narrow(here, elsewhere); }
  std::optional<Error> shortage() const { return acceptor_.shortage(); }
  Dialer::Call call_to(const tuttiLinkConfig& link) const {
    return {key_, kind_, rank_, link.peer, to_hello_args(link)};
  }

 protected:
  DiallingEndpoint(const tuttiEndpointConfig& config, HelloKind kind, Listener listener)
      : contact_(std::move(listener.contact)),
        n_ranks_(config.n_ranks),
        acceptor_(std::move(listener.fds), key_of(config), kind, config.rank),
        key_(key_of(config)),
        kind_(kind),
        rank_(config.rank) {}
  // The contact as bytes, with few enough addresses to leave room in the endpoint's address.
  std::string short_contact() const {
    constexpr size_t kMostAddresses = 20;
    Contact some = contact_;
    if (some.addresses.size() > kMostAddresses) some.addresses.resize(kMostAddresses);
    return some.to_bytes();
  }

  const Contact contact_;
  const int n_ranks_;
  Acceptor acceptor_;

 private:
  const Key key_;
  const HelloKind kind_;
  const int rank_;
};

// The first complete link of authenticated connections that still have something to send. `take_in` returns the link,
// null until the rest has arrived, or why the connection is refused.
template <class Incoming, class TakeIn>
std::unique_ptr<LinkHalf> first_link(std::list<Incoming>& incoming, const char* what, TakeIn&& take_in) {
  for (auto i = incoming.begin(); i != incoming.end();) {
    Result<std::unique_ptr<LinkHalf>> link = take_in(*i);
    if (link && link.value() == nullptr) {
      ++i;
      continue;
    }
    if (!link)
      log(LogLevel::kWarn, "refused a %s from rank %d: %s", what, i->hello.from_rank, link.error().message.c_str());
    i = incoming.erase(i);
    if (link) return std::move(link).value();
  }
  return nullptr;
}

// Sender and Receiver: its link classes. They are final, so calls need no virtual dispatch.
template <class EndpointClass, class Sender, class Receiver>
struct TransportTable {
  static EndpointClass* self(tuttiEndpoint* endpoint) { return reinterpret_cast<EndpointClass*>(endpoint); }
  static LinkHalf* self(tuttiLink* link) { return reinterpret_cast<LinkHalf*>(link); }
  static Sender* sender(tuttiLink* link) { return static_cast<Sender*>(self(link)); }
  static Receiver* receiver(tuttiLink* link) { return static_cast<Receiver*>(self(link)); }
  static tuttiLink* give(std::unique_ptr<LinkHalf> link) { return reinterpret_cast<tuttiLink*>(link.release()); }

  static tuttiResult_t endpoint_open(const tuttiEndpointConfig* config, tuttiEndpoint** endpoint,
                                     tuttiEndpointInfo* info, tuttiTransportError* error) {
    auto opened = EndpointClass::open(whole(*config));
    if (!opened) return report(opened.error(), error);
    const std::string address = opened.value()->address();
    info->address_bytes = static_cast<uint32_t>(address.copy(info->address, sizeof info->address));
    const Speed speed = opened.value()->speed();
    info->latency_ns = speed.latency_ns;
    info->bytes_per_second = speed.bytes_per_second;
    *endpoint = reinterpret_cast<tuttiEndpoint*>(std::move(opened).value().release());
    return tuttiSuccess;
  }
  static int endpoint_reaches(tuttiEndpoint* endpoint, const void* peer, uint32_t bytes, char* why, size_t why_bytes) {
    const std::string reason = self(endpoint)->unreachable_because({static_cast<const char*>(peer), bytes});
    if (!reason.empty()) snprintf(why, why_bytes, "%s", reason.c_str());
    return reason.empty();
  }
  static tuttiResult_t connect(tuttiEndpoint* endpoint, const tuttiLinkConfig* config, const void* peer, uint32_t bytes,
                               tuttiLink** link, tuttiTransportError* error) {
    if (auto checked = check_link_config(*config); !checked) return report(checked.error(), error);
    auto connected = self(endpoint)->connect(*config, {static_cast<const char*>(peer), bytes});
    if (!connected) return report(connected.error(), error);
    *link = give(std::move(connected).value());
    return tuttiSuccess;
  }
  static tuttiResult_t accept(tuttiEndpoint* endpoint, tuttiLink** link, tuttiLinkConfig* config,
                              tuttiTransportError* error) {
    *link = give(self(endpoint)->accept(config));
    if constexpr (requires { self(endpoint)->shortage(); }) {
      const std::optional<Error> shortage = *link == nullptr ? self(endpoint)->shortage() : std::nullopt;
      if (shortage) return report(*shortage, error);
    }
    return tuttiSuccess;
  }

  static tuttiResult_t link_poll(tuttiLink* link, tuttiLinkState* state, tuttiTransportError* error) {
    auto ready = self(link)->poll();
    if (state != nullptr) self(link)->fill(state);
    if (ready) return ready.value() ? tuttiSuccess : tuttiInProgress;
    if (state != nullptr && state->struct_bytes >= sizeof *state)
      state->culprit_plus_1 = static_cast<uint32_t>(ready.error().culprit_rank + 1);
    return report(ready.error(), error);
  }
  static tuttiResult_t read(tuttiLink* link, const void** data, tuttiTransportError* error) {
    auto found = receiver(link)->read();
    if (!found) return report(found.error(), error);
    *data = found.value();
    return tuttiSuccess;
  }
  static int endpoint_registers(tuttiEndpoint* endpoint, const void* data, uint64_t bytes, char* why,
                                size_t why_bytes) {
    const Result<void> registered = self(endpoint)->registers(data, bytes);
    if (!registered) snprintf(why, why_bytes, "%s", registered.error().message.c_str());
    return registered ? 1 : 0;
  }
};

template <class EndpointClass, class Sender, class Receiver>
constexpr tuttiTransport make_transport(const char* name) {
  using T = TransportTable<EndpointClass, Sender, Receiver>;
  tuttiTransport table{
      .abi_version = TUTTI_TRANSPORT_ABI_VERSION,
      .struct_bytes = sizeof(tuttiTransport),
      .name = name,
      .endpoint_open = T::endpoint_open,
      .endpoint_close = [](tuttiEndpoint* endpoint) { delete T::self(endpoint); },
      .connect = T::connect,
      .accept = T::accept,
      .endpoint_reaches = T::endpoint_reaches,
      .link_poll = T::link_poll,
      .link_close = [](tuttiLink* link) { delete T::self(link); },
      .revoke = [](tuttiLink* link) { T::self(link)->revoke(); },
      .wait_begin = [](tuttiLink* link, tuttiWait* wait) -> int { return T::self(link)->wait_begin(wait); },
      .wait_end = [](tuttiLink* link) { T::self(link)->wait_end(); },
      .acquire = [](tuttiLink* link, const void* data, uint32_t bytes, tuttiPosting posting,
                    void** at) { return T::sender(link)->acquire(data, bytes, posting, at); },
      .publish = [](tuttiLink* link, const void* data, uint32_t bytes,
                    const tuttiTag* tag) { return T::sender(link)->publish(data, bytes, *tag); },
      .peek = [](tuttiLink* link, tuttiMessage* message) -> int { return T::receiver(link)->peek(message); },
      .release = [](tuttiLink* link) { T::receiver(link)->release(); },
  };
  if constexpr (requires { &Sender::push; })
    table.push = [](tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag* tag) {
      return T::sender(link)->push(data, bytes, *tag);
    };
  if constexpr (requires { &Receiver::post; })
    table.post = [](tuttiLink* link, uint32_t ahead, void* to, uint32_t bytes, int required) -> int {
      return T::receiver(link)->post(ahead, to, bytes, required != 0);
    };
  if constexpr (requires { &Receiver::match; })
    table.match = [](tuttiLink* link, uint32_t bytes, const tuttiTag* tag) {
      return T::receiver(link)->match(bytes, *tag);
    };
  if constexpr (requires { &Receiver::read; }) table.read = T::read;
  if constexpr (requires(EndpointClass & endpoint) { endpoint.narrow(true, true); })
    table.endpoint_narrow = [](tuttiEndpoint* endpoint, int here, int elsewhere) {
      T::self(endpoint)->narrow(here != 0, elsewhere != 0);
    };
  if constexpr (requires(EndpointClass & endpoint) { endpoint.registers(nullptr, 0); })
    table.endpoint_registers = T::endpoint_registers;
  return table;
}

}  // namespace tutti
