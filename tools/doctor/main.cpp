// tutti-doctor: whether this host, and under a launcher the whole job, has what Tutti needs.
#include <CLI/CLI.hpp>
#include <cstdio>

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

// Every host's first rank prints; 0 where nothing is bad.
int look_at_job(const tutti::LaunchInfo& info) {
  const bool speaks = info.rank == 0 || info.local_rank == 0;
  bool well = true;
  if (speaks) {
    printf("host %s, rank %d of %d\n", tutti::host_name().c_str(), info.rank, info.n_ranks);
    well = print(tutti::doctor::look_at_host(info.n_ranks));
  }
  tuttiComm_t comm = nullptr;
  if (tuttiCommInitFromEnv(&comm, nullptr) != tuttiSuccess) {
    print({{Finding::Level::kBad, "the job's group", tuttiGetLastError(nullptr),
            "check that all hosts can reach rank 0's host, and that no firewall is between them"}});
    return 1;
  }
  const Findings findings = tutti::doctor::look_at_group(comm);
  const bool is_group_well = info.rank == 0 ? print(findings) : print({});
  tuttiCommDestroy(comm);
  for (const Finding& f : findings) well = well && f.level != Finding::Level::kBad;
  return well && is_group_well ? 0 : 1;
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
  if (const auto info = tutti::detect_launcher()) return look_at_job(info.value());
  printf("host %s\n", tutti::host_name().c_str());
  const bool host = print(tutti::doctor::look_at_host(ranks));
  const bool data = print(tutti::doctor::try_transports());
  return host && data ? 0 : 1;
}
