// How launches are cut into tiles.
#include "kernels/cuda/jobs.h"
#include "kernels/cuda/run_gradients.h"

namespace tutti::cuda {
namespace {

// Cuts the list into tiles of `turns` packs for each thread.
void cut(JobList& list, int turns) {
  list.tile_turns = static_cast<uint8_t>(turns);
  const uint64_t tile_elems = uint64_t{16} * kJobThreads * list.tile_turns / dtype_bytes(list.dtype);
  uint64_t tiles = 0;
  for (int j = 0; j < list.n_jobs; j++) {
    tiles += (list.jobs[j].elems + tile_elems - 1) / tile_elems;
    list.jobs[j].end_tile = static_cast<uint32_t>(tiles);
  }
}

}  // namespace

void finish_list(JobList& list, int multiprocessors) {
  list.only_bytes = !list.scaled;
  for (int j = 0; j < list.n_jobs; j++)
    if (list.jobs[j].n_src != 1 || list.jobs[j].divisor > 1) list.only_bytes = false;
  if (list.only_bytes) {
    for (int j = 0; j < list.n_jobs; j++) list.jobs[j].elems *= dtype_bytes(list.dtype);
    list.dtype = DataType::kUint8;
  }
  cut(list, list.only_bytes ? kCopyUnroll : job_unroll(list.dtype));
  const int blocks = multiprocessors * (list.only_bytes ? kCopyBlocks : job_blocks(list.dtype));
  if (tiles_of(list) < static_cast<uint32_t>(blocks)) cut(list, 1);
}

uint64_t tiles_of(const SpanCall& call) {
  uint64_t tiles = 0;
  for (int i = 0; i < call.n_items; i++) tiles += span_tiles(call, call.items[i]);
  return tiles;
}

uint64_t tiles_of(const FactorCall& call) {
  uint64_t tiles = 0;
  for (int i = 0; i < call.n_items; i++) tiles += factor_tiles(call.part, call.items[i]);
  return tiles;
}

}  // namespace tutti::cuda
