#include "hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>

#include "../perf/status.h"

namespace tutti::soak {

// Number 0 is the switch.
std::string Hosts::name(int host) const {
  return perf::text("tutti-soak-%d-%d", owner_, host);
}

bool Hosts::ip(const std::string& arguments) {
  return system(("ip " + arguments + " 2>/dev/null").c_str()) == 0;
}

std::string Hosts::make(int n) {
  owner_ = static_cast<int>(getpid());
  if (geteuid() != 0) return "network namespaces need root";
  if (!ip("-V >/dev/null")) return "ip is not installed (Debian: iproute2)";
  for (; made_ <= n; made_++)
    if (!ip("netns add " + name(made_))) return "network namespaces cannot be made here";
  const std::string bridge = name(0);
  if (!ip(perf::text("-n %s link add switch up type bridge", bridge.c_str()))) return "bridges cannot be made here";
  for (int host = 1; host <= n; host++) {
    const std::string at = name(host);
    if (!ip(perf::text("-n %s link add h%d up master switch type veth peer name nic netns %s", bridge.c_str(), host,
                       at.c_str())) ||
        !ip(perf::text("-n %s link set lo up", at.c_str())) ||
        !ip(perf::text("-n %s addr add 10.77.1.%d/24 dev nic", at.c_str(), host)) ||
        !ip(perf::text("-n %s link set nic up", at.c_str())))
      return "veth pairs cannot be made here";
  }
  n_ = n;
  return "";
}

Hosts::~Hosts() {
  for (int host = 0; host < made_; host++) ip("netns del " + name(host));
}

bool Hosts::enter(int host) const {
  const int fd = open(("/run/netns/" + name(host + 1)).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = setns(fd, CLONE_NEWNET) == 0;
  close(fd);
  return done;
}

bool Hosts::plug(int host, bool in) const {
  return ip(perf::text("-n %s link set h%d %s", name(0).c_str(), host + 1, in ? "up" : "down"));
}

}  // namespace tutti::soak
