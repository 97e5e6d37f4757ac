#include "exec/combine.h"

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

// A piece is scaled before it is added up: small enough to stay in a core's cache.
constexpr uint64_t kPieceBytes = 64 << 10;
// Indices of the pieces.
constexpr size_t kScalars = 0, kScaled = 1, kPieces = 2;

// memcpy neither reads the cache lines that it overwrites nor fetches them from the CPU that has read them last; the
// second copy of a piece finds its source in the cache.
void copy_by_pieces(const ReduceArgs& args, size_t bytes) {
  constexpr size_t kNearBytes = 32 << 10;
  for (size_t at = 0; at < bytes; at += kNearBytes)
    for (int i = 0; i < args.n_dst; i++)
      if (args.dst[i] != args.src[0])
        memcpy(static_cast<char*>(args.dst[i]) + at, static_cast<const char*>(args.src[0]) + at,
               std::min(kNearBytes, bytes - at));
}

}  // namespace

Combiner::Combiner(Program& program, const BoundCall& operation, const Lowering& lowering)
    : workspace_(program.workspace),
      operation_(operation),
      elem_bytes_(lowering.elem_bytes),
      piece_bytes_(std::min<uint64_t>(kPieceBytes, program.sizes.slot_bytes) / 64 * 64),
      reduce_(lowering.reduce_kernel()),
      stream_(operation.blocks.largest() * elem_bytes_ >> (operation.input == operation.output) >=
              operation.stream_from_bytes),
      one_way_(operation.one_way && !stream_) {
  if (operation.scalar == nullptr) return;
  // Here, because a step that runs out of memory may hold places of ranks that have run out of it, too.
  workspace_.pieces.resize(kPieces * piece_bytes_);
  for (uint64_t i = 0; i < piece_bytes_ / elem_bytes_; i++)
    memcpy(piece(kScalars) + i * elem_bytes_, operation.scalar, elem_bytes_);
}

uint64_t Combiner::piece_elems(const LoweredStep& step) const {
  const auto is_scaled = [&](const Place& source) { return operation_.is_scaled(source); };
  const bool any_scaled = std::any_of(step.sources, step.sources + step.reduce.n_src, is_scaled);
  return any_scaled ? piece_bytes_ / elem_bytes_ : step.reduce.elems;
}

void Combiner::combine(const LoweredStep& step, uint64_t at, uint64_t elems, const Targets& targets) {
  const uint64_t offset_bytes = at * elem_bytes_;
  ReduceArgs args = step.reduce;
  args.elems = elems;
  for (int i = 0; i < args.n_src; i++)
    workspace_.src[static_cast<size_t>(i)] = source(step.sources[i], offset_bytes, elems);
  const auto add_store = [&] {
    if (step.store.base != kNowhere) args.dst[args.n_dst++] = workspace_.address(step.store) + offset_bytes;
  };
  // What others wait for is written first in one-way operations.
  if (!one_way_) add_store();
  for (size_t i = 0; i < targets.n; i++) args.dst[args.n_dst++] = static_cast<char*>(targets.at[i]) + offset_bytes;
  if (one_way_)
    add_store();
  else if (stream_ && step.store.base != kScratch)  // destinations written past the cache come first
    args.n_stream = (step.store.base == kOutput) + (targets.posted ? static_cast<int>(targets.n) : 0);
  // In one-way operations a slot's cache lines cross between CPUs twice. Broadcasts of 300 KB in-place take 5.2 us by
  // pieces and 10 past the cache where CPUs share one, 10 either way where they do not; out of place 13 and 10 there,
  // and 57 by a kernel.
  if (one_way_ && args.n_src == 1 && args.divisor == 0) return copy_by_pieces(args, elems * elem_bytes_);
  reduce_(args);
}

// A part of the value, times this rank's scalar if it has one.
const void* Combiner::source(const Place& place, uint64_t offset_bytes, uint64_t elems) const {
  const void* data = workspace_.address(place) + offset_bytes;
  if (!operation_.is_scaled(place)) return data;
  const void* factors[] = {data, piece(kScalars)};
  ReduceArgs args{factors, {piece(kScaled)}, 2, 1, elems};
  kernels().reduce[static_cast<int>(RedOp::kProd)][static_cast<int>(operation_.call.dtype)](args);
  return piece(kScaled);
}

}  // namespace tutti
