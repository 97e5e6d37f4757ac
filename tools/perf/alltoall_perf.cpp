#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kAlltoAll = {
    .tool = "alltoall_perf",
    .call = "tuttiAlltoAll",
    .has_in_place = false,
    .layout = exchanging,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiAlltoAll(c.send, c.recv, c.count, c.type, c.comm, c.stream); },
    .count_wrong =
        [](const Received& r) { return count_wrong_blocks(r.key, r.first_of_block(r.rank), r.count, r.data); },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kAlltoAll);
}
