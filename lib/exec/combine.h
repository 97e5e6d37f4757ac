// What a step computes: its messages and its own value, scaled and added up, are written to where the sum is stored and
// to where it is sent from. One for each Run, on its thread.
#pragma once

#include "exec/program.h"
#include "kernels/kernels.h"

namespace tutti {

// Where to write the value that a step sends: into the link's slot, or into the places posted by its receiver and by
// those of the following steps that send the same value. Nowhere if it is sent from where it is stored.
struct Targets {
  void* at[kMaxDestinations - 1];
  size_t n = 0;
  bool posted = false;
  const void* exposed = nullptr;
};

class Combiner {
 public:
  Combiner(Program& program, const BoundCall& operation, const Lowering& lowering);
  // How many elements to combine at a time.
  uint64_t piece_elems(const LoweredStep& step) const;
  // One kernel call, for the elements from `at` on. The messages' addresses are the program's bases.
  void combine(const LoweredStep& step, uint64_t at, uint64_t elems, const Targets& targets);

 private:
  const void* source(const Place& place, uint64_t offset_bytes, uint64_t elems) const;
  char* piece(size_t i) const { return workspace_.pieces.data() + i * piece_bytes_; }

  Workspace& workspace_;
  const BoundCall& operation_;
  const size_t elem_bytes_, piece_bytes_;
  const ReduceKernel reduce_;
  const bool stream_, one_way_;
};

}  // namespace tutti
