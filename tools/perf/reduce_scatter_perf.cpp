#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kReduceScatter = {
    .tool = "reduce_scatter_perf",
    .call = "tuttiReduceScatter",
    .has_op = true,
    .layout = scattering,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiReduceScatter(c.send, c.recv, c.count, c.type, c.op, c.comm, c.stream); },
    .count_wrong =
        [](const Received& r) { return count_wrong_reduction(r.key, r.first_of_block(r.rank), r.count, r.data); },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kReduceScatter);
}
