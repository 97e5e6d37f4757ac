// Small floats to float and back: every code, and every table against the scalar one.
#include <cstring>
#include <random>
#include <vector>

#include "catch.h"
#include "kernels/kernels.h"

TEST_CASE("small floats become floats and come back, with every table, at any length and alignment") {
  using namespace tutti;
  std::mt19937_64 random(7);
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2}) {
    const size_t elem_bytes = dtype_bytes(type), n = elem_bytes == 2 ? 65536 : 256;
    std::vector<char> codes(n * elem_bytes);
    for (size_t i = 0; i < n; i++) memcpy(&codes[i * elem_bytes], &i, elem_bytes);
    const KernelTable& scalar = *all_kernel_tables()[0];
    std::vector<float> wide(n);
    scalar.widen[static_cast<int>(type)](codes.data(), n, wide.data());
    // Values between any two codes, and beyond the last.
    std::vector<float> values = wide;
    for (size_t i = 0; i < 100'000; i++) {
      const auto bits = static_cast<uint32_t>(random());
      float value;
      memcpy(&value, &bits, sizeof value);
      values.push_back(value);
    }
    std::vector<char> narrowed(values.size() * elem_bytes);
    scalar.narrow[static_cast<int>(type)](values.data(), values.size(), narrowed.data());
    size_t changed = 0;
    for (size_t i = 0; i < n; i++)
      changed += wide[i] == wide[i] && memcmp(&narrowed[i * elem_bytes], &codes[i * elem_bytes], elem_bytes) != 0;
    CHECK(changed == 0);
    for (const KernelTable* table : all_kernel_tables()) {
      INFO(table->isa << " " << dtype_name(type));
      for (const size_t elems : {size_t{0}, size_t{1}, size_t{3}, size_t{7}, size_t{17}, size_t{33}, values.size()})
        for (const size_t shift : {0, 1, 3}) {
          // Exact sizes, so that a sanitizer sees accesses beyond.
          std::vector<char> in(shift + elems * sizeof(float)), out(shift + elems * elem_bytes);
          if (elems > 0) memcpy(in.data() + shift, values.data(), elems * sizeof(float));
          table->narrow[static_cast<int>(type)](in.data() + shift, elems, out.data() + shift);
          CHECK((elems == 0 || memcmp(out.data() + shift, narrowed.data(), elems * elem_bytes) == 0));
          const size_t back = std::min(elems, n);
          std::vector<char> from(shift + back * elem_bytes), to(shift + back * sizeof(float));
          if (back > 0) memcpy(from.data() + shift, codes.data(), back * elem_bytes);
          table->widen[static_cast<int>(type)](from.data() + shift, back, to.data() + shift);
          size_t wrong = 0;
          for (size_t i = 0; i < back; i++) {
            float value;
            memcpy(&value, &to[shift + i * sizeof value], sizeof value);
            // The NaN's bits do not matter, and differ.
            wrong += value != value ? wide[i] == wide[i] : memcmp(&value, &wide[i], sizeof value) != 0;
          }
          CHECK(wrong == 0);
        }
    }
  }
}
