// The tcp endpoint.
#include <algorithm>
#include <memory>

#include "base/env.h"
#include "transports/tcp/tcp_link.h"

namespace tutti {
namespace tcp {

class TcpEndpoint : public Door {
 public:
  static Result<std::unique_ptr<TcpEndpoint>> open(const tuttiEndpointConfig& config) {
    TUTTI_TRY_ASSIGN(Listener listener, Listener::open());
    return std::unique_ptr<TcpEndpoint>(new TcpEndpoint(config, std::move(listener)));
  }

  std::string address() const { return contact_.to_bytes(); }

  std::string unreachable_because(std::string_view peer) const {
    const auto contact = Contact::from_bytes(peer);
    return !contact || contact->addresses.empty() ? "it offers no TCP address" : "";
  }

  Result<std::unique_ptr<LinkHalf>> connect(const tuttiLinkConfig& config, std::string_view peer) {
    const auto contact = Contact::from_bytes(peer);
    if (!contact) return Error{Code::kInvalidArgument, "this is not the address of a tcp endpoint", config.peer};
    TUTTI_TRY_ASSIGN(const int64_t asked_connections, env_int("TUTTI_TCP_CONNECTIONS"));
    TUTTI_TRY_ASSIGN(const int64_t timeout_seconds, env_int("TUTTI_TCP_TIMEOUT"));
    const size_t fitting = std::max<size_t>(networks_between(*contact), config.connections);
    const size_t n_connections =
        asked_connections > 0 ? static_cast<size_t>(asked_connections) : std::min<size_t>(fitting, kMaxConnections);
    TUTTI_TRY_ASSIGN(SlotRing<SendSlot> ring, SlotRing<SendSlot>::create(config));
    return std::unique_ptr<LinkHalf>(new SendLink(call_to(config), *contact, config,
                                                  static_cast<uint32_t>(n_connections), timeout_seconds,
                                                  std::move(ring), pairs()));
  }

  // A common network's latency and this host's fastest interface: the kernel does not know what is in between.
  Speed speed() const { return {30'000, bytes_per_second_}; }

 private:
  using Door::Door;

  // The kernel makes up the speed of interfaces that are not hardware (a veth pair: 10 Gb/s).
  static uint64_t fastest_bytes_per_second() {
    constexpr int64_t kUnknownMegabits = 8000, kVirtualMegabits = 1000;
    int64_t fastest = 0;
    if (const auto interfaces = local_interfaces())
      for (const Interface& i : interfaces.value())
        if (preference(i) == kRealNetwork)
          fastest = std::max(fastest, is_hardware(i) ? megabits_per_second(i) : kVirtualMegabits);
    return static_cast<uint64_t>(fastest > 0 ? fastest : kUnknownMegabits) * 1'000'000 / 8;
  }

  const uint64_t bytes_per_second_ = fastest_bytes_per_second();
};

}  // namespace tcp

const tuttiTransport kTcpTransport = make_transport<tcp::TcpEndpoint, tcp::SendLink, tcp::RecvLink>("tcp");

}  // namespace tutti
