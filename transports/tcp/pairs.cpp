#include "transports/tcp/pairs.h"

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

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
