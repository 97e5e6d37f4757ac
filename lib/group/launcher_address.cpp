#include "group/launcher_address.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/socket.h"
#include "group/bootstrap_connect.h"

namespace tutti {

Result<uint16_t> parse_port(const std::string& text, const char* variable) {
  const bool digits = !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == std::string::npos;
  const int port = digits ? std::atoi(text.c_str()) : 0;
  if (port >= 1 && port <= 65535) return static_cast<uint16_t>(port);
  return Error{Code::kInvalidUsage,
               format("%s: '%s' is not a port; give a number from 1 to 65535", variable, text.c_str())};
}

Result<MeetingPoint> parse_host_port(const std::string& text, const char* variable) {
  const size_t colon = text.rfind(':');
  MeetingPoint point;
  if (colon != std::string::npos) point.host = text.substr(0, colon);
  const bool bracketed = point.host.size() > 2 && point.host.front() == '[' && point.host.back() == ']';
  if (bracketed) point.host = point.host.substr(1, point.host.size() - 2);
  // "::1" without brackets would be taken for host ":" and port 1.
  if (point.host.empty() || (!bracketed && point.host.find_first_of(":[]") != std::string::npos))
    return Error{Code::kInvalidUsage,
                 format("%s=%s is not valid: give host:port, or [address]:port for IPv6", variable, text.c_str())};
  TUTTI_TRY_ASSIGN(point.port, parse_port(text.substr(colon + 1), variable));
  return point;
}

std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t at = 0; at < node_list.size() && node_list[at] != ','; at++) {
    if (node_list[at] != '[') {
      host += node_list[at];
      continue;
    }
    const size_t close = node_list.find(']', at);
    if (close == std::string::npos) return "";
    const size_t end = std::min(node_list.find_first_of(",-", at), close);
    host += node_list.substr(at + 1, end - at - 1);
    at = close;
  }
  return host;
}

uint16_t slurm_port(uint64_t job_id, uint64_t step_id) {
  const uint64_t mixed = (job_id * 131 + step_id) * 2654435761u;  // Knuth's multiplicative hash
  return static_cast<uint16_t>(20000 + (mixed >> 8) % 10000);
}

void mix_secret(const MeetingPoint& point, int call, uint8_t secret[16]) {
  const std::string text = "tutti meeting " + std::to_string(call) + " " + point.secret;
  const Key key = derive_key(text.data(), text.size());
  memcpy(secret, key.data(), 16);
}

namespace {

Result<UniqueId> start_root_on(uint16_t port, const uint8_t* secret, Deadline deadline) {
  for (Deadline tell_at = Deadline::after_seconds(kQuietSeconds);;) {
    auto id = start_root(deadline, port, secret);
    if (id || id.error().sys_errno != EADDRINUSE) return id;
    if (deadline.passed())
      return Error{Code::kSystemError,
                   format("rank 0 cannot listen on port %u: another program uses it (torch.distributed's own store, or "
                          "another job?); choose another port with TUTTI_RANK, TUTTI_NRANKS and TUTTI_ROOT=host:port "
                          "(%s)",
                          port, id.error().message.c_str()),
                   -1, EADDRINUSE};
    if (tell_at.passed()) {
      tell_at = Deadline::never();
      log(LogLevel::kWarn,
          "rank 0 waits for port %u, which is in use: by another program or job, or still by an earlier group", port);
    }
    ::poll(nullptr, 0, deadline.left_ms(20));  // the previous group, or its last connections, may use the port
  }
}

// For a while a name may have the address of a host that is gone; but not if it is that of this host.
Result<UniqueId> find_root(const MeetingPoint& point, UniqueIdParts parts, int rank, Deadline deadline) {
  const bool is_name =
      point.host.find(':') == std::string::npos && point.host.find_first_not_of("0123456789.") != std::string::npos;
  for (RootSearch search(rank, deadline);;) {
    TUTTI_TRY_ASSIGN(parts.addresses, resolve(point.host, point.port, deadline));
    const UniqueId id = pack_unique_id(parts);
    if (!is_name || std::all_of(parts.addresses.begin(), parts.addresses.end(), is_local_address)) return id;
    const auto asked = search.ask(id);
    if (asked) return id;
    if (deadline.passed()) return asked.error();
  }
}

}  // namespace

Result<UniqueId> meet(const MeetingPoint& point, int rank, int call, Deadline deadline) {
  UniqueIdParts parts;
  mix_secret(point, call, parts.secret);
  if (rank != 0) return find_root(point, parts, rank, deadline);
  TUTTI_TRY_ASSIGN(parts.addresses, resolve(point.host, point.port, deadline));
  if (std::none_of(parts.addresses.begin(), parts.addresses.end(), is_local_address))
    log(LogLevel::kWarn,
        "rank 0 listens on this host, %s, which does not have the address of %s, where the other ranks look for it: "
        "they will not find it unless that address is forwarded to this host",
        host_name().c_str(), point.host.c_str());
  return start_root_on(point.port, parts.secret, deadline);
}

}  // namespace tutti
