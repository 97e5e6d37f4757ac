#include "comm/quantised.h"

#include <algorithm>
#include <cstring>

#include "exec/quantised_cut.h"
#include "kernels/kernels.h"

namespace tutti {
namespace {

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
  // `arrived` is what became of values that count `times` times.
  void keep_lost(size_t elems, const float* values, float* arrived, float times) const {
    for (size_t i = 0; i < elems; i++) arrived[i] = lost_of(values[i], arrived[i], times);
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

// To every rank its part, and the others' of this rank's behind each other to `others`; then everybody's sums.
struct Exchanges {
  std::vector<Message> scatters, gathers;
};

Exchanges exchanges_of(const QuantisedCut& cut, int rank, int n_ranks, char* quantised, char* others) {
  Exchanges all;
  for (int peer = 0; peer < n_ranks; peer++) {
    if (peer == rank) continue;
    char* const theirs = quantised + cut.bytes_begin(peer);
    if (cut.bytes(peer) > 0) {
      all.scatters.push_back({true, peer, theirs, cut.bytes(peer)});
      all.gathers.push_back({false, peer, theirs, cut.bytes(peer)});
    }
    if (cut.bytes(rank) > 0) {
      all.scatters.push_back({false, peer, others, cut.bytes(rank)});
      all.gathers.push_back({true, peer, quantised + cut.bytes_begin(rank), cut.bytes(rank)});
    }
    others += cut.bytes(rank);
  }
  return all;
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
  const Wire wire = wire_of(operation.root);
  const How how{wire.dtype == DataType::kInt8 ? 0 : 1, wire.block_elems};
  const QuantisedCut cut(operation.count, wire.block_elems, n_ranks);
  const bool is_quantised = operation.quantised != nullptr;
  if (!is_quantised && quantised_.size() < cut.all_bytes()) quantised_.resize(cut.all_bytes());
  char* const quantised = is_quantised ? static_cast<char*>(operation.quantised) : quantised_.data();
  const size_t others_bytes = static_cast<size_t>(n_ranks - 1) * cut.bytes(rank);
  if (others_.size() < others_bytes) others_.resize(others_bytes);

  const Own own{static_cast<const char*>(operation.input), static_cast<char*>(operation.errors)};
  for (int peer = 0; peer < n_ranks && !is_quantised; peer++)
    if (peer != rank) quantise_own(own.from(cut.begin(peer)), cut.elems(peer), how, quantised + cut.bytes_begin(peer));
  const Exchanges exchanges = exchanges_of(cut, rank, n_ranks, quantised, others_.data());
  TUTTI_TRY(messages_.pass_quantised(call, exchanges.scatters));
  const Parts parts{is_quantised ? own : own.from(cut.begin(rank)), others_.data(), cut.bytes(rank), rank, n_ranks};
  const float divisor = operation.op == RedOp::kAvg ? static_cast<float>(n_ranks) : 1;
  sum_parts(parts, cut.elems(rank), how, divisor, quantised + cut.bytes_begin(rank));
  TUTTI_TRY(messages_.pass_quantised(call, exchanges.gathers));
  if (!is_quantised)
    kernels().dequantise[how.wire](quantised, operation.count, how.block_elems, operation.output, false);
  return {};
}

}  // namespace tutti
