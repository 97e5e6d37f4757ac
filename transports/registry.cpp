#include <algorithm>

#include "transports/transport.h"

namespace tutti {
namespace {

// In order of preference: shared memory wherever it reaches.
constexpr const tuttiTransport* kBuiltIn[] = {&kShmTransport, &kTcpTransport};

}  // namespace

Result<std::vector<const tuttiTransport*>> find_transports(const std::string& names) {
  std::vector<const tuttiTransport*> found;
  if (names.empty()) return std::vector<const tuttiTransport*>(std::begin(kBuiltIn), std::end(kBuiltIn));
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    const std::string name = names.substr(at, end - at);
    const auto* hit = std::find_if(std::begin(kBuiltIn), std::end(kBuiltIn),
                                   [&](const tuttiTransport* t) { return name == t->name; });
    if (hit == std::end(kBuiltIn)) {
      std::string all;
      for (const tuttiTransport* t : kBuiltIn) all += (all.empty() ? "" : ", ") + std::string(t->name);
      return Error{Code::kInvalidUsage, "there is no transport '" + name + "' in '" + names +
                                            "' (TUTTI_TRANSPORTS or " +
                                            "the configuration's transports); there are: " + all};
    }
    if (std::find(found.begin(), found.end(), *hit) == found.end()) found.push_back(*hit);
    at = end + 1;
  }
  return found;
}

}  // namespace tutti
