#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kScatter = {
    .tool = "scatter_perf",
    .call = "tuttiScatter",
    .has_root = true,
    .layout = scattering,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiScatter(c.send, c.recv, c.count, c.type, c.root, c.comm, c.stream); },
    .count_wrong =
        [](const Received& r) { return count_wrong_copy(r.key, r.root, r.first_of_block(r.rank), r.count, r.data); },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kScatter);
}
