#include "transports/tcp/stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {
namespace {

// An answer takes no longer than this.
constexpr uint32_t kAnswerMs = 200;
constexpr uint32_t kProbes = 3;
// Assumed for a connection whose speed is not known yet: fast, so that it is tried.
constexpr double kHopedForBytesPerSecond = 10e9;

// Looks for the answer to a redial, which may be lost if the network fails again; the peer waits no longer either.
// Counted in looks, not time, because a rank that rarely looks has not seen what arrived meanwhile.
constexpr uint32_t kMostRedialLooks = kHandshakePatienceNs / kSilenceCheckNs;

void set(int fd, int option, int value) {
  setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
}

bool stays_on_host(int fd) {
  const auto here = local_address(fd), there = peer_address(fd);
  return here && there && (here->family() == AF_INET || here->family() == AF_INET6) && here->same_place(*there);
}

}  // namespace

uint64_t unacknowledged_bytes(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 ? static_cast<uint64_t>(bytes) : UINT64_MAX;
}

void keep_queue_short(int fd) {
  set(fd, TCP_NOTSENT_LOWAT, 64 << 10);
}

void prepare(int fd, int64_t timeout_seconds) {
  // Keepalive probes let a rank that waits for data learn that the network is broken. In a network that loses a third
  // of its packets, every second probe goes unanswered: hence so many.
  if (timeout_seconds != 0) {
    const int on = 1, every_seconds = static_cast<int>(std::min<int64_t>((timeout_seconds + 4) / 5, 60));
    set(fd, TCP_KEEPIDLE, every_seconds);
    set(fd, TCP_KEEPINTVL, every_seconds);
    set(fd, TCP_KEEPCNT, 14);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  }
  // By default each retry waits twice as long as the one before: after five seconds four have failed, which happens all
  // the time where a third of all packets is lost. But the kernel gives up after 15 such waits (tcp_retries2): they are
  // so long that this is no sooner than three times the limit.
  constexpr int kTcpRtoMaxMs = 44;  // Linux 6.15, and the C library's header may be older than the kernel
  set(fd, TCP_THIN_LINEAR_TIMEOUTS, 1);
  if (timeout_seconds != 0)
    set(fd, kTcpRtoMaxMs, static_cast<int>(std::clamp<int64_t>(400 * timeout_seconds - 900, 1000, 120'000)));
  // Within a host there is no congestion to control, and where the system's default is BBR, with its timers, 8 B and 1
  // MiB between two ranks took up to 8 and 11 % longer than with Reno, which every process may choose.
  static constexpr char kReno[] = "reno";
  if (stays_on_host(fd)) setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno, sizeof kReno - 1);
}

void acknowledge_soon(int fd) {
  set(fd, TCP_QUICKACK, 1);
}

// On loopback the CPU that sends a packet also receives it.
uint32_t sending_cpu_plus_1(int fd) {
  int cpu = -1;
  socklen_t bytes = sizeof cpu;
  if (!stays_on_host(fd)) return 0;
  return getsockopt(fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &bytes) == 0 ? static_cast<uint32_t>(cpu + 1) : 0;
}

void Silence::look(int fd, int64_t now, bool is_loaded) {
  const bool was_idle = waiting_for == 0;
  const tcp_info before = view;
  const int64_t idle_ns = now - moved_ns;  // if it was idle: since the last look
  view = kernel_info(fd).value_or(tcp_info{});
  waiting_for = unacknowledged_bytes(fd);
  if (was_idle || waiting_for == 0 || view.tcpi_bytes_acked != before.tcpi_bytes_acked) moved_ns = now;
  silent_ns = std::min(now - moved_ns, view.tcpi_last_ack_recv * kMs);
  if (was_loaded_ && is_loaded) {
    rate.add(static_cast<double>(view.tcpi_bytes_acked - before.tcpi_bytes_acked),
             static_cast<double>(view.tcpi_busy_time - before.tcpi_busy_time) * 1e-6);
    if (was_idle && waiting_for == 0) rate.rest(static_cast<double>(idle_ns) * 1e-9);
  }
  was_loaded_ = is_loaded;
}

// The kernel counts the time in its ticks, of up to 10 ms, so only many of them are meaningful. A gap longer than an
// answer takes is not low speed but silence, which finish_seconds() adds separately. If it counted here, a network that
// recovers after a second would look 200 times as slow as it is, and get nothing that could show otherwise.
void AckRate::add(double bytes, double busy_seconds) {
  constexpr double kMemorySeconds = 0.1, kLeastSeconds = 0.02, kGapSeconds = kAnswerMs * 1e-3;
  gap_seconds_ += busy_seconds;  // even if `bytes` ended the gap: a rank that rarely looks sees both at once
  const bool is_silence = gap_seconds_ > kGapSeconds;
  if (bytes > 0) gap_seconds_ = 0;
  if (is_silence) return;
  const double left = kMemorySeconds / (kMemorySeconds + busy_seconds);
  seen_bytes_ = seen_bytes_ * left + bytes;
  seen_seconds_ = seen_seconds_ * left + busy_seconds;
  if (seen_seconds_ >= kLeastSeconds) bytes_per_second_ = seen_bytes_ / seen_seconds_;
}

// A connection that looks too slow for any piece gets none that could show otherwise, for example after its peer was
// not running for a while. So its assumed speed grows, to twice as much in 0.7 s. Pauses in which no connection had
// anything to do count little.
void AckRate::rest(double seconds) {
  constexpr double kLongestSeconds = 0.01, kForgetsInSeconds = 1;
  if (bytes_per_second_ > kHopedForBytesPerSecond) return;
  const double growth = 1 + std::min(seconds, kLongestSeconds) / kForgetsInSeconds;
  bytes_per_second_ *= growth;
  seen_bytes_ *= growth;
}

bool Silence::means_loss(int64_t limit_ns) const {
  constexpr uint32_t kTries = 10;  // with 30 % lost each way, one of a thousand silences gets that far
  return lasts(limit_ns) && (view.tcpi_retransmits >= kTries || silent_ns >= 3 * limit_ns);
}

// A peer that has stopped reading is probed, ever less often, and answers. So a long silence alone says nothing.
bool Silence::is_unanswered() const {
  return view.tcpi_probes >= kProbes || view.tcpi_last_ack_recv > view.tcpi_last_data_sent + kAnswerMs;
}

std::string Silence::story() const {
  std::string story =
      format("nothing was acknowledged for %.1f s (TUTTI_TCP_TIMEOUT)", static_cast<double>(silent_ns) * 1e-9);
  // Control connections, whose packets are small, notice sooner that a host is gone. Acknowledgements, too, travel in
  // packets that may be large.
  if (view.tcpi_snd_mss > kSmallSegmentBytes)
    story += format(
        "; if its host answers otherwise, the network may drop large packets, here of %u bytes "
        "(tutti-doctor finds out, TUTTI_TCP_MSS=%d avoids it)",
        view.tcpi_snd_mss, kSmallSegmentBytes);
  return story;
}

double SendStream::bytes_per_second() const {
  const double learnt = silence.rate.bytes_per_second();
  return learnt > 0 ? learnt : kHopedForBytesPerSecond;
}

bool Redialer::advance(int64_t now) {
  if (!is_under_way_) {
    if (now < next_ns_) return false;
    dialer_ = Dialer(again_, {address_});
    is_under_way_ = true;
    looks_ = 0;
  }
  const Dialer::Status status = dialer_.advance();
  if (status == Dialer::Status::kPending && ++looks_ < kMostRedialLooks) return false;
  is_under_way_ = false;
  pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
  next_ns_ = now + pause_ns_;
  return status == Dialer::Status::kDone;
}

void Pairs::join(const Halves& halves, const tuttiLinkConfig& config) {
  const auto [send, recv] = halves;
  if (send == nullptr || recv == nullptr) return;
  const SharedFd sends = send->only_connection(), receives = recv->only_connection();
  if (!sends || !receives) return;
  if (is_answered(config))
    recv->receive_also_on(sends);
  else
    send->send_small_on(receives);
}

}  // namespace tutti::tcp
