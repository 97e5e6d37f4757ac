#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kAllReduce = {
    .tool = "all_reduce_perf",
    .call = "tuttiAllReduce",
    .has_op = true,
    .layout = same_size,
    .bus_factor = [](int n) { return 2 * all_but_own(n); },
    .run = [](const Call& c) { return tuttiAllReduce(c.send, c.recv, c.count, c.type, c.op, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_reduction(r.key, r.first, r.count, r.data); },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kAllReduce);
}
