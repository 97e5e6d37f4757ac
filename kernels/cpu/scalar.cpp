// The reference: every data type and operator, one element at a time.
#include <cstring>
#include <type_traits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/isa.h"

namespace tutti {
namespace {

// Integers and the floats that C++ has. Integers are computed without a sign, where overflow wraps.
template <class E>
struct Plain {
  using Stored = E;
  using Value = E;
  static Value load(Stored stored) { return stored; }
  static Stored store(Value value) { return value; }

  static Value add(Value a, Value b) { return static_cast<E>(static_cast<Wide>(a) + static_cast<Wide>(b)); }
  static Value mul(Value a, Value b) { return static_cast<E>(static_cast<Wide>(a) * static_cast<Wide>(b)); }
  static Value divide(Value a, uint32_t divisor) {
    if constexpr (std::is_floating_point_v<E>) return a / static_cast<E>(divisor);
    // 64 bits of the same sign hold both operands; an int32 and a uint32 alone would be compared as unsigned.
    using Common = std::conditional_t<std::is_signed_v<E>, int64_t, uint64_t>;
    return static_cast<E>(static_cast<Common>(a) / static_cast<Common>(divisor));
  }

 private:
  using Wide = std::conditional_t<std::is_integral_v<E>, uint64_t, E>;
};

template <class Format, class Code>
struct Small : Plain<float> {
  using Stored = Code;
  static float load(Code code) { return Format::to_float(code); }
  static Code store(float value) { return static_cast<Code>(Format::from_float(value)); }
};

template <class Value>
bool is_nan(Value value) {
  if constexpr (std::is_floating_point_v<Value>) return value != value;
  return false;
}

template <class T, RedOp op>
typename T::Value combine(typename T::Value a, typename T::Value b) {
  if constexpr (op == RedOp::kProd) return T::mul(a, b);
  if constexpr (op == RedOp::kMin) return is_nan(a) || a < b ? a : b;
  if constexpr (op == RedOp::kMax) return is_nan(a) || a > b ? a : b;
  return T::add(a, b);
}

template <class Stored>
Stored element(const void* base, size_t i) {
  Stored out;
  std::memcpy(&out, static_cast<const char*>(base) + i * sizeof out, sizeof out);
  return out;
}

template <class T, RedOp op>
void reduce(const ReduceArgs& args) {
  using Stored = typename T::Stored;
  const bool divides = op == RedOp::kAvg && args.divisor != 0;
  const bool copies = args.n_src == 1 && !divides;  // keeps all bits, NaNs too
  for (size_t i = 0; i < args.elems; ++i) {
    Stored result = element<Stored>(args.src[0], i);
    if (!copies) {
      auto value = T::load(result);
      for (int s = 1; s < args.n_src; ++s) value = combine<T, op>(value, T::load(element<Stored>(args.src[s], i)));
      if (divides) value = T::divide(value, args.divisor);
      result = T::store(value);
    }
    for (int d = 0; d < args.n_dst; ++d)
      std::memcpy(static_cast<char*>(args.dst[d]) + i * sizeof result, &result, sizeof result);
  }
}

void copy(const CopyArgs& args) {
  for (int d = 0; d < args.n_dst; ++d) {
    if (args.dst[d] != args.src && args.bytes != 0) std::memcpy(args.dst[d], args.src, args.bytes);
  }
}

template <class T, int kType, size_t... kOps>
void fill_type(KernelTable& table, std::index_sequence<kOps...>) {
  ((table.reduce[kOps][kType] = reduce<T, static_cast<RedOp>(kOps)>), ...);
}

template <class... Types, size_t... kType>
void fill_types(KernelTable& table, std::index_sequence<kType...>) {
  (fill_type<Types, kType>(table, std::make_index_sequence<kRedOps>()), ...);
}

}  // namespace

void fill_scalar(KernelTable& table) {
  table.isa = "scalar";
  table.copy = copy;
  // In the order of DataType.
  fill_types<Plain<int8_t>, Plain<uint8_t>, Plain<int32_t>, Plain<uint32_t>, Plain<int64_t>, Plain<uint64_t>,
             Small<Half, uint16_t>, Plain<float>, Plain<double>, Small<Bfloat16, uint16_t>, Small<Float8e4m3, uint8_t>,
             Small<Float8e5m2, uint8_t>>(table, std::make_index_sequence<kDataTypes>());
}

}  // namespace tutti
