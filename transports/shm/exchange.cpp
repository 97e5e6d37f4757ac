#include "transports/shm/exchange.h"

#include <sched.h>

#include <algorithm>

namespace tutti::shm {

void Exchange::set(Side side, Segment segment) {
  this->segment(side) = std::move(segment);
  if (side == Side::kSend) {
    owned_.reserve(2 * size_t{sending_.slots()});
    for (uint32_t i = 0; i < sending_.slots(); i++) owned_.push_back({true, i});
  }
  if (sending_ && receiving_) sending_.header().paired_with.store(receiving_.header().id, std::memory_order_release);
}

uint32_t Exchange::tell_cpu() {
  const auto mine = static_cast<uint32_t>(sched_getcpu() + 1);
  uint32_t theirs = 0;
  if (sending_) {
    sending_.header().sender_cpu_plus_1.store(mine, std::memory_order_relaxed);
    theirs = sending_.header().receiver_cpu_plus_1.load(std::memory_order_relaxed);
  }
  if (receiving_) {
    receiving_.header().receiver_cpu_plus_1.store(mine, std::memory_order_relaxed);
    theirs = receiving_.header().sender_cpu_plus_1.load(std::memory_order_relaxed);
  }
  return theirs;
}

// The peer's payloads may be sent back only on the link that the peer has paired with theirs.
bool Exchange::peer_knows_both() {
  if (peer_knows_both_) return true;
  peer_knows_both_ = receiving_ && sending_.slot_bytes() == receiving_.slot_bytes() &&
                     receiving_.header().paired_with.load(std::memory_order_acquire) == sending_.header().id;
  return peer_knows_both_;
}

std::optional<Exchange::Payload> Exchange::choose() {
  if (owned_.empty()) return std::nullopt;
  if (owned_.back().mine || peer_knows_both()) return owned_.back();
  const auto mine = std::find_if(owned_.begin(), owned_.end(), [](const Payload& p) { return p.mine; });
  if (mine == owned_.end()) return std::nullopt;
  std::rotate(mine, mine + 1, owned_.end());
  return owned_.back();
}

// Owns at most the payloads of both segments, whatever a peer claims.
void Exchange::take_in(const Payload& payload) {
  const size_t most = size_t{sending_ ? sending_.slots() : 0} + (receiving_ ? receiving_.slots() : 0);
  if (at(payload) != nullptr && owned_.size() < most) owned_.push_back(payload);
}

void Exchange::give(const Payload& payload) {
  const auto is_it = [&](const Payload& p) { return p.mine == payload.mine && p.index == payload.index; };
  owned_.erase(std::find_if(owned_.rbegin(), owned_.rend(), is_it).base() - 1);
}

}  // namespace tutti::shm
