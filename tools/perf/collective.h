// What a perf tool measures: one table entry per collective, and `perf_main`, the whole program around it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data.h"
#include "tutti/tutti.h"

namespace tutti::perf {

// How a collective of `total` elements uses its buffers, in elements. In place, both are one buffer of the larger size
// and the call's pointers are at the two offsets.
struct Layout {
  size_t count;  // the call's argument
  size_t send, recv;
  size_t in_place_send_offset = 0, in_place_recv_offset = 0;
};

struct Call {
  const void* send;
  void* recv;
  size_t count;
  tuttiDataType_t type;
  tuttiRedOp_t op;
  int root;
  tuttiComm_t comm;
  tuttiStream_t stream;
};

// A received piece of data whose first element has index `first`.
struct Received {
  DataKey key;
  int rank, root;
  size_t first, count;
  const void* data;
};

struct Collective {
  const char* tool;  // "all_reduce_perf"
  const char* call;  // "tuttiAllReduce"
  bool has_op, has_root;
  Layout (*layout)(size_t total, int n_ranks, int rank);
  double (*bus_factor)(int n_ranks);  // busbw / algbw: what the busiest wire carries
  tuttiResult_t (*run)(const Call& call);
  size_t (*count_wrong)(const Received& received);
};

int perf_main(int argc, char** argv, const Collective& collective);

}  // namespace tutti::perf
