// Minimum and maximum of special floats, in any order and grouped in any way, with every table.
#include "catch.h"
#include "extremes.h"
#include "kernels/kernels.h"

using namespace tutti;
using namespace tutti_test;

namespace {

using Operand = std::vector<char>;

struct Extremes {
  const KernelTable* table;
  FloatKind kind;
  bool largest;

  Operand of(const std::vector<Operand>& operands) const {
    Operand out(operands[0].size());
    std::vector<const void*> src;
    for (const Operand& operand : operands) src.push_back(operand.data());
    ReduceArgs args{};
    args.src = src.data();
    args.n_src = static_cast<int>(src.size());
    args.dst[0] = out.data();
    args.n_dst = 1;
    args.elems = out.size() / kind.bytes;
    table->reduce[static_cast<int>(largest ? RedOp::kMax : RedOp::kMin)][kind.type](args);
    return out;
  }
  size_t wrong(const std::vector<Operand>& operands, const Operand& results) const {
    return wrong_extremes(kind, largest, operands, results);
  }
};

}  // namespace

TEST_CASE("the minimum and maximum of zeros and NaNs have the same bits in any order") {
  for (const KernelTable* table : all_kernel_tables())
    for (const FloatKind& kind : kFloatKinds)
      for (const bool largest : {false, true}) {
        INFO(table->isa << " " << dtype_name(static_cast<DataType>(kind.type)) << (largest ? " max" : " min"));
        const Extremes extremes{table, kind, largest};
        const size_t n = special_codes(kind).size();
        const Operand a = special_operand(kind, 0, n * n * n), b = special_operand(kind, 1, n * n * n),
                      c = special_operand(kind, 2, n * n * n);
        const std::vector<Operand> two = {a, b}, three = {a, b, c};
        CHECK(extremes.wrong(two, extremes.of({a, b})) == 0);
        CHECK(extremes.wrong(two, extremes.of({b, a})) == 0);
        CHECK(extremes.wrong(three, extremes.of({a, b, c})) == 0);
        CHECK(extremes.wrong(three, extremes.of({c, extremes.of({a, b})})) == 0);
        CHECK(extremes.wrong(three, extremes.of({extremes.of({b, c}), a})) == 0);
        for (const size_t few : {size_t{1}, size_t{21}, n * n}) {  // loops for less than a register, and for a few
          const Operand x = special_operand(kind, 0, few), y = special_operand(kind, 1, few);
          CHECK(extremes.wrong({x, y}, extremes.of({x, y})) == 0);
          CHECK(extremes.wrong({x, y}, extremes.of({y, x})) == 0);
        }
      }
}
