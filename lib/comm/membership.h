// This header: which rank this is in its group, and what it knows about the others: filled in while they meet
// (setup.cpp), then constant; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/roster.h"
#include "exec/chunks.h"
#include "plan/planner.h"
#include "topology/machine.h"

namespace tutti {

struct CommOptions {
  double init_timeout_seconds = 60;
  double op_timeout_seconds = 1800;
  std::string transports;
  Algo algo = Algo::kAuto;  // forced where it can be; kAuto: none
  std::string trace_file, metrics_file;
  bool exposes = true;
  bool deterministic = false;
  bool majority = false;
  bool encrypt = false;
  int cuda_device = -1;   // of this rank's buffers; -1: they are in host memory
  uint64_t replaces = 0;  // the group that a shrink leaves, or 0

  static Result<CommOptions> from_env();
  Result<void> set_algo(const std::string& name);
};

struct Membership {
  const int rank, n_ranks;
  const CommOptions options;
  std::shared_ptr<const Machine> machine = {};  // as it was when this rank joined
  std::shared_ptr<const Roster> roster = {};    // set, like all members below, once all ranks have met
  std::optional<Planner> planner = {};
  uint64_t stream_from_bytes = UINT64_MAX, one_way_from_bytes = UINT64_MAX;
  uint64_t expose_sums_from_bytes = 0;
  MessageSizes sizes = {};
  bool shares_cpus = false;  // ranks outnumber the CPUs here, in this group or another one of this process

  bool is_on_gpu() const { return options.cuda_device >= 0; }
  const Layout& layout() const { return planner->layout(); }
  bool leads_host() const { return layout().hosts[static_cast<size_t>(layout().host_of(rank))][0] == rank; }
};

}  // namespace tutti
