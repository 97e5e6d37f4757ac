// One rank's communicator, and exchanges between ranks besides the measured operations: over the same communicator, or
// over a second one if that one is on a device. All functions are collective. One thread at a time.
#pragma once

#include <vector>

#include "options.h"
#include "report.h"
#include "status.h"

namespace tutti::perf {

class Team {
 public:
  ~Team();
  Status join(tuttiComm_t comm);
  // From here on comm() is a communicator on CUDA devices, according to `options`, of the ranks that joined.
  Status move_to_device(const Options& options);
  // Finalizes that communicator; without this it is aborted.
  Status leave_device();

  tuttiComm_t comm() const { return on_device_ == nullptr ? comm_ : on_device_; }
  int device() const { return device_; }
  int rank() const { return rank_; }
  int n_ranks() const { return n_ranks_; }

  Status barrier();
  Status reduce(std::vector<double>* values, tuttiRedOp_t op);
  Status sum(long long* value);
  // This rank's failure if there is one, else an error without a message if another rank has one.
  Status agree(const Status& mine);
  // all[r] = rank r's values; all ranks have the same number of them.
  Status gather(const std::vector<double>& mine, std::vector<std::vector<double>>* all);
  Status gather(const RankInfo& mine, std::vector<RankInfo>* all);

 private:
  Status all_reduce(void* data, size_t count, tuttiDataType_t type, tuttiRedOp_t op);

  tuttiComm_t comm_ = nullptr, on_device_ = nullptr;
  int rank_ = 0, n_ranks_ = 1, device_ = -1;
};

}  // namespace tutti::perf
