#include "team.h"

#include <cstring>

#include "device.h"
#include "launch.h"

namespace tutti::perf {

Status Team::join(tuttiComm_t comm) {
  comm_ = comm;
  if (auto r = tuttiCommCount(comm, &n_ranks_); r != tuttiSuccess) return library_error("tuttiCommCount", r, comm);
  if (auto r = tuttiCommUserRank(comm, &rank_); r != tuttiSuccess) return library_error("tuttiCommUserRank", r, comm);
  return {};
}

Team::~Team() {
  if (on_device_ != nullptr) static_cast<void>(tuttiCommAbort(on_device_));  // the original failure is reported instead
}

Status Team::move_to_device(const Options& options) {
  int devices = 0;
  Status s = device::count(&devices);
  if (s) device_ = options.device == kEachItsDevice ? rank_ % devices : options.device;
  if (s) s = device::enter(device_);
  tuttiUniqueId id = {};
  if (s && rank_ == 0) {
    if (auto r = tuttiGetUniqueId(&id); r != tuttiSuccess) s = library_error("tuttiGetUniqueId", r, nullptr);
  }
  if (s = agree(s); !s) return s;
  const auto told = tuttiBcast(id.internal, TUTTI_UNIQUE_ID_BYTES, tuttiUint8, 0, comm_, nullptr);
  if (told != tuttiSuccess) return library_error("tuttiBcast", told, comm_);
  tuttiConfig_t config = config_of(options);
  config.cudaDevice = device_;
  const auto r = tuttiCommInitRankConfig(&on_device_, n_ranks_, id, rank_, &config);
  return agree(r == tuttiSuccess ? Status() : library_error("tuttiCommInitRankConfig", r, nullptr));
}

Status Team::leave_device() {
  const tuttiResult_t result = on_device_ == nullptr ? tuttiSuccess : tuttiCommDestroy(on_device_);
  on_device_ = nullptr;
  return result == tuttiSuccess ? Status() : library_error("tuttiCommDestroy", result, nullptr);
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
  // Each rank adds its own record to zeros: a gather by all-reduce.
  struct Record {
    int32_t pid, device;
    char host[68], device_name[60];  // Linux allows names of 64
  };
  std::vector<Record> records(static_cast<size_t>(n_ranks_), Record{});
  Record& record = records[static_cast<size_t>(rank_)];
  record.pid = mine.pid;
  record.device = mine.device;
  mine.host.copy(record.host, sizeof(record.host) - 1);
  mine.device_name.copy(record.device_name, sizeof(record.device_name) - 1);
  if (Status s = all_reduce(records.data(), records.size() * sizeof(Record), tuttiUint8, tuttiSum); !s) return s;
  all->clear();
  for (const Record& r : records) all->push_back({r.pid, r.host, r.device, r.device_name});
  return {};
}

}  // namespace tutti::perf
