// Floors: minimal programs that show what the machine can do, under the driver of bench.h. They ignore failures, types,
// streams and wrong use. They are demonstrations, not proofs: better may be possible.
#pragma once

#include <memory>

#include "bench.h"

namespace bench {

// out_j[i] = sum of in_k[i], for all outputs j and inputs k. With non-temporal stores if `past_cache` and all addresses
// are multiples of 16 bytes.
void add(float* const* outs, int n_outs, const float* const* ins, int n_ins, size_t elems, bool past_cache);

// The number of elements of `elems` that belong to ranks below `rank`, in slices of whole cache lines.
size_t slice_begin(size_t elems, int rank, int n_ranks);

// State that the ranks share, made before they are forked.
class Shared {
 public:
  virtual ~Shared() = default;
  virtual std::unique_ptr<Library> library_of(int rank) = 0;
};

// In shared memory. `how`:
//   mapped  every rank can map every buffer: each reduces a slice and stores it into all outputs
//   cma     buffers are private; slices are read with process_vm_readv
//   bounce  buffers are private; all data go in pieces through memory that all ranks map
std::unique_ptr<Shared> share_memory(const std::string& how, const Settings& settings);

// TCP over the loopback interface or between hosts, one connection for each pair of ranks, spinning on non-blocking
// sockets.
std::unique_ptr<Shared> share_sockets(const Settings& settings);

}  // namespace bench
