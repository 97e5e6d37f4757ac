#include "group/bootstrap_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "base/log.h"
#include "base/socket.h"
#include "base/thread.h"
#include "group/blobs.h"

namespace tutti {

FrameConnection::FrameConnection(Fd fd, std::unique_ptr<SecureChannel> channel, uint64_t most_bytes,
                                 WatchedSet& watched)
    : fd_(std::move(fd)), watched_(watched), channel_(std::move(channel)), in_(most_bytes) {
  watch();
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
    // If the socket is full, epoll reports when there is room; if it is broken, the next read shows it.
    if (send_rest(fd_.get(), channel_.get(), bytes.data(), bytes.size(), &out_sent_) != Moved::kAll) return;
  }
}

// Closing a socket with unread bytes would discard the report that is on its way: so read until the other side closes.
bool FrameConnection::drain() {
  char scrap[4096];
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), scrap, sizeof scrap, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

void FrameConnection::watch() {
  const uint32_t events = EPOLLIN | (has_unsent() ? uint32_t{EPOLLOUT} : 0);
  if (stage_ == Stage::kClosed || events == events_) return;
  if (watched_.watch(fd_.get(), events, this)) events_ = events;
}

void FrameConnection::close() {
  stage_ = Stage::kClosed;
  ::epoll_ctl(watched_.epoll.get(), EPOLL_CTL_DEL, fd_.get(), nullptr);
  // Closing is not enough: a forked child may hold a copy of the descriptor.
  ::shutdown(fd_.get(), SHUT_RDWR);
}

FrameServer::FrameServer(std::vector<Fd> listening, const Key& key, Deadline deadline)
    : watched_{Fd(::epoll_create1(EPOLL_CLOEXEC))},
      deadline_(deadline),
      acceptor_(std::move(listening), key, HelloKind::kBootstrap, -1) {
  watch_strangers();
}

void FrameServer::run() {
  constexpr int kLongMs = 1000;
  while (!finished()) turn(kLongMs);
  for (Client& client : clients_) ::shutdown(client.fd(), SHUT_RDWR);
}

void FrameServer::turn(int most_ms) {
  wait(most_ms);
  if (std::exchange(any_closed_, false))
    clients_.remove_if([](const Client& client) { return client.stage() == Client::Stage::kClosed; });
  answer_own_ranks();
  look_at_clock();
}

void FrameServer::wait(int most_ms) {
  constexpr int kAgainMs = 20;
  const bool tries_again = std::exchange(watched_.lacks_room, false);
  if (tries_again) most_ms = std::min(most_ms, kAgainMs);
  const int cap_ms = std::min(most_ms, acceptor_.is_full() ? 50 : acceptor_.has_pending() ? 200 : most_ms);
  const int left_ms = std::min(deadline_.passed() ? cap_ms : deadline_.left_ms(cap_ms), look_at_.left_ms(cap_ms));
  epoll_event events[64];
  const int n = ::epoll_wait(watched_.epoll.get(), events, std::size(events), left_ms);
  bool any_strangers = tries_again || acceptor_.is_full() || acceptor_.has_pending();
  for (int i = 0; i < n; i++) {
    any_strangers |= events[i].data.ptr == nullptr;
    if (events[i].data.ptr != nullptr) serve(static_cast<Client&>(*static_cast<FrameConnection*>(events[i].data.ptr)));
  }
  if (tries_again)
    for (Client& client : clients_)
      if (client.stage() != Client::Stage::kClosed) serve(client);
  if (any_strangers) take_in();
}

// Takes in connections that have authenticated.
void FrameServer::take_in() {
  while (auto accepted = acceptor_.next())
    let_in(clients_.emplace_back(std::move(accepted->fd), std::move(accepted->channel), kMaxBlobBytes, watched_));
  if (const auto shortage = acceptor_.shortage())
    report(system_error(serving_process() + " could not accept all of them", shortage->sys_errno));
  watch_strangers();
}

// The epoll data of listening sockets and of connections that have not authenticated yet is a null pointer.
void FrameServer::watch_strangers() {
  std::vector<pollfd> strangers;
  acceptor_.add_waiting(&strangers);
  for (const pollfd& p : strangers) watched_.watch(p.fd, static_cast<uint32_t>(p.events), nullptr);
}

FrameServer::Client& FrameServer::add(Fd fd, std::unique_ptr<SecureChannel> channel, uint64_t most_bytes) {
  Client& client = clients_.emplace_back(std::move(fd), std::move(channel), most_bytes, watched_);
  client.known = true;
  return client;
}

void FrameServer::forget(Client& client) {
  if (client.stage() == Client::Stage::kClosed) return;
  client.close();
  any_closed_ = true;
  if (client.known) lose(client);
}

void FrameServer::serve(Client& client) {
  if (client.stage() == Client::Stage::kDraining && !client.drain()) forget(client);
  read_frames(client);
  if (client.stage() == Client::Stage::kOpen || client.stage() == Client::Stage::kDraining) client.flush();
  client.watch();
}

void FrameServer::read_frames(Client& client) {
  while (client.stage() == Client::Stage::kOpen) {
    const auto status = client.read();
    if (status == FrameReader::Status::kPending) return;
    if (status != FrameReader::Status::kFrame) return forget(client);
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
  client.known = true;
  if (report_) client.send_last(*report_);
}

void FrameServer::answer(const Frame& to_ranks, const Frame& to_relays) {
  own_answer_ = Answer{to_ranks, to_relays};
  for (Client& client : clients_)
    if (client.rank >= 0 && !client.is_own) client.send((*own_answer_)[client.is_relay]);
  answer_own_ranks();
}

void FrameServer::answer_own_ranks() {
  if (!own_answer_) return;
  for (const Client& client : clients_)
    if (client.rank >= 0 && !client.is_own && client.stage() != Client::Stage::kClosed && client.has_unsent()) return;
  const Answer answer = *std::exchange(own_answer_, std::nullopt);
  for (Client& client : clients_)
    if (client.rank >= 0 && client.is_own) client.send(answer[client.is_relay]);
}

void FrameServer::report(const Error& error) {
  if (report_) return;
  log(LogLevel::kInfo, "the group's root gives up: %s", error.message.c_str());
  report_ = Frame{std::make_shared<std::string>(make_frame(FrameKind::kReport, pack_report(error)))};
  const std::optional<Answer> decided_before = std::exchange(own_answer_, std::nullopt);
  for (const bool own : {false, true}) {
    for (Client& client : clients_) {
      if (client.rank < 0 || client.is_own != own) continue;
      if (own && decided_before) client.send((*decided_before)[client.is_relay]);
      client.send_last(*report_);
    }
  }
}

bool FrameServer::is_anyone_here() const {
  return std::ranges::any_of(
      clients_, [](const Client& client) { return client.stage() != Client::Stage::kClosed && client.rank >= 0; });
}

bool FrameServer::is_anyone_coming() const {
  return acceptor_.has_pending() || std::ranges::any_of(clients_, [](const Client& client) {
           return client.stage() != Client::Stage::kClosed && !client.known;
         });
}

std::string serving_process() {
  return "the process through which these ranks meet (" + who_is(make_join(0, 0, 0)) + ")";
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
  auto thread = start_thread("the thread that serves the group's root", std::move(serve));
  if (!thread) return std::move(thread).error();
  thread.value().detach();
  return {};
}

}  // namespace tutti
