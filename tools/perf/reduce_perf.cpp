#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kReduce = {
    .tool = "reduce_perf",
    .call = "tuttiReduce",
    .has_op = true,
    .has_root = true,
    .only_root_receives = true,
    .layout = same_size,
    .bus_factor = everything,
    .run = [](const Call& c) { return tuttiReduce(c.send, c.recv, c.count, c.type, c.op, c.root, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_reduction(r.key, r.first, r.count, r.data); },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kReduce);
}
