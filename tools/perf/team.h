// One rank's communicator, and what the ranks tell each other through it apart from the operations measured.
// Every function is collective: all ranks call it. One thread at a time.
#pragma once

#include <vector>

#include "report.h"
#include "status.h"

namespace tutti::perf {

class Team {
 public:
  Status join(tuttiComm_t comm);

  tuttiComm_t comm() const { return comm_; }
  int rank() const { return rank_; }
  int n_ranks() const { return n_ranks_; }

  Status barrier();
  Status reduce(std::vector<double>* values, tuttiRedOp_t op);
  Status sum(long long* value);
  // This rank's failure if there is one, else an error without a message if another rank has one.
  Status agree(const Status& mine);
  // all[r] = rank r's values, which are as many on every rank.
  Status gather(const std::vector<double>& mine, std::vector<std::vector<double>>* all);
  Status gather(const RankInfo& mine, std::vector<RankInfo>* all);

 private:
  Status all_reduce(void* data, size_t count, tuttiDataType_t type, tuttiRedOp_t op);

  tuttiComm_t comm_ = nullptr;
  int rank_ = 0, n_ranks_ = 1;
};

}  // namespace tutti::perf
