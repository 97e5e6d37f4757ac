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
    const Dialer::Call call{key_, HelloKind::kTcp, rank_, config.peer, to_hello_args(config)};
    TUTTI_TRY_ASSIGN(SlotRing ring, SlotRing::create(config));
    return std::unique_ptr<LinkHalf>(new SendLink(call, *contact, config, std::move(ring)));
  }

  std::unique_ptr<LinkHalf> accept(tuttiLinkConfig* config) {
    while (auto accepted = acceptor_.next()) {
      auto link = take_in(*accepted, config);
      if (link) return std::move(link).value();
      log(LogLevel::kWarn, "turned away a link from rank %d: %s", accepted->hello.from_rank,
          link.error().message.c_str());
    }
    return nullptr;
  }

 private:
  TcpEndpoint(const tuttiEndpointConfig& config, const Key& key, Listener listener)
      : rank_(config.rank),
        n_ranks_(config.n_ranks),
        key_(key),
        contact_(std::move(listener.contact)),
        acceptor_(std::move(listener.fd), key, HelloKind::kTcp, config.rank) {}

  Result<std::unique_ptr<LinkHalf>> take_in(Acceptor::Accepted& incoming, tuttiLinkConfig* config) const {
    TUTTI_TRY_ASSIGN(*config, link_config_of(incoming.hello, n_ranks_));
    TUTTI_TRY_ASSIGN(SlotRing ring, SlotRing::create(*config));
    return std::unique_ptr<LinkHalf>(new RecvLink(*config, std::move(incoming.fd), std::move(ring)));
  }

  int rank_;
  int n_ranks_;
  Key key_;
  Contact contact_;
  Acceptor acceptor_;
};

}  // namespace tcp

const tuttiTransport kTcpTransport = make_transport<tcp::TcpEndpoint>("tcp");

}  // namespace tutti
