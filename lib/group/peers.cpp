#include "group/peers.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "base/log.h"
#include "base/tcp_info.h"
#include "group/bootstrap_wire.h"

namespace tutti {

PeerWatch::PeerWatch(Config config)
    : config_(std::move(config)), council_(config_.rank, config_.n_ranks, [this](int to, const std::string& message) {
        Line* const line = find_line(to);
        if (line != nullptr) send(*line, kCouncil, message);
        return line != nullptr;
      }) {}

Result<std::unique_ptr<PeerWatch>> PeerWatch::create(Config config, std::vector<Fd> listening, Deadline deadline,
                                                     const std::function<bool()>& gives_up) {
  std::unique_ptr<PeerWatch> watch(new PeerWatch(std::move(config)));
  TUTTI_TRY_ASSIGN(watch->watcher_, Watcher::of_process());
  watch->wake_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!watch->wake_fd_) return system_error("eventfd", errno);
  TUTTI_TRY(watch->connect(std::move(listening), deadline, gives_up));
  watch->watcher_->add(*watch);
  return watch;
}

Result<void> PeerWatch::connect(std::vector<Fd> listening, Deadline deadline, const std::function<bool()>& gives_up) {
  acceptor_.emplace(std::move(listening), config_.key, HelloKind::kControl, config_.rank);
  acceptor_->narrow(config_.n_here > 1, config_.n_here < config_.n_ranks);
  std::set<int> awaited(config_.neighbours.begin(), config_.neighbours.end());
  for (const int peer : config_.of_process)
    if (awaited.erase(peer) > 0)
      lines_.emplace_back(peer, std::make_unique<LocalPipe>(config_.group, config_.rank, peer, [this] { wake(); }),
                          most_bytes_of_all(config_.n_ranks));
  for (const int peer : awaited)
    if (peer < config_.rank)
      dialers_.emplace(peer,
                       Dialer({config_.key, HelloKind::kControl, config_.rank, peer}, config_.member(peer).contact));
  while (!awaited.empty()) {
    dial_wanted();
    if (!lack_.empty()) return Error{Code::kSystemError, "no socket for a control connection: " + lack_};
    if (const auto gone = unreachable_.begin(); gone != unreachable_.end())
      return Error{Code::kRemoteError, rank_name(gone->first) + " cannot be reached: " + gone->second, gone->first};
    accept_lines();
    if (std::erase_if(awaited, [this](int peer) { return find_line(peer) != nullptr; }) > 0) continue;
    const auto absent = [&] {
      std::string names;
      for (const int peer : awaited) names += (names.empty() ? "" : ", ") + rank_name(peer);
      return names;
    };
    if (const auto shortage = acceptor_->shortage()) return *shortage;
    if (gives_up && gives_up()) return Error{Code::kRemoteError, "the control connection was lost with " + absent()};
    if (deadline.passed()) return Error{Code::kTimeout, "no control connection in time with " + absent()};
    std::vector<pollfd> fds;
    acceptor_->add_waiting(&fds);
    add_dialled(&fds);
    ::poll(fds.data(), fds.size(), kDialMs);
  }
  return {};
}

void PeerWatch::add_dialled(std::vector<pollfd>* fds) const {
  for (const auto& [peer, dialer] : dialers_)
    if (dialer.fd() >= 0) fds->push_back({dialer.fd(), dialer.events(), 0});
}

PeerWatch::~PeerWatch() {
  if (!watcher_) return;
  watcher_->remove(*this);
  send_the_rest();
  // To close with something unread resets the connection, and a goodbye that the network has lost is not sent again.
  for (Line& line : lines_)
    while (line.receive() == Line::Status::kFrame) continue;
}

void PeerWatch::wake() {
  watcher_->nudge(*this);
}

Error PeerWatch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<int> PeerWatch::lost() const {
  const std::lock_guard lock(mutex_);
  return {lost_.begin(), lost_.end()};
}

std::optional<uint64_t> PeerWatch::departed(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = departed_.find(rank);
  return found == departed_.end() ? std::nullopt : std::optional(found->second);
}

size_t PeerWatch::descriptors() const {
  const std::lock_guard lock(mutex_);
  const auto sockets = std::count_if(lines_.begin(), lines_.end(), [](const Line& line) { return bool(line.fd); });
  return 1 + acceptor_->descriptors() + static_cast<size_t>(sockets);  // one to wake others
}

std::map<int, uint64_t> PeerWatch::retransmits() const {
  const std::lock_guard lock(mutex_);
  std::map<int, uint64_t> all;
  for (const Line& line : lines_)
    if (const auto info = kernel_info(line.fd.get())) all[line.peer] += info->tcpi_total_retrans;
  return all;
}

Line* PeerWatch::find_line(int peer) {
  const auto found = std::find_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.peer == peer; });
  return found == lines_.end() ? nullptr : &*found;
}

void PeerWatch::fail(const Error& mine, const Error& theirs) {
  fail_from(config_.rank, mine, theirs);
}

void PeerWatch::fail_also_after_goodbye(const Error& error) {
  fail_from(config_.rank, error, error, true);
}

void PeerWatch::fail_from(int origin, const Error& mine, const Error& theirs, bool also_after_goodbye) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed) || (leaving_ && !also_after_goodbye)) return;
  // Who was about to be told of a rank's mistake learns that, and not that the rank has left.
  const bool is_echo = !leaving_ && otherwise_.has_value() && mine.code == Code::kRemoteError;
  failure_ = is_echo ? *otherwise_ : mine;
  if (!leaving_)
    send_to_all(kNotice, is_echo ? notice_payload(config_.rank, *otherwise_) : notice_payload(origin, theirs));
  failed_.store(true, std::memory_order_release);
  (void)eventfd_write(wake_fd_.get(), 1);
}

void PeerWatch::tell(std::string_view what) {
  const std::lock_guard lock(mutex_);
  if (!failed() && !leaving_) send_to_all(kQuestion, std::string(what));
}

void PeerWatch::ask(std::string_view question, const Error& otherwise, int limit_ms) {
  {
    const std::lock_guard lock(mutex_);
    otherwise_ = otherwise;
  }
  if (!question.empty()) tell(question);
  wait_until_failed(*this, limit_ms);
  fail(otherwise);
}

void wait_until_failed(const PeerWatch& watch, int limit_ms) {
  pollfd p{watch.wake_fd(), POLLIN, 0};
  for (const Deadline end = Deadline::after_seconds(limit_ms / 1e3); !watch.failed() && !end.passed();)
    ::poll(&p, 1, end.left_ms(limit_ms));
}

void PeerWatch::say_goodbye(uint64_t operations) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed) || leaving_) return;
  leaving_ = true;
  send_to_all(kGoodbye, ByteWriter().put(operations).take());
}

// What the kernel has no room for now is sent by the thread.
void PeerWatch::send(Line& line, uint32_t type, const std::string& payload) {
  line.send(type, payload);
  if (line.has_unsent()) wake();
}

void PeerWatch::send_to_all(uint32_t type, const std::string& payload) {
  for (Line& line : lines_) send(line, type, payload);
}

Result<Decision> PeerWatch::agree(const Council::Without& without, const std::string& vote, const Deadline& deadline) {
  constexpr auto kLook = std::chrono::milliseconds(20);  // whether the deadline was cancelled
  constexpr double kLastWordSeconds = 0.3;
  std::unique_lock lock(mutex_);
  council_.join(without, vote);
  wake();
  const Deadline end = deadline.plus_seconds(kLastWordSeconds);
  for (;;) {
    if (auto decision = council_.take_result(without)) {
      if (std::binary_search(decision->members.begin(), decision->members.end(), config_.rank))
        return std::move(*decision);
      shut_out_ = Error{Code::kRemoteError, "the other ranks took this one to be lost and continued without it"};
    }
    if (shut_out_) {
      council_.leave(without);
      return *shut_out_;
    }
    const bool late = deadline.passed();
    if (late && (council_.coordinator(without) == config_.rank || !council_.missing(without).empty() || end.passed()))
      return no_agreement(without);
    council_changed_.wait_for(lock, kLook);
  }
}

void PeerWatch::alarm(const Nonce& attempt) {
  const std::lock_guard lock(mutex_);
  // Each is passed on once: were it the last one that counts, two at once would chase each other for ever.
  if (alarms_.insert(attempt).second) send_to_all(kAlarm, ByteWriter().put(attempt).take());
}

bool PeerWatch::alarmed(const Nonce& attempt) const {
  const std::lock_guard lock(mutex_);
  return alarms_.contains(attempt);
}

bool PeerWatch::has_lost_any_of(const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return lost_.contains(rank); });
}

Error PeerWatch::no_agreement(const Council::Without& without) {
  std::vector<int> absent = council_.missing(without);
  if (absent.empty()) absent = {council_.coordinator(without)};
  council_.name_missing(without);
  council_.leave(without);
  const std::string names = absent.size() == 1 ? rank_name(absent[0]) : "ranks " + rank_list(absent);
  return {Code::kTimeout, names + (absent.size() == 1 ? " lives but did" : " live but did") + " not come in time",
          absent[0]};
}

}  // namespace tutti
