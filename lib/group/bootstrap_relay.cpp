#include "group/bootstrap_relay.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/dial.h"
#include "base/log.h"
#include "base/tcp_info.h"
#include "group/blobs.h"

namespace tutti {
namespace {

constexpr size_t kMappedFromBytes = 4096;  // shorter answers go through the socket

// Groups with different secrets or different roots get different names.
std::string relay_name(const UniqueIdParts& parts, const Key& key) {
  std::vector<std::string> roots;
  for (const Address& address : parts.addresses) roots.push_back(address.to_string());
  std::sort(roots.begin(), roots.end());
  std::string text(key.begin(), key.end());
  for (const std::string& root : roots) text += " " + root;
  return format("tutti-relay-%016lx", root_door(derive_key(text.data(), text.size())));
}

struct Heard {
  FrameKind kind;
  JoinMessage join;
};

// Receives the first frame of a root or a relay; a Report becomes an error.
Result<Heard> hear(const RootConnection& connection, Deadline deadline) {
  FrameHeader header;
  TUTTI_TRY(connection.receive(&header, sizeof header, deadline));
  std::string body(std::min(header.bytes, uint64_t{kMaxBlobBytes}), '\0');
  TUTTI_TRY(connection.receive(body.data(), body.size(), deadline));
  if (header.kind == FrameKind::kReport) return unpack_report(body);
  auto join = read_join(body);
  if (!join || (header.kind != FrameKind::kRelay && header.kind != FrameKind::kGo))
    return Error{Code::kInternalError, "the group's root sent an invalid frame"};
  return Heard{header.kind, std::move(*join)};
}

// Nothing if no relay answers the call.
std::optional<RootConnection> call_relay(Dialer dialer, Deadline deadline) {
  Dialer::Status status = dialer.advance();
  for (; status == Dialer::Status::kPending && !deadline.passed(); status = dialer.advance()) {
    pollfd polled{dialer.fd(), dialer.events(), 0};
    ::poll(&polled, 1, std::max(1, deadline.left_ms(dialer.fd() < 0 ? 1 : 50)));
  }
  if (status != Dialer::Status::kDone) return std::nullopt;
  RootConnection connection{dialer.take(), dialer.take_channel(), "", std::nullopt};
  connection.round_trip_ns = round_trip_ns(connection.fd.get());
  auto heard = hear(connection, deadline);
  if (!heard || heard.value().kind != FrameKind::kRelay) return std::nullopt;
  connection.relay = std::move(heard.value().join);
  connection.how = format("the relay of rank %d (%s)", connection.relay->rank, who_is(*connection.relay).c_str());
  return connection;
}

// How long to wait for anyone other than the group's own root, which is indispensable.
constexpr int kPatienceMs = 2000;

Deadline soon(Deadline deadline) {
  return Deadline::after_seconds(std::min(kPatienceMs, deadline.left_ms(kPatienceMs)) / 1e3);
}

// Connects to the relay that a root named; nothing if it cannot be reached.
std::optional<RootConnection> join_relay(const Key& key, const JoinMessage& me, const std::string& its_contact,
                                         Deadline deadline) {
  const auto contact = Contact::from_bytes(its_contact);
  if (!contact) return std::nullopt;
  auto above = call_relay(Dialer({key, HelloKind::kBootstrap, me.rank, -1}, *contact), soon(deadline));
  if (above && !above->send(make_join_frame(me, FrameKind::kRelay), deadline)) above.reset();
  return above;
}

// Introduces this relay to a root and returns the root's answer.
Result<Heard> tell_root(const RootConnection& root, const JoinMessage& me, FrameKind kind, Deadline deadline) {
  TUTTI_TRY(root.send(make_join_frame(me, kind), deadline));
  return hear(root, deadline);
}

// Connects to the relay that the root of another id names; nothing if that fails.
std::optional<RootConnection> ask_other_root(const UniqueIdParts& other, const Key& group, const JoinMessage& me,
                                             Deadline deadline) {
  Key key = derive_key(other.secret, sizeof other.secret);
  key.encrypts = group.encrypts;
  auto root = connect_to_root(other, key, me.rank, soon(deadline));
  auto heard = root ? tell_root(root.value(), me, FrameKind::kAsk, soon(deadline)) : std::move(root).error();
  if (heard) return join_relay(group, me, heard.value().join.contact, deadline);
  log(LogLevel::kWarn, "the root of another id of this group does not answer (%s): rank %d uses the first id's root",
      heard.error().message.c_str(), me.rank);
  return std::nullopt;
}

}  // namespace

Result<RootConnection> connect_relay(const Roots& roots, JoinMessage me, Deadline deadline) {
  if (roots.other)
    if (auto above = ask_other_root(*roots.other, roots.key, me, deadline)) return std::move(*above);
  for (;;) {
    TUTTI_TRY_ASSIGN(RootConnection root, connect_to_root(roots.root, roots.key, me.rank, deadline));
    TUTTI_TRY_ASSIGN(const Heard heard, tell_root(root, me, FrameKind::kRelay, deadline));
    if (heard.kind == FrameKind::kRelay) return root;
    if (auto above = join_relay(roots.key, me, heard.join.contact, deadline)) return std::move(*above);
    me.contact.clear();  // the root keeps a relay that others cannot call
  }
}

Result<RootConnection> reach_root(const Roots& roots, int rank, int n_ranks, Deadline deadline) {
  if (n_ranks <= kFewRanks) return connect_to_root(roots.root, roots.key, rank, deadline);
  Key local_key = roots.key;
  local_key.encrypts = false;
  const std::string name = relay_name(roots.root, roots.key);
  const int left_ms = deadline.left_ms(INT32_MAX);
  const Deadline patience = Deadline::after_seconds(std::min(kPatienceMs, left_ms / 2) / 1e3);
  // A relay that accepts but is silent is itself waiting for the root, which all its ranks at once might overload.
  const Deadline answers = deadline.plus_seconds(-std::min(2 * kPatienceMs, left_ms / 2) / 1e3);
  std::optional<Error> shortage;
  uint64_t above_ns = 0;  // round trip from this process's relay to the root or relay above it
  while (!patience.passed() && !deadline.passed()) {
    auto behind_name = listen_unix_abstract(name);
    shortage.reset();
    if (!behind_name && behind_name.error().sys_errno == EMFILE) shortage = behind_name.error();
    if (behind_name) {
      std::vector<Fd> listening = only(std::move(behind_name).value());
      JoinMessage me = make_join(rank, n_ranks, left_ms);
      if (auto doors = Listener::open()) {  // without listening sockets this relay stays at the root
        me.contact = doors.value().contact.to_bytes();
        std::move(doors.value().fds.begin(), doors.value().fds.end(), std::back_inserter(listening));
      }
      TUTTI_TRY_ASSIGN(RootConnection root, connect_relay(roots, me, deadline));
      log(LogLevel::kInfo, "rank %d relays for its host to the root at %s", rank, root.how.c_str());
      above_ns = root.round_trip_ns;
      TUTTI_TRY(spawn(std::make_unique<RelayServer>(std::move(listening), local_key,
                                                    Deadline::after_seconds(deadline.left_ms(INT32_MAX) / 1e3),
                                                    std::move(root), std::move(me))));
    }
    Dialer dialer({local_key, HelloKind::kBootstrap, rank, -1}, {unix_abstract_address(name)});
    if (auto connection = call_relay(std::move(dialer), answers)) {
      connection->round_trip_ns = above_ns;
      return std::move(*connection);
    }
    ::poll(nullptr, 0, patience.left_ms(1));
  }
  if (shortage) return *shortage;
  return connect_to_root(roots.root, roots.key, rank, deadline);
}

RelayServer::RelayServer(std::vector<Fd> listening, const Key& key, Deadline deadline, RootConnection root,
                         JoinMessage host)
    : FrameServer(std::move(listening), key, deadline),
      host_(std::move(host)),
      above_(std::move(root.relay)),
      root_(&add(std::move(root.fd), std::move(root.channel), most_bytes_of_all(host_.n_ranks))) {}

bool RelayServer::finished() {
  return !is_anyone_here() && (deadline_.passed() || (!is_anyone_coming() && (had_client_ || root_ == nullptr)));
}

void RelayServer::let_in(Client& client) {
  JoinMessage me = host_;
  me.contact.clear();
  client.send({std::make_shared<std::string>(make_join_frame(me, FrameKind::kRelay))});
}

bool RelayServer::take(Client& client, FrameKind kind, int rank, std::string body) {
  if (&client == root_) return take_from_root(kind, body);
  if (kind == FrameKind::kJoin || kind == FrameKind::kRelay) {
    const auto who = read_join(body);
    if (!who || (client.known && (kind == FrameKind::kRelay || !client.is_relay))) return false;
    had_client_ = true;
    if (kind == FrameKind::kRelay) client.is_relay = true;
    if (!client.known) greet(client, *who);
    if (kind == FrameKind::kJoin) ranks_.try_emplace(who->rank, &client);
  } else {
    const auto found = ranks_.find(rank);
    // If two connections claim one rank, frames of the second are ignored until the root ends the group.
    if (found == ranks_.end() || found->second != &client) return !client.is_relay && client.rank == rank;
    if (kind == FrameKind::kLeave || (kind == FrameKind::kGone && client.is_relay)) ranks_.erase(found);
  }
  if (kind != FrameKind::kRelay) pass_up(kind, std::move(body), rank);
  return true;
}

// Introductions are much alike: after the first blob only differences are sent.
void RelayServer::pass_up(FrameKind kind, std::string body, int rank) {
  if (root_ == nullptr) return;
  if (kind == FrameKind::kBlob && body.size() == first_blob_.size()) {
    std::string shorter = differences(first_blob_, body);
    if (shorter.size() < body.size()) {
      kind = FrameKind::kLike;
      body = std::move(shorter);
    }
  } else if (kind == FrameKind::kBlob && first_blob_.empty()) {
    first_blob_ = body;
  }
  root_->send({std::make_shared<std::string>(make_frame(kind, body, rank))});
}

bool RelayServer::take_from_root(FrameKind kind, const std::string& body) {
  if (kind == FrameKind::kReport) report(unpack_report(body));
  if (kind != FrameKind::kAll) return kind == FrameKind::kReport;
  acceptor_.narrow(false, false);  // all ranks are here: accept no more
  const Frame all{std::make_shared<std::string>(make_frame(FrameKind::kAll, body))};
  auto file = std::make_shared<const Fd>(body.size() < kMappedFromBytes ? Fd() : Blobs::to_file(body));
  const Frame mapped{std::make_shared<std::string>(make_frame(FrameKind::kMapped, "")), file};
  answer(*file ? mapped : all, all);
  return true;
}

void RelayServer::lose(Client& client) {
  if (&client != root_) {
    // The rank whose process relayed comes first, because the root blames the first one.
    for (const bool relayed : {true, false})
      for (const auto& [rank, through] : ranks_)
        if (through == &client && (rank == client.rank) == relayed) pass_up(FrameKind::kGone, "", rank);
    std::erase_if(ranks_, [&](const auto& entry) { return entry.second == &client; });
    return;
  }
  root_ = nullptr;
  acceptor_.narrow(false, false);
  const std::string lost = format("the ranks of host %.63s lost their connection to ", host_.host.c_str());
  if (above_)
    report({Code::kRemoteError,
            lost + format("rank %d (%s), through which they reach the group's root: see its output for the reason",
                          above_->rank, who_is(*above_).c_str()),
            above_->rank});
  else
    report({Code::kRemoteError, lost + "the group's root: the process that made the unique id must live "
                                       "until all ranks have joined"});
}

}  // namespace tutti
