#include "base/cgroups.h"

#include <filesystem>

#include "catch.h"
#include "made_up_root.h"

using tutti::cpu_quota;

TEST_CASE("a CPU quota is that of the tightest control group around the process, in either version") {
  const tutti_test::MadeUpRoot made_up;
  const std::string root = made_up.path, groups = root + "/sys/fs/cgroup";
  const auto write = tutti_test::MadeUpRoot::write;
  CHECK(cpu_quota(root) == 0);
  write(root + "/proc/self/cgroup", "0::/job/step\n");
  CHECK(cpu_quota(root) == 0);
  write(groups + "/job/step/cpu.max", "max 100000\n");
  CHECK(cpu_quota(root) == 0);
  write(groups + "/job/cpu.max", "250000 100000\n");
  CHECK(cpu_quota(root) == 2.5);
  write(groups + "/job/step/cpu.max", "400000 100000\n");
  CHECK(cpu_quota(root) == 2.5);
  write(groups + "/cpu.max", "50000 100000\n");  // inside a container, which sees only this file
  CHECK(cpu_quota(root) == 0.5);
  std::filesystem::remove_all(groups);
  write(root + "/proc/self/cgroup", "5:memory:/else\n4:cpu,cpuacct:/job\n0::/\n");
  write(groups + "/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write(groups + "/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write(groups + "/memory/else/cpu.cfs_quota_us", "1000\n");
  write(groups + "/memory/else/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(root) == 0);
  write(groups + "/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  write(groups + "/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(root) == 3);
}
