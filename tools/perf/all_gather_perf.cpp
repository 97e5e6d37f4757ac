#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kAllGather = {
    .tool = "all_gather_perf",
    .call = "tuttiAllGather",
    .layout = gathering,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiAllGather(c.send, c.recv, c.count, c.type, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_blocks(r.key, r.first, r.count, r.data); },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kAllGather);
}
