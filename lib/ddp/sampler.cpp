// Which samples a rank trains on.
#include "status.h"

using namespace tutti::ddp;  // NOLINT: this file is at the boundary

namespace {

// The round function of the Feistel network: any function will do whose output looks unrelated to its input.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A permutation of [0, size): encrypts numbers of an even number of bits, repeatedly until one falls into the range.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t epoch) : size_(size), key_(mix(seed + mix(epoch + 1))) {
    while (size > uint64_t{1} << (2 * half_bits_)) half_bits_++;
  }

  uint64_t operator()(uint64_t number) const {
    do {
      number = encrypt(number);
    } while (number >= size_);
    return number;
  }

 private:
  uint64_t encrypt(uint64_t number) const {
    constexpr uint64_t kRounds = 8;
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = number >> half_bits_, right = number & mask;
    for (uint64_t round = 1; round <= kRounds; round++) {
      const uint64_t next = left ^ (mix(key_ + round * 0x9e3779b97f4a7c15 + right) & mask);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  const uint64_t size_;  // at most 2^62, so 31 bits are enough for a half
  const uint64_t key_;
  unsigned half_bits_ = 1;
};

Status check(const tuttiDdpSampler_t* sampler) {
  if (sampler == nullptr) return invalid_argument("sampler is NULL");
  const tuttiDdpSampler_t& s = *sampler;
  if (s.size < sizeof s)
    return invalid_argument(text("sampler->size=%zu; start from TUTTI_DDP_SAMPLER_INITIALIZER", s.size));
  if (s.datasetSize > uint64_t{1} << 62)
    return invalid_argument(text("datasetSize=%llu is more than 2^62", static_cast<unsigned long long>(s.datasetSize)));
  if (s.nranks < 1) return invalid_argument(text("nranks=%d; it has to be 1 or more", s.nranks));
  if (s.rank < 0 || s.rank >= s.nranks)
    return invalid_argument(text("rank=%d; it has to be in [0, %d)", s.rank, s.nranks));
  return {};
}

uint64_t length_of(const tuttiDdpSampler_t& s) {
  const auto ranks = static_cast<uint64_t>(s.nranks);
  return s.dropLast != 0 ? s.datasetSize / ranks : (s.datasetSize + ranks - 1) / ranks;
}

Status write_indices(const tuttiDdpSampler_t* sampler, uint64_t first, uint64_t count, uint64_t* indices) {
  if (Status s = check(sampler); !s) return s;
  const uint64_t length = length_of(*sampler);
  if (first > length || count > length - first)
    return invalid_argument(text("first=%llu, count=%llu; this rank has %llu samples",
                                 static_cast<unsigned long long>(first), static_cast<unsigned long long>(count),
                                 static_cast<unsigned long long>(length)));
  if (indices == nullptr && count > 0) return invalid_argument("indices is NULL");
  const Permutation shuffled(sampler->datasetSize, sampler->seed, sampler->epoch);
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t place = (first + i) * static_cast<uint64_t>(sampler->nranks) + static_cast<uint64_t>(sampler->rank);
    const uint64_t number = place % sampler->datasetSize;  // past the end the order begins again
    indices[i] = sampler->shuffle != 0 ? shuffled(number) : number;
  }
  return {};
}

}  // namespace

extern "C" {

tuttiResult_t tuttiDdpSamplerLength(const tuttiDdpSampler_t* sampler, uint64_t* length) {
  return guarded([&]() -> Status {
    if (Status s = check(sampler); !s) return s;
    if (length == nullptr) return invalid_argument("length is NULL");
    *length = length_of(*sampler);
    return {};
  });
}

tuttiResult_t tuttiDdpSamplerIndices(const tuttiDdpSampler_t* sampler, uint64_t first, uint64_t count,
                                     uint64_t* indices) {
  return guarded([&] { return write_indices(sampler, first, count, indices); });
}

}  // extern "C"
