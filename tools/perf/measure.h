// One measurement: an operation is timed over its iterations, then checked with separate data.
#pragma once

#include <string>
#include <vector>

#include "buffer.h"
#include "collective.h"
#include "device.h"
#include "options.h"
#include "report.h"
#include "team.h"

namespace tutti::perf {

// A part of the buffers for one call. With --sizes-from an operation has one piece for each tensor, else one in all.
struct Piece {
  size_t offset_bytes;
  size_t elems;  // of the larger buffer, on the rank with most
  size_t first;  // index of its first element, for the data
  Layout layout;
};

struct Work {
  tuttiDataType_t type = tuttiFloat32;
  tuttiRedOp_t op = tuttiSum;  // tuttiNumOps: made by tuttiRedOpCreatePreMulSum
  int root = 0;
  std::vector<Piece> pieces;
  size_t count = 0;         // as reported
  size_t bytes = 0;         // as reported: size of the larger of the two buffers, on the rank with most
  size_t extent_bytes = 0;  // of the buffers, including gaps between pieces
};

// Lays out pieces of these numbers of elements.
Work make_work(const Collective& collective, tuttiDataType_t type, const std::vector<size_t>& totals, int n_ranks,
               int rank);

class Bench {
 public:
  Bench(const Options& options, const Collective& collective, Team& team);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Status allocate(size_t extent_bytes);
  Status measure(const Work& work, bool in_place, Measurement* result);
  Progress& progress() { return progress_; }

 private:
  Status register_buffer(const Buffer& buffer);
  Status create_operator(const Work& work, tuttiRedOp_t* op) const;
  Status destroy_operator(const Work& work, tuttiRedOp_t op) const;
  Status time_and_check(const Work& work, tuttiRedOp_t op, bool in_place, Measurement* result);
  // With these buffers: those that operations work on, or those that the host sees.
  std::vector<Call> calls(const Work& work, tuttiRedOp_t op, bool in_place, char* send, char* recv) const;
  Status start(const std::vector<Call>& calls, int times = 1) const;
  Status wait() const;
  Status time_first(const std::vector<Call>& calls, double* seconds);
  Status warm_up(const std::vector<Call>& calls);
  Status settle(const std::vector<Call>& calls);
  Status iterate(const std::vector<Call>& calls, Measurement* result);
  Status capture(const std::vector<Call>& calls, int iters, int times, device::Graph* graph) const;
  Status run_once(const std::vector<Call>& calls) const;
  Status replay(const std::vector<Call>& calls, Measurement* result);
  Status iteration(const std::vector<Call>& calls, double* excluded_seconds) const;
  Status one_by_one(const std::vector<Call>& calls) const;
  Status average(double* seconds, double* cpu_seconds);
  Status check(const Work& work, const std::vector<Call>& calls, bool in_place, long long* wrong);
  Status check_data(const Work& work, const std::vector<Call>& calls, bool in_place, long long* wrong);
  bool on_device() const { return team_.device() >= 0; }
  Status check_order(const std::vector<Call>& calls, long long* wrong);
  void fill(const Work& work, bool in_place, const DataKey& key);
  size_t count_wrong(const Work& work, bool in_place, const DataKey& key) const;
  size_t count_spoiled(const Piece& piece, bool in_place, bool receives, const DataKey& key) const;
  void complain(const Work& work, bool in_place, long long wrong) const;

  const Options& options_;
  const Collective& collective_;
  Team& team_;
  Buffer send_, recv_;
  tuttiStream_t stream_ = nullptr;
  std::vector<void*> registrations_;
  Progress progress_;
  std::string doing_;   // for the progress line
  bool quick_ = false;  // so quick that a barrier affects the operations after it; equal on all ranks
  bool slow_ = false;   // an operation is so long that the progress line costs nothing
  uint64_t seed_ = 0;
};

}  // namespace tutti::perf
