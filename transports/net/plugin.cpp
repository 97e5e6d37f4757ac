#include "transports/net/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>

#include "base/log.h"

namespace tutti::net {
namespace {

constexpr int kHostMemory = 1;
// No traffic class is chosen.
int traffic_class = -1;

template <class... Arguments>
int call(void (*function)(), Arguments... arguments) {
  return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

void take_log(int level, unsigned long, const char*, int, const char* fmt, ...) {
  const LogLevel ours = level <= 2 ? LogLevel::kWarn : level == 3 ? LogLevel::kInfo : LogLevel::kTrace;
  if (!log_enabled(ours)) return;
  char line[1000];
  va_list arguments;
  va_start(arguments, fmt);
  vsnprintf(line, sizeof line, fmt, arguments);
  va_end(arguments);
  log(ours, "net plugin: %s", line);
}

}  // namespace

Result<std::unique_ptr<Plugin>> Plugin::load(void* object) {
  for (int version = 11; version >= 8; version--) {
    const void* table = dlsym(object, format("ncclNetPlugin_v%d", version).c_str());
    if (table == nullptr) continue;
    auto plugin = std::unique_ptr<Plugin>(new Plugin(static_cast<const Table*>(table), version));
    TUTTI_TRY(plugin->set_up());
    return plugin;
  }
  return std::unique_ptr<Plugin>();
}

Result<void> Plugin::set_up() {
  void* const profile = reinterpret_cast<void*>(+[](void**, int, void*, int64_t, void*) { return 0; });
  const Function init = table_->set_up;
  const int result = version_ <= 9    ? call(init, take_log)
                     : version_ == 10 ? call(init, take_log, profile)
                                      : call(init, &context_, uint64_t{0}, &traffic_class, take_log, profile);
  TUTTI_TRY(check("init", result));
  TUTTI_TRY(check("devices", table_->count_devices(&n_devices_)));
  if (n_devices_ < 1) return Error{Code::kInvalidUsage, format("%s found no device on this machine", name())};
  for (int device = 0; device < n_devices_; device++)
    if ((properties(device).numbers[0] & kHostMemory) == 0)
      return Error{Code::kInvalidUsage, format("%s cannot send host memory", name())};
  log(LogLevel::kInfo, "net plugin %s, version %d, with %d devices", name(), version_, n_devices_);
  return {};
}

Plugin::Properties Plugin::properties(int device) const {
  Properties all{};
  table_->properties(device, &all);
  return all;
}

// A device that states no speed is assumed to have a common one.
uint64_t Plugin::bytes_per_second(int device) const {
  const auto megabits = properties(device).numbers[speed_at()];
  return megabits > 0 ? static_cast<uint64_t>(megabits) * 125'000 : 1'000'000'000;
}

uint32_t Plugin::latency_ns(int device) const {
  constexpr float kLeastUs = 5, kMostUs = 1e6f;
  const auto us = std::bit_cast<float>(properties(device).numbers[speed_at() + 2]);
  return static_cast<uint32_t>(1000 * (us > kLeastUs ? std::min(us, kMostUs) : kLeastUs));
}

Result<void> Plugin::check(const char* what, int result) const {
  if (result == 0) return {};
  return Error{
      Code::kRemoteError,
      format("%s of the plugin %s failed with ncclResult_t %d (TUTTI_LOG=info shows the plugin's own messages)", what,
             name(), result)};
}

Result<Plugin::Comm> Plugin::listen(int device, Handle* handle) const {
  void *comm = nullptr, *at = handle->data();
  TUTTI_TRY(check("listen", version_ == 11 ? call(table_->listen, context_, device, at, &comm)
                                           : call(table_->listen, device, at, &comm)));
  return Comm(comm, table_->close_listener);
}

Result<Plugin::Comm> Plugin::connect(int device, Handle* handle) const {
  void *comm = nullptr, *unused = nullptr, *at = handle->data();
  const int result = version_ <= 9    ? call(table_->connect, device, at, &comm, &unused)
                     : version_ == 10 ? call(table_->connect, device, &traffic_class, at, &comm, &unused)
                                      : call(table_->connect, context_, device, at, &comm, &unused);
  TUTTI_TRY(check("connect", result));
  return Comm(comm, table_->close_sender);
}

Result<Plugin::Comm> Plugin::accept(const Comm& listener) const {
  void *comm = nullptr, *unused = nullptr;
  TUTTI_TRY(check("accept", table_->accept(listener.get(), &comm, &unused)));
  return Comm(comm, table_->close_receiver);
}

Result<void*> Plugin::pin(void* comm, void* data, size_t bytes) const {
  void* region = nullptr;
  TUTTI_TRY(check("regMr", table_->pin(comm, data, bytes, kHostMemory, &region)));
  return region;
}

Result<void*> Plugin::send(void* comm, void* data, size_t bytes, void* region) const {
  void *request = nullptr, *no_profile = nullptr;
  const int result = version_ == 8   ? call(table_->send, comm, data, static_cast<int>(bytes), 0, region, &request)
                     : version_ == 9 ? call(table_->send, comm, data, bytes, 0, region, &request)
                                     : call(table_->send, comm, data, bytes, 0, region, no_profile, &request);
  TUTTI_TRY(check("isend", result));
  return request;
}

Result<void*> Plugin::receive(void* comm, void* data, size_t bytes, void* region) const {
  void *request = nullptr, *no_profile = nullptr;
  int tag = 0, small_bytes = static_cast<int>(bytes);
  const Function irecv = table_->receive;
  const int result = version_ == 8   ? call(irecv, comm, 1, &data, &small_bytes, &tag, &region, &request)
                     : version_ == 9 ? call(irecv, comm, 1, &data, &bytes, &tag, &region, &request)
                                     : call(irecv, comm, 1, &data, &bytes, &tag, &region, &no_profile, &request);
  TUTTI_TRY(check("irecv", result));
  return request;
}

Result<bool> Plugin::test(void* request, int* bytes) const {
  int done = 0;
  TUTTI_TRY(check("test", table_->test(request, &done, bytes)));
  return done != 0;
}

}  // namespace tutti::net
