#include "kernels/kernels.h"

#include "base/env.h"
#include "kernels/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tutti {
namespace {

struct Isa {
  const char* name;
  bool (*runs_here)();
  void (*fill)(KernelTable&);
};

#if defined(__x86_64__)
// These builtins also check whether the operating system saves the registers.
bool has_avx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

bool always() {
  return true;
}

// What this build has, worst first.
constexpr Isa kIsas[] = {
    {"scalar", always, fill_scalar},
#if defined(__x86_64__)
    {"avx2", has_avx2, fill_avx2},
    {"avx512", has_avx512, fill_avx512},
    {"avx512_bf16", has_avx512_bf16, fill_avx512_bf16},
#elif defined(__aarch64__)
    {"neon", always, fill_neon},
#endif
};

std::vector<KernelTable> make_tables() {
  std::vector<KernelTable> tables;
  for (const Isa& isa : kIsas) {
    if (!isa.runs_here()) continue;
    KernelTable& table = tables.emplace_back();
    fill_scalar(table);
    isa.fill(table);
  }
  return tables;
}

const std::vector<KernelTable>& tables() {
  static const auto* tables = new std::vector(make_tables());  // never destroyed: threads may outlive main
  return *tables;
}

// The table that TUTTI_CPU_ISA names, the best one if it names none, null if it is not available.
const KernelTable* wanted() {
  const std::string name = env_string("TUTTI_CPU_ISA");
  if (name.empty()) return &tables().back();
  for (const KernelTable& table : tables()) {
    if (name == table.isa) return &table;
  }
  return nullptr;
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable* const chosen = wanted();
  return chosen ? *chosen : tables().back();
}

std::vector<const KernelTable*> all_kernel_tables() {
  std::vector<const KernelTable*> all;
  for (const KernelTable& table : tables()) all.push_back(&table);
  return all;
}

Result<void> kernels_check() {
  if (wanted()) return {};
  std::string built, runs;
  for (const Isa& isa : kIsas) built += std::string(built.empty() ? "" : ", ") + isa.name;
  for (const KernelTable& table : tables()) runs += std::string(runs.empty() ? "" : ", ") + table.isa;
  return Error{
      Code::kInvalidUsage,
      format("%s=%s: no such instruction set here. This build has %s; this CPU can run %s. "
             "Unset it to use the best one.",
             env_entry("TUTTI_CPU_ISA").name, env_string("TUTTI_CPU_ISA").c_str(), built.c_str(), runs.c_str())};
}

}  // namespace tutti
