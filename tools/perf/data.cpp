#include "data.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "floats.h"
#include "types.h"

namespace tutti::perf {
namespace {

// The finalizer of SplitMix64: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t hash_element(uint64_t seed, uint64_t index) {
  return mix(index + seed * 0x9e3779b97f4a7c15u);
}
uint64_t hash_rank(uint64_t element_hash, int rank) {
  return mix(element_hash + static_cast<uint64_t>(rank + 1) * 0xd1342543de82ef95u);
}

// At most `budget` ranks contribute to an element: those in a window (modulo n) whose start depends on the element.
struct Window {
  Window(int n_ranks, uint64_t budget)
      : n(static_cast<uint64_t>(n_ranks)), size(std::max<uint64_t>(1, std::min(n, budget))) {}
  uint64_t place(uint64_t element_hash, int rank) const {
    const uint64_t start = ((element_hash >> 32) * n) >> 32;
    const auto r = static_cast<uint64_t>(rank);
    return r >= start ? r - start : r + n - start;
  }
  bool has(uint64_t element_hash, int rank) const { return size == n || place(element_hash, rank) < size; }

  uint64_t n, size;
};

template <class T>
class IntGenerator {
 public:
  using Bits = std::make_unsigned_t<T>;
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;

  explicit IntGenerator(const DataKey& key)
      : op_(key.op),
        window_(key.n_ranks, std::numeric_limits<T>::max()),
        largest_(std::bit_floor(static_cast<uint64_t>(std::numeric_limits<T>::max()) / window_.size)) {}

  Wide value(uint64_t element_hash, int rank) const {
    const uint64_t h = hash_rank(element_hash, rank);
    if (op_ == tuttiAvg) return small_value(element_hash, h, rank);
    return static_cast<T>(op_ == tuttiProd ? h | 1 : h);
  }
  static Wide scalar(int rank) { return 3 + 2 * static_cast<Wide>(rank); }
  static Wide times(Wide a, Wide b) { return static_cast<Wide>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }
  Wide fold(Wide a, Wide b) const {
    if (op_ == tuttiProd) return times(a, b);
    if (op_ == tuttiMin) return std::min(a, b);
    if (op_ == tuttiMax) return std::max(a, b);
    return static_cast<Wide>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  Bits finish(Wide folded) const { return encode(op_ == tuttiAvg ? folded / static_cast<Wide>(window_.n) : folded); }
  static Bits encode(Wide value) { return static_cast<Bits>(value); }
  static bool near(Bits, Bits) { return false; }

 private:
  Wide small_value(uint64_t element_hash, uint64_t h, int rank) const {
    if (!window_.has(element_hash, rank)) return 0;
    const auto magnitude = static_cast<Wide>((h & (largest_ - 1)) + (element_hash & 1));
    return std::is_signed_v<T> && (element_hash & 2) ? -magnitude : magnitude;
  }

  int op_;
  Window window_;
  uint64_t largest_;
};

template <class F>
class FloatGenerator {
 public:
  using Bits = typename F::Bits;
  using Wide = double;
  static constexpr uint64_t kWholeNumbers = uint64_t{1} << (F::kMantissaBits + 1);
  // Factors other than +-1 in a product: each moves the exponent by one, and the result must stay a normal number.
  static constexpr uint64_t kFactors = std::min(100, F::kBias - 2);
  // Scalars are from 1 to this, and the inputs that they multiply are smaller by that factor.
  static constexpr int kLargestScalar = F::kMantissaBits < 4 ? 2 : 4;

  explicit FloatGenerator(const DataKey& key)
      : op_(key.op),
        window_(key.n_ranks, op_ == tuttiProd ? kFactors : whole_numbers()),
        largest_(std::bit_floor(whole_numbers() / window_.size)) {}

  Wide value(uint64_t element_hash, int rank) const {
    const uint64_t h = hash_rank(element_hash, rank);
    if (op_ == tuttiProd) return factor(element_hash, h, rank);
    if (op_ == tuttiMin || op_ == tuttiMax) return signed_value(h, significand(h), static_cast<int>(h >> 1 & 7) - 4);
    if (!window_.has(element_hash, rank)) return 0;
    const auto raw = static_cast<int64_t>((h & (2 * largest_ - 1)) + (element_hash & 1));
    return static_cast<double>(raw - static_cast<int64_t>(largest_));
  }
  static Wide scalar(int rank) { return 1 + (rank + 1) % kLargestScalar; }
  static Wide times(Wide a, Wide b) { return a * b; }
  Wide fold(Wide a, Wide b) const {
    if (op_ == tuttiProd) return a * b;
    if (op_ == tuttiMin) return std::min(a, b);
    if (op_ == tuttiMax) return std::max(a, b);
    return a + b;
  }
  Bits finish(Wide folded) const { return encode(op_ == tuttiAvg ? folded / static_cast<double>(window_.n) : folded); }
  static Bits encode(Wide value) { return F::encode(value); }
  bool near(Bits a, Bits b) const { return op_ == tuttiAvg && !std::has_single_bit(window_.n) && F::ulps(a, b) <= 2; }

 private:
  uint64_t whole_numbers() const { return op_ == kMulSum ? kWholeNumbers / kLargestScalar : kWholeNumbers; }
  static double significand(uint64_t h) {
    constexpr uint64_t kOne = uint64_t{1} << F::kMantissaBits;
    return static_cast<double>((h >> 8 & (kOne - 1)) | kOne) / static_cast<double>(kOne);
  }
  static double signed_value(uint64_t h, double magnitude, int exponent) {
    const double power = std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
    return h & 1 ? -magnitude * power : magnitude * power;
  }
  double factor(uint64_t element_hash, uint64_t h, int rank) const {
    const uint64_t place = window_.place(element_hash, rank);
    const int exponent = place < window_.size ? static_cast<int>((h >> 1 & 3) % 3) - 1 : 0;
    return signed_value(h, place == 0 ? significand(h) : 1, exponent);
  }

  int op_;
  Window window_;
  uint64_t largest_;
};

// Calls f(generator) with the generator of the key's type.
template <class Function>
auto with_generator(const DataKey& key, Function f) {
  switch (key.type) {
    case tuttiInt8: return f(IntGenerator<int8_t>(key));
    case tuttiUint8: return f(IntGenerator<uint8_t>(key));
    case tuttiInt32: return f(IntGenerator<int32_t>(key));
    case tuttiUint32: return f(IntGenerator<uint32_t>(key));
    case tuttiInt64: return f(IntGenerator<int64_t>(key));
    case tuttiUint64: return f(IntGenerator<uint64_t>(key));
    case tuttiFloat16: return f(FloatGenerator<Half>(key));
    case tuttiFloat64: return f(FloatGenerator<Double>(key));
    case tuttiBfloat16: return f(FloatGenerator<Bfloat16>(key));
    case tuttiFloat8e4m3: return f(FloatGenerator<F8e4m3>(key));
    case tuttiFloat8e5m2: return f(FloatGenerator<F8e5m2>(key));
    default: return f(FloatGenerator<Single>(key));
  }
}

// One rank's element, as bits.
template <class Generator>
typename Generator::Bits input_bits(const Generator& generator, const DataKey& key, int rank, uint64_t index) {
  const uint64_t element_hash = hash_element(key.seed, index);
  if (key.op == kCopy) return static_cast<typename Generator::Bits>(hash_rank(element_hash, rank));
  return Generator::encode(generator.value(element_hash, rank));
}

template <class Generator>
typename Generator::Bits result_bits(const Generator& generator, const DataKey& key, uint64_t index) {
  const uint64_t element_hash = hash_element(key.seed, index);
  const auto contribution = [&](int rank) {
    const auto value = generator.value(element_hash, rank);
    return key.op == kMulSum ? generator.times(value, generator.scalar(rank)) : value;
  };
  auto folded = contribution(0);
  for (int rank = 1; rank < key.n_ranks; rank++) folded = generator.fold(folded, contribution(rank));
  return generator.finish(folded);
}

// memcpy because buffers may be misaligned on purpose.
template <class Bits>
Bits load(const void* data, size_t i) {
  Bits bits;
  memcpy(&bits, static_cast<const char*>(data) + i * sizeof(Bits), sizeof(Bits));
  return bits;
}

}  // namespace

void fill_input(const DataKey& key, int rank, size_t first, size_t count, void* out) {
  with_generator(key, [&](auto generator) {
    for (size_t i = 0; i < count; i++) {
      const auto bits = input_bits(generator, key, rank, first + i);
      memcpy(static_cast<char*>(out) + i * sizeof(bits), &bits, sizeof(bits));
    }
  });
}

void fill_scalar(const DataKey& key, int rank, void* out) {
  with_generator(key, [&](auto generator) {
    const auto bits = generator.encode(generator.scalar(rank));
    memcpy(out, &bits, sizeof(bits));
  });
}

size_t count_wrong_copy(const DataKey& key, int rank, size_t first, size_t count, const void* data) {
  return with_generator(key, [&](auto generator) {
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
      const auto expected = input_bits(generator, key, rank, first + i);
      wrong += load<decltype(generator.finish({}))>(data, i) != expected;
    }
    return wrong;
  });
}

size_t count_wrong_blocks(const DataKey& key, size_t first, size_t count, const void* data) {
  const size_t block_bytes = count * type_info(key.type).bytes;
  size_t wrong = 0;
  for (int rank = 0; rank < key.n_ranks; rank++) {
    const char* block = static_cast<const char*>(data) + static_cast<size_t>(rank) * block_bytes;
    wrong += count_wrong_copy(key, rank, first, count, block);
  }
  return wrong;
}

size_t count_wrong_reduction(const DataKey& key, size_t first, size_t count, const void* data) {
  return with_generator(key, [&](auto generator) {
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
      const auto expected = result_bits(generator, key, first + i);
      const auto actual = load<decltype(generator.finish({}))>(data, i);
      wrong += actual != expected && !generator.near(actual, expected);
    }
    return wrong;
  });
}

size_t count_wrong_quantised(const DataKey& key, tuttiDataType_t wire, size_t first, size_t count, const void* data) {
  const FloatGenerator<Single> generator(key);
  const auto value = [&](int rank, size_t i) { return generator.value(hash_element(key.seed, first + i), rank); };
  const double per_magnitude = wire == tuttiInt8 ? 126 : 13.5, divisor = key.op == tuttiAvg ? key.n_ranks : 1;
  size_t wrong = 0;
  for (size_t at = 0; at < count; at += kQuantisedBlockElems) {
    const size_t end = std::min(count, at + kQuantisedBlockElems);
    double bound = key.n_ranks * 0x1p-100;
    for (int rank = 0; rank < key.n_ranks; rank++) {
      double largest = 0;
      for (size_t i = at; i < end; i++) largest = std::max(largest, std::abs(value(rank, i)));
      bound += largest / per_magnitude;
    }
    for (size_t i = at; i < end; i++) {
      double sum = 0;
      for (int rank = 0; rank < key.n_ranks; rank++) sum += value(rank, i);
      const auto actual = static_cast<double>(std::bit_cast<float>(load<uint32_t>(data, i)));
      wrong += !(std::abs(actual - sum / divisor) <= bound / divisor);
    }
  }
  return wrong;
}

}  // namespace tutti::perf
