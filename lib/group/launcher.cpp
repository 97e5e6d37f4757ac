#include "group/launcher.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "base/env.h"
#include "base/log.h"
#include "group/launcher_address.h"
#include "group/launcher_store.h"

namespace tutti {
namespace {

// A launcher is recognised when all variables that it needs are set; the first such one in the table counts.
struct Launcher {
  const char* name;
  const char* needs[4];  // rank, number of ranks, others
  const char* local_rank;
};
constexpr Launcher kLaunchers[] = {
    {"tutti", {"TUTTI_RANK", "TUTTI_NRANKS", "TUTTI_ROOT"}, ""},
    {"torchrun", {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}, "LOCAL_RANK"},
    // Before MPICH: in a shell of `srun --mpi=pmi2`, mpirun keeps the variables that srun has set, but closes PMI_FD.
    {"openmpi", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"}, "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"mpich", {"PMI_RANK", "PMI_SIZE", "PMI_FD"}, "MPI_LOCALRANKID"},
    {"slurm", {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"}, "SLURM_LOCALID"},
};

// Slurm's own steps, such as the shell of salloc and a batch script, have one process and the highest numbers: they are
// as good as none.
constexpr unsigned long long kFirstOwnStepOfSlurm = 4294967290;

std::string env_text(const char* name) {
  const char* value = getenv(name);
  if (value == nullptr) return "";
  const bool is_own = strcmp(name, "SLURM_STEP_ID") == 0 && strtoull(value, nullptr, 10) >= kFirstOwnStepOfSlurm;
  return is_own ? "" : value;
}

Result<int> env_number(const char* name, int min, int max) {
  const std::string text = env_text(name);
  char* end = nullptr;
  errno = 0;
  const long value = strtol(text.c_str(), &end, 10);
  if (!text.empty() && *end == '\0' && errno == 0 && value >= min && value <= max) return static_cast<int>(value);
  return Error{Code::kInvalidUsage,
               format("%s=%s is not valid: give a whole number from %d to %d", name, text.c_str(), min, max)};
}

Error nothing_fits(const std::string& nearly) {
  std::string looked;
  for (const Launcher& launcher : kLaunchers) {
    looked += format("%s%s (", looked.empty() ? "" : "; ", launcher.name);
    for (const char* name : launcher.needs)
      if (name != nullptr) looked += std::string(name == launcher.needs[0] ? "" : ", ") + name;
    looked += ")";
  }
  return Error{Code::kInvalidUsage,
               "no launcher was recognised from the environment" + nearly + "; looked for " + looked};
}

// Slurm's pmi plugins set the same variables as MPICH's mpiexec, which alone sets MPI_LOCALRANKID.
bool is_slurm_with_pmi(const Launcher& launcher) {
  return std::string(launcher.name) == "mpich" && env_text("MPI_LOCALRANKID").empty() &&
         !env_text("SLURM_PROCID").empty();
}

Result<LaunchInfo> read_info(const Launcher& launcher) {
  const bool slurm = is_slurm_with_pmi(launcher);
  LaunchInfo info;
  info.launcher = slurm ? "slurm" : launcher.name;
  TUTTI_TRY_ASSIGN(info.n_ranks, env_number(launcher.needs[1], 1, INT32_MAX));
  TUTTI_TRY_ASSIGN(info.rank, env_number(launcher.needs[0], 0, info.n_ranks - 1));
  const char* local_rank = slurm ? "SLURM_LOCALID" : launcher.local_rank;
  if (!env_text(local_rank).empty()) {
    TUTTI_TRY_ASSIGN(info.local_rank, env_number(local_rank, 0, info.n_ranks - 1));
  }
  log(LogLevel::kInfo, "launcher: %s, rank %d of %d (from %s and %s)", info.launcher.c_str(), info.rank, info.n_ranks,
      launcher.needs[0], launcher.needs[1]);
  return info;
}

// The job's secret, for launchers that cannot carry one. `derived` is made from what is the same on all ranks. The
// host's name is not: Kubeflow tells rank 0 that it is localhost.
Result<std::string> job_secret(const LaunchInfo& info, const std::string& derived) {
  if (env_is_set("TUTTI_SECRET")) return env_string("TUTTI_SECRET");
  if (info.encrypts)
    return Error{Code::kInvalidUsage,
                 format("rank %d must encrypt (TUTTI_ENCRYPT or the configuration's encrypt is set), but TUTTI_SECRET "
                        "is not set, and the secret that would replace it can be guessed: set TUTTI_SECRET to the same "
                        "random text on all ranks",
                        info.rank)};
  log(LogLevel::kInfo, "TUTTI_SECRET is not set: the secret is derived from the job's number or port");
  return derived;
}

Result<UniqueId> meet_by_tutti_root(const LaunchInfo& info, int call, Deadline deadline) {
  const std::string root = env_string("TUTTI_ROOT");
  TUTTI_TRY_ASSIGN(MeetingPoint point, parse_host_port(root, "TUTTI_ROOT"));
  TUTTI_TRY_ASSIGN(point.secret, job_secret(info, format("TUTTI_ROOT %u", point.port)));
  log(LogLevel::kInfo, "the group's root listens on TUTTI_ROOT=%s", root.c_str());
  return meet(point, info.rank, call, deadline);
}

Result<UniqueId> meet_by_torchrun(const LaunchInfo& info, int call, Deadline deadline) {
  MeetingPoint point;
  point.host = env_text("MASTER_ADDR");
  TUTTI_TRY_ASSIGN(point.port, parse_port(env_text("MASTER_PORT"), "MASTER_PORT"));
  if (env_text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    const std::string key = "tutti/" + env_text("TORCHELASTIC_RUN_ID") + "/" + std::to_string(call);
    log(LogLevel::kInfo, "the unique id travels through the agent's TCPStore at %s:%u, key %s", point.host.c_str(),
        point.port, key.c_str());
    return share_by_tcp_store(point.host, point.port, key, info.rank, deadline);
  }
  // Without TORCHELASTIC_RESTART_COUNT: agents count differently, as share_by_tcp_store() says.
  const std::string derived = format("MASTER_PORT %u %s", point.port, env_text("TORCHELASTIC_RUN_ID").c_str());
  TUTTI_TRY_ASSIGN(point.secret, job_secret(info, derived));
  log(LogLevel::kInfo, "the group's root listens on MASTER_ADDR:MASTER_PORT, %s:%u", point.host.c_str(), point.port);
  return meet(point, info.rank, call, deadline);
}

Result<UniqueId> meet_by_slurm(const LaunchInfo& info, int call, Deadline deadline) {
  const bool step = !env_text("SLURM_STEP_NODELIST").empty();
  const char* variable = step ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const std::string job = env_text("SLURM_JOB_ID"), step_id = env_text("SLURM_STEP_ID");
  MeetingPoint point;
  point.host = first_host(env_text(variable));
  if (point.host.empty())
    return Error{Code::kInvalidUsage, format("%s=%s names no host", variable, env_text(variable).c_str())};
  point.port = slurm_port(strtoull(job.c_str(), nullptr, 10), strtoull(step_id.c_str(), nullptr, 10));
  TUTTI_TRY_ASSIGN(point.secret, job_secret(info, "slurm " + job + "." + step_id + " " + env_text(variable)));
  log(LogLevel::kInfo, "the group's root listens on %s:%u (from %s and the job's and step's ids)", point.host.c_str(),
      point.port, variable);
  return meet(point, info.rank, call, deadline);
}

}  // namespace

Result<LaunchInfo> detect_launcher() {
  std::string nearly;
  for (const Launcher& launcher : kLaunchers) {
    const auto is_set = [](const char* name) { return name != nullptr && !env_text(name).empty(); };
    const auto is_missing = [](const char* name) { return name != nullptr && env_text(name).empty(); };
    const auto missing = std::find_if(std::begin(launcher.needs), std::end(launcher.needs), is_missing);
    if (missing == std::end(launcher.needs)) return read_info(launcher);
    if (std::none_of(std::begin(launcher.needs), std::end(launcher.needs), is_set)) continue;
    // A user who sets TUTTI_ variables means them: no other launcher may take over.
    if (&launcher == &kLaunchers[0])
      return Error{
          Code::kInvalidUsage,
          std::string(*missing) + " is not set: TUTTI_RANK, TUTTI_NRANKS and TUTTI_ROOT=host:port belong together"};
    nearly += format("%s%s: %s is not set", nearly.empty() ? " (" : "; ", launcher.name, *missing);
  }
  return nothing_fits(nearly.empty() ? "" : nearly + ")");
}

bool has_rank_of_launcher() {
  return std::any_of(std::begin(kLaunchers), std::end(kLaunchers),
                     [](const Launcher& launcher) { return !env_text(launcher.needs[0]).empty(); });
}

Result<UniqueId> unique_id_from_launcher(const LaunchInfo& info, Deadline deadline, int* n) {
  static std::atomic<int> calls{0};
  const int call = calls++;
  if (n != nullptr) *n = call + 1;
  if (info.launcher == "tutti") return meet_by_tutti_root(info, call, deadline);
  if (info.launcher == "torchrun") return meet_by_torchrun(info, call, deadline);
  const std::string key = "tutti-" + std::to_string(call);
  if (!env_text("PMI_FD").empty() && info.launcher != "openmpi") {
    TUTTI_TRY_ASSIGN(const int fd, env_number("PMI_FD", 0, INT32_MAX));
    log(LogLevel::kInfo, "the unique id travels through PMI-1 on PMI_FD=%d, key %s", fd, key.c_str());
    return share_by_pmi(fd, key, info.rank, deadline);
  }
  if (!env_text("PMIX_NAMESPACE").empty()) {
    log(LogLevel::kInfo, "the unique id travels through PMIx, key %s", key.c_str());
    return share_by_pmix(key, info.rank, deadline);
  }
  return meet_by_slurm(info, call, deadline);
}

}  // namespace tutti
