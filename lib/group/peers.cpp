#include "group/peers.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "base/log.h"
#include "group/bootstrap_wire.h"

namespace tutti {
namespace {

// Where a peer on another host listens, the door of this connection first; none if that is not known. An address that
// this host has, too, leads to this host, which would answer for a dead peer.
std::vector<Address> doors_of(const Contact& peer, int fd) {
  auto here = peer_address(fd);
  if (!here || peer.addresses.empty()) return {};
  here->set_port(peer.addresses[0].port());
  std::vector<Address> doors = {*here};
  const auto mine = all_interfaces();
  for (const Address& address : ways_to(peer)) {
    const auto is_there = [&](const Interface& i) { return i.address.same_place(address); };
    const bool is_mine = mine && std::ranges::any_of(mine.value(), is_there);
    if (!is_mine && !address.same_place(*here)) doors.push_back(address);
  }
  return doors;
}

constexpr int kDialMs = 20;  // longest pause before dial_wanted(), where silent addresses time out

Dialer::Call call_to(int peer, const PeerWatch::Config& config) {
  return {config.key, HelloKind::kControl, config.rank, peer};
}

void add_waiting(const std::map<int, Dialer>& dialers, const Acceptor& acceptor, std::vector<pollfd>* fds) {
  for (const auto& [peer, dialer] : dialers)
    if (dialer.fd() >= 0) fds->push_back({dialer.fd(), dialer.events(), 0});
  acceptor.add_waiting(fds);
}

}  // namespace

PeerWatch::PeerWatch(Config config, std::vector<Fd> listening, Fd wake)
    : config_(std::move(config)),
      lines_([this] { watcher_->nudge(*this); }),
      ending_(
          config_.rank, [this](int rank) { return rank_name(rank); }, std::move(wake), lines_),
      agreement_(
          config_.rank, config_.n_ranks, [this](int rank) { return rank_name(rank); }, lines_),
      acceptor_(std::move(listening), config_.key, HelloKind::kControl, config_.rank) {
  acceptor_.narrow(config_.n_here > 1, config_.n_here < config_.n_ranks);
}

Result<std::unique_ptr<PeerWatch>> PeerWatch::create(Config config, std::vector<Fd> listening, Deadline deadline,
                                                     const std::function<bool()>& gives_up) {
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return system_error("eventfd", errno);
  std::unique_ptr<PeerWatch> watch(new PeerWatch(std::move(config), std::move(listening), std::move(wake)));
  TUTTI_TRY_ASSIGN(watch->watcher_, Watcher::of_process());
  TUTTI_TRY(watch->connect(deadline, gives_up));
  watch->watcher_->add(*watch);
  return watch;
}

Result<void> PeerWatch::connect(Deadline deadline, const std::function<bool()>& gives_up) {
  std::set<int> awaited(config_.neighbours.begin(), config_.neighbours.end());
  for (const int peer : config_.of_process)
    if (awaited.erase(peer) > 0)
      lines_.add(peer, std::make_unique<LocalPipe>(config_.group, config_.rank, peer, [this] { lines_.wake(); }),
                 most_bytes_of_all(config_.n_ranks));
  for (const int peer : awaited)
    if (peer < config_.rank) dialers_.try_emplace(peer, call_to(peer, config_), config_.member(peer).contact);
  while (!awaited.empty()) {
    dial_wanted();
    if (const auto shortage = lack_ ? lack_ : acceptor_.shortage()) return *shortage;
    if (const auto gone = unreachable_.begin(); gone != unreachable_.end())
      return Error{Code::kRemoteError, rank_name(gone->first) + " cannot be reached: " + gone->second, gone->first};
    accept_lines();
    if (std::erase_if(awaited, [this](int peer) { return lines_.with(peer) > 0; }) > 0) continue;
    const auto absent = [&] {
      std::string names;
      for (const int peer : awaited) names += (names.empty() ? "" : ", ") + rank_name(peer);
      return names;
    };
    if (gives_up && gives_up()) return Error{Code::kRemoteError, "lost the control connection with " + absent()};
    if (deadline.passed()) return Error{Code::kTimeout, "timed out waiting for a control connection with " + absent()};
    std::vector<pollfd> fds;
    add_waiting(dialers_, acceptor_, &fds);
    ::poll(fds.data(), fds.size(), kDialMs);
  }
  return {};
}

PeerWatch::~PeerWatch() {
  if (watcher_) watcher_->remove(*this);
}

std::vector<int> PeerWatch::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

std::optional<uint64_t> PeerWatch::departed(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = departed_.find(rank);
  return found == departed_.end() ? std::nullopt : std::optional(found->second);
}

// If there is no memory for a message, the message is lost and the group cannot go on.
void PeerWatch::serve() {
  log_set_thread_rank(config_.rank);
  const auto served = contained([this]() -> Result<void> {
    accept_lines();
    for (auto line = lines_.begin(); line != lines_.end();) {
      const auto next = std::next(line);
      if (!read_line(*line)) end_line(*line);
      line = next;
    }
    if (const auto silent_seconds = lines_.beat()) {
      for (const auto& [peer, seconds] : *silent_seconds) lose_host(peer, seconds);
      for (const auto& [peer, door] : lines_.leave_failed_networks()) {
        const Contact contact = config_.member(peer).contact;
        dialers_.try_emplace(peer, call_to(peer, config_), Contact{contact.host, {door}, contact.door});
      }
      if (config_.tick) config_.tick(*this);
    }
    // With a connection, that rank has made it meanwhile, and lives; or its network has failed, and this was the way
    // round.
    for (const auto& [peer, why] : unreachable_)
      if (lines_.with(peer) == 0)
        lose(peer);
      else if (Line* const line = lines_.take_refusal(peer))
        end_line(*line);
    dial_wanted();
    agreement_.set_shortage(lack_ ? lack_ : acceptor_.shortage());
    ending_.tell_again();
    return {};
  });
  if (served) return;
  ending_.fail(served.error());
  // The ranks of a group that has failed may still agree on how to go on: what the council says is said again.
  (void)contained([this]() -> Result<void> {
    for (const Line& line : lines_) agreement_.inform([&](Council& council) { council.connected(line.peer); });
    return {};
  });
}

int PeerWatch::waits_for(std::vector<pollfd>* fds) {
  constexpr int kStrangerMs = 50;
  add_waiting(dialers_, acceptor_, fds);
  int ms = acceptor_.has_pending() || acceptor_.is_full() ? kStrangerMs : -1;
  if (!dialers_.empty() || lack_ || ending_.is_untold()) ms = kDialMs;
  if (!unreachable_.empty()) ms = 0;
  const int lines_ms = lines_.waits_for(fds);
  return ms < 0 || lines_ms < 0 ? std::max(ms, lines_ms) : std::min(ms, lines_ms);
}

void PeerWatch::accept_lines() {
  constexpr ptrdiff_t kMostLinesToOne = 4;
  while (auto accepted = acceptor_.next()) {
    const int peer = accepted->hello.from_rank;
    const bool is_rank = peer >= 0 && peer < config_.n_ranks;
    if (is_rank && lines_.with(peer) < kMostLinesToOne)
      add_line(peer, std::move(accepted->fd), std::move(accepted->channel));
  }
}

// Connects to every rank that this one has to wait for, so that it learns of a death.
void PeerWatch::dial_wanted() {
  for (const int peer : agreement_.inform([](const Council& council) { return council.wanted(); }))
    if (lines_.with(peer) == 0) dialers_.try_emplace(peer, call_to(peer, config_), config_.member(peer).contact);
  lack_.reset();
  unreachable_.clear();
  for (auto next = dialers_.begin(); next != dialers_.end();) {
    const auto at = next++;
    const Dialer::Status status = at->second.advance();
    if (status == Dialer::Status::kPending) continue;
    auto ended = dialers_.extract(at);  // even if there is no memory for its line
    const int peer = ended.key();
    Dialer& dialer = ended.mapped();
    if (status == Dialer::Status::kDone) {
      log(LogLevel::kInfo, "control connection to rank %d at %s", peer, dialer.story().c_str());
      add_line(peer, dialer.take(), dialer.take_channel());
    } else if (dialer.lacked_resources()) {
      lack_ = Error{Code::kSystemError, "no socket for a control connection: " + dialer.story()};
    } else {
      unreachable_[peer] = dialer.story();
    }
  }
}

void PeerWatch::add_line(int peer, Fd fd, std::unique_ptr<SecureChannel> channel) {
  const Contact contact = config_.member(peer).contact;
  Line& line = lines_.add(peer, std::move(fd), most_bytes_of_all(config_.n_ranks), std::move(channel));
  if (contact.host != config_.member(config_.rank).contact.host)
    if (auto doors = doors_of(contact, line.fd.get()); !doors.empty()) lines_.start_heartbeat(line, std::move(doors));
  for (const int rank : lost()) lines_.send(line.peer, kLoss, ByteWriter().put(static_cast<int32_t>(rank)).take());
  ending_.repeat_to(line.peer);
  agreement_.inform([&](Council& council) { council.connected(line.peer); });
}

// False when the line is no longer usable.
bool PeerWatch::read_line(Line& line) {
  lines_.flush(line);
  for (;;) {
    const FrameReader::Status status = line.read();
    if (status == FrameReader::Status::kPending) return true;
    if (status == FrameReader::Status::kClosed) return false;
    if (status == FrameReader::Status::kFrame) {  // taken from the line first: lose() may read on
      const FrameKind kind = line.in().kind();
      const std::string bytes = line.in().take_body();
      if (take_frame(line, kind, bytes)) continue;
    }
    ending_.fail({Code::kRemoteError, rank_name(line.peer) + " sent an invalid control message", line.peer});
    return false;
  }
}

void PeerWatch::end_line(const Line& line) {
  const int peer = line.peer;
  const std::string how = line.broken_by != 0 ? ": " + why_broken(line.broken_by) : "";
  const bool is_spoilt = line.broken_by == EBADMSG;
  const bool has_failed = line.broken_by != 0 && !is_spoilt;
  lines_.remove_if([&](const Line& other) { return &other == &line; });
  if (has_failed && lines_.with(peer) > 0) return;  // its network perhaps: another one is used
  lose(peer);                                       // before fail(), so that lost() already names the peer then
  if (departed(peer)) return;
  ending_.fail({Code::kRemoteError,
                is_spoilt ? "the control connection with " + rank_name(peer) + how
                          : rank_name(peer) + " died: its connections broke" + how,
                peer});
}

void PeerWatch::lose_host(int rank, double silent_seconds) {
  const Member member = config_.member(rank);
  std::set<int> gone;
  for (int r = 0; r < config_.n_ranks; r++)
    if (config_.member(r).contact.host == member.contact.host) gone.insert(r);
  for (const int lost : gone) lose(lost);
  ending_.fail({Code::kRemoteError,
                format("%s is lost: host %s has not answered for %.1f s", member.name.c_str(), member.host_name.c_str(),
                       silent_seconds),
                rank});
  lines_.remove_if([&](const Line& line) { return gone.contains(line.peer); });
}

// Only the first failure is passed on as a notice, but all ranks should learn of all losses. First reads what the
// lost rank itself has sent, a goodbye or a decision, whoever reports the loss.
void PeerWatch::lose(int rank) {
  for (Line& line : lines_)
    if (line.peer == rank) read_line(line);
  if (ending_.said_goodbye() || rank == config_.rank) return;
  bool is_news = false;
  {
    const std::lock_guard lock(mutex_);
    is_news = !departed_.contains(rank) && std::find(lost_.begin(), lost_.end(), rank) == lost_.end();
    if (is_news) lost_.push_back(rank);
  }
  if (is_news) lines_.send_to_all(kLoss, ByteWriter().put(static_cast<int32_t>(rank)).take());
  agreement_.inform([&](Council& council) { council.lose(rank); });
}

bool PeerWatch::hear(std::string_view question) {
  if (!config_.listener) return true;
  const std::optional<Answer> answer = config_.listener(question);
  if (answer && answer->error) ending_.fail(*answer->error);
  if (answer && answer->passes_on) ending_.tell(question);
  if (answer) ending_.tell(answer->says);
  return answer.has_value();
}

// False if the frame is invalid.
bool PeerWatch::take_frame(const Line& line, FrameKind kind, std::string_view bytes) {
  ByteReader payload(bytes);
  switch (static_cast<PeerFrame>(kind)) {
    case kQuestion: return bytes.size() <= Ending::kMostQuestionBytes && hear(bytes);
    case kNotice: return ending_.hear(bytes, config_.n_ranks);
    case kCouncil: return agreement_.inform([&](Council& council) { return council.hear(line.peer, bytes); });
    case kBeat: return true;
    case kLoss: {
      const auto rank = payload.get<int32_t>();
      return payload.ok() && take_loss(rank);
    }
    case kAlarm: {
      const auto attempt = payload.get<Nonce>();
      if (!payload.ok() || !payload.at_end()) return false;
      agreement_.alarm(attempt);
      return true;
    }
    case kGoodbye: {
      const auto operations = payload.get<uint64_t>();
      const std::lock_guard lock(mutex_);
      if (payload.ok()) departed_[line.peer] = operations;
      return payload.ok();
    }
    default: return false;
  }
}

bool PeerWatch::take_loss(int rank) {
  if (rank < 0 || rank >= config_.n_ranks) return false;
  lose(rank);
  if (rank != config_.rank) return true;
  const Error error{Code::kRemoteError, "the other ranks consider this one lost: it did not answer them in time",
                    config_.rank};
  agreement_.shut_out(error);
  ending_.fail(error);
  return true;
}

}  // namespace tutti
