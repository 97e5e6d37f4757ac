// Cluster: its hosts, and the file it is read from.
#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "topology/cluster.h"

namespace tutti {

double Cluster::nic_bytes_per_second(int host, int index) const {
  double speed = nic.bytes_per_second;
  for (const Exception& e : exceptions)
    if (e.host == host && (e.nic < 0 || e.nic == index)) speed = e.bytes_per_second.value_or(speed);
  return speed;
}

double Cluster::host_bytes_per_second(int host) const {
  double slowest = nic_bytes_per_second(host, 0);
  for (int index = 1; index < nics_per_host; index++) slowest = std::min(slowest, nic_bytes_per_second(host, index));
  return slowest * nics_per_host;
}

double Cluster::rack_bytes_per_second() const {
  double slowest = rack.bytes_per_second;
  for (const Exception& exception : exceptions)
    if (exception.rack >= 0) slowest = std::min(slowest, exception.bytes_per_second.value_or(slowest));
  return slowest;
}

double Cluster::rack_bytes_per_second(int index) const {
  double speed = rack.bytes_per_second;
  for (const Exception& e : exceptions)
    if (e.rack == index) speed = e.bytes_per_second.value_or(speed);
  return speed;
}

int Cluster::find_host(std::string_view name) const {
  const auto is = [](std::string_view wanted) { return [=](const std::string& host) { return host == wanted; }; };
  auto found = std::find_if(hosts.begin(), hosts.end(), is(name));
  if (found == hosts.end()) found = std::find_if(hosts.begin(), hosts.end(), is(name.substr(0, name.find('.'))));
  return found == hosts.end() ? -1 : static_cast<int>(found - hosts.begin());
}

Result<Cluster> read_cluster(const std::string& path, std::string* text) {
  const auto read = read_file(path);
  if (!read)
    return Error{Code::kInvalidUsage,
                 "the network in " + path + " cannot be read: " + strerror(read.error().sys_errno)};
  if (text != nullptr) *text = read.value();
  return cluster_from_json(read.value(), path);
}

}  // namespace tutti
