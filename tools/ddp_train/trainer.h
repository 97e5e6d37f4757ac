// A rank's training run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint.h"
#include "corpus.h"
#include "model.h"
#include "options.h"
#include "ranks.h"
#include "tutti/ddp.h"

namespace tutti::train {

// What rank 0 reports at the end.
struct Result {
  std::vector<std::pair<int64_t, double>> losses;  // of the logged steps
  int ranks = 0;
  size_t parameters = 0;
  int64_t skipped = 0;  // steps whose gradients overflowed
  double samples_per_second = 0, step_seconds = 0;
  double backward_seconds = 0, comm_seconds = 0, exposed_seconds = 0;  // per step
  double overlap_percent = 0;
  float loss_scale = 0;
};

class Trainer {
 public:
  Trainer(const Options& options, const RankSetup& setup, bool quiet)
      : options_(options), setup_(setup), quiet_(quiet) {}
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  Status run();
  int rank() const { return rank_; }
  const Result& result() const { return result_; }

 private:
  Status call(tuttiResult_t result);  // for results of tutti.h
  Status ddp(tuttiResult_t result);   // for results of ddp.h
  bool speaks() const { return rank_ == 0 && !quiet_; }

  Status connect();
  Status ask_place();
  Status check_outputs();
  Status share_corpus();
  Status resume();
  Status make_ddp();

  Status train();
  Status step();
  Status run_part(int part);
  Status take_batch(int first, int count, Batch* batch);
  void add_gradient(size_t index, const Matrix& gradient);
  bool gradients_are_finite();
  void descend();
  void adapt_loss_scale(bool finite);
  Status log();
  Status save();
  void finish();

  Status recover(const Status& why);
  Status find_lost(std::vector<int>& lost);

  const Options& options_;
  const RankSetup setup_;
  const bool quiet_;

  tuttiComm_t comm_ = nullptr;
  tuttiDdp_t ddp_ = nullptr;
  int rank_ = 0, size_ = 1;
  int local_batch_ = 1;
  bool lost_rank_ = false;

  std::vector<uint8_t> text_;
  int alphabet_ = 0;
  std::string source_;
  std::vector<Model> model_;  // a single one, made once the alphabet is known
  Progress progress_;
  double loss_ = 0;  // of this step, on this rank
  Status part_;      // of the marks during a backward pass

  Result result_;
  int64_t first_step_ = 0;  // in this process, or since a rank was lost
  double started_ = 0;      // after the first steps, in which the library tries things out
  int64_t started_samples_ = 0, started_step_ = 0;
  tuttiDdpStats_t started_stats_ = TUTTI_DDP_STATS_INITIALIZER;
};

// Runs the training and prints what happened; returns the exit status.
int train_on(const Options& options, const RankSetup& setup);

}  // namespace tutti::train
