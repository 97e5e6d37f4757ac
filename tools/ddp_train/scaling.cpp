#include "scaling.h"

#include <sys/mman.h>

#include <cstdio>
#include <new>

#include "ranks.h"
#include "trainer.h"

namespace tutti::train {
namespace {

// Results that the ranks' processes send back.
struct Figures {
  double samples_per_second, step_seconds, comm_seconds, overlap_percent;
};

int measure(const Options& options, int ranks, bool threads, Figures* figures) {
  return run_ranks(ranks, threads, [&](const RankSetup& setup) {
    Trainer trainer(options, setup, true);
    if (Status s = trainer.run(); !s) {
      fprintf(stderr, "[rank %d] %s\n", setup.rank, s.error().message.c_str());
      return s.error().exit_status;
    }
    const Result& r = trainer.result();
    if (setup.rank == 0) *figures = {r.samples_per_second, r.step_seconds, r.comm_seconds, r.overlap_percent};
    return 0;
  });
}

struct Series {
  bool weak, threads, overlap;
};

int measure_series(const Options& given, const Series& series, Figures* figures) {
  double one = 0;
  for (int ranks = 1; ranks <= given.procs; ranks *= 2) {
    Options options = given;
    options.no_overlap = !series.overlap;
    if (series.weak) options.batch *= ranks;
    if (const int status = measure(options, ranks, series.threads, figures); status != 0) return status;
    if (ranks == 1) one = figures->samples_per_second;
    printf("%-8s %-10s %-8s %6d %8d %12.0f %11.0f %9.2f %9.2f %10.0f\n", series.weak ? "weak" : "strong",
           series.threads ? "threads" : "processes", series.overlap ? "on" : "off", ranks, options.batch,
           figures->samples_per_second, 100 * figures->samples_per_second / (one * ranks), 1e3 * figures->step_seconds,
           1e3 * figures->comm_seconds, figures->overlap_percent);
    fflush(stdout);
  }
  return 0;
}

}  // namespace

int measure_scaling(const Options& given) {
  void* shared = mmap(nullptr, sizeof(Figures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    perror("mmap");
    return perf::kExitFailed;
  }
  auto* figures = new (shared) Figures{};
  Options options = given;
  options.checkpoint.clear();
  options.resume = false;
  options.log_every = options.steps + 1;
  printf("%-8s %-10s %-8s %6s %8s %12s %11s %9s %9s %10s\n", "scaling", "ranks as", "overlap", "ranks", "batch",
         "samples/s", "efficiency", "step", "comm", "overlapped");
  printf("%-8s %-10s %-8s %6s %8s %12s %11s %9s %9s %10s\n", "", "", "", "", "", "", "(%)", "(ms)", "(ms)", "(%)");
  int status = 0;
  for (const bool weak : {false, true})
    for (const bool threads : {false, true})
      for (const bool overlap : {false, true})
        if (status == 0) status = measure_series(options, {weak, threads, overlap}, figures);
  munmap(shared, sizeof(Figures));
  return status;
}

}  // namespace tutti::train
