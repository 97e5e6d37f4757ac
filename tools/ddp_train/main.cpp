#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "../cli/command_line.h"
#include "options.h"
#include "ranks.h"
#include "scaling.h"
#include "trainer.h"

namespace tutti::train {
namespace {

Status write_json(const std::string& path, const Result& r) {
  const nlohmann::json out = {{"ranks", r.ranks},
                              {"parameters", r.parameters},
                              {"losses", r.losses},
                              {"skipped_steps", r.skipped},
                              {"loss_scale", r.loss_scale},
                              {"samples_per_second", r.samples_per_second},
                              {"step_seconds", r.step_seconds},
                              {"backward_seconds", r.backward_seconds},
                              {"communication_seconds", r.comm_seconds},
                              {"exposed_seconds", r.exposed_seconds},
                              {"overlap_percent", r.overlap_percent}};
  FILE* file = fopen(path.c_str(), "w");
  if (file == nullptr) return Error{path + " cannot be written"};
  const bool written = fputs((out.dump(1) + "\n").c_str(), file) >= 0;
  if (fclose(file) != 0 || !written) return Error{path + " cannot be written: is the disk full?"};
  return {};
}

void print_summary(const Result& r) {
  if (r.skipped > 0) printf("%lld steps skipped, because gradients overflowed\n", static_cast<long long>(r.skipped));
  if (r.step_seconds == 0) return;  // too few steps for an estimate
  printf(
      "%.0f samples/s; a step takes %.2f ms, of which communication %.2f ms, %.0f %% of it hidden behind the backward "
      "pass\n",
      r.samples_per_second, 1e3 * r.step_seconds, 1e3 * r.comm_seconds, r.overlap_percent);
}

}  // namespace

int train_on(const Options& options, const RankSetup& setup) {
  Trainer trainer(options, setup, false);
  Status s = trainer.run();
  if (s && trainer.rank() == 0) {
    print_summary(trainer.result());
    if (!options.json.empty()) s = write_json(options.json, trainer.result());
  }
  if (s) return 0;
  fprintf(stderr, "[rank %d] %s\n", setup.from_launcher ? trainer.rank() : setup.rank, s.error().message.c_str());
  return s.error().exit_status;
}

}  // namespace tutti::train

using namespace tutti::train;  // NOLINT: main is outside

namespace {

int run(const Options& options) {
  if (!options.help.empty()) return fputs(options.help.c_str(), stdout) >= 0 ? 0 : tutti::perf::kExitFailed;
  if (options.scaling) return measure_scaling(options);
  if (options.procs > 0)
    return run_ranks(options.procs, options.threads, [&](const RankSetup& setup) { return train_on(options, setup); });
  RankSetup setup;
  setup.from_launcher = true;
  return train_on(options, setup);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (Status s = parse_options(argc, argv, &options); !s) {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, s.error().message.c_str());
    return s.error().exit_status;
  }
  return tutti::cli::printed(run(options), program_invocation_short_name);
}
