// The 128 bytes of a UniqueId: see bootstrap.h for the layout.
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/dial.h"
#include "group/bootstrap.h"

namespace tutti {
namespace {

constexpr std::array<char, 4> kMagic = {'T', 'U', 'I', 'D'};
constexpr uint8_t kVersion = 1;
constexpr size_t kFrontBytes = 24;  // magic, version, port, number of addresses, secret
using SecretBytes = std::array<uint8_t, sizeof UniqueIdParts::secret>;

Error not_an_id(const char* why) {
  return Error{Code::kInvalidArgument, std::string("these 128 bytes are not a unique id (") + why +
                                           "): pass the bytes of tuttiGetUniqueId unchanged to every rank"};
}

}  // namespace

UniqueId pack_unique_id(const UniqueIdParts& parts) {
  std::string addresses;
  uint8_t n = 0;
  for (const Address& address : parts.addresses) {
    ByteWriter one;
    put_address(address, &one);
    const std::string bytes = one.take();
    if (kFrontBytes + addresses.size() + bytes.size() > sizeof(UniqueId)) continue;
    addresses += bytes;
    n++;
  }
  const uint16_t port = parts.addresses.empty() ? uint16_t{0} : parts.addresses[0].port();
  const std::string front = ByteWriter().put(kMagic).put(kVersion).put(port).put(n).put(parts.secret).take();
  UniqueId id{};
  memcpy(id.bytes, front.data(), kFrontBytes);
  memcpy(id.bytes + kFrontBytes, addresses.data(), addresses.size());
  return id;
}

Result<UniqueIdParts> unpack_unique_id(const UniqueId& id) {
  ByteReader r(std::string_view(reinterpret_cast<const char*>(id.bytes), sizeof id.bytes));
  if (r.get<std::array<char, 4>>() != kMagic) return not_an_id("wrong magic");
  if (r.get<uint8_t>() != kVersion) return not_an_id("made by another version of Tutti");
  const auto port = r.get<uint16_t>();
  const auto n = r.get<uint8_t>();
  if (port == 0 || n == 0) return not_an_id("no address in it");
  UniqueIdParts parts;
  memcpy(parts.secret, r.get<SecretBytes>().data(), sizeof parts.secret);
  for (int i = 0; i < n; i++) {
    auto address = get_address(&r);
    if (!address) return not_an_id("damaged addresses");
    address->set_port(port);
    parts.addresses.push_back(*address);
  }
  return parts;
}

}  // namespace tutti
