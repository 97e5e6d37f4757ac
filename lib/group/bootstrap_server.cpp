#include "group/bootstrap_server.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/thread.h"
#include "group/blobs.h"

namespace tutti {
namespace {

constexpr int64_t kJoinLimitNs = 5'000'000'000;  // from accept to Join
// Where there is no room for a new connection, the oldest is dropped after this: if it said nothing, or half its words.
constexpr int64_t kSilenceNs = 100'000'000, kHurryNs = 1'000'000'000;
constexpr size_t kMaxPending = 256;           // connections that have not joined
constexpr size_t kMostMisfits = 8;            // named at the end
constexpr int kAcceptsPerTurn = 64;           // so that a flood of connections cannot starve those that are in
constexpr double kAcceptPauseSeconds = 0.05;  // when there is no descriptor or no room for one more
constexpr uint64_t kIsDoor = 1;               // in what epoll tells; clients are told by their address

}  // namespace

FrameServer::FrameServer(std::vector<Fd> listening, const Key& key, Deadline deadline)
    : key_(key), deadline_(deadline), epoll_(::epoll_create1(EPOLL_CLOEXEC)), listening_(std::move(listening)) {}

void FrameServer::run() {
  constexpr int kLongMs = 1000;
  while (!finished()) turn(kLongMs);
  for (Client& client : clients_) ::shutdown(client.fd.get(), SHUT_RDWR);
}

void FrameServer::turn(int most_ms) {
  wait(most_ms);
  drop_late();
  if (std::exchange(any_closed_, false)) clients_.remove_if([](const Client& client) { return client.closed; });
  answer_own_ranks();
  look_at_clock();
}

void FrameServer::wait(int most_ms) {
  const bool accepts = accept_again_.passed();
  watch_doors(accepts);
  const int cap_ms = std::min(most_ms, !accepts ? 50 : n_pending_ > 0 ? 200 : most_ms);
  const int left_ms = std::min(
      {deadline_.passed() ? cap_ms : deadline_.left_ms(cap_ms), stop_at_.left_ms(cap_ms), tell_at_.left_ms(cap_ms)});
  epoll_event events[64];
  const int n = ::epoll_wait(epoll_.get(), events, std::size(events), left_ms);
  for (int i = 0; i < n; i++) {
    const uint64_t whose = events[i].data.u64;
    if ((whose & kIsDoor) != 0)
      accept_clients(static_cast<int>(whose >> 1));
    else
      serve(*reinterpret_cast<Client*>(whose));
  }
}

void FrameServer::watch_doors(bool wanted) {
  if (wanted == watches_doors_) return;
  watches_doors_ = wanted;
  for (const Fd& door : listening_) {
    epoll_event event{EPOLLIN, {.u64 = (static_cast<uint64_t>(door.get()) << 1) | kIsDoor}};
    ::epoll_ctl(epoll_.get(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, door.get(), &event);
  }
}

void FrameServer::stop_listening() {
  watch_doors(false);
  listening_.clear();
}

void FrameServer::watch(Client& client) {
  const bool writes = client.authenticated ? !client.out.empty() : client.handshake.wants_write();
  const uint32_t events = EPOLLIN | (writes ? uint32_t{EPOLLOUT} : 0);
  if (client.closed || events == client.events) return;
  epoll_event event{events, {.u64 = reinterpret_cast<uint64_t>(&client)}};
  ::epoll_ctl(epoll_.get(), client.events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, client.fd.get(), &event);
  client.events = events;
}

void FrameServer::accept_clients(int door) {
  for (int i = 0; i < kAcceptsPerTurn; i++) {
    const bool room = n_pending_ < kMaxPending || make_room();
    Fd fd = room ? accept_one(door) : Fd();
    if (!fd) {
      if (room && (errno == EMFILE || errno == ENFILE)) lack_descriptors(errno);
      if (!room || errno == EAGAIN) short_since_.reset();
      // Somebody waits: without a pause, a lack of descriptors would make this loop spin.
      if (i == 0) accept_again_ = Deadline::after_seconds(kAcceptPauseSeconds);
      return;
    }
    short_since_.reset();
    n_pending_++;
    watch(clients_.emplace_back(std::move(fd), key_));
  }
}

FrameServer::Client& FrameServer::add(Fd fd, std::unique_ptr<SecureChannel> channel) {
  Client& client = clients_.emplace_back(std::move(fd), key_);
  client.channel = std::move(channel);
  client.authenticated = client.known = true;
  watch(client);
  return client;
}

// Others may give some back.
void FrameServer::lack_descriptors(int why) {
  constexpr int64_t kPatienceNs = 1'000'000'000;
  if (make_room()) return;
  if (!short_since_) short_since_ = now_ns();
  if (now_ns() - *short_since_ < kPatienceNs) return;
  report_to_all(system_error("the group's root could not take in all ranks: accept", why));
}

// Silent connections must not keep honest ranks out: the oldest goes. Not one whose words have come and were not read
// yet: that rank takes itself to be in.
bool FrameServer::make_room() {
  for (Client& client : clients_) {
    if (client.closed || client.authenticated) continue;
    advance_handshake(client);
    if (client.closed) return true;
    if (client.authenticated) continue;
    if (now_ns() - client.since_ns < (client.handshake.heard() ? kHurryNs : kSilenceNs)) continue;
    forget(client);
    return true;
  }
  return false;
}

void FrameServer::drop_late() {
  constexpr int64_t kEveryNs = 100'000'000;
  if (n_pending_ == 0 || now_ns() - dropped_late_ns_ < kEveryNs) return;
  dropped_late_ns_ = now_ns();
  for (Client& client : clients_)
    if (is_pending(client) && now_ns() - client.since_ns > kJoinLimitNs) forget(client);
}

void FrameServer::forget(Client& client) {
  if (client.closed) return;
  client.closed = any_closed_ = true;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client.fd.get(), nullptr);
  // Not only close: a forked child may hold a copy of the descriptor.
  ::shutdown(client.fd.get(), SHUT_RDWR);
  if (is_pending(client)) n_pending_--;
  if (client.known) lose(client);
}

void FrameServer::serve(Client& client) {
  if (!client.authenticated && !client.closed) advance_handshake(client);
  if (client.authenticated && !client.closed) {
    if (client.draining)
      drain(client);
    else
      read_frames(client);
    flush(client);
  }
  watch(client);
}

void FrameServer::advance_handshake(Client& client) {
  switch (client.handshake.advance(client.fd.get())) {
    case Handshake::Status::kPending: return;
    case Handshake::Status::kDone:
      client.authenticated = true;
      client.channel = client.handshake.take_channel();
      let_in(client);
      return;
    case Handshake::Status::kFailed: break;
  }
  const std::string who = peer_name(client.fd.get());
  log(LogLevel::kInfo, "the group's root dropped a connection from %s: %s", who.c_str(),
      client.handshake.why().c_str());
  // Each attempt comes from another port.
  const std::string host = who.substr(0, who.rfind(':'));
  if (client.handshake.is_misfit() && misfits_.size() < kMostMisfits) misfits_[host] = client.handshake.why();
  forget(client);
}

void FrameServer::read_frames(Client& client) {
  while (!client.closed && !client.draining) {
    const auto status = client.in.read(client.fd.get(), client.channel.get());
    if (status == FrameReader::Status::kPending) return;
    if (status == FrameReader::Status::kClosed) return forget(client);
    std::string body = client.in.take_body();
    FrameKind kind = client.in.kind();
    if (kind == FrameKind::kBlob && client.is_relay && client.first_blob.empty()) client.first_blob = body;
    if (kind == FrameKind::kLike) {
      std::string blob = client.first_blob;
      if (!patch(&blob, body)) return forget(client);
      kind = FrameKind::kBlob;
      body = std::move(blob);
    }
    if (!take(client, kind, client.in.rank(), std::move(body))) forget(client);
  }
}

// Closing a socket with unread bytes would throw away the report that is on its way: so read until the other side
// closes.
void FrameServer::drain(Client& client) {
  char scrap[4096];
  for (;;) {
    const ssize_t n = ::recv(client.fd.get(), scrap, sizeof scrap, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    return forget(client);
  }
}

void FrameServer::greet(Client& client, const JoinMessage& join) {
  client.rank = join.rank;
  client.who = who_is(join);
  client.is_own = client.who == who_is(make_join(join.rank, join.n_ranks, 0));
  if (is_pending(client)) n_pending_--;
  client.known = true;
  if (report_) send_last(client, *report_);
}

void FrameServer::send(Client& client, Frame frame) {
  if (client.closed || client.draining) return;
  client.out.push_back(std::move(frame));
  flush(client);
  watch(client);
}

void FrameServer::send_last(Client& client, Frame frame) {
  send(client, std::move(frame));
  if (is_pending(client)) n_pending_--;
  client.draining = true;
}

void FrameServer::flush(Client& client) {
  while (!client.closed && !client.out.empty()) {
    const Frame& frame = client.out.front();
    const std::string& bytes = *frame.bytes;
    ssize_t n;
    if (frame.descriptor != nullptr && client.out_sent == 0)
      n = send_with_descriptor(client.fd.get(), bytes.data(), bytes.size(), *frame.descriptor)
              ? static_cast<ssize_t>(bytes.size())
              : -1;
    else
      n = send_some(client.fd.get(), client.channel.get(), bytes.data() + client.out_sent,
                    bytes.size() - client.out_sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // full: epoll calls again; broken: the next read shows it
    client.out_sent += static_cast<size_t>(n);
    if (client.out_sent < bytes.size()) continue;
    client.out.pop_front();
    client.out_sent = 0;
  }
}

void FrameServer::send_to_all(const Frame& frame, const Frame& to_relays) {
  own_answer_ = Answer{frame, to_relays};
  for (Client& client : clients_)
    if (client.rank >= 0 && !client.is_own) send(client, own_answer_->to(client));
  answer_own_ranks();
}

void FrameServer::answer_own_ranks() {
  if (!own_answer_) return;
  for (const Client& client : clients_)
    if (client.rank >= 0 && !client.is_own && !client.closed && !client.out.empty()) return;
  const Answer answer = *std::exchange(own_answer_, std::nullopt);
  for (Client& client : clients_)
    if (client.rank >= 0 && client.is_own) send(client, answer.to(client));
}

void FrameServer::report_to_all(const Error& error) {
  if (report_) return;
  log(LogLevel::kInfo, "the group's root gives up: %s", error.message.c_str());
  report_ = Frame{std::make_shared<std::string>(make_frame(FrameKind::kReport, pack_report(error)))};
  const std::optional<Answer> decided_before = std::exchange(own_answer_, std::nullopt);
  for (const bool own : {false, true}) {
    for (Client& client : clients_) {
      if (client.rank < 0 || client.is_own != own) continue;
      if (own && decided_before) send(client, decided_before->to(client));
      send_last(client, *report_);
    }
  }
}

bool FrameServer::is_anyone_here() const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const Client& client) { return !client.closed && (client.rank >= 0 || client.draining); });
}

Result<void> spawn(std::unique_ptr<FrameServer> server) {
  if (server->fd() < 0) return system_error("epoll_create1", EMFILE);
  auto serve = [server = std::move(server)] {
    try {
      server->run();
    } catch (const std::exception& e) {  // out of memory: the ranks see the connection close
      log(LogLevel::kError, "the group's root stopped: %s", e.what());
    }
  };
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the application's signal handlers do not run in this thread
  auto thread = start_thread("the thread that serves the group's root", std::move(serve));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread) return std::move(thread).error();
  thread.value().detach();
  return {};
}

}  // namespace tutti
