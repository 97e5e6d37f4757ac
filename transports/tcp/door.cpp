// Incoming connections: of new links, and in place of broken ones.
#include "base/env.h"
#include "base/log.h"
#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

void Door::look() {
  while (auto incoming = acceptor_.next())
    if (auto taken = take_in(*incoming); !taken)
      log(LogLevel::kWarn, "refused a connection from rank %d: %s", incoming->hello.from_rank,
          taken.error().message.c_str());
}

Result<void> Door::take_in(Acceptor::Accepted& incoming) {
  TUTTI_TRY_ASSIGN(const tuttiLinkConfig config, link_config_of(incoming.hello, n_ranks_));
  const uint32_t index = incoming.hello.args[3] & ~kAgain, n_connections = incoming.hello.args[4];
  if (n_connections > kMaxConnections || index >= n_connections)
    return Error{Code::kRemoteError, format("rank %d opens connection %u of %u of a link: at most %u are possible",
                                            config.peer, index, n_connections, kMaxConnections)};
  SharedFd connection(std::move(incoming.fd), std::move(incoming.channel));
  const auto place = [](const Incomplete& i) { return place_of(i.config); };
  auto found = std::ranges::find(incomplete_, place_of(config), place);
  if ((incoming.hello.args[3] & kAgain) != 0) {
    // What the peer has sent on it may be acknowledged, so it is never closed while its link exists or may come.
    if (found != incomplete_.end()) {
      found->again.emplace_back(index, std::move(connection));
      return {};
    }
    if (RecvLink* const link = pairs_.receiver(config); link != nullptr)
      return link->rejoin(index, std::move(connection));
    return Error{Code::kRemoteError, "its link no longer exists"};
  }
  if (found == incomplete_.end()) found = incomplete_.insert(found, {incoming.hello, config, {}, {}});
  found->config = config;
  found->connections.resize(n_connections);
  found->connections[index] = std::move(connection);
  return {};
}

std::unique_ptr<LinkHalf> Door::accept(tuttiLinkConfig* config) {
  look();
  return first_link(incomplete_, "link", [&](Incomplete& incomplete) {
    *config = incomplete.config;
    return make_link(incomplete);
  });
}

// Null until all of its connections have arrived.
Result<std::unique_ptr<LinkHalf>> Door::make_link(Incomplete& incomplete) {
  if (!incomplete.has_all()) return std::unique_ptr<LinkHalf>();
  TUTTI_TRY_ASSIGN(const int64_t timeout_seconds, env_int("TUTTI_TCP_TIMEOUT"));
  const tuttiLinkConfig& config = incomplete.config;
  auto made = RecvLink::create(*this, config, std::move(incomplete.connections), timeout_seconds);
  if (!made) return refusal_.emplace(std::move(made).error());
  auto link = std::move(made).value();
  for (auto& [index, fd] : incomplete.again) TUTTI_TRY(link->rejoin(index, std::move(fd)));
  pairs_.enter(link.get(), config);
  return std::unique_ptr<LinkHalf>(std::move(link));
}

}  // namespace tutti::tcp
