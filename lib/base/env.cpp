#include "base/env.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <system_error>
#include <vector>

#include "base/log.h"

namespace tutti {
namespace {

constexpr int64_t kMiB = 1 << 20;

// clang-format off
constexpr EnvEntry kTable[] = {
  {"TUTTI_LOG", "warn", 1, 0, "what to log: none, error, warn, info, trace"},
  {"TUTTI_LOG_FILE", "", 1, 0, "append log lines to this file instead of stderr"},
  {"TUTTI_TRACE_DIR", "/dev/shm", 1, 0, "folder for the flight recorder's files, 84 KiB per communicator"},
  {"TUTTI_TRACE_FILE", "", 1, 0,
   "file to which a failing communicator writes its last operations as JSON; %r in its name becomes the rank, %p the process, %h the host, %g the group"},
  {"TUTTI_TRACE_ON_SIGTERM", "0", 0, 1,
   "1: SIGTERM also writes TUTTI_TRACE_FILE, which must be set, then takes its usual effect"},
  {"TUTTI_METRICS_FILE", "", 1, 0,
   "file to which a communicator writes counters for Prometheus, every 5 s; %r in its name becomes the rank, %p the process, %h the host, %g the group"},
  {"TUTTI_INIT_TIMEOUT", "60", 1, 86400, "seconds that creating a communicator may take, all told", "seconds"},
  {"TUTTI_OP_TIMEOUT", "1800", 1, 31536000, "seconds an operation may wait without any progress", "seconds"},
  {"TUTTI_SOCKET_IFNAME", "", 1, 0,
   "network interfaces to use: comma-separated name prefixes; a '=' before the whole list: exact names, a '^': all others"},
  {"TUTTI_PORT_RANGE", "", 1, 0, "ports to listen on, such as 20000-20999: for firewalls; unset: the kernel chooses"},
  {"TUTTI_PORT", "0", 0, 65535, "the one TCP port through which others reach all ranks of a host; 0: each rank listens on ports of its own"},
  {"TUTTI_TRANSPORTS", "", 1, 0, "allowed transports in order of preference, e.g. 'shm,tcp' or 'tcp'"},
  {"TUTTI_TRANSPORT_PLUGIN", "", 1, 0,
   "additional transports: comma-separated paths of plugins for tutti/transport.h, or of one of NCCL's net plugins (net)"},
  {"TUTTI_ALGO", "", 1, 0, "force an algorithm: ring, tree, direct, oneshot, circulant, doubling, linear, hierarchical, racks or chain"},
  {"TUTTI_ORDER", "topology", 1, 0,
   "how ranks are ordered in rings and trees: topology (neighbours share caches, NUMA nodes, hosts) or rank"},
  {"TUTTI_PROTO", "", 1, 0,
   "copy: everything goes through slots, registered memory too; unset: registered memory is read and written in place"},
  {"TUTTI_TUNE_FILE", "", 1, 0,
   "file with the prices of hops, messages and bytes, written by tutti-tune; unset: tutti/tuning in the user's configuration or /etc"},
  {"TUTTI_TOPO_FILE", "", 1, 0, "read the machine's topology from this file (hwloc's XML) instead of the machine"},
  {"TUTTI_TOPO_DUMP", "", 1, 0,
   "one rank of each host writes the topology to this file; '%h' in it becomes the host's name"},
  {"TUTTI_DETERMINISTIC", "0", 0, 1,
   "1: sums are added in the order of ranks, whatever the size, algorithm, transport and placement"},
  {"TUTTI_ENCRYPT", "0", 0, 1,
   "1: everything ranks send each other over TCP is encrypted and authenticated, with new keys for each connection; 0: nothing is"},
  {"TUTTI_TCP_CONNECTIONS", "0", 0, 16,
   "parallel connections of a TCP link; 0: one for each network of the same speed that both hosts are in, and up to 16 between hosts that are far apart unless their kernels pace what they send (BBR)"},
  {"TUTTI_TCP_TIMEOUT", "5", 0, 86400,
   "seconds without an acknowledgement from the peer's kernel after which a TCP connection is given up; 0: when the kernel gives up", "seconds"},
  {"TUTTI_TCP_MSS", "0", 0, 32767,
   "most bytes of data in a TCP packet, 88 or more, for networks that silently drop larger ones; 0: as many as the interface takes", "bytes"},
  {"TUTTI_IB_HCA", "", 1, 0,
   "RDMA devices to use: comma-separated name prefixes, each with an optional :port; a '=' before the whole list: exact names, a '^': all others"},
  {"TUTTI_IB_GID_INDEX", "-1", -1, 255, "index of the GID in the RDMA port's table; -1: the one that routes to the peer"},
  {"TUTTI_IB_SL", "0", 0, 15, "InfiniBand's service level"},
  {"TUTTI_IB_TC", "0", 0, 255, "RoCE's traffic class"},
  {"TUTTI_IB_PKEY", "0", 0, 65535, "index of the partition key in the RDMA port's table"},
  {"TUTTI_IB_TIMEOUT", "18", 1, 22, "an unacknowledged RDMA packet is sent again after 4.096 us times 2 to the power of this"},
  {"TUTTI_IB_RETRIES", "6", 0, 6, "how many times an RDMA packet is sent again before the peer is given up"},
  {"TUTTI_IB_QPS", "1", 1, 8, "queue pairs per link on each RDMA port, at most 8 on all ports together"},
  {"TUTTI_IB_PIN_BYTES", "16G", 0, INT64_MAX,
   "most bytes of registered memory pinned for RDMA devices at a time; the least recently used is unpinned first", "bytes"},
  {"TUTTI_GPU_DIRECT", "1", 0, 2,
   "GPU memory directly to network devices (GPUDirect RDMA): 0 never, 1 from 64 KiB on, 2 always; the lowest value of all ranks counts"},
  {"TUTTI_SLOTS", "4", 2, 64, "slots per link; unset: 4, or 16 for TCP between hosts, and fewer, down to 2, the farther apart these are"},
  {"TUTTI_SLOT_BYTES", "0", 0, 64 * kMiB,
   "payload bytes of a slot, in steps of 64; 0: 128K where all ranks share memory, 256K with a network device, else 576K, or 65088 between hosts, twice as much where a link has several connections, and more, up to 16M, the farther apart the hosts are", "bytes"},
  {"TUTTI_NT_BYTES", "0", 0, INT64_MAX,
   "results of at least this many bytes, or twice as many if in place, bypass the cache; 0: where all ranks' buffers together exceed the last-level caches", "bytes"},
  {"TUTTI_CPU_ISA", "", 1, 0, "highest instruction set for CPU kernels: scalar, avx2, avx512, avx512_bf16, neon"},
  {"TUTTI_RANK", "", 0, INT32_MAX, "this process's rank, for tuttiCommInitFromEnv"},
  {"TUTTI_NRANKS", "", 1, INT32_MAX, "number of ranks, for tuttiCommInitFromEnv"},
  {"TUTTI_ROOT", "", 1, 0, "host:port where rank 0 listens, for tuttiCommInitFromEnv"},
  {"TUTTI_SECRET", "", 1, 0, "shared secret of the job, for tuttiCommInitFromEnv with TUTTI_ROOT, MASTER_ADDR or plain srun"},
  {"TUTTI_LIBRARY", "", 1, 0, "path of libtutti.so.0, or of its folder, for the Python packages tutti_torch and tutti_array"},
};
// clang-format on

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) row[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

const char* nearest_name(const std::string& name) {
  return std::ranges::min(kTable, {}, [&](const EnvEntry& entry) { return edit_distance(name, entry.name); }).name;
}

// In the pods of a namespace that has a Service named tutti, Kubernetes sets TUTTI_PORT=tcp://10.0.0.1:29600,
// TUTTI_SERVICE_HOST, TUTTI_PORT_29600_TCP and more.
bool is_port_of_service(std::string_view name, std::string_view value) {
  return name == "TUTTI_PORT" && (value.starts_with("tcp://") || value.starts_with("udp://"));
}

void warn_of_unknown_names() {
  const char* port = getenv(env_entry("TUTTI_PORT").name);
  if (port != nullptr && is_port_of_service("TUTTI_PORT", port))
    log(LogLevel::kWarn,
        "TUTTI_PORT=%s is ignored: Kubernetes sets it where there is a Service named tutti; rename that, or set "
        "enableServiceLinks: false for the pod",
        port);
  bool has_service = false;
  for (char** e = environ; *e != nullptr; e++) has_service = has_service || strncmp(*e, "TUTTI_SERVICE_HOST=", 19) == 0;
  for (char** e = environ; *e != nullptr; e++) {
    if (strncmp(*e, "TUTTI_", 6) != 0) continue;
    if (has_service && (strncmp(*e + 6, "SERVICE_", 8) == 0 || strncmp(*e + 6, "PORT_", 5) == 0)) continue;
    const std::string name(*e, strcspn(*e, "="));
    if (std::ranges::find(kTable, name, &EnvEntry::name) != std::end(kTable)) continue;
    log(LogLevel::kWarn, "%s is set but nothing reads it; did you mean %s?", name.c_str(), nearest_name(name));
  }
}

Result<void> check_word(std::string_view name, std::initializer_list<std::string_view> words) {
  const std::string value = env_string(name);
  if (std::find(words.begin(), words.end(), value) != words.end()) return {};
  std::string list;
  for (const std::string_view* word = words.begin(); word != words.end(); word++)
    list.append(list.empty() ? "" : word + 1 == words.end() ? " or " : ", ").append(*word);
  return Error{Code::kInvalidUsage,
               format("%s=%s is not valid: give %s", env_entry(name).name, value.c_str(), list.c_str())};
}

// A list as matches_filter() takes it: a part that begins with '^' or '=' would match nothing, and so would one with a
// blank, which no device has in its name.
Result<void> check_names(std::string_view name) {
  const std::string text = env_string(name);
  std::string_view list = text;
  for (const char sign : {'^', '='})
    if (list.starts_with(sign)) list.remove_prefix(1);
  constexpr std::string_view kBlanks = " \t\n";
  const bool is_good = list.find_first_of("^=") == list.npos && list.find_first_of(kBlanks) == list.npos;
  if (is_good) return {};
  return Error{Code::kInvalidUsage,
               format("%s=%s is not valid: give names separated by commas, without blanks; a '^' or '=' stands only "
                      "before the whole list, for which it counts: ^docker,virbr or =eth0,eth1",
                      env_entry(name).name, text.c_str())};
}

// Null if unset or empty, or not meant for Tutti. A privileged program does not let its user choose files that it loads
// or opens.
const char* value_of(const EnvEntry& entry) {
  static constexpr std::string_view kPaths[] = {"TUTTI_LOG_FILE",     "TUTTI_TRACE_DIR",        "TUTTI_TRACE_FILE",
                                                "TUTTI_METRICS_FILE", "TUTTI_TRANSPORT_PLUGIN", "TUTTI_TUNE_FILE",
                                                "TUTTI_TOPO_FILE",    "TUTTI_TOPO_DUMP"};
  const bool is_path = std::find(std::begin(kPaths), std::end(kPaths), entry.name) != std::end(kPaths);
  const char* value = is_path ? secure_getenv(entry.name) : getenv(entry.name);
  return value != nullptr && *value != '\0' && !is_port_of_service(entry.name, value) ? value : nullptr;
}

}  // namespace

std::span<const EnvEntry> env_table() {
  return kTable;
}

const EnvEntry& env_entry(std::string_view name) {
  const EnvEntry* const entry = std::ranges::find(kTable, name, &EnvEntry::name);
  if (entry == std::end(kTable)) abort();
  return *entry;
}

bool env_is_set(std::string_view name) {
  return value_of(env_entry(name)) != nullptr;
}

std::string env_string(std::string_view name) {
  const EnvEntry& entry = env_entry(name);
  const char* value = value_of(entry);
  return value != nullptr ? value : entry.fallback;
}

std::string env_path(std::string_view name) {
  const std::string path = env_string(name);
  std::error_code none;
  const auto absolute = std::filesystem::absolute(path, none);
  return none ? path : absolute.string();
}

Result<int64_t> env_int(std::string_view name) {
  const EnvEntry& entry = env_entry(name);
  const std::string text = env_string(name);
  char* end = nullptr;
  errno = 0;
  const long long number = strtoll(text.c_str(), &end, 10);
  bool ok = end != text.c_str() && errno == 0;
  int64_t unit = 1;
  if (ok && *end != '\0') {
    static constexpr char kSuffixes[] = "kKmMgG";
    const char* suffix = strchr(kSuffixes, *end);
    ok = suffix != nullptr && end[1] == '\0' && entry.unit == std::string_view("bytes");
    if (ok) unit = int64_t{1} << (10 * ((suffix - kSuffixes) / 2 + 1));
  }
  int64_t value = 0;
  ok = ok && !__builtin_mul_overflow(static_cast<int64_t>(number), unit, &value);
  if (ok && value >= entry.min && value <= entry.max) return value;
  return Error{Code::kInvalidUsage, format("%s=%s is not valid: %s; give a whole number%s%s from %ld to %ld%s%s",
                                           entry.name, text.c_str(), entry.help, *entry.unit ? " of " : "", entry.unit,
                                           entry.min, entry.max, *entry.fallback ? ", default " : "", entry.fallback)};
}

Result<PortRange> env_port_range() {
  if (!env_is_set("TUTTI_PORT_RANGE")) return PortRange{};
  const std::string text = env_string("TUTTI_PORT_RANGE");
  unsigned first = 0, last = 0;
  int used = 0;
  const bool is_range =
      sscanf(text.c_str(), "%5u-%5u%n", &first, &last, &used) == 2 && text[static_cast<size_t>(used)] == '\0';
  if (is_range && first > 0 && first <= last && last <= UINT16_MAX)
    return PortRange{static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
  return Error{Code::kInvalidUsage,
               "TUTTI_PORT_RANGE=" + text + " is not valid: give the first port and the last, such as 20000-20999"};
}

Result<void> env_check() {
  static std::once_flag once;
  std::call_once(once, warn_of_unknown_names);
  for (const EnvEntry& entry : kTable)
    if (entry.min <= entry.max && env_is_set(entry.name)) TUTTI_TRY(env_int(entry.name));
  TUTTI_TRY(env_port_range());
  TUTTI_TRY_ASSIGN(const int64_t port, env_int("TUTTI_PORT"));
  if (port != 0 && env_is_set("TUTTI_PORT_RANGE"))
    return Error{Code::kInvalidUsage,
                 "TUTTI_PORT and TUTTI_PORT_RANGE are both set: give one port for a host or a range"};
  constexpr int64_t kLeastSegmentBytes = 88;  // the kernel ignores less
  TUTTI_TRY_ASSIGN(const int64_t segment_bytes, env_int("TUTTI_TCP_MSS"));
  if (segment_bytes != 0 && segment_bytes < kLeastSegmentBytes)
    return Error{Code::kInvalidUsage, format("TUTTI_TCP_MSS=%ld is not valid: give 0, or %ld to %ld", segment_bytes,
                                             kLeastSegmentBytes, env_entry("TUTTI_TCP_MSS").max)};
  for (const std::string_view names : {"TUTTI_SOCKET_IFNAME", "TUTTI_IB_HCA"}) TUTTI_TRY(check_names(names));
  TUTTI_TRY(check_word("TUTTI_LOG", {"none", "error", "warn", "info", "trace"}));
  TUTTI_TRY(check_word("TUTTI_PROTO", {"", "copy"}));
  return check_word("TUTTI_ORDER", {"topology", "rank"});
}

}  // namespace tutti
