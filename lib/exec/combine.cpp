#include "exec/combine.h"

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

// What is scaled before it is added up: small enough to stay in a core's cache.
constexpr uint64_t kPieceBytes = 64 << 10;
// Rooms of a piece each.
constexpr size_t kScalarsRoom = 0, kScaledRoom = 1, kRooms = 2;

}  // namespace

Combiner::Combiner(Program& program, const BoundCall& operation, const Lowering& lowering)
    : program_(program),
      operation_(operation),
      elem_bytes_(lowering.elem_bytes),
      piece_bytes_(std::min<uint64_t>(kPieceBytes, program.sizes.slot_bytes) / 64 * 64),
      reduce_(lowering.reduce_kernel()),
      stream_(operation.blocks.largest() * elem_bytes_ >> (operation.input == operation.output) >=
              operation.stream_from_bytes),
      one_way_(operation.one_way && !stream_) {}

uint64_t Combiner::piece_elems(const LoweredStep& step) {
  const auto is_scaled = [&](const Place& source) { return operation_.is_scaled(source); };
  if (std::none_of(step.sources, step.sources + step.reduce.n_src, is_scaled)) return step.reduce.elems;
  program_.rooms.resize(kRooms * piece_bytes_);
  return piece_bytes_ / elem_bytes_;
}

void Combiner::combine(const LoweredStep& step, uint64_t at, uint64_t elems, const Targets& targets) {
  const uint64_t offset_bytes = at * elem_bytes_;
  ReduceArgs args = step.reduce;
  args.elems = elems;
  for (int i = 0; i < args.n_src; i++)
    program_.src[static_cast<size_t>(i)] = source(step.sources[i], offset_bytes, elems);
  const auto add_store = [&] {
    if (step.store.base != kNowhere) args.dst[args.n_dst++] = program_.address(step.store) + offset_bytes;
  };
  // Stores past the cache are the first ones, so what is to stay in it comes last.
  if (!one_way_) add_store();
  for (size_t i = 0; i < targets.n; i++) args.dst[args.n_dst++] = static_cast<char*>(targets.at[i]) + offset_bytes;
  // What goes into scratch or a slot is read soon. But a slot's cache lines cross between CPUs twice where none comes
  // back with what the other side sends: written past the cache, they cross once. A broadcast of 300 KB takes 25 us
  // instead of 34 where CPUs share a core, 22 instead of 108 where they do not. Ranks that take turns on a CPU find
  // them in its cache (8 ranks on 2 CPUs that share one: 1.4 to 2 times as long past it), and of 16 MiB that took 2.2
  // times as long.
  if (one_way_)
    args.n_stream = args.n_dst;
  else if (stream_ && step.store.base != kScratch)
    args.n_stream = (step.store.base == kOutput) + (targets.posted ? static_cast<int>(targets.n) : 0);
  if (one_way_) add_store();
  if (args.n_src > 1 || args.divisor > 0) return reduce_(args);
  CopyArgs copy{args.src[0], {}, args.n_dst, args.elems * elem_bytes_, args.n_stream};
  std::copy_n(args.dst, args.n_dst, copy.dst);
  kernels().copy(copy);
}

// A part of the value, times this rank's scalar if it has one.
const void* Combiner::source(const Place& place, uint64_t offset_bytes, uint64_t elems) {
  const void* data = program_.address(place) + offset_bytes;
  if (!operation_.is_scaled(place)) return data;
  if (!scalars_ready_)
    for (uint64_t i = 0; i < piece_bytes_ / elem_bytes_; i++)
      memcpy(room(kScalarsRoom) + i * elem_bytes_, operation_.scalar, elem_bytes_);
  scalars_ready_ = true;
  const void* factors[] = {data, room(kScalarsRoom)};
  ReduceArgs args{factors, {room(kScaledRoom)}, 2, 1, elems};
  kernels().reduce[static_cast<int>(RedOp::kProd)][static_cast<int>(operation_.call.dtype)](args);
  return room(kScaledRoom);
}

}  // namespace tutti
