#include "group/bootstrap_root.h"

#include <algorithm>
#include <cstring>

#include "base/dial.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/log.h"
#include "group/blobs.h"
#include "group/bootstrap.h"
#include "group/bootstrap_connect.h"

namespace tutti {
namespace {

constexpr double kTellSeconds = 3;       // from the first join until the absent ranks are named in the log
constexpr double kLastWordsSeconds = 2;  // after the deadline, for the reports to arrive
// Of the root, and of each relay, so that the traffic of any process only grows linearly with the number of ranks.
constexpr int kMostRelays = kFewRanks;

}  // namespace

bool RootServer::finished() {
  if (timed_out_ && look_at_.passed()) return true;
  if (report_ && n_present_ == 0 && own_deadline_.passed()) return true;
  if (n_ranks_ == 0 || (n_joined_ < n_ranks_ && !timed_out_)) return false;
  return !is_anyone_here();
}

void RootServer::look_at_clock() {
  if (look_at_.passed() && !timed_out_) tell_of_absent();
  if (deadline_.passed() && !timed_out_) report_time_out();
}

void RootServer::let_in(Client& /*client*/) {
  if (const double seconds = std::exchange(seconds_once_used_, 0); seconds > 0)
    deadline_ = own_deadline_ = Deadline::after_seconds(seconds);
}

bool RootServer::take(Client& client, FrameKind kind, int rank, std::string body) {
  if (kind == FrameKind::kJoin && (!client.known || client.is_relay)) return on_join(client, body);
  if ((kind == FrameKind::kRelay || kind == FrameKind::kAsk) && !client.known)
    return on_relay(client, body, kind == FrameKind::kAsk);
  if (rank < 0 || rank >= n_ranks_) return false;
  Member& member = members_[static_cast<size_t>(rank)];
  if (member.client != &client) return false;
  if (kind == FrameKind::kBlob) return on_blob(member, rank, std::move(body));
  if (kind == FrameKind::kLeave) {
    member.has_left = true;
    if (client.is_relay) on_gone(rank);
  } else if (kind == FrameKind::kReport) {
    on_report(rank, body);
  } else if (kind == FrameKind::kGone && client.is_relay) {
    on_gone(rank);
  } else {
    return false;
  }
  return true;
}

void RootServer::lose(Client& client) {
  bool any = false;
  for (Member& member : members_) {
    if (member.client != &client) continue;
    any |= !member.has_left;
    member.client = nullptr;
    n_present_--;
  }
  if (any) blame(client.rank, client.who);
}

void RootServer::on_gone(int rank) {
  Member& member = members_[static_cast<size_t>(rank)];
  member.client = nullptr;
  n_present_--;
  if (!member.has_left) blame(rank, member.who);
}

void RootServer::blame(int rank, const std::string& who) {
  report({Code::kRemoteError,
          format("rank %d (%s) closed its connection before the group had formed: see its output for the reason", rank,
                 who.c_str()),
          rank});
}

bool RootServer::on_relay(Client& client, const std::string& body, bool only_asks) {
  const auto host = read_join(body);
  if (!host) return false;
  client.is_relay = true;
  greet(client, *host);
  const auto nth = static_cast<int>(relays_.size());
  if (!host->contact.empty()) relays_.push_back(*host);
  const bool stays = nth < kMostRelays || host->contact.empty();
  JoinMessage above = stays ? *host : relays_[static_cast<size_t>(nth / kMostRelays - 1)];
  if (stays) above.contact.clear();
  const bool is_here = stays && !only_asks;
  const Frame answer{
      std::make_shared<std::string>(make_join_frame(above, is_here ? FrameKind::kRelay : FrameKind::kGo))};
  if (is_here)
    client.send(answer);
  else
    client.send_last(answer);
  return true;
}

bool RootServer::on_join(Client& client, const std::string& body) {
  const auto join = read_join(body);
  if (!join) return false;
  if (!check_join(client, *join)) return true;
  if (n_ranks_ == 0) {
    n_ranks_ = join->n_ranks;
    first_rank_ = join->rank;
    if (!timed_out_) look_at_ = Deadline::after_seconds(kTellSeconds);
    members_.resize(static_cast<size_t>(n_ranks_));
    if (n_ranks_ <= kFewRanks) {  // all ranks connect here
      const size_t to_come = static_cast<size_t>(n_ranks_) - std::min(clients_.size(), static_cast<size_t>(n_ranks_));
      const auto room = check_descriptors(open_descriptors(), to_come, "the group's root");
      if (!room) report({room.error().code, serving_process() + ": " + room.error().message});
    }
  }
  Member& member = members_[static_cast<size_t>(join->rank)];
  member.client = &client;
  member.who = who_is(*join);
  if (!client.is_relay) greet(client, *join);
  n_joined_++;
  n_present_++;
  // The first rank's limit counts even if it is later: the creator of the id does not know the ranks' configuration.
  if (n_joined_ == 1 || join->left_ms < deadline_.left_ms(INT32_MAX))
    deadline_ = Deadline::after_seconds(join->left_ms / 1e3);
  return true;
}

// Does this rank agree with those that have joined? If not, all of them are told, and the newcomer too.
bool RootServer::check_join(Client& client, const JoinMessage& join) {
  const std::string who = who_is(join);
  std::string wrong;
  if (n_ranks_ != 0 && join.n_ranks != n_ranks_)
    wrong =
        format("the ranks disagree about the number of ranks: rank %d (%s) says %d, rank %d (%s) says %d", first_rank_,
               members_[static_cast<size_t>(first_rank_)].who.c_str(), n_ranks_, join.rank, who.c_str(), join.n_ranks);
  else if (n_ranks_ != 0 && !members_[static_cast<size_t>(join.rank)].who.empty())
    wrong = format("rank %d is claimed by two processes: %s and %s%s", join.rank,
                   members_[static_cast<size_t>(join.rank)].who.c_str(), who.c_str(),
                   has_agreed_port_ ? "; if these are of two jobs, give each its own port or TUTTI_SECRET" : "");
  if (wrong.empty()) return true;
  const Error error{Code::kInvalidUsage, wrong, join.rank};
  if (!client.known) greet(client, join);
  report(error);
  return false;
}

bool RootServer::on_blob(Member& member, int rank, std::string blob) {
  if (member.blob) return false;
  member.blob = std::move(blob);
  n_blobs_++;
  for (size_t r = 0; n_present_ < n_joined_ && r < members_.size(); r++) {
    if (members_[r].who.empty() || members_[r].client != nullptr) continue;
    report({Code::kRemoteError,
            format("rank %zu (%s) has left (see its output for the reason), but rank %d is still waiting for it", r,
                   members_[r].who.c_str(), rank),
            static_cast<int>(r)});
    return true;
  }
  if (n_blobs_ == n_ranks_) finish_round();
  return true;
}

void RootServer::on_report(int rank, const std::string& body) {
  Error error = unpack_report(body);
  error.message = format("rank %d (%s) could not join: %s", rank, members_[static_cast<size_t>(rank)].who.c_str(),
                         error.message.c_str());
  if (error.culprit_rank < 0) error.culprit_rank = rank;
  report(error);
}

void RootServer::finish_round() {
  std::vector<std::string> blobs;
  for (Member& member : members_) {
    blobs.push_back(std::move(*member.blob));
    member.blob.reset();
  }
  n_blobs_ = 0;
  const Frame all{std::make_shared<std::string>(make_frame(FrameKind::kAll, std::string(Blobs::pack(blobs).bytes())))};
  answer(all, all);
}

// Logs the absent ranks while they may still come and the user can find out why they do not.
void RootServer::tell_of_absent() {
  look_at_ = Deadline::never();
  std::vector<int> absent;
  for (int r = 0; r < n_ranks_; r++)
    if (members_[static_cast<size_t>(r)].who.empty()) absent.push_back(r);
  if (absent.empty() || report_) return;
  log(LogLevel::kWarn, "%s %s of %d did not join the group within %.0f s of the first one%s",
      absent.size() > 1 ? "ranks" : "rank", rank_list(absent).c_str(), n_ranks_, kTellSeconds,
      acceptor_.misfits().empty() ? "; still waiting" : describe_misfits().c_str());
}

void RootServer::report_time_out() {
  timed_out_ = true;
  look_at_ = Deadline::after_seconds(kLastWordsSeconds);
  std::vector<int> absent, silent;
  for (int r = 0; r < n_ranks_; r++) {
    const Member& member = members_[static_cast<size_t>(r)];
    if (member.who.empty()) absent.push_back(r);
    if (!member.who.empty() && !member.blob) silent.push_back(r);
  }
  std::string text;
  if (!absent.empty())
    text =
        format("%s %s of %d never joined", absent.size() > 1 ? "ranks" : "rank", rank_list(absent).c_str(), n_ranks_);
  if (n_blobs_ > 0 && !silent.empty())
    text += format("%s%s %s of %d joined but did not answer in time", text.empty() ? "" : "; ",
                   silent.size() > 1 ? "ranks" : "rank", rank_list(silent).c_str(), n_ranks_);
  if (text.empty()) text = "the group did not form in time";
  const int culprit = !absent.empty() ? absent[0] : n_blobs_ > 0 && !silent.empty() ? silent[0] : -1;
  text += acceptor_.misfits().empty()
              ? "; look for processes that did not start, started later than TUTTI_INIT_TIMEOUT or the configuration's "
                "initTimeoutSeconds allows or cannot reach the root"
              : describe_misfits();
  report({Code::kTimeout, text, culprit});
}

std::string RootServer::describe_misfits() const {
  std::string text = "; the root refused";
  const char* before = " ";
  for (const auto& [host, why] : acceptor_.misfits()) {
    text += before + host + ", because " + why;
    before = "; ";
  }
  return with_secret_remedy(text);
}

namespace {

// On all addresses of this host: the launcher may have told the other ranks any of them.
Result<Listener> listen_everywhere(uint16_t port) {
  Listener listener;
  TUTTI_TRY_ASSIGN(auto interfaces, local_interfaces());
  TUTTI_TRY_ASSIGN(Fd fd, listen_any(port, &port));
  listener.fds = only(std::move(fd));
  for (const Interface& i : advertised(std::move(interfaces)))
    listener.contact.addresses.emplace_back(i.address).set_port(port);
  return listener;
}

}  // namespace

Result<UniqueId> start_root(Deadline deadline, uint16_t fixed_port, const uint8_t* secret, double seconds_once_used) {
  UniqueIdParts parts;
  if (secret != nullptr)
    memcpy(parts.secret, secret, sizeof parts.secret);
  else
    random_bytes(parts.secret, sizeof parts.secret);
  const Key key = derive_key(parts.secret, sizeof parts.secret);
  TUTTI_TRY_ASSIGN(const int64_t port, env_int("TUTTI_PORT"));
  const bool is_everywhere = fixed_port != 0 && fixed_port != port;
  const uint64_t door = fixed_port != 0 ? fixed_port : root_door(key);
  TUTTI_TRY_ASSIGN(Listener listener, is_everywhere ? listen_everywhere(fixed_port) : Listener::open(door));
  parts.addresses = std::move(listener.contact.addresses);
  // Loopback addresses are published only if the host has no others.
  const auto is_loopback = [](const Address& a) { return a.is_loopback(); };
  if (!std::all_of(parts.addresses.begin(), parts.addresses.end(), is_loopback))
    std::erase_if(parts.addresses, is_loopback);
  TUTTI_TRY(
      spawn(std::make_unique<RootServer>(std::move(listener.fds), key, deadline, fixed_port != 0, seconds_once_used)));
  return pack_unique_id(parts);
}

}  // namespace tutti
