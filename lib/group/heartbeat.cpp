#include "group/heartbeat.h"

#include <algorithm>
#include <cerrno>

#include "base/limits.h"
#include "base/log.h"
#include "base/tcp_info.h"

namespace tutti {
namespace {

constexpr int64_t kEveryNs = 500'000'000, kDoubtNs = 600'000'000;

}  // namespace

bool Heartbeat::tick(int64_t now_ns) {
  const auto info = kernel_info(fd_);
  if (!info) return false;
  const bool all_taken = info->tcpi_unacked == 0 && info->tcpi_notsent_bytes == 0;
  const int64_t heard_ns = now_ns - int64_t{std::min(info->tcpi_last_ack_recv, info->tcpi_last_data_recv)} * 1'000'000;
  if (all_taken || heard_ns > asked_ns_) own_answered_ns_ = std::max(own_answered_ns_, heard_ns);
  answered_ns_ = std::max(answered_ns_, own_answered_ns_);
  if (asked_ && all_taken) asked_ = false;
  if (asked_ && now_ns - own_answered_ns_ > kDoubtNs) {
    hear_doors(now_ns);
    knock_at_doors(now_ns);
    return false;
  }
  attempts_.clear();
  other_.reset();
  lets_in_ = false;
  refusals_ = 0;
  if (asked_ || now_ns - asked_ns_ < kEveryNs) return false;
  asked_ = true;
  asked_ns_ = now_ns;
  return true;
}

void Heartbeat::knock_at_doors(int64_t now_ns) {
  std::string shortage;
  knock(0, &shortage);
  if (doors_.size() > 1) knock(1 + next_door_++ % (doors_.size() - 1), &shortage);
  if (shortage.empty() || !attempts_.empty()) return;
  answered_ns_ = now_ns - kDoubtNs;
  if (!std::exchange(lack_logged_, true))
    log(LogLevel::kWarn, "the host at %s cannot be asked whether it is still there: %s", doors_[0].to_string().c_str(),
        shortage.c_str());
}

void Heartbeat::knock(size_t door, std::string* shortage) {
  constexpr size_t kMostAttempts = 40;
  if (attempts_.size() == kMostAttempts) attempts_.pop_front();
  auto attempt = connect_start(doors_[door]);
  if (attempt)
    attempts_.emplace_back(std::move(attempt).value(), door);
  else if (lacks_resources(attempt.error().sys_errno))
    *shortage = attempt.error().message;
}

void Heartbeat::hear_doors(int64_t now_ns) {
  attempts_.remove_if([&](const auto& attempt) {
    const auto& [fd, door] = attempt;
    int why = 0;
    const Code code = connect_finished(fd.get(), &why);
    const bool lets_in = code == Code::kSuccess, refuses = !lets_in && why == ECONNREFUSED;
    if (door > 0 && (lets_in || (refuses && !lets_in_))) other_ = doors_[door];
    lets_in_ |= door > 0 && lets_in;
    if (lets_in || refuses) (door > 0 ? answered_ns_ : own_answered_ns_) = now_ns;
    return code != Code::kInProgress;
  });
  answered_ns_ = std::max(answered_ns_, own_answered_ns_);
}

}  // namespace tutti
