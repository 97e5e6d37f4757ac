// The tcp endpoint.
#include <cstring>
#include <memory>

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
    return std::unique_ptr<TcpEndpoint>(new TcpEndpoint(config.rank, key, std::move(listener)));
  }

  std::string address() const { return contact_.to_bytes(); }

  std::string unreachable_because(std::string_view peer) const {
    const auto contact = Contact::from_bytes(peer);
    return !contact || contact->addresses.empty() ? "it offers no TCP address" : "";
  }

  Result<std::unique_ptr<LinkHalf>> connect(const tuttiLinkConfig& config, std::string_view peer) const {
    const auto contact = Contact::from_bytes(peer);
    if (!contact) return Error{Code::kInvalidArgument, "this is not the address of a tcp endpoint", config.peer};
    const Dialer::Call call{
        key_, HelloKind::kTcp, rank_, config.peer, {config.channel, config.slots, config.slot_bytes}};
    return std::unique_ptr<LinkHalf>(new SendLink(call, *contact, config));
  }

  std::unique_ptr<LinkHalf> accept(tuttiLinkConfig* config) {
    while (auto accepted = acceptor_.next()) {
      const auto& args = accepted->hello.args;
      *config = {sizeof *config, accepted->hello.from_rank, args[0], args[1], args[2]};
      if (link_config_is_valid(*config)) return std::make_unique<RecvLink>(*config, std::move(accepted->fd));
      log(LogLevel::kWarn, "link from rank %d: it asks for slots that are out of range", config->peer);
    }
    return nullptr;
  }

 private:
  TcpEndpoint(int rank, const Key& key, Listener listener)
      : rank_(rank),
        key_(key),
        contact_(std::move(listener.contact)),
        acceptor_(std::move(listener.fd), key, HelloKind::kTcp, rank) {}

  int rank_;
  Key key_;
  Contact contact_;
  Acceptor acceptor_;
};

}  // namespace tcp

const tuttiTransport kTcpTransport = make_transport<tcp::TcpEndpoint>("tcp");

}  // namespace tutti
