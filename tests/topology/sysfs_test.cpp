// What is found without hwloc, in a made-up /sys and in this machine's.
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "catch.h"
#include "topology/discover.h"

using namespace tutti;
namespace fs = std::filesystem;

namespace {

class Sysfs {
 public:
  Sysfs() {
    char name[] = "/tmp/tutti-sysfs-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Sysfs() { fs::remove_all(root_); }
  std::string root() const { return root_; }
  void put(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

 private:
  std::string root_;
};

CpuSet cpu_set(std::initializer_list<size_t> list) {
  CpuSet cpus;
  for (const size_t cpu : list) cpus[cpu] = true;
  return cpus;
}

// 2 packages with a NUMA node each, of 2 L3 caches, of 2 cores, of 2 CPUs, numbered core by core.
void put_server(const Sysfs& sys) {
  sys.put("/devices/system/cpu/online", "0-15");
  for (int node = 0; node < 2; node++) {
    const std::string at = "/devices/system/node/node" + std::to_string(node);
    sys.put(at + "/cpulist", node == 0 ? "0-7" : "8-15");
    sys.put(at + "/meminfo", "Node " + std::to_string(node) + " MemTotal:       1024 kB");
  }
  const auto range = [](int first, int n) { return std::to_string(first) + "-" + std::to_string(first + n - 1); };
  for (int cpu = 0; cpu < 16; cpu++) {
    const std::string at = "/devices/system/cpu/cpu" + std::to_string(cpu);
    sys.put(at + "/topology/physical_package_id", std::to_string(cpu / 8));
    sys.put(at + "/topology/package_cpus_list", range(cpu / 8 * 8, 8));
    sys.put(at + "/topology/core_cpus_list", range(cpu / 2 * 2, 2));
    sys.put(at + "/cache/index0/level", "1");
    sys.put(at + "/cache/index0/size", "32K");
    sys.put(at + "/cache/index0/shared_cpu_list", range(cpu / 2 * 2, 2));
    sys.put(at + "/cache/index3/level", "3");
    sys.put(at + "/cache/index3/size", "16384K");
    sys.put(at + "/cache/index3/shared_cpu_list", range(cpu / 4 * 4, 4));
  }
}

}  // namespace

TEST_CASE("sysfs: packages, nodes, last-level caches, cores") {
  const Sysfs sys;
  put_server(sys);
  const Machine m = discover_in_sysfs(sys.root(), false);
  CHECK(m.last_level_cache_bytes == 16u << 20);
  CHECK(cache_bytes(m, cpu_set({1, 2})) == 16u << 20);
  CHECK(cache_bytes(m, cpu_set({0, 3, 5, 15})) == 48u << 20);
  CHECK(cache_bytes(m, cpu_set({1000})) == 16u << 20);  // that CPU is not on this machine
  CHECK(m.whole.parts.size() == 2);
  CHECK(place_name(m, path_to(m, cpu_set({10}))) == "package 1, NUMA node 1, L3 of CPU 8, core of CPU 10");
  CHECK(place_name(m, path_to(m, cpu_set({8, 11}))) == "package 1, NUMA node 1, L3 of CPU 8");
  CHECK(place_name(m, path_to(m, cpu_set({0, 5}))) == "package 0, NUMA node 0");
  CHECK(place_name(m, path_to(m, cpu_set({0, 15}))) == "anywhere");
  CHECK(place_name(m, path_to(m, cpu_set({1000}))) == "anywhere");  // that CPU is not on this machine
  CHECK(m.whole.parts[0].parts[0].bytes == 1u << 20);
}

TEST_CASE("sysfs: of its host's cache a virtual machine counts on 40 MiB a CPU") {
  const Sysfs sys;
  sys.put("/devices/system/cpu/online", "0-1");
  for (const char* cpu : {"cpu0", "cpu1"}) {
    const std::string at = std::string("/devices/system/cpu/") + cpu;
    sys.put(at + "/cache/index3/level", "3");
    sys.put(at + "/cache/index3/size", "491520K");
    sys.put(at + "/cache/index3/shared_cpu_list", "0-1");
  }
  const Machine m = discover_in_sysfs(sys.root(), false);
  CHECK(m.last_level_cache_bytes == 80u << 20);
  CHECK(cache_bytes(m, cpu_set({0})) == 80u << 20);
}

TEST_CASE("sysfs: network devices with their speeds; lo and what is down and unreal are left out") {
  const Sysfs sys;
  put_server(sys);
  sys.put("/class/net/lo/operstate", "unknown");
  sys.put("/class/net/eth0/operstate", "down");
  sys.put("/class/net/eth0/device/vendor", "0x8086");
  sys.put("/class/net/eth0/speed", "25000");
  sys.put("/class/net/veth1/operstate", "up");
  sys.put("/class/net/veth1/speed", "-1");
  sys.put("/class/net/docker0/operstate", "down");
  sys.put("/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)");
  const Machine m = discover_in_sysfs(sys.root(), true);
  REQUIRE(m.whole.parts.size() == 5);
  CHECK(m.whole.parts[2].name + ": " + m.whole.parts[2].detail == "eth0: NIC, 25000 Mb/s");
  CHECK(m.whole.parts[3].name + ": " + m.whole.parts[3].detail == "veth1: virtual NIC");
  CHECK(m.whole.parts[4].name + ": " + m.whole.parts[4].detail == "mlx5_0: NIC, 100000 Mb/s");
  CHECK(place_name(m, path_to(m, cpu_set({3}))) == "package 0, NUMA node 0, L3 of CPU 0, core of CPU 2");
}

TEST_CASE("sysfs: a container that hides most of it leaves the usable CPUs") {
  const Sysfs empty;
  const Machine m = discover_in_sysfs(empty.root() + "/nothing", true);
  CHECK(m.whole.cpus == usable_cpus());
  CHECK(m.last_level_cache_bytes == 8u << 20);
  CHECK(path_to(m, usable_cpus()).size() <= 1);
  const Sysfs odd;
  odd.put("/devices/system/cpu/online", "0-1,,x");
  odd.put("/devices/system/cpu/cpu0/topology/physical_package_id", "-1");
  odd.put("/devices/system/cpu/cpu0/cache/index2/level", "many");
  odd.put("/devices/system/node/nodes/cpulist", "0-99999999");
  CHECK(discover_in_sysfs(odd.root(), false).whole.cpus[1]);
}

TEST_CASE("this machine: every usable CPU has a place, with either way to look") {
  const CpuSet cpus = usable_cpus();
  REQUIRE(cpus.any());
  const Machine coarse = discover_in_sysfs("/sys", true);
  const auto found = machine();
  REQUIRE(found);
  for (size_t cpu = 0; cpu < cpus.size(); cpu++) {
    if (!cpus[cpu]) continue;
    CHECK_FALSE(path_to(coarse, cpu_set({cpu})).empty());
    CHECK_FALSE(path_to(*found.value(), cpu_set({cpu})).empty());
  }
  CHECK(found.value() == machine().value());  // looked for once
}
