#include <dlfcn.h>

#include <algorithm>
#include <filesystem>

#include "base/env.h"
#include "base/log.h"
#include "transports/plugins.h"
#include "transports/transport.h"

namespace tutti {

const tuttiTransport kNoTransport = {
    .abi_version = TUTTI_TRANSPORT_ABI_VERSION,
    .struct_bytes = sizeof(tuttiTransport),
    .name = "none yet",
    .link_poll = [](tuttiLink*, tuttiLinkState*, tuttiTransportError*) { return tuttiInProgress; },
    .wait_begin = [](tuttiLink*, tuttiWait*) { return 0; },
    .acquire = [](tuttiLink*, const void*, uint32_t, tuttiPosting, void**) { return TUTTI_NO_ROOM; },
    .peek = [](tuttiLink*, tuttiMessage*) { return 0; },
};

namespace {

bool has_rdma_device() {
  std::error_code none;
  return !std::filesystem::is_empty("/sys/class/infiniband", none) && !none;
}

// Beside this library, or this program if it is a part of that. Null where there is no device or no such file.

const tuttiTransport* find_verbs() {
  Dl_info mine{};
  if (!has_rdma_device() || dladdr(&kTcpTransport, &mine) == 0) return nullptr;
  const auto path = std::filesystem::path(mine.dli_fname).parent_path() / "libtutti-verbs.so";
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return nullptr;
  const auto loaded = load_plugin(path);
  if (loaded) return loaded.value();
  log(LogLevel::kWarn, "RDMA is not used: %s", loaded.error().message.c_str());
  return nullptr;
}

Result<std::vector<const tuttiTransport*>> all_transports() {
  std::vector<const tuttiTransport*> all{&kShmTransport, &kTcpTransport};
  const std::string paths = env_string(Env::kTransportPlugin);
  for (size_t at = 0; at < paths.size();) {
    const size_t end = std::min(paths.find(',', at), paths.size());
    const std::string path = paths.substr(at, end - at);
    TUTTI_TRY_ASSIGN(const tuttiTransport* transport, load_plugin(path));
    const auto same = [&](const tuttiTransport* t) { return std::string(t->name) == transport->name; };
    if (std::any_of(all.begin(), all.end(), same))
      return Error{Code::kInvalidUsage,
                   format("TUTTI_TRANSPORT_PLUGIN=%s: %s is a transport '%s', but there is already one of that name",
                          paths.c_str(), path.c_str(), transport->name)};
    all.push_back(transport);
    at = end + 1;
  }
  const auto is_verbs = [](const tuttiTransport* t) { return t->name == std::string("verbs"); };
  if (std::any_of(all.begin(), all.end(), is_verbs)) return all;
  if (const tuttiTransport* verbs = find_verbs()) all.push_back(verbs);
  return all;
}

// What goes through memory of the host is not encrypted.
bool may_encrypt(const tuttiTransport* transport) {
  return transport == &kTcpTransport || transport == &kShmTransport;
}

}  // namespace

Result<std::vector<const tuttiTransport*>> find_transports(const std::string& names, bool encrypts) {
  TUTTI_TRY_ASSIGN(auto all, all_transports());
  if (names.empty() && encrypts) std::erase_if(all, [](const tuttiTransport* t) { return !may_encrypt(t); });
  if (names.empty()) return all;
  std::vector<const tuttiTransport*> found;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    const std::string name = names.substr(at, end - at);
    const auto hit = std::find_if(all.begin(), all.end(), [&](const tuttiTransport* t) { return name == t->name; });
    if (hit == all.end()) {
      std::string there_are;
      for (const tuttiTransport* t : all) there_are += (there_are.empty() ? "" : ", ") + std::string(t->name);
      return Error{Code::kInvalidUsage, "there is no transport '" + name + "' in '" + names +
                                            "' (TUTTI_TRANSPORTS or " +
                                            "the configuration's transports); there are: " + there_are};
    }
    if (encrypts && !may_encrypt(*hit))
      return Error{Code::kInvalidUsage, "the transport '" + name + "' in '" + names +
                                            "' (TUTTI_TRANSPORTS or the configuration's transports) cannot encrypt: "
                                            "leave it out, or do without TUTTI_ENCRYPT and the configuration's "
                                            "encrypt"};
    if (std::find(found.begin(), found.end(), *hit) == found.end()) found.push_back(*hit);
    at = end + 1;
  }
  return found;
}

}  // namespace tutti
