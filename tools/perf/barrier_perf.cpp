#include "collective.h"

namespace tutti::perf {
namespace {

constexpr Collective kBarrier = {
    .tool = "barrier_perf",
    .call = "tuttiBarrier",
    .has_in_place = false,
    .has_data = false,
    .layout = same_size,
    .bus_factor = everything,
    .run = [](const Call& c) { return tuttiBarrier(c.comm, c.stream); },
    .count_wrong = [](const Received&) { return size_t{0}; },
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kBarrier);
}
