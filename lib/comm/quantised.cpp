// All-reduce in quantised blocks. Rank r of n sums blocks [r * B / n, (r + 1) * B / n) of all B.
#include <algorithm>
#include <cstring>

#include "comm/communicator.h"
#include "kernels/kernels.h"

namespace tutti {
namespace {

// How a vector is cut: what rank r sums, as it is in the user's buffers and in quantised ones.
class Cut {
 public:
  Cut(uint64_t elems, size_t block_elems, int n_ranks) : elems_(elems), block_elems_(block_elems), n_ranks_(n_ranks) {}
  size_t begin(int rank) const { return std::min<size_t>(first_block(rank) * block_elems_, elems_); }
  size_t elems(int rank) const { return begin(rank + 1) - begin(rank); }
  size_t bytes_begin(int rank) const { return quantised_bytes(begin(rank), block_elems_); }
  size_t bytes(int rank) const { return quantised_bytes(elems(rank), block_elems_); }
  size_t block_elems() const { return block_elems_; }

 private:
  size_t first_block(int rank) const {
    const auto n = static_cast<size_t>(n_ranks_), r = static_cast<size_t>(rank);
    const size_t blocks = elems_ / block_elems_ + (elems_ % block_elems_ != 0 ? 1 : 0);
    return blocks / n * r + std::min(r, blocks % n);  // without a product that could overflow
  }
  const uint64_t elems_;
  const size_t block_elems_;
  const int n_ranks_;
};

// Of this rank's part: its own elements, which nobody else needs quantised, and the others' one after the other.
struct Parts {
  const char* own;
  const char* others;
  size_t other_bytes;
  int rank, n_ranks;
};

void add_own(const char* own, float* sums, size_t elems, bool adds) {
  for (size_t i = 0; i < elems; i++) {
    float value;  // the user's buffer may have any alignment
    memcpy(&value, own + i * sizeof value, sizeof value);
    sums[i] = adds ? sums[i] + value : value;
  }
}

// In pieces that stay in the first cache, each in the order of ranks.
void sum_parts(const Parts& parts, size_t elems, size_t block_elems, int wire, float divisor, char* to) {
  constexpr size_t kPieceBlocks = 16;
  float sums[kPieceBlocks * kMostBlockElems];
  const KernelTable& table = kernels();
  for (size_t at = 0; at < elems; at += kPieceBlocks * block_elems) {
    const size_t n = std::min(kPieceBlocks * block_elems, elems - at), bytes_at = quantised_bytes(at, block_elems);
    for (int rank = 0, other = 0; rank < parts.n_ranks; rank++) {
      if (rank == parts.rank) {
        add_own(parts.own + at * sizeof(float), sums, n, rank > 0);
      } else {
        const char* theirs = parts.others + static_cast<size_t>(other++) * parts.other_bytes + bytes_at;
        table.dequantise[wire](theirs, n, block_elems, sums, rank > 0);
      }
    }
    if (divisor != 1) std::for_each(sums, sums + n, [&](float& sum) { sum /= divisor; });
    table.quantise[wire](sums, n, block_elems, to + bytes_at);
  }
}

}  // namespace

Result<void> Communicator::drive_quantised(const Operation& operation) {
  Call call = to_call(operation);
  call.sequence = ++sequence_;
  call.algo = Algo::kDirect;
  recorder_.begin(to_tag(call), sequence_, operation.caller, operation.created);
  if (n_ranks_ == 1 && operation.input != operation.output && operation.count > 0)
    memcpy(operation.output, operation.input, operation.count * sizeof(float));
  if (n_ranks_ == 1) return {};
  // As find_program(): before anyone waits for a link.
  if (!has_quantised_) TUTTI_TRY(drive_program(programs_.at(key_of(kTreePlan)), call, Operation{}));
  has_quantised_ = true;
  const char* input = static_cast<const char*>(operation.input);
  char* output = static_cast<char*>(operation.output);
  if (operation.count == 0) return {};
  const Wire wire = wire_of(operation.root);
  const int which = wire.dtype == DataType::kInt8 ? 0 : 1;
  const Cut cut(operation.count, wire.block_elems, n_ranks_);
  // The others' contributions to this rank's part, then everybody's sums; what this rank contributes, in between.
  const size_t all_bytes = quantised_bytes(operation.count, wire.block_elems);
  const size_t others_bytes = static_cast<size_t>(n_ranks_ - 1) * cut.bytes(rank_);
  if (quantised_.size() < all_bytes) quantised_.resize(all_bytes);
  if (sums_.size() < std::max(all_bytes, others_bytes)) sums_.resize(std::max(all_bytes, others_bytes));

  std::vector<Message> scatters, gathers;
  for (int peer = 0, other = 0; peer < n_ranks_; peer++) {
    if (peer == rank_) continue;
    char* const theirs = quantised_.data() + cut.bytes_begin(peer);
    kernels().quantise[which](input + cut.begin(peer) * sizeof(float), cut.elems(peer), wire.block_elems, theirs);
    char* const from_them = sums_.data() + static_cast<size_t>(other++) * cut.bytes(rank_);
    if (cut.bytes(peer) > 0) {
      scatters.push_back({true, peer, theirs, cut.bytes(peer)});
      gathers.push_back({false, peer, theirs, cut.bytes(peer)});
    }
    if (cut.bytes(rank_) > 0) {
      scatters.push_back({false, peer, from_them, cut.bytes(rank_)});
      gathers.push_back({true, peer, quantised_.data() + cut.bytes_begin(rank_), cut.bytes(rank_)});
    }
  }
  TUTTI_TRY(pass_quantised(call, scatters));
  const Parts parts{input + cut.begin(rank_) * sizeof(float), sums_.data(), cut.bytes(rank_), rank_, n_ranks_};
  const float divisor = operation.op == RedOp::kAvg ? static_cast<float>(n_ranks_) : 1;
  sum_parts(parts, cut.elems(rank_), wire.block_elems, which, divisor, quantised_.data() + cut.bytes_begin(rank_));
  TUTTI_TRY(pass_quantised(call, gathers));
  kernels().dequantise[which](quantised_.data(), operation.count, wire.block_elems, output, false);
  return {};
}

}  // namespace tutti
