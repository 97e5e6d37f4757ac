// The thread that watches the peers.
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "base/log.h"
#include "group/bootstrap_wire.h"
#include "group/peers.h"

namespace tutti {
namespace {

constexpr size_t kMostSentenceBytes = 4096;
constexpr ptrdiff_t kMostLinesToOne = 4;

}  // namespace

std::string notice_payload(int origin, const Error& error) {
  return ByteWriter()
      .put(static_cast<int32_t>(origin))
      .put(static_cast<int32_t>(error.code))
      .put(static_cast<int32_t>(error.culprit_rank))
      .put_string(error.message.substr(0, kMostSentenceBytes))
      .take();
}

void PeerWatch::serve() {
  log_set_thread_rank(config_.rank);
  accept_lines();
  for (auto line = lines_.begin(); line != lines_.end();) {
    const auto next = std::next(line);
    if (!read_line(*line)) end_line(*line);
    line = next;
  }
  beat();
  for (const auto& [peer, why] : unreachable_) lose(peer);
  council_changed_.notify_all();
  dial_wanted();
}

int PeerWatch::waits_for(std::vector<pollfd>* fds) {
  constexpr int kStrangerMs = 50;
  int limit_ms = acceptor_->has_pending() || acceptor_->is_full() ? kStrangerMs : -1;
  if (!dialers_.empty() || !lack_.empty()) limit_ms = kDialMs;
  if (beat_ns_ != 0 && (limit_ms < 0 || limit_ms > Heartbeat::kTickMs)) limit_ms = Heartbeat::kTickMs;
  add_dialled(fds);
  acceptor_->add_waiting(fds);
  const std::lock_guard lock(mutex_);
  for (const Line& line : lines_)
    if (line.fd) fds->push_back({line.fd.get(), static_cast<short>(POLLIN | (line.has_unsent() ? POLLOUT : 0)), 0});
  return unreachable_.empty() ? limit_ms : 0;
}

void PeerWatch::accept_lines() {
  while (auto accepted = acceptor_->next()) {
    const int peer = accepted->hello.from_rank;
    const auto lines = std::count_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.peer == peer; });
    if (is_rank(peer) && lines < kMostLinesToOne) add_line(peer, std::move(accepted->fd), std::move(accepted->channel));
  }
}

// Whoever this rank has to wait for is connected to it, so that a death is known. A connection that was begun is never
// given up: the other side would take that for a death.
void PeerWatch::dial_wanted() {
  {
    const std::lock_guard lock(mutex_);
    for (const int peer : council_.wanted())
      if (find_line(peer) == nullptr)
        dialers_.try_emplace(peer, Dialer::Call{config_.key, HelloKind::kControl, config_.rank, peer},
                             config_.member(peer).contact);
  }
  lack_.clear();
  unreachable_.clear();
  for (auto d = dialers_.begin(); d != dialers_.end();) {
    auto& [peer, dialer] = *d;
    const Dialer::Status status = dialer.advance();
    if (status == Dialer::Status::kDone) {
      log(LogLevel::kInfo, "control connection to rank %d at %s", peer, dialer.story().c_str());
      add_line(peer, dialer.take(), dialer.take_channel());
    } else if (status == Dialer::Status::kFailed) {
      (dialer.lacked_resources() ? lack_ : unreachable_[peer]) = dialer.story();
    }
    d = status == Dialer::Status::kPending ? std::next(d) : dialers_.erase(d);
  }
}

void PeerWatch::start_heartbeat(Line& line) {
  const Contact contact = config_.member(line.peer).contact;
  if (contact.host == config_.member(config_.rank).contact.host || contact.addresses.empty()) return;
  auto here = peer_address(line.fd.get());
  if (!here) return;
  here->set_port(contact.addresses[0].port());
  std::vector<Address> doors = {*here};
  for (const Address& address : ways_to(contact))
    if (!address.same_place(*here)) doors.push_back(address);
  beat_ns_ = now_ns();
  line.heartbeat.emplace(line.fd.get(), std::move(doors), beat_ns_);
}

void PeerWatch::add_line(int peer, Fd fd, std::unique_ptr<SecureChannel> channel) {
  const std::lock_guard lock(mutex_);
  lines_.emplace_back(peer, std::move(fd), most_bytes_of_all(config_.n_ranks), std::move(channel));
  start_heartbeat(lines_.back());
  for (const int rank : lost_) lines_.back().send(kLoss, ByteWriter().put(static_cast<int32_t>(rank)).take());
  council_.connected(peer);
}

// False when the line is of no more use.
bool PeerWatch::read_line(Line& line) {
  {
    const std::lock_guard lock(mutex_);
    line.flush();
  }
  for (;;) {
    const Line::Status status = line.receive();
    if (status != Line::Status::kFrame) return status == Line::Status::kQuiet;
    Line::Frame frame;
    Line::Status next = line.next(&frame);
    for (; next == Line::Status::kFrame; next = line.next(&frame))
      if (!take_frame(line, frame)) break;
    if (next == Line::Status::kQuiet) continue;
    fail({Code::kRemoteError, rank_name(line.peer) + " sent an invalid control message", line.peer});
    return false;
  }
}

void PeerWatch::end_line(const Line& line) {
  const int peer = line.peer;
  const std::string how = line.broken_by != 0 ? ": " + why_broken(line.broken_by) : "";
  const bool is_spoilt = line.broken_by == EBADMSG;
  {
    const std::lock_guard lock(mutex_);
    lines_.remove_if([&](const Line& other) { return &other == &line; });
  }
  lose(peer);  // first, so that who hears of the failure knows
  if (departed(peer)) return;
  fail({Code::kRemoteError,
        is_spoilt ? "the control connection with " + rank_name(peer) + how
                  : rank_name(peer) + " died: its connections broke" + how,
        peer});
}

void PeerWatch::beat() {
  constexpr int64_t kTickNs = int64_t{Heartbeat::kTickMs} * 1'000'000, kSilenceNs = 1'950'000'000;
  const int64_t now = now_ns(), gap = now - beat_ns_;
  if (beat_ns_ == 0 || gap < kTickNs) return;
  beat_ns_ = now;
  std::map<int, double> silent_seconds;
  {
    const std::lock_guard lock(mutex_);
    for (Line& line : lines_) {
      if (!line.heartbeat) continue;
      if (gap > 3 * kTickNs) line.heartbeat->excuse(gap - kTickNs);
      if (line.heartbeat->tick(now)) line.send(kBeat, "");
      if (const int64_t ns = line.heartbeat->silent_ns(now); ns >= kSilenceNs)
        silent_seconds[line.peer] = static_cast<double>(ns) / 1e9;
    }
  }
  for (const auto& [peer, seconds] : silent_seconds) lose_host(peer, seconds);
  if (config_.tick) config_.tick(*this);
}

void PeerWatch::lose_host(int rank, double silent_seconds) {
  const Member member = config_.member(rank);
  std::set<int> gone;
  for (int r = 0; r < config_.n_ranks; r++)
    if (config_.member(r).contact.host == member.contact.host) gone.insert(r);
  for (const int lost : gone) lose(lost);
  fail({Code::kRemoteError,
        format("%s is lost: host %s has not answered for %.1f s", member.name.c_str(), member.host_name.c_str(),
               silent_seconds),
        rank});
  const std::lock_guard lock(mutex_);
  lines_.remove_if([&](const Line& line) { return gone.contains(line.peer); });
}

// Only the first failure is passed on as a notice, but all ranks should come to know all that are lost. What such a
// rank said itself, a goodbye or a decision, came before, whoever tells of its loss.
void PeerWatch::lose(int rank) {
  for (Line& line : lines_)
    if (line.peer == rank) read_line(line);
  const std::lock_guard lock(mutex_);
  if (leaving_ || rank == config_.rank) return;
  if (!departed_.contains(rank) && lost_.insert(rank).second)
    send_to_all(kLoss, ByteWriter().put(static_cast<int32_t>(rank)).take());
  council_.lose(rank);
}

// A decision, say, of which the kernel has not taken all.
void PeerWatch::send_the_rest() {
  constexpr int kPatienceMs = 100;
  const Deadline deadline = Deadline::after_seconds(kPatienceMs / 1e3);
  for (Line& line : lines_) {
    while (line.has_unsent() && !deadline.passed()) {
      pollfd p{line.fd.get(), POLLOUT, 0};
      ::poll(&p, 1, deadline.left_ms(kPatienceMs));
      line.flush();
    }
  }
}

bool PeerWatch::hear(std::string_view question) {
  if (!config_.listener) return true;
  const std::optional<Answer> answer = config_.listener(question);
  if (answer && answer->error) fail(*answer->error);
  if (answer && answer->passes_on) tell(question);
  if (answer && !answer->says.empty()) tell(answer->says);
  return answer.has_value();
}

// False if these bytes are nothing that a rank says.
bool PeerWatch::take_frame(const Line& line, const Line::Frame& frame) {
  const std::string_view bytes = frame.bytes;
  if (frame.type == kQuestion) return bytes.size() <= kMostQuestionBytes && hear(bytes);
  if (frame.type == kNotice) return take_notice(bytes);
  if (frame.type == kLoss) return take_loss(bytes);
  if (frame.type == kBeat) return true;
  if (frame.type == kAlarm && bytes.size() == sizeof(Nonce)) return alarm(ByteReader(bytes).get<Nonce>()), true;
  const std::lock_guard lock(mutex_);
  if (frame.type == kCouncil) return council_.hear(line.peer, bytes);
  ByteReader payload(bytes);
  const auto operations = payload.get<uint64_t>();
  if (frame.type != kGoodbye || !payload.ok()) return false;
  departed_[line.peer] = operations;
  return true;
}

bool PeerWatch::take_loss(std::string_view bytes) {
  ByteReader payload(bytes);
  const int rank = payload.get<int32_t>();
  if (!payload.ok() || !is_rank(rank)) return false;
  lose(rank);
  if (rank != config_.rank) return true;
  const Error error{Code::kRemoteError, "the other ranks take this one to be lost: it did not answer them in time",
                    config_.rank};
  {
    const std::lock_guard lock(mutex_);
    shut_out_ = error;
  }
  fail(error);
  return true;
}

bool PeerWatch::take_notice(std::string_view bytes) {
  ByteReader payload(bytes);
  const auto origin = payload.get<int32_t>(), code = payload.get<int32_t>(), culprit = payload.get<int32_t>();
  const std::string sentence = payload.get_string();
  const bool is_error = code > static_cast<int>(Code::kSuccess) && code <= static_cast<int>(Code::kTimeout);
  if (!payload.ok() || !is_error || !is_rank(origin) || !is_rank(culprit, -1)) return false;
  const bool names_itself = sentence.starts_with(rank_name(origin));
  const Error theirs{static_cast<Code>(code), sentence, culprit};
  Error mine = theirs;
  if (!names_itself) mine.message = rank_name(origin) + " reports: " + sentence;
  fail_from(origin, mine, theirs);
  return true;
}

}  // namespace tutti
