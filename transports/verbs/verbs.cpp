// The verbs endpoint, and the plugin's entry.
#include <cstring>
#include <list>

#include "base/bytes.h"
#include "base/env.h"
#include "base/log.h"
#include "transports/verbs/link.h"

namespace tutti {
namespace verbs {

class VerbsEndpoint : public DiallingEndpoint {
 public:
  static Result<std::unique_ptr<VerbsEndpoint>> open(const tuttiEndpointConfig& config) {
    // A plugin has a log of its own. The caller has already checked the environment and warned of oddities.
    log_set_thread_rank(config.rank);
    TUTTI_TRY_ASSIGN(const int64_t most_bytes, env_int("TUTTI_IB_PIN_BYTES"));
    TUTTI_TRY_ASSIGN(const int64_t queues, env_int("TUTTI_IB_QPS"));
    TUTTI_TRY_ASSIGN(Ports ports, Port::open_all());
    TUTTI_TRY_ASSIGN(Listener listener, Listener::open());
    return std::unique_ptr<VerbsEndpoint>(new VerbsEndpoint(config, std::move(listener), std::move(ports),
                                                            static_cast<uint64_t>(most_bytes),
                                                            static_cast<uint32_t>(queues)));
  }

  std::string address() const {
    ByteWriter writer;
    writer.put(kMagic).put_string(short_contact()).put(static_cast<uint32_t>(hub_.ports.size()));
    for (const auto& port : hub_.ports) writer.put(port->address());
    return writer.take();
  }

  std::string unreachable_because(std::string_view peer_bytes) const {
    const auto peer = Peer::from_bytes(peer_bytes);
    if (!peer) return "it offers no RDMA port";
    for (const auto& port : hub_.ports)
      for (const PortAddress& theirs : peer->ports)
        if (find_path(port->address(), theirs).score > 0) return "";
    return "its RDMA ports are of another kind of network, address family or InfiniBand subnet";
  }

  Result<std::unique_ptr<LinkHalf>> connect(const tuttiLinkConfig& config, std::string_view peer_bytes) {
    const auto peer = Peer::from_bytes(peer_bytes);
    if (!peer) return Error{Code::kInvalidArgument, "this is not the address of a verbs endpoint", config.peer};
    return SendLink::create(hub_, call_to(config), peer->contact, peer->ports, config);
  }

  std::unique_ptr<LinkHalf> accept(tuttiLinkConfig* config) {
    while (auto accepted = acceptor_.next()) incoming_.push_back({accepted->hello, {std::move(accepted->fd)}});
    return first_link(incoming_, "verbs link", [&](Incoming& incoming) { return take_in(incoming, config); });
  }

  Result<void> registers(const void* data, uint64_t bytes) { return hub_.user_memory.check(data, bytes); }

  // The latency assumes a switch or two in between; the kernel knows nothing of them.
  Speed speed() const {
    uint64_t bytes_per_second = 0;
    for (const auto& port : hub_.ports) bytes_per_second += port->bytes_per_second();
    return {3000, bytes_per_second};
  }

 private:
  static constexpr uint32_t kMagic = 0x54564234;

  struct Peer {
    Contact contact;
    std::vector<PortAddress> ports;

    static std::optional<Peer> from_bytes(std::string_view bytes) {
      ByteReader reader(bytes);
      if (reader.get<uint32_t>() != kMagic) return std::nullopt;
      const auto contact = Contact::from_bytes(reader.get_string());
      Peer peer;
      for (uint32_t n = reader.get<uint32_t>(); reader.ok() && n > 0; n--) {
        peer.ports.push_back(reader.get<PortAddress>());
        peer.ports.back().n_gids = std::min<uint32_t>(peer.ports.back().n_gids, kMaxGids);
      }
      if (!reader.ok() || !reader.at_end() || !contact || peer.ports.empty() || peer.ports.size() > kMaxPorts)
        return std::nullopt;
      peer.contact = *contact;
      return peer;
    }
  };

  // Authenticated; its offer or its kReady has not arrived.
  struct Incoming {
    Hello hello;
    SideConnection side;
    std::unique_ptr<LinkHalf> link = nullptr;
  };

  VerbsEndpoint(const tuttiEndpointConfig& config, Listener listener, Ports ports, uint64_t most_bytes, uint32_t queues)
      : DiallingEndpoint(config, HelloKind::kVerbs, std::move(listener)),
        hub_{std::move(ports), UserMemory(config, hub_.ports, most_bytes), queues} {}

  // Null until the offer has arrived and the sender is ready.
  Result<std::unique_ptr<LinkHalf>> take_in(Incoming& incoming, tuttiLinkConfig* config) {
    TUTTI_TRY_ASSIGN(*config, link_config_of(incoming.hello, n_ranks_));
    if (!incoming.link) {
      Offer offer;
      const bool closed = incoming.side.look(), has_come = incoming.side.take(&offer);
      if (closed && !has_come) return Error{Code::kRemoteError, "it closed its connection before its offer came"};
      if (!has_come) return std::unique_ptr<LinkHalf>();
      TUTTI_TRY_ASSIGN(incoming.link, RecvLink::create(hub_, std::move(incoming.side), *config, offer));
    }
    TUTTI_TRY_ASSIGN(const bool is_ready, incoming.link->poll());
    return is_ready ? std::move(incoming.link) : nullptr;
  }

  Hub hub_;
  std::list<Incoming> incoming_;
};

constexpr tuttiTransport kVerbsTransport = make_transport<VerbsEndpoint, SendLink, RecvLink>("verbs");

}  // namespace verbs
}  // namespace tutti

extern "C" __attribute__((visibility("default"))) const tuttiTransport* tuttiTransportPlugin(char*, size_t) {
  return &tutti::verbs::kVerbsTransport;
}
