#include "group/peers.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "base/thread.h"

namespace tutti {
namespace {

enum FrameType : uint32_t { kNotice = 1, kGoodbye = 2, kLoss = 3, kQuestion = 4 };

struct FrameHeader {
  uint32_t type;
  uint32_t bytes;
};
constexpr uint32_t kMaxFrameBytes = PeerWatch::kMostQuestionBytes;

std::string notice_payload(const Error& error) {
  return ByteWriter()
      .put(static_cast<int32_t>(error.code))
      .put(static_cast<int32_t>(error.culprit_rank))
      .put_string(error.message.substr(0, kMaxFrameBytes / 2))
      .take();
}

void signal_event(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(fd, &one, sizeof one);
}

}  // namespace

Result<std::unique_ptr<PeerWatch>> PeerWatch::create(Config config, Fd listen_fd, Deadline deadline) {
  std::unique_ptr<PeerWatch> watch(new PeerWatch(std::move(config)));
  TUTTI_TRY(watch->connect(std::move(listen_fd), deadline));
  TUTTI_TRY(watch->start());
  return watch;
}

Result<void> PeerWatch::connect(Fd listen_fd, Deadline deadline) {
  Acceptor acceptor(std::move(listen_fd), config_.key, HelloKind::kControl, config_.rank);
  std::map<int, Dialer> dialers;
  for (const int peer : config_.neighbours)
    if (peer < config_.rank)
      dialers.emplace(peer, Dialer({config_.key, HelloKind::kControl, config_.rank, peer},
                                   config_.contacts[static_cast<size_t>(peer)]));
  while (lines_.size() < config_.neighbours.size()) {
    bool progress = false;
    for (auto d = dialers.begin(); d != dialers.end();) {
      const Dialer::Status status = d->second.advance();
      if (status == Dialer::Status::kFailed)
        return Error{Code::kRemoteError, rank_name(d->first) + " cannot be reached: " + d->second.story(), d->first};
      if (status == Dialer::Status::kPending) {
        ++d;
        continue;
      }
      log(LogLevel::kInfo, "control connection to rank %d at %s", d->first, d->second.story().c_str());
      lines_[d->first].fd = d->second.take();
      d = dialers.erase(d);
      progress = true;
    }
    while (auto accepted = acceptor.next()) {
      lines_[accepted->hello.from_rank].fd = std::move(accepted->fd);
      progress = true;
    }
    if (progress) continue;
    if (deadline.passed()) {
      std::string absent;
      for (const int peer : config_.neighbours)
        if (!lines_.contains(peer)) absent += (absent.empty() ? "" : ", ") + rank_name(peer);
      return Error{Code::kTimeout, "no control connection in time with " + absent};
    }
    pollfd p{acceptor.fd(), POLLIN, 0};
    ::poll(&p, 1, 1);  // dialled connections are looked at every millisecond: this is set-up
  }
  listen_fd_ = acceptor.take_listener();
  return {};
}

Result<void> PeerWatch::start() {
  wake_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  stop_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_ || !stop_fd_) return system_error("eventfd", errno);
  TUTTI_TRY_ASSIGN(thread_, start_thread("the thread that watches the peers", [this] { serve(); }));
  return {};
}

PeerWatch::~PeerWatch() {
  if (!thread_.joinable()) return;
  signal_event(stop_fd_.get());
  thread_.join();
}

Error PeerWatch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<int> PeerWatch::lost() const {
  const std::lock_guard lock(mutex_);
  return {lost_.begin(), lost_.end()};
}

// Only the first failure is passed on as a notice, but all ranks should come to know all that are lost.
void PeerWatch::lose(int rank) {
  const std::lock_guard lock(mutex_);
  if (leaving_ || rank == config_.rank || !lost_.insert(rank).second) return;
  send_to_all(kLoss, ByteWriter().put(static_cast<int32_t>(rank)).take());
}

std::optional<uint64_t> PeerWatch::departed(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto line = lines_.find(rank);
  return line == lines_.end() ? std::nullopt : line->second.goodbye;
}

size_t PeerWatch::descriptors() const {
  const std::lock_guard lock(mutex_);
  size_t held = 3;  // to wake others, to stop the thread, and to listen
  for (const auto& [peer, line] : lines_) held += static_cast<bool>(line.fd);
  return held;
}

void PeerWatch::fail(const Error& mine, const Error& theirs) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed) || leaving_) return;
  // Who was about to be told of a rank's mistake learns that, and not that the rank has left.
  const bool is_echo = otherwise_.has_value() && mine.code == Code::kRemoteError;
  failure_ = is_echo ? *otherwise_ : mine;
  send_to_all(kNotice, notice_payload(is_echo ? *otherwise_ : theirs));
  failed_.store(true, std::memory_order_release);
  signal_event(wake_fd_.get());
}

void PeerWatch::tell(std::string_view what) {
  const std::lock_guard lock(mutex_);
  if (!failed()) send_to_all(kQuestion, std::string(what));
}

void PeerWatch::ask(std::string_view question, const Error& otherwise, int limit_ms) {
  {
    const std::lock_guard lock(mutex_);
    otherwise_ = otherwise;
  }
  if (!question.empty()) tell(question);
  pollfd p{wake_fd_.get(), POLLIN, 0};
  ::poll(&p, 1, limit_ms);
  fail(otherwise);
}

void PeerWatch::say_goodbye(uint64_t operations) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed) || leaving_) return;
  leaving_ = true;
  send_to_all(kGoodbye, ByteWriter().put(operations).take());
}

void PeerWatch::send_to_all(uint32_t type, const std::string& payload) {
  const std::string frame = ByteWriter().put(FrameHeader{type, static_cast<uint32_t>(payload.size())}).take() + payload;
  // A control connection carries few frames in its life, so the kernel's buffer has room. A peer that is gone
  // needs no notice.
  for (const auto& [peer, line] : lines_)
    if (line.fd) [[maybe_unused]]
      const ssize_t n = ::send(line.fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void PeerWatch::serve() {
  log_set_thread_rank(config_.rank);
  for (;;) {
    std::vector<pollfd> fds = {{stop_fd_.get(), POLLIN, 0}};
    std::vector<int> peers = {-1};
    for (const auto& [peer, line] : lines_) {
      if (!line.fd) continue;
      fds.push_back({line.fd.get(), POLLIN, 0});
      peers.push_back(peer);
    }
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size(); i++)
      if (fds[i].revents != 0) read_line(peers[i], lines_[peers[i]]);
  }
}

void PeerWatch::read_line(int peer, Line& line) {
  char bytes[4096];
  const ssize_t n = ::recv(line.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) {
    line.received.append(bytes, static_cast<size_t>(n));
    while (take_frame(peer, line)) {
    }
    return;
  }
  const std::string how = n < 0 ? std::string(": ") + strerror(errno) : "";
  {
    const std::lock_guard lock(mutex_);
    line.fd.reset();
  }
  if (departed(peer)) return;
  lose(peer);  // first, so that who hears of the failure knows
  fail({Code::kRemoteError, rank_name(peer) + " died: its connections broke" + how, peer});
}

bool PeerWatch::take_frame(int peer, Line& line) {
  FrameHeader header;
  if (line.received.size() < sizeof header) return false;
  memcpy(&header, line.received.data(), sizeof header);
  const bool fits = header.bytes <= kMaxFrameBytes;
  if (fits && line.received.size() < sizeof header + header.bytes) return false;
  if (!fits || !take_payload(line, header.type, std::string_view(line.received).substr(sizeof header, header.bytes))) {
    line.received.clear();
    fail({Code::kRemoteError, rank_name(peer) + " sent a control message that makes no sense", peer});
    return false;
  }
  line.received.erase(0, sizeof header + header.bytes);
  return true;
}

bool PeerWatch::hear(std::string_view question) {
  if (!config_.listener) return true;
  const std::optional<Answer> answer = config_.listener(question);
  if (answer && answer->error) fail(*answer->error);
  if (answer && answer->passes_on) tell(question);
  return answer.has_value();
}

// False if these bytes are nothing that a rank says.
bool PeerWatch::take_payload(Line& line, uint32_t type, std::string_view bytes) {
  ByteReader payload(bytes);
  if (type == kQuestion) return hear(bytes);
  if (type == kGoodbye) {
    const auto operations = payload.get<uint64_t>();
    const std::lock_guard lock(mutex_);
    if (payload.ok()) line.goodbye = operations;
    return payload.ok();
  }
  const auto is_rank = [&](int rank, int least) {
    return payload.ok() && rank >= least && rank < static_cast<int>(config_.rank_names.size());
  };
  if (type == kLoss) {
    const auto rank = payload.get<int32_t>();
    if (!is_rank(rank, 0)) return false;
    lose(rank);
    return true;
  }
  const auto code = payload.get<int32_t>(), culprit = payload.get<int32_t>();
  const std::string sentence = payload.get_string();
  const bool is_error = code > static_cast<int>(Code::kSuccess) && code <= static_cast<int>(Code::kTimeout);
  if (type != kNotice || !is_error || !is_rank(culprit, -1)) return false;
  fail({static_cast<Code>(code), sentence, culprit});
  return true;
}

}  // namespace tutti
