// The reference: every data type and operator, one element at a time.
#include <cstring>
#include <utility>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/quantise.h"
#include "kernels/element.h"

namespace tutti {
namespace {

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
      for (int s = 1; s < args.n_src; ++s) value = combine<T>(op, value, T::load(element<Stored>(args.src[s], i)));
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

template <class T>
void widen(const void* from, size_t elems, void* to) {
  typename T::Stored code;
  for (size_t i = 0; i < elems; i++) {
    memcpy(&code, static_cast<const char*>(from) + i * sizeof code, sizeof code);
    const float value = T::load(code);
    memcpy(static_cast<char*>(to) + i * sizeof value, &value, sizeof value);
  }
}

template <class T>
void narrow(const void* from, size_t elems, void* to) {
  float value;
  for (size_t i = 0; i < elems; i++) {
    memcpy(&value, static_cast<const char*>(from) + i * sizeof value, sizeof value);
    const typename T::Stored code = T::store(value);
    memcpy(static_cast<char*>(to) + i * sizeof code, &code, sizeof code);
  }
}

template <class T, int kType, size_t... kOps>
void fill_type(KernelTable& table, std::index_sequence<kOps...>) {
  ((table.reduce[kOps][kType] = reduce<T, static_cast<RedOp>(kOps)>), ...);
  if constexpr (is_small_float(static_cast<DataType>(kType))) {
    table.widen[kType] = widen<T>;
    table.narrow[kType] = narrow<T>;
  }
}

template <size_t... kType>
void fill_types(KernelTable& table, std::index_sequence<kType...>) {
  (fill_type<ElementOf<kType>, kType>(table, std::make_index_sequence<kRedOps>()), ...);
}

}  // namespace

void fill_scalar(KernelTable& table) {
  table.isa = "scalar";
  table.copy = copy;
  fill_quantise(table);
  fill_types(table, std::make_index_sequence<kDataTypes>());
}

}  // namespace tutti
