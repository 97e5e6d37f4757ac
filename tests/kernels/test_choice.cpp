// Which table is chosen, and the message for one that cannot be.
#include <cstdlib>
#include <string>

#include "catch.h"
#include "kernels/kernels.h"

using namespace tutti;

namespace {

// Sets TUTTI_CPU_ISA for one scope.
class Wish {
 public:
  explicit Wish(const char* value) { ::setenv("TUTTI_CPU_ISA", value, 1); }
  ~Wish() { ::unsetenv("TUTTI_CPU_ISA"); }
  Wish(const Wish&) = delete;
  Wish& operator=(const Wish&) = delete;
};

}  // namespace

TEST_CASE("tables are complete, the scalar one is first") {
  const auto tables = all_kernel_tables();
  REQUIRE(!tables.empty());
  CHECK(std::string(tables.front()->isa) == "scalar");
  for (const KernelTable* table : tables) {
    for (const auto& row : table->reduce) {
      for (const ReduceKernel kernel : row) CHECK(kernel != nullptr);
    }
  }
}

TEST_CASE("the chosen table is one of them and stays") {
  const KernelTable& chosen = kernels();
  bool found = false;
  for (const KernelTable* table : all_kernel_tables()) found = found || table == &chosen;
  CHECK(found);
  if (const char* asked = getenv("TUTTI_CPU_ISA"); asked != nullptr) CHECK(std::string(chosen.isa) == asked);
  const Wish wish("scalar");
  CHECK(&kernels() == &chosen);
}

TEST_CASE("every runnable instruction set may be wished for") {
  CHECK(kernels_check());
  for (const KernelTable* table : all_kernel_tables()) {
    const Wish wish(table->isa);
    CHECK(kernels_check());
  }
}

TEST_CASE("an instruction set that is not there is refused by name") {
  const Wish wish("avx1024");
  const auto result = kernels_check();
  REQUIRE(!result);
  CHECK(result.error().code == Code::kInvalidUsage);
  for (const char* part : {"TUTTI_CPU_ISA", "avx1024", "scalar"}) {
    INFO(result.error().message);
    CHECK(result.error().message.find(part) != std::string::npos);
  }
}
