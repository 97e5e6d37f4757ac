#include "group/line.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/tcp_info.h"

namespace tutti {
namespace {

// Queued for a peer that does not read; beyond that, frames are dropped.
constexpr size_t kMostUnsentBytes = size_t{64} << 20;

}  // namespace

bool Line::send(uint32_t type, std::string_view bytes) {
  if (unsent_.size() > kMostUnsentBytes) {
    if (!std::exchange(throws_away_, true))
      log(LogLevel::kWarn,
          "rank %d has not read its control connection for so long that %zu MiB are queued for it: nothing more is "
          "sent to it",
          peer, unsent_.size() >> 20);
    return false;
  }
  unsent_ += make_frame(static_cast<FrameKind>(type), bytes);
  flush();
  return true;
}

// What is queued for a peer that is gone is dropped: the next read() shows the loss.
void Line::flush() {
  if (unsent_.empty()) return;
  size_t sent = 0;
  if (pipe_) pipe_->write(unsent_);
  const bool waits =
      !pipe_ && send_rest(fd.get(), channel_.get(), unsent_.data(), unsent_.size(), &sent) == Moved::kSome;
  unsent_.erase(0, waits ? sent : std::string::npos);
}

FrameReader::Status Line::read() {
  const auto status = in_.read([this](void* to, size_t room) {
    return pipe_ ? pipe_->read(to, room) : recv_some(fd.get(), channel_.get(), to, room);
  });
  if (status == FrameReader::Status::kClosed) broken_by = errno;
  return status;
}

Lines::~Lines() {
  constexpr int kPatienceMs = 100;
  const Deadline deadline = Deadline::after_seconds(kPatienceMs / 1e3);
  for (Line& line : lines_) {
    while (line.has_unsent() && !deadline.passed()) {  // a decision, say, that the kernel took only in part
      pollfd p{line.fd.get(), POLLOUT, 0};
      ::poll(&p, 1, deadline.left_ms(kPatienceMs));
      line.flush();
    }
  }
  // Closing with unread bytes would reset the connection, and a goodbye lost in the network would not be retransmitted.
  // Not read as frames: these take memory, and a destructor has to do without.
  char unread[4096];
  for (const Line& line : lines_)
    while (::recv(line.fd.get(), unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
}

// What the kernel has no room for now is sent by the watching thread.
void Lines::send_over(Line& line, uint32_t type, std::string_view bytes) {
  line.send(type, bytes);
  if (line.has_unsent()) wake_();
}

bool Lines::send(int peer, uint32_t type, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.peer == peer; });
  if (found != lines_.end()) send_over(*found, type, bytes);
  return found != lines_.end();
}

void Lines::send_to_all(uint32_t type, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  for (Line& line : lines_) send_over(line, type, bytes);
}

std::map<int, uint64_t> Lines::retransmits() const {
  const std::lock_guard lock(mutex_);
  std::map<int, uint64_t> all;
  for (const Line& line : lines_)
    if (const auto info = kernel_info(line.fd.get())) all[line.peer] += info->tcpi_total_retrans;
  return all;
}

size_t Lines::sockets() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(lines_.begin(), lines_.end(), [](auto& line) { return bool(line.fd); }));
}

std::ptrdiff_t Lines::with(int peer) const {
  return std::count_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.peer == peer; });
}

int Lines::waits_for(std::vector<pollfd>* fds) const {
  const std::lock_guard lock(mutex_);
  for (const Line& line : lines_)
    if (line.fd) fds->push_back({line.fd.get(), static_cast<short>(POLLIN | (line.has_unsent() ? POLLOUT : 0)), 0});
  return beat_ns_ != 0 ? Heartbeat::kTickMs : -1;
}

std::optional<std::map<int, double>> Lines::beat() {
  constexpr int64_t kTickNs = int64_t{Heartbeat::kTickMs} * 1'000'000, kSilenceNs = 1'950'000'000;
  const int64_t now = now_ns(), gap = now - beat_ns_;
  if (beat_ns_ == 0 || gap < kTickNs) return {};
  beat_ns_ = now;
  std::map<int, double> silent_seconds;
  const std::lock_guard lock(mutex_);
  for (Line& line : lines_) {
    if (!line.heartbeat) continue;
    if (gap > 3 * kTickNs) line.heartbeat->excuse(gap - kTickNs);
    if (line.heartbeat->tick(now)) line.send(kBeat, "");
    if (const int64_t ns = line.heartbeat->silent_ns(now); ns >= kSilenceNs)
      silent_seconds[line.peer] = static_cast<double>(ns) / 1e9;
  }
  return silent_seconds;
}

// A reset, because the other side takes a close for a death.
std::map<int, Address> Lines::leave_failed_networks() {
  std::map<int, Address> ways;
  const int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  lines_.remove_if([&](const Line& line) {
    const auto door = line.heartbeat ? line.heartbeat->way_round(now) : std::nullopt;
    if (door && with(line.peer) == 1) ways[line.peer] = *door;
    if (!door || with(line.peer) == 1) return false;
    // If all are silent and other doors refuse, one has to stay for take_refusal().
    const bool works = std::any_of(lines_.begin(), lines_.end(), [&](const Line& other) {
      return other.peer == line.peer && !(other.heartbeat && other.heartbeat->way_round(now));
    });
    if (works && !line.heartbeat->lets_in()) return false;
    log(LogLevel::kWarn, "a control connection to rank %d is left: its network does not answer, another one does",
        line.peer);
    const linger at_once{1, 0};
    setsockopt(line.fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return true;
  });
  return ways;
}

Line* Lines::take_refusal(int peer) {
  const auto line = std::find_if(begin(), end(), [&](const Line& l) { return l.peer == peer; });
  if (with(peer) != 1 || !line->heartbeat || !line->heartbeat->note_refusal(now_ns())) return nullptr;
  line->broken_by = ECONNREFUSED;
  return &*line;
}

}  // namespace tutti
