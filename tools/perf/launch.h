// Where ranks come from: threads of this process, forked processes, or a launcher's processes.
#pragma once

#include <functional>

#include "options.h"
#include "status.h"

namespace tutti::perf {

// What a rank does with its communicator. Called in one thread for each rank of this process.
using RankBody = std::function<Status(tuttiComm_t)>;

// Runs `body` on every rank that belongs to this process (and, with --procs, its children) and returns the exit status.
// Ranks that fail print "[rank r] ..." to stderr.
int launch(const Options& options, const char* tool, const RankBody& body);

// The whole main of a tool without tables: parses the options, or prints the help that they request, and launches.
int launch_tool(int argc, char** argv, const Collective& tool,
                const std::function<Status(const Options&, tuttiComm_t)>& body);

// The configuration of communicators whose operations are measured.
tuttiConfig_t config_of(const Options& options);

// Whether mpirun, srun, torchrun or TUTTI_RANK has given this process a rank.
bool has_launcher();

// An error if a launcher started several processes, each of which would start a job of its own of `procs` ranks because
// of `option`.
Status check_procs(int procs, const char* option = "--procs");

// How many ranks this call makes on this host, as far as is known.
int local_ranks(const Options& options);

}  // namespace tutti::perf
