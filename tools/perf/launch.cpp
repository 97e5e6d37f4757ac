#include "launch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <numeric>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "spawn.h"

namespace tutti::perf {
namespace {

// If a device is measured, these communicators are for the agreements between ranks.
tuttiConfig_t first_config(const Options& options) {
  if (options.device == kHostMemory) return config_of(options);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  return config;
}

int report_failure(int rank, const Error& error) {
  // If there is no message another rank, or the table, has already said it.
  if (!error.message.empty()) fprintf(stderr, "[rank %d] %s\n", rank, error.message.c_str());
  return error.exit_status;
}

// Finalizes and frees the communicator, or aborts it after a failure that the other ranks may not know of.
Status close(tuttiComm_t comm, Status outcome) {
  if (outcome || outcome.error().agreed) {
    const tuttiResult_t result = tuttiCommDestroy(comm);
    if (result != tuttiSuccess && outcome) return library_error("tuttiCommDestroy", result, nullptr);
  } else {
    // The original failure is reported instead.
    static_cast<void>(tuttiCommAbort(comm));
  }
  return outcome;
}

int run_with(tuttiComm_t comm, int rank, const RankBody& body) {
  const Status outcome = close(comm, body(comm));
  return outcome ? 0 : report_failure(rank, outcome.error());
}

struct Group {
  tuttiUniqueId id;
  int n_ranks;
};

int run_one(const Options& options, const Group& group, int rank, const RankBody& body) {
  const tuttiConfig_t config = first_config(options);
  tuttiComm_t comm = nullptr;
  const tuttiResult_t result = tuttiCommInitRankConfig(&comm, group.n_ranks, group.id, rank, &config);
  if (result != tuttiSuccess) {
    return report_failure(rank, library_error("tuttiCommInitRankConfig", result, nullptr).error());
  }
  return run_with(comm, rank, body);
}

// Runs this process's ranks, which are consecutive, each in a thread. None joins the group before all have a thread:
// it would wait for the others.
int run_threads(const Options& options, const Group& group, int first_rank, const RankBody& body) {
  std::vector<int> statuses(static_cast<size_t>(options.threads));
  std::vector<std::thread> threads;
  std::promise<bool> started;
  const std::shared_future<bool> all_started = started.get_future().share();
  const auto run = [&](int i) {
    if (all_started.get()) statuses[static_cast<size_t>(i)] = run_one(options, group, first_rank + i, body);
  };
  try {
    for (int i = 1; i < options.threads; i++) threads.emplace_back(run, i);
    started.set_value(true);
  } catch (const std::system_error& e) {
    started.set_value(false);
    statuses[0] =
        report_failure(first_rank, {text("-t %d: only %zu threads can be started (%s): give fewer, or raise the limits "
                                         "of processes and memory (ulimit -u, -v, the container's)",
                                         options.threads, threads.size() + 1, e.code().message().c_str())});
  }
  run(0);
  for (std::thread& thread : threads) thread.join();
  return std::accumulate(statuses.begin(), statuses.end(), 0, worse);
}

int failed_call(const char* tool, const char* call, tuttiResult_t result) {
  fprintf(stderr, "%s: %s\n", tool, library_error(call, result, nullptr).error().message.c_str());
  return kExitFailed;
}

// A communicator of the launcher's processes, used only to hand out the id of the one of all threads.
int run_launched_threads(const Options& options, tuttiComm_t processes, const RankBody& body) {
  int rank = 0, n = 1;
  Group group = {};
  Status s = [&]() -> Status {
    if (auto r = tuttiCommUserRank(processes, &rank); r != tuttiSuccess) {
      return library_error("tuttiCommUserRank", r, processes);
    }
    if (auto r = tuttiCommCount(processes, &n); r != tuttiSuccess) return library_error("tuttiCommCount", r, processes);
    if (rank == 0) {
      if (auto r = tuttiGetUniqueId(&group.id); r != tuttiSuccess) return library_error("tuttiGetUniqueId", r, nullptr);
    }
    const auto r = tuttiBcast(group.id.internal, TUTTI_UNIQUE_ID_BYTES, tuttiUint8, 0, processes, nullptr);
    if (r != tuttiSuccess) return library_error("tuttiBcast", r, processes);
    return {};
  }();
  s = close(processes, s);
  if (!s) return report_failure(rank * options.threads, s.error());
  group.n_ranks = n * options.threads;
  return run_threads(options, group, rank * options.threads, body);
}

int run_launched(const Options& options, const char* tool, const RankBody& body) {
  const tuttiConfig_t config = first_config(options);
  tuttiComm_t comm = nullptr;
  const tuttiResult_t result = tuttiCommInitFromEnv(&comm, &config);
  if (result != tuttiSuccess) return failed_call(tool, "tuttiCommInitFromEnv", result);
  if (options.threads > 1) return run_launched_threads(options, comm, body);
  int rank = 0;
  static_cast<void>(tuttiCommUserRank(comm, &rank));  // for messages; the body asks again
  return run_with(comm, rank, body);
}

// Forks first and makes the id afterwards, because that starts a thread. The children wait for the id on a pipe.
int run_procs(const Options& options, const char* tool, const RankBody& body) {
  block_launcher_signals();
  int ends[2];
  if (pipe(ends) != 0) {
    fprintf(stderr, "%s: pipe: %s\n", tool, strerror(errno));
    return kExitFailed;
  }
  bool failed = false;
  const auto run_child = [&](int i) {
    ::close(ends[1]);
    Group group = {.id = {}, .n_ranks = options.procs * options.threads};
    // Written atomically for every child, so it is read at once.
    if (read(ends[0], &group.id, sizeof group.id) != static_cast<ssize_t>(sizeof group.id)) return kExitOtherFailed;
    return run_threads(options, group, i * options.threads, body);
  };
  const auto make_id = [&] {
    tuttiUniqueId id;
    const tuttiResult_t result = tuttiGetUniqueId(&id);
    if (result != tuttiSuccess) failed_call(tool, "tuttiGetUniqueId", result);
    failed = result != tuttiSuccess;
    for (int i = 0; i < options.procs && !failed; i++) failed = write(ends[1], &id, sizeof id) < 0;
    ::close(ends[1]);
    ::close(ends[0]);
  };
  const SpawnPlan plan = {tool, options.procs, options.threads, options.grace_seconds};
  const int status = spawn(plan, run_child, make_id);
  return failed ? kExitFailed : status;
}

int run_local(const Options& options, const char* tool, const RankBody& body) {
  if (options.procs > 0) return run_procs(options, tool, body);
  Group group = {.id = {}, .n_ranks = options.threads};
  const tuttiResult_t result = tuttiGetUniqueId(&group.id);
  if (result != tuttiSuccess) return failed_call(tool, "tuttiGetUniqueId", result);
  return run_threads(options, group, 0, body);
}

// Variables in which launchers tell a process its rank and how many they started; PMIx has none for the latter.
struct Launcher {
  const char *rank, *size;
};
constexpr Launcher kLaunchers[] = {
    {"TUTTI_RANK", "TUTTI_NRANKS"}, {"RANK", "WORLD_SIZE"},        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},       {"PMIX_RANK", "SLURM_NTASKS"}, {"SLURM_PROCID", "SLURM_NTASKS"}};

// Null if there is none. RANK alone may be anything. Slurm sets SLURM_PROCID in a batch script, too, which is not a
// step, and in the shell of salloc, which is one of its own: those have the highest numbers.
const Launcher* find_launcher() {
  const char* step = getenv("SLURM_STEP_ID");
  const bool is_slurm_step = step != nullptr && strtoull(step, nullptr, 10) < 4294967290;
  for (const Launcher& launcher : kLaunchers) {
    const std::string_view rank = launcher.rank;
    const bool counts = rank == "RANK" ? getenv("WORLD_SIZE") != nullptr : rank != "SLURM_PROCID" || is_slurm_step;
    if (counts && getenv(launcher.rank) != nullptr) return &launcher;
  }
  return nullptr;
}

// How many processes a launcher started on this host, of which Slurm tells the first host's; 1 if it does not say.
int launched_here() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"})
    if (const char* value = getenv(name)) return std::clamp(atoi(value), 1, 1 << 16);
  return 1;
}

}  // namespace

bool has_launcher() {
  return find_launcher() != nullptr;
}

Status check_procs(int procs, const char* option) {
  const Launcher* const launcher = find_launcher();
  if (procs <= 0 || launcher == nullptr) return {};
  for (const char* name : {launcher->size, launcher->rank}) {
    const char* value = getenv(name);
    const long at_least = name == launcher->size ? 2 : 1;
    if (value != nullptr && strtol(value, nullptr, 10) >= at_least)
      return usage_error(text(
          "%s starts %d ranks, but a launcher started several processes (%s=%s), and each would be a job of its own: "
          "leave out %s, so that they are the ranks of one, or start one process (mpirun -np 1; if this is the only "
          "one, as in a shell, env -u %s)",
          option, procs, name, value, option, name));
  }
  return {};
}

tuttiConfig_t config_of(const Options& options) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  if (options.timeout_seconds > 0) config.opTimeoutSeconds = options.timeout_seconds;
  if (!options.algo.empty()) config.algo = options.algo.c_str();
  if (!options.transports.empty()) config.transports = options.transports.c_str();
  return config;
}

int local_ranks(const Options& options) {
  return (options.procs > 0 ? options.procs : has_launcher() ? launched_here() : 1) * options.threads;
}

int launch(const Options& options, const char* tool, const RankBody& body) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout must be an error with a message
  if (const Status s = check_procs(options.procs); !s) {
    fprintf(stderr, "%s: %s\n", tool, s.error().message.c_str());
    return s.error().exit_status;
  }
  if (options.procs == 0 && has_launcher()) return run_launched(options, tool, body);
  if (options.procs == 0 && options.threads == 1) {
    fprintf(stderr, "%s: running with one rank only; for more use --procs N or -t N, or mpirun, srun or torchrun\n",
            tool);
  }
  return run_local(options, tool, body);
}

int launch_tool(int argc, char** argv, const Collective& tool,
                const std::function<Status(const Options&, tuttiComm_t)>& body) {
  Options options;
  if (Status s = parse_options(argc, argv, tool, &options); !s) {
    fprintf(stderr, "%s: %s\n", tool.tool, s.error().message.c_str());
    return s.error().exit_status;
  }
  if (!options.help.empty()) return fputs(options.help.c_str(), stdout) < 0 || fflush(stdout) != 0 ? kExitFailed : 0;
  return launch(options, tool.tool, [&](tuttiComm_t comm) { return body(options, comm); });
}

}  // namespace tutti::perf
