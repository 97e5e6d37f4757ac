#include "team.h"

#include <cstring>

namespace tutti::perf {

Status Team::join(tuttiComm_t comm) {
  comm_ = comm;
  if (auto r = tuttiCommCount(comm, &n_ranks_); r != tuttiSuccess) return library_error("tuttiCommCount", r, comm);
  if (auto r = tuttiCommUserRank(comm, &rank_); r != tuttiSuccess) return library_error("tuttiCommUserRank", r, comm);
  return {};
}

Status Team::all_reduce(void* data, size_t count, tuttiDataType_t type, tuttiRedOp_t op) {
  const tuttiResult_t result = tuttiAllReduce(data, data, count, type, op, comm_, nullptr);
  if (result != tuttiSuccess) return library_error("tuttiAllReduce (between measurements)", result, comm_);
  return {};
}

Status Team::barrier() {
  int32_t nothing = 0;
  return all_reduce(&nothing, 1, tuttiInt32, tuttiSum);
}

Status Team::reduce(std::vector<double>* values, tuttiRedOp_t op) {
  return all_reduce(values->data(), values->size(), tuttiFloat64, op);
}

Status Team::sum(long long* value) {
  int64_t total = *value;
  Status s = all_reduce(&total, 1, tuttiInt64, tuttiSum);
  *value = total;
  return s;
}

Status Team::agree(const Status& mine) {
  long long failures = mine ? 0 : 1;
  if (Status s = sum(&failures); !s) return mine ? s : mine;
  if (failures == 0) return {};
  if (mine) return Error{"", kExitOtherFailed, true};
  return Error{mine.error().message, mine.error().exit_status, true};
}

Status Team::gather(const std::vector<double>& mine, std::vector<std::vector<double>>* all) {
  std::vector<double> together(mine.size() * static_cast<size_t>(n_ranks_));
  const tuttiResult_t result = tuttiAllGather(mine.data(), together.data(), mine.size(), tuttiFloat64, comm_, nullptr);
  if (result != tuttiSuccess) return library_error("tuttiAllGather (between measurements)", result, comm_);
  for (auto at = together.begin(); at != together.end(); at += static_cast<std::ptrdiff_t>(mine.size())) {
    all->emplace_back(at, at + static_cast<std::ptrdiff_t>(mine.size()));
  }
  return {};
}

Status Team::gather(const RankInfo& mine, std::vector<RankInfo>* all) {
  // Everyone adds its own record to zeros: a gather by all-reduce.
  struct Record {
    int32_t pid;
    char host[60];
  };
  std::vector<Record> records(static_cast<size_t>(n_ranks_), Record{});
  Record& record = records[static_cast<size_t>(rank_)];
  record.pid = mine.pid;
  mine.host.copy(record.host, sizeof(record.host) - 1);
  if (Status s = all_reduce(records.data(), records.size() * sizeof(Record), tuttiUint8, tuttiSum); !s) return s;
  all->clear();
  for (const Record& r : records) all->push_back({r.pid, r.host});
  return {};
}

}  // namespace tutti::perf
