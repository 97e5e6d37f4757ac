// The 128 bytes of a UniqueId: see bootstrap.h for the layout.
#include <netinet/in.h>

#include <cstring>

#include "group/bootstrap.h"

namespace tutti {
namespace {

constexpr char kMagic[4] = {'T', 'U', 'I', 'D'};
constexpr uint8_t kVersion = 1;
constexpr size_t kFrontBytes = 24;  // magic, version, port, number of addresses, secret

enum Family : uint8_t { kV4 = 4, kV6 = 6, kV6LinkLocal = 7 };

const sockaddr_in& v4(const Address& a) {
  return *reinterpret_cast<const sockaddr_in*>(&a.storage);
}
const sockaddr_in6& v6(const Address& a) {
  return *reinterpret_cast<const sockaddr_in6*>(&a.storage);
}

std::string pack_address(const Address& a) {
  std::string out;
  if (a.family() == AF_INET) {
    out.push_back(kV4);
    out.append(reinterpret_cast<const char*>(&v4(a).sin_addr), 4);
  } else if (a.family() == AF_INET6) {
    const bool link_local = IN6_IS_ADDR_LINKLOCAL(&v6(a).sin6_addr);
    out.push_back(link_local ? kV6LinkLocal : kV6);
    for (int shift = 0; link_local && shift < 32; shift += 8)
      out.push_back(static_cast<char>(v6(a).sin6_scope_id >> shift));
    out.append(reinterpret_cast<const char*>(&v6(a).sin6_addr), 16);
  }
  return out;
}

size_t packed_bytes(uint8_t family) {
  return family == kV4 ? 5 : family == kV6 ? 17 : family == kV6LinkLocal ? 21 : 0;
}

Address unpack_address(const uint8_t* at, uint16_t port) {
  Address a;
  if (at[0] == kV4) {
    auto* in = reinterpret_cast<sockaddr_in*>(&a.storage);
    in->sin_family = AF_INET;
    memcpy(&in->sin_addr, at + 1, 4);
    a.length = sizeof *in;
  } else {
    auto* in = reinterpret_cast<sockaddr_in6*>(&a.storage);
    in->sin6_family = AF_INET6;
    const bool link_local = at[0] == kV6LinkLocal;
    for (unsigned i = 0; link_local && i < 4; i++) in->sin6_scope_id |= uint32_t{at[1 + i]} << (8 * i);
    memcpy(&in->sin6_addr, at + (link_local ? 5 : 1), 16);
    a.length = sizeof *in;
  }
  a.set_port(port);
  return a;
}

Error not_an_id(const char* why) {
  return Error{Code::kInvalidArgument, std::string("these 128 bytes are not a unique id (") + why +
                                           "): pass the bytes of tuttiGetUniqueId unchanged to every rank"};
}

}  // namespace

UniqueId pack_unique_id(const UniqueIdParts& parts) {
  UniqueId id{};
  const uint16_t port = parts.addresses.empty() ? uint16_t{0} : parts.addresses[0].port();
  memcpy(id.bytes, kMagic, sizeof kMagic);
  id.bytes[4] = kVersion;
  id.bytes[5] = static_cast<uint8_t>(port & 255);
  id.bytes[6] = static_cast<uint8_t>(port >> 8);
  memcpy(id.bytes + 8, parts.secret, sizeof parts.secret);
  size_t used = kFrontBytes;
  for (const Address& address : parts.addresses) {
    const std::string packed = pack_address(address);
    if (packed.empty() || used + packed.size() > sizeof id.bytes) continue;
    memcpy(id.bytes + used, packed.data(), packed.size());
    used += packed.size();
    id.bytes[7]++;
  }
  return id;
}

Result<UniqueIdParts> unpack_unique_id(const UniqueId& id) {
  if (memcmp(id.bytes, kMagic, sizeof kMagic) != 0) return not_an_id("wrong magic");
  if (id.bytes[4] != kVersion) return not_an_id("made by another version of Tutti");
  const auto port = static_cast<uint16_t>(id.bytes[5] | id.bytes[6] << 8);
  if (port == 0 || id.bytes[7] == 0) return not_an_id("no address in it");
  UniqueIdParts parts;
  memcpy(parts.secret, id.bytes + 8, sizeof parts.secret);
  size_t at = kFrontBytes;
  for (int i = 0; i < id.bytes[7]; i++) {
    const size_t bytes = at < sizeof id.bytes ? packed_bytes(id.bytes[at]) : 0;
    if (bytes == 0 || at + bytes > sizeof id.bytes) return not_an_id("damaged addresses");
    parts.addresses.push_back(unpack_address(id.bytes + at, port));
    at += bytes;
  }
  return parts;
}

}  // namespace tutti
