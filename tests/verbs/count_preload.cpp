// Says at the end what was counted: LD_PRELOAD for programs that are not ours.
#include <cstdio>

#include "counters.h"

namespace {

__attribute__((destructor)) void tell() {
  fprintf(stderr, "\ncounted: %llu posts %llu completions\n",
          static_cast<unsigned long long>(tutti::test::g_counters->posts),
          static_cast<unsigned long long>(tutti::test::g_counters->completions));
}

}  // namespace
