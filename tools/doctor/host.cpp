#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "base/cgroups.h"
#include "base/env.h"
#include "base/fd.h"
#include "findings.h"

namespace tutti::doctor {
namespace {

using Level = Finding::Level;

Finding good(std::string what, std::string found) {
  return {Level::kGood, std::move(what), std::move(found), ""};
}

Finding versions() {
  int version = 0;
  tuttiGetVersion(&version);
  return good("version", format("%d.%d.%d", version / 10000, version / 100 % 100, version % 100));
}

Finding settings() {
  const auto checked = env_check();
  if (!checked)
    return {Level::kBad, "settings", checked.error().message, "correct it in the environment, on all ranks"};
  std::string set;
  for (const EnvEntry& entry : env_table())
    if (std::string_view(entry.name) != "TUTTI_SECRET" && env_is_set(entry.name))
      set += (set.empty() ? "" : ", ") + std::string(entry.name);
  return good("settings", set.empty() ? "none" : set);
}

// A rank has several sockets for each peer: links in both directions, a control connection, and connections to be
// accepted. With ranks of other hosts it has them once it sends to all of them. The program may need many, too; without
// it a rank has far fewer.
Finding descriptors(int ranks_here, int n_ranks) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto needed_for = [](int ranks) { return 256 + 16 * static_cast<unsigned long long>(ranks); };
  const std::string found = format("%llu, of which each of %d ranks may take %llu",
                                   static_cast<unsigned long long>(limit.rlim_cur), n_ranks, needed_for(n_ranks));
  if (limit.rlim_cur >= needed_for(n_ranks)) return good("open files (ulimit -n)", found);
  const unsigned long long least = 40 + 16 * static_cast<unsigned long long>(ranks_here);
  return {limit.rlim_cur < least ? Level::kBad : Level::kWarning, "open files (ulimit -n)", found,
          format("ulimit -n %llu before the job, or LimitNOFILE in its service", needed_for(n_ranks))};
}

Finding processes(int ranks) {
  rlimit limit{};
  getrlimit(RLIMIT_NPROC, &limit);
  const uint64_t needed = 64 + 8 * static_cast<uint64_t>(ranks);
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed)
    return good("processes and threads (ulimit -u)",
                limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur));
  return {Level::kWarning, "processes and threads (ulimit -u)", std::to_string(limit.rlim_cur),
          format("ulimit -u %llu: each rank has a few threads", static_cast<unsigned long long>(needed))};
}

Finding locked_memory(bool has_devices) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string found = limit.rlim_cur == RLIM_INFINITY
                                ? "unlimited"
                                : format("%llu KiB", static_cast<unsigned long long>(limit.rlim_cur >> 10));
  if (!has_devices) return good("locked memory (ulimit -l)", found + ", and there are no RDMA devices that need it");
  if (limit.rlim_cur >= uint64_t{1} << 30) return good("locked memory (ulimit -l)", found);
  return {Level::kBad, "locked memory (ulimit -l)", found, "RDMA devices pin buffers: ulimit -l unlimited"};
}

// Beside the library, or beside this program if that contains it.
std::filesystem::path verbs_plugin() {
  static const char in_program = 0;
  const void* const in_library = dlsym(RTLD_DEFAULT, "tuttiGetVersion");
  Dl_info file{};
  if (dladdr(in_library != nullptr ? in_library : &in_program, &file) == 0) return {};
  return std::filesystem::path(file.dli_fname).parent_path() / "libtutti-verbs.so";
}

Finding traces() {
  const std::string folder = env_string("TUTTI_TRACE_DIR");
  struct statvfs room {};
  const std::string remedy =
      "set TUTTI_TRACE_DIR to a folder with some MiB of room; without one traces cannot be read from outside";
  if (statvfs(folder.c_str(), &room) != 0) return {Level::kWarning, folder, strerror(errno), remedy};
  const unsigned long long free_mib = static_cast<unsigned long long>(room.f_bavail) * room.f_frsize >> 20;
  const std::string found = format("%llu MiB free", free_mib);
  if (access(folder.c_str(), W_OK) != 0) return {Level::kWarning, folder, found + ", but not writable", remedy};
  if (free_mib < 8) return {Level::kWarning, folder, found, remedy};
  return good(folder, found);
}

Finding memfd() {
  const Fd file(memfd_create("tutti-doctor", MFD_CLOEXEC));
  constexpr size_t kBytes = 1 << 20;
  if (file && ftruncate(file.get(), kBytes) == 0) {
    void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory != MAP_FAILED) {
      munmap(memory, kBytes);
      return good("shared memory (memfd)", "can be created and mapped");
    }
  }
  return {Level::kBad, "shared memory (memfd)", strerror(errno),
          "let the container's seccomp profile allow memfd_create, or use TUTTI_TRANSPORTS=tcp"};
}

Finding cpus(int ranks, const Cpus& cpus_here) {
  int usable = 0;
  for (const uint64_t word : cpus_here) usable += std::popcount(word);
  const std::string found =
      format("%d of %ld CPUs may be used, for %d ranks here", usable, sysconf(_SC_NPROCESSORS_ONLN), ranks);
  if (ranks <= usable) return good("CPUs", found);
  return {Level::kWarning, "CPUs", found,
          "run fewer ranks on this host: those that share a CPU take turns, which is many times slower"};
}

Finding quota() {
  const double cpus = cpu_quota();
  if (cpus == 0) return good("CPU quota (cgroup)", "none");
  return {
      Level::kWarning, "CPU quota (cgroup)", format("%.1f CPUs", cpus),
      "give the container whole CPUs (cpuset) instead of a quota: ranks that have used it up are stopped for a while"};
}

Finding interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    return {Level::kBad, "network interfaces", strerror(errno), "make sure that /proc and netlink can be read"};
  std::set<std::string> names;
  bool lo_is_up = false;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    const bool has_address =
        i->ifa_addr != nullptr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
    const bool is_up = has_address && (i->ifa_flags & IFF_UP) != 0, is_lo = (i->ifa_flags & IFF_LOOPBACK) != 0;
    if (is_up && !is_lo) names.insert(i->ifa_name);
    lo_is_up |= is_up && is_lo;
  }
  freeifaddrs(list);
  std::string found;
  for (const std::string& name : names) {
    std::string mtu = "?", speed;
    std::ifstream("/sys/class/net/" + name + "/mtu") >> mtu;
    std::ifstream("/sys/class/net/" + name + "/speed") >> speed;
    const bool has_speed = !speed.empty() && speed[0] != '-';
    found += (found.empty() ? "" : ", ") + name + " (MTU " + mtu + (has_speed ? ", " + speed + " Mbit/s)" : ")");
  }
  if (!lo_is_up)
    return {Level::kBad, "network interfaces", found + (found.empty() ? "" : "; ") + "lo is down",
            "ranks of one host need it: ip link set lo up"};
  if (!names.empty()) return good("network interfaces", found);
  return {Level::kWarning, "network interfaces", "none but loopback",
          "ranks on other hosts cannot be reached: bring one up (ip link)"};
}

}  // namespace

Cpus cpus_of_process() {
  Cpus cpus{};
  sched_getaffinity(0, sizeof cpus, reinterpret_cast<cpu_set_t*>(cpus.data()));
  return cpus;
}

// The library, too, takes an empty folder for none: the module ib_core makes it, with or without a device.
Findings look_at_rdma(const std::filesystem::path& devices, const std::filesystem::path& plugin) {
  std::error_code none;
  const bool has_devices = !std::filesystem::is_empty(devices, none) && !none;
  Findings findings{locked_memory(has_devices)};
  const bool may_use_verbs =
      !env_is_set("TUTTI_TRANSPORT_PLUGIN") && !env_is_set("TUTTI_TRANSPORTS") && env_string("TUTTI_ENCRYPT") != "1";
  if (has_devices && may_use_verbs && !std::filesystem::exists(plugin, none))
    findings.push_back(
        {Level::kWarning, "RDMA", "there are devices, but no " + plugin.string(),
         "install it there (Debian: libtutti0-verbs), or build Tutti with libibverbs-dev installed; until then data "
         "between hosts go over TCP"});
  return findings;
}

Findings look_at_host(int ranks_here, int n_ranks, const Cpus& cpus_here) {
  Findings findings{versions(), settings(), descriptors(ranks_here, n_ranks), processes(ranks_here)};
  for (Finding& finding : look_at_rdma("/sys/class/infiniband", verbs_plugin())) findings.push_back(std::move(finding));
  findings.insert(findings.end(), {traces(), memfd(), cpus(ranks_here, cpus_here), quota(), interfaces()});
  return findings;
}

}  // namespace tutti::doctor
