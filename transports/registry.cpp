#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "base/at_fork.h"
#include "base/env.h"
#include "base/log.h"
#include "transports/transport.h"

namespace tutti {

const tuttiTransport kNoTransport = {
    .abi_version = TUTTI_TRANSPORT_ABI_VERSION,
    .struct_bytes = sizeof(tuttiTransport),
    .name = "none yet",
    .link_poll = [](tuttiLink*, tuttiLinkState*, tuttiTransportError*) { return tuttiInProgress; },
    // Who lacks a link goes on making it, so nothing need be looked for here.
    .wait_begin = [](tuttiLink*, tuttiWait* wait) { return wait->at_most_ns = UINT64_MAX, 1; },
    .acquire = [](tuttiLink*, const void*, uint32_t, tuttiPosting, void**) { return TUTTI_NO_ROOM; },
    .peek = [](tuttiLink*, tuttiMessage*) { return 0; },
};

namespace {

constexpr char kEntry[] = "tuttiTransportPlugin";
// A shorter table is refused; later versions append.
constexpr size_t kLeastTableBytes = offsetof(tuttiTransport, post) + sizeof tuttiTransport::post;

// Created when the library is loaded, because its first use could coincide with another thread's fork. Never destroyed.
struct Loaded {
  MutexAcrossForks mutex;
  std::map<std::string, const tuttiTransport*> tables;
};
Loaded& g_loaded = *new Loaded;

Error refuse(const std::string& path, const std::string& why) {
  return {Code::kInvalidUsage, format("%s cannot be used: %s", path.c_str(), why.c_str())};
}

bool lacks_functions(const tuttiTransport& t) {
  return t.endpoint_open == nullptr || t.endpoint_close == nullptr || t.connect == nullptr || t.accept == nullptr ||
         t.link_poll == nullptr || t.link_close == nullptr || t.acquire == nullptr || t.publish == nullptr ||
         t.peek == nullptr || t.release == nullptr;
}

Result<const tuttiTransport*> load(const std::string& path) {
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) return refuse(path, dlerror());
  const auto entry = reinterpret_cast<tuttiTransportPlugin_t>(dlsym(object, kEntry));
  if (entry == nullptr) {
    const auto adapted = adapt_net_plugin(object);
    if (!adapted) return refuse(path, adapted.error().message);
    if (adapted.value() != nullptr) return adapted.value();
    return refuse(path,
                  format("it has no function %s and no ncclNetPlugin_v8 to v11, so it is not a transport", kEntry));
  }
  char why[500] = "it gives no reason";
  const tuttiTransport* theirs = entry(why, sizeof why);
  if (theirs == nullptr) return refuse(path, why);
  if (theirs->abi_version != TUTTI_TRANSPORT_ABI_VERSION || theirs->struct_bytes < kLeastTableBytes)
    return refuse(path,
                  format("it was built for version %u of tutti/transport.h with a table of %u bytes, this is version "
                         "%u with at least %zu: rebuild it",
                         theirs->abi_version, theirs->struct_bytes, TUTTI_TRANSPORT_ABI_VERSION, kLeastTableBytes));
  if (theirs->name == nullptr || *theirs->name == '\0' || strchr(theirs->name, ',') != nullptr)
    return refuse(path, "its name is empty or contains a comma");
  if (lacks_functions(*theirs)) return refuse(path, "its table lacks one of the ten functions that must not be NULL");
  auto* table = new tuttiTransport{};  // never freed: links may outlive main
  memcpy(table, theirs, std::min<size_t>(theirs->struct_bytes, sizeof *table));
  return table;
}

constexpr char kDevices[] = "/sys/class/infiniband";

bool has_rdma_device() {
  std::error_code none;
  return !std::filesystem::is_empty(kDevices, none) && !none;
}

// Looks beside this library, or beside the program that contains it. The error says why there is none; kInvalidUsage:
// it is there, but cannot be used.
Result<const tuttiTransport*> find_verbs() {
  if (!has_rdma_device()) return Error{Code::kSystemError, format("there is no device in %s", kDevices)};
  Dl_info mine{};
  if (dladdr(&kTcpTransport, &mine) == 0) return Error{Code::kSystemError, "the folder of this library is not known"};
  const auto path = std::filesystem::path(mine.dli_fname).parent_path() / "libtutti-verbs.so";
  std::error_code none;
  if (std::filesystem::exists(path, none)) return load_plugin(path);
  return Error{Code::kSystemError, format("there is no %s: install it there (Debian: libtutti0-verbs), or build Tutti "
                                          "with libibverbs-dev installed",
                                          path.c_str())};
}

// *no_verbs: why there is no RDMA, if there is none.
Result<std::vector<const tuttiTransport*>> all_transports(std::optional<Error>* no_verbs) {
  std::vector<const tuttiTransport*> all{&kShmTransport, &kTcpTransport};
  const std::string paths = env_string("TUTTI_TRANSPORT_PLUGIN");
  for (size_t at = 0; at < paths.size();) {
    const size_t end = std::min(paths.find(',', at), paths.size());
    const std::string path = paths.substr(at, end - at);
    const auto loaded = load_plugin(path);
    if (!loaded) return Error{loaded.error().code, "TUTTI_TRANSPORT_PLUGIN: " + loaded.error().message};
    const tuttiTransport* const transport = loaded.value();
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
  auto verbs = find_verbs();
  if (verbs)
    all.push_back(verbs.value());
  else
    *no_verbs = std::move(verbs).error();
  return all;
}

// Groups within a host do not miss it, so only a plugin that is broken is worth a warning; tutti-doctor tells the rest.
void tell_once(const Error& no_verbs) {
  static std::once_flag once;
  const LogLevel level = no_verbs.code == Code::kInvalidUsage ? LogLevel::kWarn : LogLevel::kInfo;
  std::call_once(once, [&] { log(level, "RDMA is not used: %s", no_verbs.message.c_str()); });
}

// Shared memory does not leave the host, so it needs no encryption.
bool may_encrypt(const tuttiTransport* transport) {
  return transport == &kTcpTransport || transport == &kShmTransport;
}

}  // namespace

Result<const tuttiTransport*> load_plugin(const std::string& path) {
  const std::lock_guard lock(g_loaded.mutex);
  if (const auto found = g_loaded.tables.find(path); found != g_loaded.tables.end()) return found->second;
  TUTTI_TRY_ASSIGN(const tuttiTransport* table, load(path));
  g_loaded.tables[path] = table;
  return table;
}

Result<std::vector<const tuttiTransport*>> find_transports(const std::string& names, bool encrypts) {
  std::optional<Error> no_verbs;
  TUTTI_TRY_ASSIGN(auto all, all_transports(&no_verbs));
  if (names.empty() && encrypts) std::erase_if(all, [](const tuttiTransport* t) { return !may_encrypt(t); });
  if (names.empty() && !encrypts && no_verbs) tell_once(*no_verbs);
  if (names.empty()) return all;
  std::vector<const tuttiTransport*> found;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    const std::string name = names.substr(at, end - at);
    const auto hit = std::find_if(all.begin(), all.end(), [&](const tuttiTransport* t) { return name == t->name; });
    const std::string which = "'" + name + "' in '" + names + "' (TUTTI_TRANSPORTS or the configuration's transports)";
    if (hit == all.end()) {
      std::string there_are;
      for (const tuttiTransport* t : all) there_are += (there_are.empty() ? "" : ", ") + std::string(t->name);
      if (name == "verbs" && no_verbs) there_are += "; no verbs, because " + no_verbs->message;
      return Error{Code::kInvalidUsage, "there is no transport " + which + "; there are: " + there_are};
    }
    if (encrypts && !may_encrypt(*hit))
      return Error{Code::kInvalidUsage, "the transport " + which +
                                            " cannot encrypt: leave it out, or do without TUTTI_ENCRYPT and the "
                                            "configuration's encrypt"};
    if (std::find(found.begin(), found.end(), *hit) == found.end()) found.push_back(*hit);
    at = end + 1;
  }
  return found;
}

}  // namespace tutti
