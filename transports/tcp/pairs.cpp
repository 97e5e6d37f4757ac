#include "transports/tcp/pairs.h"

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

void Pairs::enter(SendLink* half, const tuttiLinkConfig& config) {
  Halves& halves = halves_[place_of(config)];
  halves.send = half;
  join(halves, config);
}

void Pairs::enter(RecvLink* half, const tuttiLinkConfig& config) {
  Halves& halves = halves_[place_of(config)];
  halves.recv = half;
  join(halves, config);
}

// A place may have a new half already.
template <class Half>
void Pairs::leave(Half* Halves::*which, const Half* half, const tuttiLinkConfig& config) {
  const auto found = halves_.find(place_of(config));
  if (found == halves_.end()) return;
  Halves& halves = found->second;
  if (halves.*which == half) halves.*which = nullptr;
  if (halves.send == nullptr && halves.recv == nullptr) halves_.erase(found);
}

void Pairs::leave(const SendLink* half, const tuttiLinkConfig& config) {
  leave(&Halves::send, half, config);
}

void Pairs::leave(const RecvLink* half, const tuttiLinkConfig& config) {
  leave(&Halves::recv, half, config);
}

RecvLink* Pairs::receiver(const tuttiLinkConfig& config) {
  const auto found = halves_.find(place_of(config));
  return found == halves_.end() ? nullptr : found->second.recv;
}

void Pairs::join(const Halves& halves, const tuttiLinkConfig& config) {
  if (halves.send == nullptr || halves.recv == nullptr) return;
  const SharedFd sends = halves.send->only_connection(), receives = halves.recv->only_connection();
  if (!sends || !receives) return;
  if (is_answered(config))
    halves.recv->hear_also(sends);
  else
    halves.send->answer_by(receives);
}

}  // namespace tutti::tcp
