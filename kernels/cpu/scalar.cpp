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

void copy(const ReduceArgs& args, size_t bytes) {
  for (int d = 0; d < args.n_dst; ++d)
    if (args.dst[d] != args.src[0] && bytes != 0) std::memcpy(args.dst[d], args.src[0], bytes);
}

template <class T, RedOp op>
void reduce(const ReduceArgs& args) {
  using Stored = typename T::Stored;
  const bool divides = op == RedOp::kAvg && args.divisor != 0;
  if (args.n_src == 1 && !divides) return copy(args, args.elems * sizeof(Stored));  // keeps all bits, NaNs too
  for (size_t i = 0; i < args.elems; ++i) {
    auto value = T::load(element<Stored>(args.src[0], i));
    for (int s = 1; s < args.n_src; ++s) value = combine<T>(op, value, T::load(element<Stored>(args.src[s], i)));
    const Stored result = T::store(divides ? T::divide(value, args.divisor) : value);
    for (int d = 0; d < args.n_dst; ++d)
      std::memcpy(static_cast<char*>(args.dst[d]) + i * sizeof result, &result, sizeof result);
  }
}

template <class From, class To, To (*convert_one)(From)>
void convert(const void* from, size_t elems, void* to) {
  for (size_t i = 0; i < elems; i++) {
    const To value = convert_one(element<From>(from, i));
    memcpy(static_cast<char*>(to) + i * sizeof value, &value, sizeof value);
  }
}

template <class T, int kType, size_t... kOps>
void fill_type(KernelTable& table, std::index_sequence<kOps...>) {
  ((table.reduce[kOps][kType] = reduce<T, static_cast<RedOp>(kOps)>), ...);
  if constexpr (is_small_float(static_cast<DataType>(kType))) {
    table.widen[kType] = convert<typename T::Stored, float, T::load>;
    table.narrow[kType] = convert<float, typename T::Stored, T::store>;
  }
}

template <size_t... kType>
void fill_types(KernelTable& table, std::index_sequence<kType...>) {
  (fill_type<ElementOf<kType>, kType>(table, std::make_index_sequence<kRedOps>()), ...);
}

}  // namespace

void fill_scalar(KernelTable& table) {
  table.isa = "scalar";
  fill_quantise(table);
  fill_types(table, std::make_index_sequence<kDataTypes>());
}

}  // namespace tutti
