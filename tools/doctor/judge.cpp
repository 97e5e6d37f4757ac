// What is wrong with a network, judged by the results of probes, and with settings that differ.
#include <algorithm>
#include <cmath>

#include "base/result.h"
#include "network.h"

namespace tutti::doctor {
namespace {

using Level = Finding::Level;

// Most lines for one problem, which a large job may have thousands of.
constexpr size_t kMostLines = 8;
constexpr double kClocksApartSeconds = 0.1;
constexpr int kTcpHeaderBytes = 72;  // IPv6 and TCP with a time stamp
// One or two lost of a hundred may be due to a busy receiver.
constexpr int kLostOf100 = 3, kManyLostOf100 = 10;

std::string between(const Path& path) {
  return format("%s to %s", path.from, path.to);
}

Findings judge_path(const Path& path) {
  Findings findings;
  if (path.answered == 0) {
    findings.push_back({Level::kWarning, "network: " + between(path), "no UDP packet comes back",
                        "a firewall may be between them: MTU, losses and clocks are unknown. Tutti needs TCP, on the "
                        "port of TUTTI_PORT or those of TUTTI_PORT_RANGE where one is set"});
    return findings;
  }
  if (const int lost = (path.sent - path.answered) * 100 / path.sent; lost >= kLostOf100)
    findings.push_back(
        {lost >= kManyLostOf100 ? Level::kBad : Level::kWarning, "network: " + between(path),
         format("%d of %d packets were lost", path.sent - path.answered, path.sent),
         format("look for errors of the cable and the switch, and of %s: ip -s link; ethtool -S", path.interface)});
  if (path.largest_bytes < path.mtu_bytes)
    findings.push_back(
        {path.is_told_largest ? Level::kWarning : Level::kBad, "network: " + between(path),
         format("packets of more than %d bytes do not arrive, and %s has an MTU of %d%s", path.largest_bytes,
                path.interface, path.mtu_bytes,
                path.is_told_largest ? "; the network says so, and TCP adapts" : ": large messages will not arrive"),
         format("ip link set %s mtu %d, larger packets on the switches between, or TUTTI_TCP_MSS=%d", path.interface,
                path.largest_bytes, path.largest_bytes - kTcpHeaderBytes)});
  if (std::abs(path.ahead_seconds) > kClocksApartSeconds)
    findings.push_back({Level::kWarning, "clocks: " + between(path),
                        format("the other clock is %.1f s %s", std::abs(path.ahead_seconds),
                               path.ahead_seconds > 0 ? "ahead" : "behind"),
                        "run chronyd or another NTP client on both: the times in their logs do not match"});
  return findings;
}

// The line of `text` that has the first character in which it differs from `other`.
std::string first_difference(const std::string& text, const std::string& other) {
  size_t at = 0;
  while (at < text.size() && at < other.size() && text[at] == other[at]) at++;
  const size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

Finding compare_settings(const std::vector<std::string>& settings) {
  const char* const what = "the same everywhere";
  for (size_t r = 1; r < settings.size(); r++)
    if (settings[r] != settings[0])
      return {Level::kWarning, what,
              format("ranks 0 and %zu have %s and %s", r, first_difference(settings[0], settings[r]).c_str(),
                     first_difference(settings[r], settings[0]).c_str()),
              "that is allowed; unless it is meant, pass the same variables to all ranks (mpirun -x, srun --export)"};
  return {Level::kGood, what, format("version and settings of %zu ranks", settings.size()), ""};
}

Findings judge(const std::vector<Path>& paths) {
  Findings findings;
  for (const Path& path : paths)
    for (Finding& finding : judge_path(path)) findings.push_back(std::move(finding));
  if (const size_t n = findings.size(); n > kMostLines) {
    std::stable_sort(findings.begin(), findings.end(),
                     [](const Finding& a, const Finding& b) { return a.level > b.level; });
    findings.resize(kMostLines);
    findings.push_back(
        {Level::kWarning, "network", format("%zu more such lines", n - kMostLines), "start with those above"});
  }
  if (paths.empty() || !findings.empty()) return findings;
  const auto [least, most] = std::minmax_element(
      paths.begin(), paths.end(), [](const Path& a, const Path& b) { return a.round_trip_us < b.round_trip_us; });
  const auto clock = std::max_element(paths.begin(), paths.end(), [](const Path& a, const Path& b) {
    return std::abs(a.ahead_seconds) < std::abs(b.ahead_seconds);
  });
  findings.push_back(
      {Level::kGood, "network between the hosts",
       format("%zu paths: round trips of %.0f to %.0f us, few packets lost, the largest ones arrive; clocks at most "
              "%.1f ms apart",
              paths.size(), least->round_trip_us, most->round_trip_us, std::abs(clock->ahead_seconds) * 1e3),
       ""});
  return findings;
}

Findings look_at_network(tuttiComm_t comm) {
  Trouble trouble;
  Findings findings = judge(probe_paths(comm, &trouble));
  if (!trouble.text().empty()) findings.push_back({Level::kBad, "network", trouble.text(), "see TUTTI_LOG=info"});
  return findings;
}

}  // namespace tutti::doctor
