// One measurement: an operation timed over its iterations, then checked on data of its own.
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

// A call's part of the buffers. With --sizes-from an operation has one piece for each tensor, else it is one piece.
struct Piece {
  size_t offset_bytes;
  size_t elems;  // of the larger buffer of the rank that has most
  size_t first;  // index of its first element, for the data
  Layout layout;
};

struct Work {
  tuttiDataType_t type = tuttiFloat32;
  tuttiRedOp_t op = tuttiSum;  // tuttiNumOps: one of tuttiRedOpCreatePreMulSum
  int root = 0;
  std::vector<Piece> pieces;
  size_t count = 0;         // as reported
  size_t bytes = 0;         // as reported: what the larger of the two buffers holds, on the rank that has most
  size_t extent_bytes = 0;  // of the buffers, gaps between pieces included
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
  // On these buffers: where operations work, or where the host sees them.
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
  bool quick_ = false;  // so quick that a barrier is felt in the operations after it; the same on all ranks
  bool slow_ = false;   // an operation takes so long that the progress line costs nothing
  uint64_t seed_ = 0;
};

}  // namespace tutti::perf
