// Blocks of 8-bit values: every table against the scalar one and against the types' definitions, within the bound.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "catch.h"
#include "kernels/cpu/convert.h"
#include "kernels/kernels.h"

using namespace tutti;

namespace {

float value_of_code(int wire, uint8_t code) {
  return wire == 0 ? static_cast<float>(static_cast<int8_t>(code)) : Float8e4m3::to_float(code);
}

uint8_t code_of(int wire, float ratio) {
  return static_cast<uint8_t>(wire == 0 ? static_cast<uint32_t>(std::lrint(ratio)) : Float8e4m3::from_float(ratio));
}

std::vector<float> blocks_of_many_sizes(size_t elems, size_t block_elems) {
  std::mt19937 random(7);
  std::vector<float> values(elems);
  for (size_t i = 0; i < elems; i++) {
    const int exponent = static_cast<int>(i / block_elems * 37 % 290) - 149;
    const float size = std::ldexp(1.0f, exponent - static_cast<int>(random() % 12));
    values[i] = size * (static_cast<float>(random() % 2000) / 1000 - 1);
  }
  return values;
}

}  // namespace

TEST_CASE("quantised blocks are what the types' definitions make of them, with every table, within the bound") {
  const int wire = GENERATE(0, 1);
  const size_t block = GENERATE(64, 128, 256), elems = GENERATE(0, 1, 63, 65, 300, 5000), misalign = GENERATE(0, 1);
  const std::vector<float> values = blocks_of_many_sizes(elems, block);
  std::vector<char> in(elems * 4 + misalign), first;
  if (elems > 0) std::memcpy(in.data() + misalign, values.data(), elems * 4);
  for (const KernelTable* table : all_kernel_tables()) {
    INFO(table->isa << " wire " << wire << " block " << block << " elems " << elems);
    std::vector<char> out(quantised_bytes(elems, block) + misalign), back(elems * 4 + misalign);
    table->quantise[wire](in.data() + misalign, elems, block, out.data() + misalign);
    if (first.empty()) first = out;
    REQUIRE(out == first);
    table->dequantise[wire](out.data() + misalign, elems, block, back.data() + misalign, false);
    table->dequantise[wire](out.data() + misalign, elems, block, back.data() + misalign, true);
    size_t wrong = 0;
    for (size_t at = 0; at < elems; at += block) {
      const char* const here = out.data() + misalign + quantised_bytes(at, block);
      float scale, largest = 0;
      std::memcpy(&scale, here, 4);
      const size_t end = std::min(at + block, elems);
      for (size_t i = at; i < end; i++) largest = std::max(largest, std::fabs(values[i]));
      const bool finite = largest <= kQuantisableTo, nothing = largest < kQuantisableFrom;
      wrong += std::isnan(scale) == finite || (scale == 0) != nothing;
      for (size_t i = at; i < end; i++) {
        float twice;
        std::memcpy(&twice, back.data() + misalign + i * 4, 4);
        const auto code = static_cast<uint8_t>(here[4 + (i - at)]);
        if (!finite) wrong += !std::isnan(twice);
        if (finite && !nothing) wrong += code != code_of(wire, values[i] / scale);
        if (!finite || nothing) continue;
        const float once = value_of_code(wire, code) * scale;
        wrong += twice != once + once;
        wrong += std::fabs(double{once} - values[i]) > largest / (wire == 0 ? 254.0 : 28.0) * (1 + 1e-5);
      }
    }
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("a block that is not finite becomes NaNs, and no other block does") {
  const int wire = GENERATE(0, 1);
  const float odd = GENERATE(INFINITY, -INFINITY, NAN, 3e38f);
  std::vector<float> values(200, 1.0f), back(200);
  values[70] = odd;
  for (const KernelTable* table : all_kernel_tables()) {
    std::vector<char> out(quantised_bytes(200, 64));
    table->quantise[wire](values.data(), 200, 64, out.data());
    table->dequantise[wire](out.data(), 200, 64, back.data(), false);
    for (size_t i = 0; i < 200; i++) CHECK(std::isnan(back[i]) == (i / 64 == 1));
  }
}

TEST_CASE("a block's largest value may be either limit itself") {
  const int wire = GENERATE(0, 1);
  for (const float limit : {kQuantisableTo, -kQuantisableTo, kQuantisableFrom, -kQuantisableFrom})
    for (const KernelTable* table : all_kernel_tables()) {
      INFO(table->isa << " wire " << wire << " limit " << limit);
      std::vector<float> values(64), back(64);
      std::vector<char> out(quantised_bytes(64, 64));
      values[5] = limit;
      table->quantise[wire](values.data(), 64, 64, out.data());
      table->dequantise[wire](out.data(), 64, 64, back.data(), false);
      CHECK(std::fabs(back[5] - limit) <= std::fabs(limit) / 28);
      CHECK(back[0] == 0);
    }
}
