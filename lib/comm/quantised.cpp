#include "comm/quantised.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

constexpr size_t kPieceBlocks = 16, kPieceElems = kPieceBlocks * kMostBlockElems;  // they stay in the first cache

// Of one rank's elements, at any alignment: what it was given, and what results lack of that until now, or null.
struct Own {
  const char* input;
  char* errors;

  Own from(size_t elem) const {
    return {input + elem * sizeof(float), errors == nullptr ? nullptr : errors + elem * sizeof(float)};
  }
  void take(size_t elems, float* values) const {
    memcpy(values, input, elems * sizeof(float));
    if (errors == nullptr) return;
    float lacking[kPieceElems];
    memcpy(lacking, errors, elems * sizeof(float));
    for (size_t i = 0; i < elems; i++) values[i] += lacking[i];
  }
  // `arrived` is what became of values that count `times` times. What is not finite is not made up for.
  void keep_lost(size_t elems, const float* values, float* arrived, float times) const {
    for (size_t i = 0; i < elems; i++) {
      const float lost = (values[i] - arrived[i]) * times;
      arrived[i] = std::isfinite(lost) ? lost : 0;
    }
    memcpy(errors, arrived, elems * sizeof(float));
  }
};

// What travels, and how.
struct How {
  int wire;
  size_t block_elems;

  // Of values that count `times` times; what is lost goes to the owner's errors, if there are any.
  void quantise(const float* values, size_t elems, float times, const Own& own, char* to) const {
    kernels().quantise[wire](values, elems, block_elems, to);
    if (own.errors == nullptr) return;
    float arrived[kPieceElems];
    kernels().dequantise[wire](to, elems, block_elems, arrived, false);
    own.keep_lost(elems, values, arrived, times);
  }
  size_t piece_elems() const { return kPieceBlocks * block_elems; }
};

void quantise_own(const Own& own, size_t elems, const How& how, char* to) {
  if (own.errors == nullptr) return kernels().quantise[how.wire](own.input, elems, how.block_elems, to);
  float values[kPieceElems];
  for (size_t at = 0; at < elems; at += how.piece_elems()) {
    const size_t n = std::min(how.piece_elems(), elems - at);
    own.from(at).take(n, values);
    how.quantise(values, n, 1, own.from(at), to + quantised_bytes(at, how.block_elems));
  }
}

// Of this rank's part: its own elements, which nobody else needs quantised, and the others' one after the other.
struct Parts {
  Own own;
  const char* others;
  size_t other_bytes;
  int rank, n_ranks;
};

// Each piece in the order of ranks.
void sum_parts(const Parts& parts, size_t elems, const How& how, float divisor, char* to) {
  float sums[kPieceElems], values[kPieceElems];
  for (size_t at = 0; at < elems; at += how.piece_elems()) {
    const size_t n = std::min(how.piece_elems(), elems - at), bytes_at = quantised_bytes(at, how.block_elems);
    const Own own = parts.own.from(at);
    for (int rank = 0, other = 0; rank < parts.n_ranks; rank++) {
      if (rank == parts.rank) {
        own.take(n, rank > 0 ? values : sums);
        for (size_t i = 0; rank > 0 && i < n; i++) sums[i] += values[i];
      } else {
        const char* theirs = parts.others + static_cast<size_t>(other++) * parts.other_bytes + bytes_at;
        kernels().dequantise[how.wire](theirs, n, how.block_elems, sums, rank > 0);
      }
    }
    if (divisor != 1) std::for_each(sums, sums + n, [&](float& sum) { sum /= divisor; });
    how.quantise(sums, n, divisor, own, to + bytes_at);
  }
}

}  // namespace

Result<void> QuantisedSums::run(const Operation& operation) {
  Call call = to_call(operation);
  call.sequence = ++monitor_.begun().sequence;
  call.algo = Algo::kDirect;
  monitor_.begin(call, operation);
  return monitor_.end_with(sum(call, operation));
}

Result<void> QuantisedSums::sum(const Call& call, const Operation& operation) {
  const int rank = me_.rank, n_ranks = me_.n_ranks;
  if (n_ranks == 1 && operation.input != operation.output && operation.count > 0)
    memcpy(operation.output, operation.input, operation.count * sizeof(float));
  if (n_ranks == 1) return {};
  if (!has_agreed_) TUTTI_TRY(collectives_.agree(call));
  has_agreed_ = true;
  if (operation.count == 0) return {};
  const Own own{static_cast<const char*>(operation.input), static_cast<char*>(operation.errors)};
  const Wire wire = wire_of(operation.root);
  const How how{wire.dtype == DataType::kInt8 ? 0 : 1, wire.block_elems};
  const Cut cut(operation.count, wire.block_elems, n_ranks);
  // The others' contributions to this rank's part, then everybody's sums; what this rank contributes, in between.
  const size_t all_bytes = quantised_bytes(operation.count, wire.block_elems);
  const size_t others_bytes = static_cast<size_t>(n_ranks - 1) * cut.bytes(rank);
  if (quantised_.size() < all_bytes) quantised_.resize(all_bytes);
  if (sums_.size() < std::max(all_bytes, others_bytes)) sums_.resize(std::max(all_bytes, others_bytes));

  std::vector<Message> scatters, gathers;
  for (int peer = 0, other = 0; peer < n_ranks; peer++) {
    if (peer == rank) continue;
    char* const theirs = quantised_.data() + cut.bytes_begin(peer);
    quantise_own(own.from(cut.begin(peer)), cut.elems(peer), how, theirs);
    char* const from_them = sums_.data() + static_cast<size_t>(other++) * cut.bytes(rank);
    if (cut.bytes(peer) > 0) {
      scatters.push_back({true, peer, theirs, cut.bytes(peer)});
      gathers.push_back({false, peer, theirs, cut.bytes(peer)});
    }
    if (cut.bytes(rank) > 0) {
      scatters.push_back({false, peer, from_them, cut.bytes(rank)});
      gathers.push_back({true, peer, quantised_.data() + cut.bytes_begin(rank), cut.bytes(rank)});
    }
  }
  TUTTI_TRY(messages_.pass_quantised(call, scatters));
  const Parts parts{own.from(cut.begin(rank)), sums_.data(), cut.bytes(rank), rank, n_ranks};
  const float divisor = operation.op == RedOp::kAvg ? static_cast<float>(n_ranks) : 1;
  sum_parts(parts, cut.elems(rank), how, divisor, quantised_.data() + cut.bytes_begin(rank));
  TUTTI_TRY(messages_.pass_quantised(call, gathers));
  kernels().dequantise[how.wire](quantised_.data(), operation.count, how.block_elems, operation.output, false);
  return {};
}

}  // namespace tutti
