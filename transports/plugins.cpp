#include "transports/plugins.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>

#include "base/at_fork.h"
#include "transports/transport.h"

namespace tutti {
namespace {

constexpr char kEntry[] = "tuttiTransportPlugin";
// A table without this is none; later versions append.
constexpr size_t kLeastTableBytes = offsetof(tuttiTransport, post) + sizeof tuttiTransport::post;

// Made when the library is loaded, because a first use may meet another thread's fork. Never destroyed.
struct Loaded {
  Loaded() { hold_while_forking(mutex); }
  std::mutex mutex;
  std::map<std::string, const tuttiTransport*> tables;
};
Loaded& g_loaded = *new Loaded;

Error refuse(const std::string& path, const std::string& why) {
  return {Code::kInvalidUsage, format("TUTTI_TRANSPORT_PLUGIN: %s cannot be used: %s", path.c_str(), why.c_str())};
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
  char why[500] = "it says no reason";
  const tuttiTransport* theirs = entry(why, sizeof why);
  if (theirs == nullptr) return refuse(path, why);
  if (theirs->abi_version != TUTTI_TRANSPORT_ABI_VERSION || theirs->struct_bytes < kLeastTableBytes)
    return refuse(path,
                  format("it was built for version %u of tutti/transport.h with a table of %u bytes, this is version "
                         "%u with at least %zu: rebuild it",
                         theirs->abi_version, theirs->struct_bytes, TUTTI_TRANSPORT_ABI_VERSION, kLeastTableBytes));
  if (theirs->name == nullptr || *theirs->name == '\0' || strchr(theirs->name, ',') != nullptr)
    return refuse(path, "its name is empty or contains a comma");
  if (lacks_functions(*theirs)) return refuse(path, "its table lacks one of the ten functions that may not be NULL");
  auto* table = new tuttiTransport{};  // never freed: links may outlive main
  memcpy(table, theirs, std::min<size_t>(theirs->struct_bytes, sizeof *table));
  return table;
}

}  // namespace

Result<const tuttiTransport*> load_plugin(const std::string& path) {
  const std::lock_guard lock(g_loaded.mutex);
  if (const auto found = g_loaded.tables.find(path); found != g_loaded.tables.end()) return found->second;
  TUTTI_TRY_ASSIGN(const tuttiTransport* table, load(path));
  g_loaded.tables[path] = table;
  return table;
}

}  // namespace tutti
