// The tcp endpoint.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/env.h"
#include "base/log.h"
#include "transports/tcp/tcp_link.h"

namespace tutti {
namespace tcp {

class TcpEndpoint {
 public:
  static Result<std::unique_ptr<TcpEndpoint>> open(const tuttiEndpointConfig& config) {
    TUTTI_TRY_ASSIGN(Listener listener, Listener::open());
    Key key;
    memcpy(key.data(), config.group_key, key.size());
    return std::unique_ptr<TcpEndpoint>(new TcpEndpoint(config, key, std::move(listener)));
  }

  std::string address() const { return contact_.to_bytes(); }

  std::string unreachable_because(std::string_view peer) const {
    const auto contact = Contact::from_bytes(peer);
    return !contact || contact->addresses.empty() ? "it offers no TCP address" : "";
  }

  Result<std::unique_ptr<LinkHalf>> connect(const tuttiLinkConfig& config, std::string_view peer) const {
    const auto contact = Contact::from_bytes(peer);
    if (!contact) return Error{Code::kInvalidArgument, "this is not the address of a tcp endpoint", config.peer};
    TUTTI_TRY_ASSIGN(const int64_t asked_connections, env_int(Env::kTcpConnections));
    TUTTI_TRY_ASSIGN(const int64_t timeout_seconds, env_int(Env::kTcpTimeout));
    const size_t n_connections = asked_connections > 0 ? static_cast<size_t>(asked_connections)
                                                       : std::min<size_t>(networks_between(*contact), kMaxConnections);
    const Dialer::Call call{key_, HelloKind::kTcp, rank_, config.peer, {}};
    TUTTI_TRY_ASSIGN(SlotRing<SendSlot> ring, SlotRing<SendSlot>::create(config));
    return std::unique_ptr<LinkHalf>(
        new SendLink(call, *contact, config, static_cast<uint32_t>(n_connections), timeout_seconds, std::move(ring)));
  }

  std::unique_ptr<LinkHalf> accept(tuttiLinkConfig* config) {
    while (auto accepted = acceptor_.next()) {
      auto link = take_in(*accepted, config);
      if (link && link.value() != nullptr) return std::move(link).value();
      if (link) continue;
      log(LogLevel::kWarn, "turned away a link from rank %d: %s", accepted->hello.from_rank,
          link.error().message.c_str());
    }
    return nullptr;
  }

  // Of a common network: the kernel does not tell what lies between.
  tuttiTransportProperties properties() const { return {sizeof(tuttiTransportProperties), 30'000, 1'000'000'000}; }

 private:
  TcpEndpoint(const tuttiEndpointConfig& config, const Key& key, Listener listener)
      : rank_(config.rank),
        n_ranks_(config.n_ranks),
        key_(key),
        contact_(std::move(listener.contact)),
        acceptor_(std::move(listener.fd), key, HelloKind::kTcp, config.rank) {}

  // Null as long as connections of its link are missing.
  Result<std::unique_ptr<LinkHalf>> take_in(Acceptor::Accepted& incoming, tuttiLinkConfig* config) {
    TUTTI_TRY_ASSIGN(*config, link_config_of(incoming.hello, n_ranks_));
    const uint32_t index = incoming.hello.args[3], n_connections = incoming.hello.args[4];
    if (n_connections > kMaxConnections || index >= n_connections)
      return Error{Code::kRemoteError, format("rank %d opens connection %u of %u of a link: they are at most %u",
                                              config->peer, index, n_connections, kMaxConnections)};
    std::vector<Fd>& connections = incomplete_[{config->peer, config->channel}];
    connections.resize(n_connections);
    connections[index] = std::move(incoming.fd);
    if (!std::all_of(connections.begin(), connections.end(), [](const Fd& fd) { return bool(fd); }))
      return std::unique_ptr<LinkHalf>();
    TUTTI_TRY_ASSIGN(const int64_t timeout_seconds, env_int(Env::kTcpTimeout));
    auto link = RecvLink::create(*config, std::move(connections), timeout_seconds);
    incomplete_.erase({config->peer, config->channel});
    if (!link) return std::move(link).error();
    return std::unique_ptr<LinkHalf>(std::move(link).value());
  }

  int rank_;
  int n_ranks_;
  Key key_;
  Contact contact_;
  Acceptor acceptor_;
  std::map<std::pair<int, uint32_t>, std::vector<Fd>> incomplete_;  // by peer and channel
};

}  // namespace tcp

const tuttiTransport kTcpTransport = make_transport<tcp::TcpEndpoint>("tcp");

}  // namespace tutti
