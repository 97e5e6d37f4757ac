#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kGather = {
    .tool = "gather_perf",
    .call = "tuttiGather",
    .has_root = true,
    .only_root_receives = true,
    .layout = gathering,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiGather(c.send, c.recv, c.count, c.type, c.root, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_blocks(r.key, r.first, r.count, r.data); },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kGather);
}
