#include "group/bootstrap_server.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/thread.h"
#include "group/blobs.h"

namespace tutti {
namespace {

constexpr int64_t kJoinLimitNs = 5'000'000'000;  // from accept to Join
// Where there is no room for a new connection, the oldest is dropped after this: if it said nothing, or half its words.
constexpr int64_t kSilenceNs = 100'000'000, kHurryNs = 1'000'000'000;
constexpr size_t kMaxPending = 256;  // connections that have not joined
constexpr size_t kMostMisfits = 8;   // named at the end
constexpr int kAcceptsPerTurn = 64;  // so that a flood of connections cannot starve those that are in

}  // namespace

bool ListeningSockets::watch(bool wanted) {
  if (std::exchange(watches_, wanted) == wanted) return wanted;
  for (const Fd& door : listening_) {
    epoll_event event{EPOLLIN, {.u64 = (static_cast<uint64_t>(door.get()) << 1) | kIsDoor}};
    ::epoll_ctl(epoll_, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, door.get(), &event);
  }
  return wanted;
}

FrameConnection::FrameConnection(Fd fd, const Key& key, int epoll)
    : fd_(std::move(fd)), epoll_(epoll), handshake_(Handshake::server(key, HelloKind::kBootstrap, -1)) {
  watch();
}

FrameConnection::FrameConnection(Fd fd, std::unique_ptr<SecureChannel> channel, uint64_t most_bytes, int epoll)
    : fd_(std::move(fd)), epoll_(epoll), channel_(std::move(channel)), stage_(Stage::kOpen), in_(most_bytes) {
  watch();
}

Handshake::Status FrameConnection::advance_handshake() {
  const auto status = handshake_->advance(fd_.get());
  if (status == Handshake::Status::kDone) {
    stage_ = Stage::kOpen;
    channel_ = handshake_->take_channel();
  }
  return status;
}

void FrameConnection::send(Frame frame) {
  if (stage_ != Stage::kOpen) return;
  out_.push_back(std::move(frame));
  flush();
  watch();
}

void FrameConnection::send_last(Frame frame) {
  send(std::move(frame));
  if (stage_ == Stage::kOpen) stage_ = Stage::kDraining;
}

void FrameConnection::flush() {
  for (; !out_.empty(); out_.pop_front(), out_sent_ = 0) {
    const Frame& frame = out_.front();
    const std::string& bytes = *frame.bytes;
    if (frame.descriptor != nullptr && out_sent_ == 0) {
      if (!send_with_descriptor(fd_.get(), bytes.data(), bytes.size(), *frame.descriptor)) return;
      continue;
    }
    // Full: epoll calls again; broken: the next read shows it.
    if (send_rest(fd_.get(), channel_.get(), bytes.data(), bytes.size(), &out_sent_) != Moved::kAll) return;
  }
}

// Closing a socket with unread bytes would throw away the report that is on its way: so read until the other side
// closes.
bool FrameConnection::drain() {
  char scrap[4096];
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), scrap, sizeof scrap, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

void FrameConnection::watch() {
  const bool writes = stage_ == Stage::kHandshake ? handshake_->wants_write() : has_unsent();
  const uint32_t events = EPOLLIN | (writes ? uint32_t{EPOLLOUT} : 0);
  if (stage_ == Stage::kClosed || events == events_) return;
  epoll_event event{events, {.u64 = reinterpret_cast<uint64_t>(this)}};
  ::epoll_ctl(epoll_, events_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd_.get(), &event);
  events_ = events;
}

void FrameConnection::close() {
  stage_ = Stage::kClosed;
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd_.get(), nullptr);
  // Not only close: a forked child may hold a copy of the descriptor.
  ::shutdown(fd_.get(), SHUT_RDWR);
}

void Broadcast::answer(const Frame& to_ranks, const Frame& to_relays) {
  own_answer_ = Answer{to_ranks, to_relays};
  for (BootstrapClient& client : clients_)
    if (client.rank >= 0 && !client.is_own) client.send((*own_answer_)[client.is_relay]);
  answer_own_ranks();
}

void Broadcast::answer_own_ranks() {
  if (!own_answer_) return;
  for (const BootstrapClient& client : clients_)
    if (client.rank >= 0 && !client.is_own && client.stage() != FrameConnection::Stage::kClosed && client.has_unsent())
      return;
  const Answer answer = *std::exchange(own_answer_, std::nullopt);
  for (BootstrapClient& client : clients_)
    if (client.rank >= 0 && client.is_own) client.send(answer[client.is_relay]);
}

void Broadcast::report(const Error& error) {
  if (report_) return;
  log(LogLevel::kInfo, "the group's root gives up: %s", error.message.c_str());
  report_ = Frame{std::make_shared<std::string>(make_frame(FrameKind::kReport, pack_report(error)))};
  const std::optional<Answer> decided_before = std::exchange(own_answer_, std::nullopt);
  for (const bool own : {false, true}) {
    for (BootstrapClient& client : clients_) {
      if (client.rank < 0 || client.is_own != own) continue;
      if (own && decided_before) client.send((*decided_before)[client.is_relay]);
      client.send_last(*report_);
    }
  }
}

FrameServer::FrameServer(std::vector<Fd> listening, const Key& key, Deadline deadline)
    : key_(key),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      deadline_(deadline),
      listening_(std::move(listening), epoll_.get()) {}

void FrameServer::run() {
  constexpr int kLongMs = 1000;
  while (!finished()) turn(kLongMs);
  for (Client& client : clients_) ::shutdown(client.fd(), SHUT_RDWR);
}

void FrameServer::turn(int most_ms) {
  wait(most_ms);
  drop_late();
  if (std::exchange(any_closed_, false))
    clients_.remove_if([](const Client& client) { return client.stage() == Client::Stage::kClosed; });
  broadcast_.answer_own_ranks();
  look_at_clock();
}

void FrameServer::wait(int most_ms) {
  const int cap_ms = std::min(most_ms, !listening_.open() ? 50 : n_pending_ > 0 ? 200 : most_ms);
  const int left_ms = std::min(deadline_.passed() ? cap_ms : deadline_.left_ms(cap_ms), look_at_.left_ms(cap_ms));
  epoll_event events[64];
  const int n = ::epoll_wait(epoll_.get(), events, std::size(events), left_ms);
  for (int i = 0; i < n; i++) {
    const uint64_t whose = events[i].data.u64;
    if ((whose & ListeningSockets::kIsDoor) != 0)
      accept_clients(static_cast<int>(whose >> 1));
    else
      serve(static_cast<Client&>(*reinterpret_cast<FrameConnection*>(whose)));
  }
}

void FrameServer::accept_clients(int door) {
  for (int i = 0; i < kAcceptsPerTurn; i++) {
    const bool room = n_pending_ < kMaxPending || make_room();
    Fd fd = room ? accept_one(door) : Fd();
    if (!fd) {
      if (room && (errno == EMFILE || errno == ENFILE)) lack_descriptors(errno);
      if (!room || errno == EAGAIN) short_since_.reset();
      // Somebody waits: without a pause, a lack of descriptors would make this loop spin.
      if (i == 0) listening_.pause();
      return;
    }
    short_since_.reset();
    n_pending_++;
    clients_.emplace_back(std::move(fd), key_, epoll_.get());
  }
}

FrameServer::Client& FrameServer::add(Fd fd, std::unique_ptr<SecureChannel> channel, uint64_t most_bytes) {
  Client& client = clients_.emplace_back(std::move(fd), std::move(channel), most_bytes, epoll_.get());
  client.known = true;
  return client;
}

// Others may give some back.
void FrameServer::lack_descriptors(int why) {
  constexpr int64_t kPatienceNs = 1'000'000'000;
  if (make_room()) return;
  if (!short_since_) short_since_ = now_ns();
  if (now_ns() - *short_since_ < kPatienceNs) return;
  broadcast_.report(system_error("the group's root could not take in all ranks: accept", why));
}

// Silent connections must not keep honest ranks out: the oldest goes. Not one whose words have come and were not read
// yet: that rank takes itself to be in.
bool FrameServer::make_room() {
  for (Client& client : clients_) {
    if (client.stage() != Client::Stage::kHandshake) continue;
    advance_handshake(client);
    if (client.stage() == Client::Stage::kClosed) return true;
    if (client.stage() != Client::Stage::kHandshake) continue;
    if (client.age_ns() < (client.handshake().heard() ? kHurryNs : kSilenceNs)) continue;
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
    if (!client.known && client.age_ns() > kJoinLimitNs) forget(client);
}

void FrameServer::forget(Client& client) {
  if (client.stage() == Client::Stage::kClosed) return;
  client.close();
  any_closed_ = true;
  if (client.known)
    lose(client);
  else
    n_pending_--;
}

void FrameServer::serve(Client& client) {
  if (client.stage() == Client::Stage::kHandshake) advance_handshake(client);
  if (client.stage() == Client::Stage::kDraining && !client.drain()) forget(client);
  read_frames(client);
  if (client.stage() == Client::Stage::kOpen || client.stage() == Client::Stage::kDraining) client.flush();
  client.watch();
}

void FrameServer::advance_handshake(Client& client) {
  switch (client.advance_handshake()) {
    case Handshake::Status::kPending: return;
    case Handshake::Status::kDone: return let_in(client);
    case Handshake::Status::kFailed: break;
  }
  const std::string who = peer_name(client.fd());
  const std::string& why = client.handshake().why();
  log(LogLevel::kInfo, "the group's root dropped a connection from %s: %s", who.c_str(), why.c_str());
  // Each attempt comes from another port.
  const std::string host = who.substr(0, who.rfind(':'));
  if (client.handshake().is_misfit() && misfits_.size() < kMostMisfits) misfits_[host] = why;
  forget(client);
}

void FrameServer::read_frames(Client& client) {
  while (client.stage() == Client::Stage::kOpen) {
    const auto status = client.read();
    if (status == FrameReader::Status::kPending) return;
    if (status == FrameReader::Status::kClosed) return forget(client);
    FrameKind kind = client.in().kind();
    std::string body = client.in().take_body();
    if (kind == FrameKind::kBlob && client.is_relay && client.first_blob.empty()) client.first_blob = body;
    if (kind == FrameKind::kLike) {
      std::string blob = client.first_blob;
      if (!patch(&blob, body)) return forget(client);
      kind = FrameKind::kBlob;
      body = std::move(blob);
    }
    if (!take(client, kind, client.in().rank(), std::move(body))) forget(client);
  }
}

void FrameServer::greet(Client& client, const JoinMessage& join) {
  client.rank = join.rank;
  client.who = who_is(join);
  client.is_own = client.who == who_is(make_join(join.rank, join.n_ranks, 0));
  if (!client.known) n_pending_--;
  client.known = true;
  if (broadcast_.report()) client.send_last(*broadcast_.report());
}

bool FrameServer::is_anyone_here() const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const Client& client) { return client.stage() != Client::Stage::kClosed && client.rank >= 0; });
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
