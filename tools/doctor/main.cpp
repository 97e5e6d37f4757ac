// tutti-doctor: whether this host, and under a launcher the whole job, has what Tutti needs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../cli/command_line.h"
#include "base/env.h"
#include "base/socket.h"
#include "findings.h"
#include "group/launcher.h"

namespace {

using tutti::doctor::Finding;
using tutti::doctor::Findings;

bool print(const Findings& findings) {
  bool well = true;
  for (const Finding& f : findings) {
    const char* const level = f.level == Finding::Level::kGood  ? "ok"
                              : f.level == Finding::Level::kBad ? "BAD"
                                                                : "warn";
    printf("%-5s %-34s %s\n", level, f.what.c_str(), f.found.c_str());
    if (!f.remedy.empty()) printf("%-5s %-34s -> %s\n", "", "", f.remedy.c_str());
    well = well && f.level != Finding::Level::kBad;
  }
  fflush(stdout);
  return well;
}

// Only rank 0 prints findings that all ranks have in common. False if something is bad.
bool print_if_first(const tutti::LaunchInfo& info, const Findings& findings) {
  if (info.rank == 0) print(findings);
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.level == Finding::Level::kBad; });
}

struct Network {
  tuttiResult_t code = tuttiSuccess;  // of the group's creation
  std::string error;
  tutti::doctor::Place place;
  Findings findings;
};

// Uses a group whose packets are so small that they pass everywhere.
Network look_at_network(const tutti::LaunchInfo& info) {
  const bool is_set = tutti::env_is_set("TUTTI_TCP_MSS");
  if (!is_set) setenv("TUTTI_TCP_MSS", "500", 1);
  Network network{tuttiSuccess, "", {1, 1, info.rank == 0 || info.local_rank == 0}, {}};
  tuttiComm_t comm = nullptr;
  network.code = tuttiCommInitFromEnv(&comm, nullptr);
  if (network.code == tuttiSuccess) {
    network.place = tutti::doctor::find_place(comm);
    network.findings = tutti::doctor::look_at_network(comm);
    tuttiCommDestroy(comm);
  } else {
    network.error = tuttiGetLastError(nullptr);
  }
  if (!is_set) unsetenv("TUTTI_TCP_MSS");
  return network;
}

int report_missing_group(tuttiResult_t code, const std::string& error) {
  print({{Finding::Level::kBad, "the job's group", error,
          code == tuttiTimeout ? "check that all hosts can reach rank 0's host, and that no firewall is between them"
                               : "mend what this line names, on all hosts"}});
  return 1;
}

// Every host's first rank prints; returns 0 if nothing is bad. More ranks may be wanted than there are now.
int look_at_job(const tutti::LaunchInfo& info, int ranks) {
  const Network network = look_at_network(info);
  bool is_host_well = true;
  if (network.place.is_first_here) {
    printf("host %s, rank %d of %d\n", tutti::host_name().c_str(), info.rank, info.n_ranks);
    const tutti::doctor::Place& place = network.place;
    is_host_well = print(
        tutti::doctor::look_at_host(std::max(place.ranks_here, ranks), std::max(info.n_ranks, ranks), place.cpus_here));
  }
  if (network.code != tuttiSuccess) return report_missing_group(network.code, network.error);
  if (!print_if_first(info, network.findings)) return 1;  // transfers would hang
  tuttiComm_t comm = nullptr;
  if (const tuttiResult_t code = tuttiCommInitFromEnv(&comm, nullptr); code != tuttiSuccess)
    return report_missing_group(code, tuttiGetLastError(nullptr));
  const bool is_data_well = print_if_first(info, tutti::doctor::look_at_group(comm, network.place.n_hosts));
  tuttiCommDestroy(comm);
  return is_host_well && is_data_well ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Checks whether this host has what Tutti needs: one line for each thing, with a remedy if it is missing.\n"
      "Under a launcher (mpirun -np 4 tutti-doctor) it checks all hosts, and the connections between them.\n"
      "The exit status is 0 if nothing is BAD.");
  int ranks = 1;
  app.add_option("--ranks", ranks, "how many ranks are to run on this host")->check(CLI::Range(1, 65536));
  if (const auto status = tutti::cli::parse(app, argc, argv, "tutti-doctor")) return *status;
  const auto info = tutti::detect_launcher();
  if (info) return tutti::cli::printed(look_at_job(info.value(), ranks), "tutti-doctor");
  printf("host %s\n", tutti::host_name().c_str());
  if (tutti::has_rank_of_launcher())
    print({{Finding::Level::kWarning, "launcher", info.error().message,
            "only this host is checked: to check all hosts, start tutti-doctor the way the job is started"}});
  const bool host = print(tutti::doctor::look_at_host(ranks, ranks, tutti::doctor::cpus_of_process()));
  const bool data = print(tutti::doctor::try_transports());
  return tutti::cli::printed(host && data ? 0 : 1, "tutti-doctor");
}
