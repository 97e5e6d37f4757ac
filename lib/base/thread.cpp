#include "base/thread.h"

#include <sched.h>

namespace tutti {

// The kernel moves a thread at once that is where it must not be.
bool leave_cpu(int cpu) {
  cpu_set_t all{};
  if (sched_getaffinity(0, sizeof all, &all) != 0) return false;
  cpu_set_t others = all;
  CPU_CLR(static_cast<size_t>(cpu), &others);
  return CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0 &&
         sched_setaffinity(0, sizeof all, &all) == 0;
}

}  // namespace tutti
