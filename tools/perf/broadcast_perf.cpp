#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kBroadcast = {
    .tool = "broadcast_perf",
    .call = "tuttiBroadcast",
    .has_root = true,
    .layout = same_size,
    .bus_factor = everything,
    .run = [](const Call& c) { return tuttiBroadcast(c.send, c.recv, c.count, c.type, c.root, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_copy(r.key, r.root, r.first, r.count, r.data); },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kBroadcast);
}
