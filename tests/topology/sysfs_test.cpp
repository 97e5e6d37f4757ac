// What is found without hwloc, in a made-up /sys and in this machine's own.
#include <sched.h>

#include <algorithm>
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
void put_server(const Sysfs& sys, bool is_old = false) {
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
    sys.put(at + (is_old ? "/topology/core_siblings_list" : "/topology/package_cpus_list"), range(cpu / 8 * 8, 8));
    sys.put(at + (is_old ? "/topology/thread_siblings_list" : "/topology/core_cpus_list"), range(cpu / 2 * 2, 2));
    sys.put(at + "/cache/index0/level", "1");
    sys.put(at + "/cache/index0/size", "32K");
    sys.put(at + "/cache/index0/shared_cpu_list", range(cpu / 2 * 2, 2));
    sys.put(at + "/cache/index3/level", "3");
    sys.put(at + "/cache/index3/size", "16384K");
    sys.put(at + "/cache/index3/shared_cpu_list", range(cpu / 4 * 4, 4));
  }
}

}  // namespace

TEST_CASE("sysfs: packages, nodes, caches, cores, CPUs") {
  const Sysfs sys;
  put_server(sys, GENERATE(false, true));
  const Machine m = discover_in_sysfs(sys.root(), false);
  CHECK(last_level_cache_bytes(m) == 16u << 20);
  CHECK(cache_bytes(m, cpu_set({1, 2})) == 16u << 20);
  CHECK(cache_bytes(m, cpu_set({0, 3, 5, 15})) == 48u << 20);
  CHECK(share_cache(m, cpu_set({1, 2})));
  CHECK_FALSE(share_cache(m, cpu_set({0, 5})));
  CHECK_FALSE(share_cache(m, cpu_set({0, 15})));
  CHECK(cache_bytes(m, cpu_set({1000})) == 16u << 20);  // that CPU is not on this machine
  CHECK(m.whole.parts.size() == 2);
  CHECK(place_name(m, path_to(m, cpu_set({10}))) == "package 1, NUMA node 1, L3 2, core 5, CPU 10");
  CHECK(place_name(m, path_to(m, cpu_set({8, 11}))) == "package 1, NUMA node 1, L3 2");
  CHECK(place_name(m, path_to(m, cpu_set({0, 5}))) == "package 0, NUMA node 0");
  CHECK(place_name(m, path_to(m, cpu_set({0, 15}))) == "anywhere");
  CHECK(place_name(m, path_to(m, cpu_set({1000}))) == "anywhere");  // that CPU is not on this machine
  CHECK(discover_in_sysfs(sys.root(), true).whole.parts[0].parts[0].bytes == 1u << 20);
}

TEST_CASE("sysfs: of its host's cache a virtual machine counts on 40 MiB a CPU") {
  const Sysfs sys;
  sys.put("/devices/system/cpu/online", "0-1");
  for (const char* cpu : {"cpu0", "cpu1"}) {
    const std::string at = std::string("/devices/system/cpu/") + cpu;
    sys.put(at + "/cache/index3/level", "3");
    sys.put(at + "/cache/index2/level", "2");  // shared by the same CPUs
    sys.put(at + "/cache/index2/size", "2048K");
    sys.put(at + "/cache/index2/shared_cpu_list", "0-1");
    sys.put(at + "/cache/index3/size", "491520K");
    sys.put(at + "/cache/index3/shared_cpu_list", "0-1");
  }
  const Machine m = discover_in_sysfs(sys.root(), false);
  CHECK(last_level_cache_bytes(m) == 80u << 20);
  CHECK(cache_bytes(m, cpu_set({0})) == 80u << 20);
  CHECK(place_name(m, path_to(m, cpu_set({1}))) == "L3 0, L2 0, core 1");
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
  CHECK(place_name(m, path_to(m, cpu_set({3}))) == "package 0, NUMA node 0, L3 0, core 1, CPU 3");
}

TEST_CASE("sysfs: a container that hides most of it leaves the usable CPUs") {
  const Sysfs empty;
  const Machine m = discover_in_sysfs(empty.root() + "/nothing", true);
  CHECK(m.whole.cpus == usable_cpus());
  CHECK(last_level_cache_bytes(m) == 8u << 20);
  CHECK(path_to(m, usable_cpus()).size() <= 1);
  const Sysfs odd;
  odd.put("/devices/system/cpu/online", "0-1,,x");
  odd.put("/devices/system/cpu/cpu0/topology/physical_package_id", "-1");
  odd.put("/devices/system/cpu/cpu0/cache/index2/level", "many");
  odd.put("/devices/system/cpu/cpu0/cache/index3/level", "3");  // without a size
  odd.put("/devices/system/node/nodes/cpulist", "0-99999999");
  const Machine found = discover_in_sysfs(odd.root(), false);
  CHECK(found.whole.cpus[1]);
  CHECK(last_level_cache_bytes(found) == 8u << 20);
}

// Two packages with one last-level cache each, of two nodes each (like Intel's sub-NUMA clusters), whose cores have
// second-level caches, one of which is for instructions only.
TEST_CASE("sysfs: what holds more CPUs is outer, as a cache that is larger than a node") {
  const Sysfs sys;
  sys.put("/devices/system/cpu/online", "0-7");
  for (int node = 0; node < 4; node++)
    sys.put(format("/devices/system/node/node%d/cpulist", node), format("%d-%d", 2 * node, 2 * node + 1));
  for (int cpu = 0; cpu < 8; cpu++) {
    const std::string at = format("/devices/system/cpu/cpu%d", cpu);
    const std::string package = cpu < 4 ? "0-3" : "4-7";
    sys.put(at + "/topology/physical_package_id", cpu < 4 ? "7" : "9");
    sys.put(at + "/topology/package_cpus_list", package);
    const char* const caches[][4] = {{"1", "48K", "Data", "own"},
                                     {"2", "64K", "Instruction", "own"},
                                     {"2", "2048K", "Unified", "own"},
                                     {"3", "32768K", "Unified", "package"}};
    for (size_t i = 0; i < std::size(caches); i++) {
      const std::string cache = at + "/cache/index" + std::to_string(i);
      sys.put(cache + "/level", caches[i][0]);
      sys.put(cache + "/size", caches[i][1]);
      sys.put(cache + "/type", caches[i][2]);
      sys.put(cache + "/shared_cpu_list", std::string(caches[i][3]) == "own" ? std::to_string(cpu) : package);
    }
  }
  const Machine m = discover_in_sysfs(sys.root(), false);
  CHECK(place_name(m, path_to(m, cpu_set({6}))) == "package 1, L3 1, NUMA node 3, L2 6, core 6");
  CHECK(place_name(m, path_to(m, cpu_set({5, 6}))) == "package 1, L3 1");
  CHECK(cache_bytes(m, cpu_set({0, 3})) == 32u << 20);  // a single cache, though it spans two nodes
  CHECK(cache_bytes(m, cpu_set({0, 6})) == 64u << 20);
}

TEST_CASE("sysfs: a part reaches no farther than what it lies in") {
  const Sysfs sys;
  sys.put("/devices/system/cpu/online", "0-3");
  sys.put("/devices/system/node/node0/cpulist", "0-2");  // one package and half of the other
  sys.put("/devices/system/node/node1/cpulist", "3");
  for (int cpu = 0; cpu < 4; cpu++) {
    const std::string at = format("/devices/system/cpu/cpu%d/topology", cpu);
    sys.put(at + "/physical_package_id", std::to_string(cpu / 2));
    sys.put(at + "/package_cpus_list", cpu < 2 ? "0-1" : "2-3");
  }
  const Machine m = discover_in_sysfs(sys.root(), false);
  const Part& node = m.whole.parts.at(0);
  REQUIRE(node.name == "NUMA node 0");
  CHECK(to_text(node.parts.at(0).cpus) == "0-1");
  CHECK(to_text(node.parts.at(1).cpus) == "2");
}

namespace {

// What matters to ranks. Memory may differ: kernels without NUMA have no nodes, and hwloc reports nodes without CPUs.
std::vector<std::string> all_parts(const Part& part) {
  std::vector<std::string> texts;
  for (const Part& inner : part.parts) {
    if (inner.kind == Part::Kind::kDevice || inner.kind == Part::Kind::kGroup) continue;
    if (inner.kind != Part::Kind::kNode)
      texts.push_back(format("%s: CPUs %s, %llu bytes", inner.name.c_str(), to_text(inner.cpus).c_str(),
                             static_cast<unsigned long long>(inner.bytes)));
    for (const std::string& text : all_parts(inner)) texts.push_back(text);
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

}  // namespace

TEST_CASE("this machine: sysfs has the parts that hwloc finds") {
  const auto found = discover_with_hwloc();
  if (!found) {
    WARN("skipped: not compared: " + found.error().message);
    return;
  }
  CHECK(all_parts(discover_in_sysfs("/sys", false).whole) == all_parts(found.value().whole));
}

TEST_CASE("this machine: every usable CPU has a place, looked for once") {
  const CpuSet cpus = usable_cpus();
  REQUIRE(cpus.any());
  const auto found = machine();
  REQUIRE(found);
  for (size_t cpu = 0; cpu < cpus.size(); cpu++) {
    if (!cpus[cpu]) continue;
    CHECK_FALSE(path_to(*found.value(), cpu_set({cpu})).empty());
  }
  CHECK(found.value() == machine().value());  // found only once
}
