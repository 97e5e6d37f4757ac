// What a perf tool measures: one table entry per collective.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data.h"
#include "tutti/tutti.h"

namespace tutti::perf {

// How a collective of `total` elements uses its buffers on one rank, in elements. In place, both buffers are one buffer
// of the larger size and the call's pointers are at the two offsets: one part is inside the other.
struct Layout {
  size_t count;  // the call's argument
  size_t send, recv;
  size_t in_place_send_offset = 0, in_place_recv_offset = 0;
};

// Both buffers hold everything.
constexpr Layout same_size(size_t total, size_t, size_t) {
  return {.count = total, .send = total, .recv = total};
}
// One block from every rank, one after the other.
constexpr Layout gathering(size_t total, size_t n_ranks, size_t rank) {
  const size_t block = total / n_ranks;
  return {.count = block, .send = block, .recv = block * n_ranks, .in_place_send_offset = block * rank};
}
// One block for every rank.
constexpr Layout scattering(size_t total, size_t n_ranks, size_t rank) {
  const size_t block = total / n_ranks;
  return {.count = block, .send = block * n_ranks, .recv = block, .in_place_recv_offset = block * rank};
}

// One block from and one for every rank.
constexpr Layout exchanging(size_t total, size_t n_ranks, size_t) {
  const size_t block = total / n_ranks;
  return {.count = block, .send = block * n_ranks, .recv = block * n_ranks};
}

// busbw / algbw if a rank's own block, one of n, is not sent.
constexpr double all_but_own(int n_ranks) {
  return static_cast<double>(n_ranks - 1) / n_ranks;
}
constexpr double everything(int) {
  return 1;
}

struct Call {
  const void* send;
  void* recv;
  size_t count;
  tuttiDataType_t type;
  tuttiRedOp_t op;
  int root;
  int rank, n_ranks;
  tuttiComm_t comm;
  tuttiStream_t stream;
  tuttiDataType_t wire = tuttiInt8;  // for quantised collectives
};

// A call's recvbuff. `first` is the index of the first element of every rank's sendbuff.
struct Received {
  DataKey key;
  int rank, root;
  size_t first, count, elem_bytes;
  const void* data;
  tuttiDataType_t wire = tuttiInt8;
  size_t first_of_block(int block) const { return first + count * static_cast<size_t>(block); }
};

struct Collective {
  const char* tool;  // "all_reduce_perf"
  const char* call;  // "tuttiAllReduce"
  bool has_op = false, has_root = false;
  bool only_root_receives = false;  // other ranks' recvbuff must stay unchanged
  bool has_in_place = true;
  bool quantises = false;  // sums and averages of floats, within a bound
  bool has_data = true;    // without data: no sizes, types or bandwidth
  Layout (*layout)(size_t total, size_t n_ranks, size_t rank);
  double (*bus_factor)(int n_ranks);  // busbw / algbw: the load of the busiest wire
  tuttiResult_t (*run)(const Call& call);
  size_t (*count_wrong)(const Received& received);  // elements that the call had to write
};

}  // namespace tutti::perf
