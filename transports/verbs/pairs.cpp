#include "transports/verbs/pairs.h"

#include <algorithm>
#include <cerrno>

namespace tutti::verbs {
namespace {

// Between attempts to mend a queue pair. The pauses grow until a pair has lasted: one proved by a few bytes may still
// stall what it is given until all retries are over, and if the other port cannot be found any more, the kernel looks
// for it for a second, which blocks this rank.
constexpr int64_t kFirstPauseNs = 500'000'000, kLongestPauseNs = 60'000'000'000;

}  // namespace

bool QueuePair::is_time_to_mend() {
  if (next || queue.is_open() || !notice || now_ns() < mend_ns) return false;
  const bool is_up = queue.port().down_because().empty();
  if (is_up) pause_ns = std::min(2 * pause_ns, kLongestPauseNs);
  pause();
  return is_up;
}

void QueuePair::replace(Queue made) {
  *this = {.queue = std::move(made), .made_ns = now_ns(), .is_proved = false, .pause_ns = pause_ns};
}

Result<void> QueuePairs::open(const Ports& ports, uint32_t n, uint32_t sends, uint32_t receives) {
  sends_ = sends;
  receives_ = receives;
  const uint32_t most = n * (sends + 1 + receives);
  for (const auto& port : ports) {
    ibv_cq* queue = ibv_create_cq(port->context(), static_cast<int>(most), nullptr, port->channel(), 0);
    if (queue == nullptr)
      return system_error(format("creating a queue of %u completions of %s", most, port->name().c_str()), errno);
    completions_.emplace_back(queue);
  }
  return {};
}

bool QueuePairs::arm() const {
  return std::all_of(completions_.begin(), completions_.end(),
                     [](const auto& queue) { return ibv_req_notify_cq(queue.get(), 0) == 0; });
}

Result<Queue> QueuePairs::make(const Route& route) const {
  return Queue::create(route, completions_[route.port_index].get(), sends_, receives_);
}

QueuePair& QueuePairs::least_busy() {
  const auto load = [](const QueuePair& pair) {
    if (!pair.is_usable()) return UINT64_MAX - (pair.queue.is_open() ? 1 : 0);
    return pair.queue.under_way() + (pair.is_proved ? 0 : UINT32_MAX);
  };
  return *std::ranges::min_element(pairs_, {}, load);
}

void QueuePairs::drop(QueuePair& pair, const std::string& why) {
  if (!pair.is_usable()) return;
  pair.why = pair.queue.port().name() + ": " + why;
  drops_ = true;
}

void QueuePairs::close(QueuePair& pair) {
  pair.queue.close();
  unsettled_++;
}

bool QueuePairs::settle(QueuePair& pair) {
  if (!pair.notice) return false;
  unsettled_--;
  if (pair.pause_ns == 0 || now_ns() - pair.made_ns > kLongestPauseNs) pair.pause_ns = kFirstPauseNs;
  pair.pause();
  return true;
}

}  // namespace tutti::verbs
