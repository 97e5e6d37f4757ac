#include "group/bootstrap_root.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "base/dial.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/log.h"
#include "group/bootstrap.h"

namespace tutti {
namespace {

constexpr int64_t kJoinLimitNs = 5'000'000'000;  // from accept to Join
// Where there is no room for a new connection, the oldest is dropped after this: if it said nothing, or half its words.
constexpr int64_t kSilenceNs = 100'000'000, kHurryNs = 1'000'000'000;
constexpr size_t kMaxPending = 256;           // connections that have not joined
constexpr size_t kMostMisfits = 8;            // named at the end
constexpr int kAcceptsPerTurn = 64;           // so that a flood of connections cannot starve the members
constexpr double kAcceptPauseSeconds = 0.05;  // when there is no descriptor or no room for one more
constexpr double kLastWordsSeconds = 2;       // after the deadline, for the reports to arrive

bool is_pending(int rank, bool draining) {
  return rank < 0 && !draining;
}

}  // namespace

void RootServer::run() {
  while (!finished()) {
    wait();
    drop_closed_and_late();
    answer_own_ranks();
    if (deadline_.passed() && !timed_out_) report_time_out();
  }
  for (Client& client : clients_) ::shutdown(client.fd.get(), SHUT_RDWR);
}

bool RootServer::finished() {
  if (stop_at_.passed()) return true;
  if (n_ranks_ == 0 || (n_joined_ < n_ranks_ && !timed_out_)) return false;
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const Client& client) { return is_pending(client.rank, client.draining); });
}

void RootServer::wait() {
  std::vector<pollfd> polled;
  std::vector<Client*> who;
  for (Client& client : clients_) {
    const bool writes = client.authenticated ? !client.out.empty() : client.handshake.wants_write();
    polled.push_back({client.fd.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
    who.push_back(&client);
  }
  const bool accepts = accept_again_.passed();
  for (size_t i = 0; accepts && i < listening_.size(); i++) polled.push_back({listening_[i].get(), POLLIN, 0});
  const int cap_ms = !accepts ? 50 : n_pending_ > 0 ? 200 : 1000;
  const int left_ms = timed_out_ ? stop_at_.left_ms(cap_ms) : deadline_.left_ms(cap_ms);
  if (::poll(polled.data(), polled.size(), left_ms) <= 0) return;
  for (size_t i = 0; i < who.size(); i++)
    if (polled[i].revents != 0) serve(*who[i]);
  for (size_t i = who.size(); i < polled.size(); i++)
    if (polled[i].revents != 0) accept_clients(polled[i].fd);
}

void RootServer::accept_clients(int door) {
  for (int i = 0; i < kAcceptsPerTurn; i++) {
    const bool room = n_pending_ < kMaxPending || make_room();
    Fd fd = room ? accept_one(door) : Fd();
    if (!fd) {
      if (room && (errno == EMFILE || errno == ENFILE)) lack_descriptors(errno);
      if (!room || errno == EAGAIN) short_since_.reset();
      // poll said that somebody waits: without a pause, a lack of descriptors would make this loop spin.
      if (i == 0) accept_again_ = Deadline::after_seconds(kAcceptPauseSeconds);
      return;
    }
    short_since_.reset();
    clients_.emplace_back(std::move(fd), key_);
    n_pending_++;
  }
}

// Others may give some back.
void RootServer::lack_descriptors(int why) {
  constexpr int64_t kPatienceNs = 1'000'000'000;
  if (make_room()) return;
  if (!short_since_) short_since_ = now_ns();
  if (now_ns() - *short_since_ < kPatienceNs) return;
  Error error = system_error("the group's root takes in no more ranks", why);
  error.message += format("; it has %d of %d", n_joined_, n_ranks_);
  fail(std::move(error));
}

// Silent connections must not keep honest ranks out: the oldest goes. Not one whose words have come and were not read
// yet: that rank takes itself to be in.
bool RootServer::make_room() {
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

void RootServer::drop_closed_and_late() {
  for (Client& client : clients_)
    if (is_pending(client.rank, client.draining) && now_ns() - client.since_ns > kJoinLimitNs) forget(client);
  clients_.remove_if([](const Client& client) { return client.closed; });
}

void RootServer::forget(Client& client) {
  if (client.closed) return;
  client.closed = true;
  // Not only close: a forked child may hold a copy of the descriptor.
  ::shutdown(client.fd.get(), SHUT_RDWR);
  if (is_pending(client.rank, client.draining)) n_pending_--;
  if (client.rank < 0) return;
  Member& member = members_[static_cast<size_t>(client.rank)];
  member.client = nullptr;
  n_present_--;
  if (!client.has_left)
    fail({Code::kRemoteError,
          format("rank %d (%s) closed its connection before the group had formed: see its output for the reason",
                 client.rank, member.who.c_str()),
          client.rank});
}

void RootServer::serve(Client& client) {
  if (!client.authenticated && !client.closed) advance_handshake(client);
  if (!client.authenticated || client.closed) return;
  if (client.draining)
    drain(client);
  else
    read_frames(client);
  flush(client);
}

void RootServer::advance_handshake(Client& client) {
  switch (client.handshake.advance(client.fd.get())) {
    case Handshake::Status::kPending: return;
    case Handshake::Status::kDone:
      client.authenticated = true;
      client.channel = client.handshake.take_channel();
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

void RootServer::read_frames(Client& client) {
  while (!client.closed && !client.draining) {
    const auto status = client.in.read(client.fd.get(), client.channel.get());
    if (status == FrameReader::Status::kPending) return;
    if (status == FrameReader::Status::kClosed) return forget(client);
    std::string body = client.in.take_body();
    if (client.in.kind() == FrameKind::kJoin && client.rank < 0)
      on_join(client, body);
    else if (client.in.kind() == FrameKind::kBlob && client.rank >= 0)
      on_blob(client, std::move(body));
    else if (client.in.kind() == FrameKind::kLeave && client.rank >= 0)
      client.has_left = true;
    else if (client.in.kind() == FrameKind::kReport && client.rank >= 0)
      on_report(client, body);
    else
      forget(client);
  }
}

// Closing a socket with unread bytes would throw away the report that is on its way: so read until the other side
// closes.
void RootServer::drain(Client& client) {
  char scrap[4096];
  for (;;) {
    const ssize_t n = ::recv(client.fd.get(), scrap, sizeof scrap, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    return forget(client);
  }
}

void RootServer::send(Client& client, Frame frame) {
  if (client.closed || client.draining) return;
  client.out.push_back(std::move(frame));
  flush(client);
}

void RootServer::flush(Client& client) {
  while (!client.closed && !client.out.empty()) {
    const std::string& frame = *client.out.front();
    const ssize_t n = send_some(client.fd.get(), client.channel.get(), frame.data() + client.out_sent,
                                frame.size() - client.out_sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // full: poll calls again; broken: the next read shows it
    client.out_sent += static_cast<size_t>(n);
    if (client.out_sent < frame.size()) continue;
    client.out.pop_front();
    client.out_sent = 0;
  }
}

void RootServer::on_join(Client& client, const std::string& body) {
  JoinMessage join;
  if (body.size() != sizeof join) return forget(client);
  memcpy(&join, body.data(), sizeof join);
  if (join.n_ranks < 1 || join.n_ranks > kMaxRanks || join.rank < 0 || join.rank >= join.n_ranks) return forget(client);
  const std::string who = format("host %.63s pid %d", join.host, join.pid);
  if (!check_join(client, join, who)) return;
  if (n_ranks_ == 0) {
    n_ranks_ = join.n_ranks;
    first_rank_ = join.rank;
    members_.resize(static_cast<size_t>(n_ranks_));
    const size_t to_come = static_cast<size_t>(n_ranks_) - std::min(clients_.size(), static_cast<size_t>(n_ranks_));
    if (auto room = check_descriptors(open_descriptors(), to_come, "the group's root"); !room) fail(room.error());
  }
  Member& member = members_[static_cast<size_t>(join.rank)];
  member.client = &client;
  member.who = who;
  member.is_own = who == format("host %.63s pid %d", host_name().c_str(), getpid());
  client.rank = join.rank;
  n_pending_--;
  n_joined_++;
  n_present_++;
  if (join.left_ms < deadline_.left_ms(INT32_MAX)) deadline_ = Deadline::after_seconds(join.left_ms / 1e3);
  if (report_) {
    send(client, report_);
    client.draining = true;
  }
}

// Does this rank fit to those that are there? If not, all of them are told, the newcomer too.
bool RootServer::check_join(Client& client, const JoinMessage& join, const std::string& who) {
  std::string wrong;
  if (join.version != kBootstrapVersion)
    wrong = format("rank %d (%s) speaks version %u of the bootstrap protocol, the root version %u: run the same Tutti",
                   join.rank, who.c_str(), join.version, kBootstrapVersion);
  else if (n_ranks_ != 0 && join.n_ranks != n_ranks_)
    wrong =
        format("the ranks disagree about the number of ranks: rank %d (%s) says %d, rank %d (%s) says %d", first_rank_,
               members_[static_cast<size_t>(first_rank_)].who.c_str(), n_ranks_, join.rank, who.c_str(), join.n_ranks);
  else if (n_ranks_ != 0 && !members_[static_cast<size_t>(join.rank)].who.empty())
    wrong = format("rank %d is claimed by two processes: %s and %s", join.rank,
                   members_[static_cast<size_t>(join.rank)].who.c_str(), who.c_str());
  if (wrong.empty()) return true;
  const Error error{Code::kInvalidUsage, wrong, join.rank};
  send(client, std::make_shared<std::string>(make_frame(FrameKind::kReport, pack_report(error))));
  client.draining = true;
  n_pending_--;
  fail(error);
  return false;
}

void RootServer::on_blob(Client& client, std::string blob) {
  Member& member = members_[static_cast<size_t>(client.rank)];
  if (member.has_blob) return forget(client);
  member.blob = std::move(blob);
  member.has_blob = true;
  n_blobs_++;
  for (size_t r = 0; n_present_ < n_joined_ && r < members_.size(); r++) {
    if (members_[r].who.empty() || members_[r].client != nullptr) continue;
    return fail({Code::kRemoteError,
                 format("rank %zu (%s) has left, but rank %d still waits for it: see its output for the reason", r,
                        members_[r].who.c_str(), client.rank),
                 static_cast<int>(r)});
  }
  if (n_blobs_ == n_ranks_) finish_round();
}

void RootServer::on_report(const Client& client, const std::string& body) {
  Error error = unpack_report(body);
  error.message = format("rank %d (%s) could not join: %s", client.rank,
                         members_[static_cast<size_t>(client.rank)].who.c_str(), error.message.c_str());
  if (error.culprit_rank < 0) error.culprit_rank = client.rank;
  fail(std::move(error));
}

void RootServer::finish_round() {
  std::string all;
  for (Member& member : members_) {
    append_blob(&all, member.blob);
    member.blob.clear();
    member.has_blob = false;
  }
  n_blobs_ = 0;
  own_answer_ = std::make_shared<std::string>(make_frame(FrameKind::kAll, all));
  for (const Member& member : members_)
    if (member.client != nullptr && !member.is_own) send(*member.client, own_answer_);
  answer_own_ranks();
}

// A process may end as soon as its own ranks have their answer, and this thread with it: so they get theirs last.
void RootServer::answer_own_ranks() {
  if (!own_answer_) return;
  for (const Member& member : members_)
    if (member.client != nullptr && !member.is_own && !member.client->out.empty()) return;
  const Frame answer = std::exchange(own_answer_, nullptr);
  for (const Member& member : members_)
    if (member.client != nullptr && member.is_own) send(*member.client, answer);
}

void RootServer::report_time_out() {
  timed_out_ = true;
  stop_at_ = Deadline::after_seconds(kLastWordsSeconds);
  std::vector<int> absent, silent;
  for (int r = 0; r < n_ranks_; r++) {
    const Member& member = members_[static_cast<size_t>(r)];
    if (member.who.empty()) absent.push_back(r);
    if (!member.who.empty() && !member.has_blob) silent.push_back(r);
  }
  std::string text;
  if (!absent.empty())
    text =
        format("%s %s of %d never joined", absent.size() > 1 ? "ranks" : "rank", rank_list(absent).c_str(), n_ranks_);
  if (n_blobs_ > 0 && !silent.empty())
    text += format("%s%s %s of %d joined but did not answer in time", text.empty() ? "" : "; ",
                   silent.size() > 1 ? "ranks" : "rank", rank_list(silent).c_str(), n_ranks_);
  if (text.empty()) text = "the limit for forming the group passed";
  const int culprit = !absent.empty() ? absent[0] : n_blobs_ > 0 && !silent.empty() ? silent[0] : -1;
  text += misfits_.empty() ? "; look for processes that did not start or cannot reach the root" : describe_misfits();
  fail({Code::kTimeout, text, culprit});
}

std::string RootServer::describe_misfits() const {
  std::string text = "; the root refused";
  const char* before = " ";
  for (const auto& [host, why] : misfits_) {
    text += before + host + ", because " + why;
    before = "; ";
  }
  return text + " (is TUTTI_SECRET, or the unique id, the same everywhere?)";
}

void RootServer::fail(Error error) {
  if (report_) return;
  log(LogLevel::kInfo, "the group's root gives up: %s", error.message.c_str());
  report_ = std::make_shared<std::string>(make_frame(FrameKind::kReport, pack_report(error)));
  if (own_answer_)  // what was decided before
    for (const Member& member : members_)
      if (member.client != nullptr && member.is_own) send(*member.client, own_answer_);
  own_answer_ = nullptr;
  for (const bool own : {false, true}) {
    for (const Member& member : members_) {
      if (member.client == nullptr || member.is_own != own) continue;
      send(*member.client, report_);
      member.client->draining = true;
    }
  }
}

namespace {

void* serve_root(void* argument) {
  const std::unique_ptr<RootServer> server(static_cast<RootServer*>(argument));
  try {
    server->run();
  } catch (const std::exception& e) {  // out of memory: the ranks see the connection close
    log(LogLevel::kError, "the group's root stopped: %s", e.what());
  }
  return nullptr;
}

Result<void> spawn(std::unique_ptr<RootServer> server) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the application's signal handlers do not run in this thread
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, serve_root, server.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) return system_error("creating the thread that serves the group's root", error);
  server.release();
  return {};
}

// Others come to the address that the launcher has told them, whichever of this host's that is.
Result<Listener> listen_everywhere(uint16_t port) {
  Listener listener;
  TUTTI_TRY_ASSIGN(auto interfaces, local_interfaces());
  TUTTI_TRY_ASSIGN(Fd fd, listen_any(port, &port));
  listener.fds = only(std::move(fd));
  for (Interface& interface : advertised(std::move(interfaces))) {
    interface.address.set_port(port);
    listener.contact.addresses.push_back(interface.address);
  }
  return listener;
}

}  // namespace

Result<UniqueId> start_root(Deadline deadline, uint16_t fixed_port, const uint8_t* secret) {
  UniqueIdParts parts;
  if (secret != nullptr)
    memcpy(parts.secret, secret, sizeof parts.secret);
  else
    random_bytes(parts.secret, sizeof parts.secret);
  const Key key = derive_key(parts.secret, sizeof parts.secret);
  TUTTI_TRY_ASSIGN(const int64_t port, env_int(Env::kPort));
  const bool is_everywhere = fixed_port != 0 && fixed_port != port;
  const uint64_t door = fixed_port != 0 ? fixed_port : root_door(key);
  TUTTI_TRY_ASSIGN(Listener listener, is_everywhere ? listen_everywhere(fixed_port) : Listener::open(door));
  parts.addresses = std::move(listener.contact.addresses);
  // A host that has no others may give the loopback's.
  const auto is_loopback = [](const Address& a) { return a.is_loopback(); };
  if (!std::all_of(parts.addresses.begin(), parts.addresses.end(), is_loopback))
    std::erase_if(parts.addresses, is_loopback);
  TUTTI_TRY(spawn(std::make_unique<RootServer>(std::move(listener.fds), key, deadline)));
  return pack_unique_id(parts);
}

}  // namespace tutti
