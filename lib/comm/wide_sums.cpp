// Sums of 16- and 8-bit floats that take several steps: partial sums are 32-bit floats, and the result is rounded once,
// as if one step added up everything. One piece at a time, so that the floats take little room.
#include <algorithm>
#include <vector>

#include "comm/collectives.h"
#include "kernels/kernels.h"

namespace tutti {
namespace {

// Over all blocks: 32 MiB. A chain of ranks is idle at the beginning and the end of each piece: with 64 ranks for about
// as long as 16 MiB take.
constexpr uint64_t kPieceElems = 8 << 20;

// Converts a rank's contribution to floats: if it has a scalar, scaled and rounded first.
void take_in(const BoundCall& what, uint64_t begin, uint64_t elems, float* to) {
  const size_t elem_bytes = dtype_bytes(what.call.dtype);
  const char* from = static_cast<const char*>(what.input) + begin * elem_bytes;
  const ConvertKernel widen = kernels().widen[static_cast<int>(what.call.dtype)];
  if (what.scalar == nullptr) return widen(from, elems, to);
  constexpr uint64_t kAtATime = 1024;
  std::vector<char> scalars(kAtATime * elem_bytes), scaled(kAtATime * elem_bytes);
  for (uint64_t i = 0; i < kAtATime; i++)
    std::copy_n(static_cast<const char*>(what.scalar), elem_bytes, &scalars[i * elem_bytes]);
  for (uint64_t at = 0; at < elems; at += kAtATime) {
    const void* factors[] = {from + at * elem_bytes, scalars.data()};
    const ReduceArgs args{factors, {scaled.data()}, 2, 1, std::min(kAtATime, elems - at)};
    kernels().reduce[static_cast<int>(RedOp::kProd)][static_cast<int>(what.call.dtype)](args);
    widen(scaled.data(), args.elems, to + at);
  }
}

}  // namespace

// In-place: the sum of a rank's block replaces the rank's own part.
Result<void> in_wide_pieces(const BoundCall& what, const std::function<Result<void>(const BoundCall&)>& drive) {
  const bool scatters = what.call.collective == Collective::kReduceScatter;
  const bool has_output = what.call.collective != Collective::kReduce || what.call.root == what.rank;
  const auto n_blocks = static_cast<uint32_t>(scatters ? what.n_ranks : 1);
  const auto own = static_cast<uint32_t>(scatters ? what.rank : 0);
  const uint64_t largest = what.blocks.largest(),
                 most = std::min(std::max<uint64_t>(1, kPieceElems / n_blocks), largest);
  std::vector<float> values(n_blocks * most);
  std::vector<uint64_t> elems(n_blocks), input_at(n_blocks);
  const uint64_t output_at[] = {0};
  for (uint32_t b = 0; b < n_blocks; b++) input_at[b] = b * most;
  BoundCall piece = what;
  piece.is_wide = true;
  piece.blocks = {most, elems, input_at, output_at};
  piece.input = values.data();
  piece.output = values.data() + input_at[own];
  piece.scalar = nullptr;
  for (uint64_t at = 0; at < largest; at += most) {
    for (uint32_t b = 0; b < n_blocks; b++) {
      elems[b] = std::min(most, what.blocks.size(b) - std::min(at, what.blocks.size(b)));
      take_in(what, what.blocks.begin(Buffer::kInput, b) + at, elems[b], values.data() + input_at[b]);
    }
    TUTTI_TRY(drive(piece));
    char* const out = static_cast<char*>(what.output) + at * dtype_bytes(what.call.dtype);
    if (has_output) kernels().narrow[static_cast<int>(what.call.dtype)](values.data() + input_at[own], elems[own], out);
  }
  return {};
}

}  // namespace tutti
