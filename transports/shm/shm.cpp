// The shm endpoint.
#include <cstring>
#include <list>
#include <map>
#include <memory>

#include "transports/shm/shm_link.h"

namespace tutti {
namespace shm {

class ShmEndpoint : public DiallingEndpoint {
 public:
  static Result<std::unique_ptr<ShmEndpoint>> open(const tuttiEndpointConfig& config) {
    ShmAddress address{host_id(), {}};
    uint64_t random = 0;
    random_bytes(&random, sizeof random);
    snprintf(address.name, sizeof address.name, "tutti-%016lx", random);
    TUTTI_TRY_ASSIGN(Fd listen_fd, listen_unix_abstract(address.name));
    return std::unique_ptr<ShmEndpoint>(new ShmEndpoint(config, address, std::move(listen_fd)));
  }

  std::string address() const { return {reinterpret_cast<const char*>(&address_), sizeof address_}; }

  std::string unreachable_because(std::string_view peer_bytes) const {
    const std::optional<ShmAddress> peer = parse(peer_bytes);
    if (!peer) return "it offers no shared memory";
    return peer->host == address_.host ? "" : "it is on another host or in another network namespace";
  }

  Result<std::unique_ptr<LinkHalf>> connect(const tuttiLinkConfig& config, std::string_view peer_bytes) {
    const std::optional<ShmAddress> peer = parse(peer_bytes);
    if (!peer) return Error{Code::kInvalidArgument, "this is not the address of a shm endpoint", config.peer};
    const Address address = unix_abstract_address({peer->name, strnlen(peer->name, sizeof peer->name)});
    return std::unique_ptr<LinkHalf>(
        new SendLink(call_to(config), address, config, exchange_of(config, Exchange::Side::kSend), bell()));
  }

  std::unique_ptr<LinkHalf> accept(tuttiLinkConfig* config) {
    while (auto accepted = acceptor_.next()) incoming_.push_back(std::move(*accepted));
    return first_link(incoming_, "link", [&](Acceptor::Accepted& incoming) { return take_in(incoming, config); });
  }

  // What one copying core achieves.
  Speed speed() const { return {300, 10'000'000'000}; }

 private:
  ShmEndpoint(const tuttiEndpointConfig& config, const ShmAddress& address, Fd listen_fd)
      : DiallingEndpoint(config, HelloKind::kShm, Listener{only(std::move(listen_fd)), {}}), address_(address) {}

  static std::optional<ShmAddress> parse(std::string_view bytes) {
    ShmAddress address;
    if (bytes.size() != sizeof address) return std::nullopt;
    memcpy(&address, bytes.data(), sizeof address);
    return address;
  }

  // Null until the segment has arrived.
  Result<std::unique_ptr<LinkHalf>> take_in(Acceptor::Accepted& incoming, tuttiLinkConfig* config) {
    TUTTI_TRY_ASSIGN(*config, link_config_of(incoming.hello, n_ranks_));
    TUTTI_TRY_ASSIGN(auto memfd, receive_descriptor(incoming.fd.get()));
    if (!memfd) return std::unique_ptr<LinkHalf>();
    TUTTI_TRY_ASSIGN(Segment segment, Segment::map(*memfd, config->slots, config->slot_bytes));
    return std::unique_ptr<LinkHalf>(new RecvLink(config->peer, std::move(incoming.fd), std::move(segment),
                                                  exchange_of(*config, Exchange::Side::kReceive), bell()));
  }

  // Shared by all links, and kept while there are any.
  std::shared_ptr<Fd> bell() {
    std::shared_ptr<Fd> bell = bell_.lock();
    if (!bell) bell_ = bell = std::make_shared<Fd>();
    return bell;
  }

  std::shared_ptr<Exchange> exchange_of(const tuttiLinkConfig& config, Exchange::Side side) {
    std::weak_ptr<Exchange>& known = exchanges_[{config.peer, config.channel}];
    std::shared_ptr<Exchange> exchange = known.lock();
    if (exchange && exchange->take(side)) return exchange;
    known = exchange = std::make_shared<Exchange>();
    exchange->take(side);
    return exchange;
  }

  ShmAddress address_;
  std::map<std::pair<int32_t, uint32_t>, std::weak_ptr<Exchange>> exchanges_;  // by peer and channel
  std::weak_ptr<Fd> bell_;
  std::list<Acceptor::Accepted> incoming_;  // authenticated, the segment has not arrived
};

}  // namespace shm

const tuttiTransport kShmTransport = make_transport<shm::ShmEndpoint, shm::SendLink, shm::RecvLink>("shm");

}  // namespace tutti
