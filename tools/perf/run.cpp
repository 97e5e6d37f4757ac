#include "run.h"

#include <unistd.h>

#include <algorithm>

#include "device.h"
#include "measure.h"
#include "memory.h"
#include "report.h"
#include "team.h"
#include "types.h"

namespace tutti::perf {
namespace {

std::vector<size_t> counts(const std::vector<Tensor>& tensors) {
  std::vector<size_t> out;
  for (const Tensor& tensor : tensors) out.push_back(tensor.count);
  return out;
}

size_t largest_extent(const Options& options, const Collective& collective, const std::vector<Tensor>& tensors,
                      int n_ranks) {
  size_t extent = 0;
  for (const tuttiDataType_t type : options.types) {
    const std::vector<size_t> totals =
        tensors.empty() ? std::vector<size_t>{options.max_bytes / type_info(type).bytes} : counts(tensors);
    extent = std::max(extent, make_work(collective, type, totals, n_ranks, 0).extent_bytes);
  }
  return extent;
}

// tuttiExplain's text for the row's operation.
Status explain(const Collective& collective, const Row& row, tuttiComm_t comm, std::string* why) {
  const tuttiRedOp_t op = row.op == kMulSum ? tuttiSum : row.op;
  const auto call = [&](char* to, size_t* bytes) {
    return tuttiExplain(collective.call, row.count, row.type, op, comm, to, bytes);
  };
  size_t bytes = 0;
  const tuttiResult_t result = call(nullptr, &bytes);
  if (result == tuttiInvalidArgument) {
    *why = text("%s: there is only one algorithm", collective.call);
    return {};
  }
  if (result != tuttiSuccess) return library_error("tuttiExplain", result, comm);
  why->resize(bytes);
  if (const auto r = call(why->data(), &bytes); r != tuttiSuccess) return library_error("tuttiExplain", r, comm);
  why->pop_back();  // the terminating zero
  return {};
}

class RankRun {
 public:
  RankRun(const Options& options, const Collective& collective, const std::vector<Tensor>& tensors, Team& team,
          double start_bytes)
      : options_(options),
        collective_(collective),
        tensors_(tensors),
        team_(team),
        report_(options, collective),
        bench_(options, collective, team) {
    memory_.start = start_bytes;
  }

  Status run() {
    Status s = measure_all();
    if (s || !printing()) return s;
    bench_.progress().clear();
    // The results so far, with the reason why there are no more, which matters more than a failure to write them.
    const std::string& why = s.error().message;
    static_cast<void>(report_.write_json(why.empty() ? "another rank has failed, and says why" : why));
    return s;
  }

 private:
  bool printing() const { return team_.rank() == 0; }

  Status measure_all() {
    memory_.joined = resident_bytes();
    if (Status s = team_.barrier(); !s) return s;  // no rank of this process allocates earlier
    if (Status s = team_.agree(prepare()); !s) return s;
    memory_.allocated = resident_bytes();
    if (Status s = print_header(); !s) return s;
    for (const tuttiDataType_t type : options_.types) {
      for (const tuttiRedOp_t op : options_.ops) {
        if (Status s = run_roots(type, op); !s) return s;
      }
    }
    memory_.end = resident_bytes();
    if (Status s = team_.agree(printing() ? report_.conclude(memory_) : Status()); !s) return s;
    if (wrong_ > 0) return Error{"", kExitWrongData, true};
    return {};
  }

  Status prepare() {
    if (printing()) {
      if (Status s = report_.open(); !s) return s;
      if (options_.root >= team_.n_ranks()) {
        return usage_error(text("-r %d: there are only %d ranks", options_.root, team_.n_ranks()));
      }
    }
    return bench_.allocate(largest_extent(options_, collective_, tensors_, team_.n_ranks()));
  }

  Status print_header() {
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    std::vector<RankInfo> ranks;
    RankInfo mine = {getpid(), host};
    if (team_.device() >= 0) mine = {mine.pid, mine.host, team_.device(), device::name(team_.device())};
    if (Status s = team_.gather(mine, &ranks); !s) return s;
    if (Status s = check_captures(ranks); !s) return s;
    return team_.agree(printing() ? report_.header(ranks) : Status());
  }

  // Ranks of one process on one device share launches, which would belong to the graphs of all of them.
  Status check_captures(const std::vector<RankInfo>& ranks) const {
    const bool together = std::all_of(ranks.begin(), ranks.end(), [&](const RankInfo& rank) {
      return rank.host == ranks[0].host && rank.pid == ranks[0].pid && rank.device == ranks[0].device;
    });
    if (options_.graph_launches == 0 || ranks.size() == 1 || !together) return {};
    return usage_error(
        text("-G %d: ranks that are threads and share a CUDA device are captured together, not each on "
             "its own; use --procs, or --device cuda where there are several devices",
             options_.graph_launches));
  }

  Status run_roots(tuttiDataType_t type, tuttiRedOp_t op) {
    const bool all = options_.root == kAllRoots;
    const int end = all ? team_.n_ranks() : options_.root + 1;
    for (int root = all ? 0 : options_.root; root < end; root++) {
      for (int cycle = 0; options_.run_cycles == 0 || cycle < options_.run_cycles; cycle++) {
        if (Status s = run_sizes(type, op, root); !s) return s;
      }
    }
    return {};
  }

  Status run_sizes(tuttiDataType_t type, tuttiRedOp_t op, int root) {
    if (!tensors_.empty()) return run_row(type, op, root, counts(tensors_));
    const size_t elem_bytes = type_info(type).bytes;
    size_t size = options_.min_bytes;
    do {
      if (Status s = run_row(type, op, root, {size / elem_bytes}); !s) return s;
    } while (next_size(options_, elem_bytes, &size));
    return {};
  }

  Status run_row(tuttiDataType_t type, tuttiRedOp_t op, int root, const std::vector<size_t>& totals) {
    Work work = make_work(collective_, type, totals, team_.n_ranks(), team_.rank());
    work.op = op;
    work.root = root;
    // nccl-tests prints root -1 if there is none.
    Row row = {work.bytes, work.count, type, op, collective_.has_root ? root : -1, {}, {}};
    std::string before;
    if (options_.first) {
      if (Status s = explain(collective_, row, team_.comm(), &before); !s) return s;
    }
    if (Status s = bench_.measure(work, false, &row.out_of_place); !s) return s;
    wrong_ += std::max(0ll, row.out_of_place.wrong);
    if (collective_.has_in_place) {
      if (Status s = bench_.measure(work, true, &row.in_place.emplace()); !s) return s;
      wrong_ += std::max(0ll, row.in_place->wrong);
    }
    bench_.progress().clear();
    return team_.agree(printing() ? print_row(row, before) : Status());
  }

  Status print_row(const Row& row, const std::string& before) {
    if (Status s = report_.row(row); !s) return s;
    if (options_.first) {
      const Measurement& m = row.out_of_place;
      const bool made_links = before.find("made at first use") != std::string::npos;
      Status s = report_.remark(text("first: %.2f us, %.2f times a later one%s", m.first_seconds * 1e6,
                                     m.seconds > 0 ? m.first_seconds / m.seconds : 0,
                                     made_links ? "; it made its links, too" : ""));
      if (!s) return s;
    }
    if (!options_.explain) return {};
    std::string why;
    if (Status s = explain(collective_, row, team_.comm(), &why); !s) return s;
    return report_.remark(why);
  }

  const Options& options_;
  const Collective& collective_;
  const std::vector<Tensor>& tensors_;
  Team& team_;
  Report report_;
  Bench bench_;
  MemoryMarks memory_;
  long long wrong_ = 0;
};

}  // namespace

Status run_rank(const Options& options, const Collective& collective, const std::vector<Tensor>& tensors,
                tuttiComm_t comm, double start_bytes) {
  Team team;
  if (Status s = team.join(comm); !s) return s;
  if (options.device != kHostMemory) {
    if (Status s = team.move_to_device(options); !s) return s;
  }
  if (Status s = RankRun(options, collective, tensors, team, start_bytes).run(); !s) return s;
  return team.leave_device();
}

size_t buffer_bytes(const Options& options, const Collective& collective, const std::vector<Tensor>& tensors,
                    int n_ranks) {
  return 2 * Buffer::bytes_needed(largest_extent(options, collective, tensors, n_ranks) + options.unalign_elems * 8);
}

}  // namespace tutti::perf
