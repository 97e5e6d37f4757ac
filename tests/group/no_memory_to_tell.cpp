// A rank whose group fails while one of its allocations fails, too, whichever that is: its group has failed all the
// same, and its neighbours hear of it though their connections stay whole.
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "comm/scarce_memory.h"
#include "group/peers.h"

using namespace tutti;

namespace {

constexpr int kRanks = 3;

// Rank 0 has two neighbours.
std::vector<std::unique_ptr<PeerWatch>> make_watches(uint64_t group) {
  std::vector<std::unique_ptr<PeerWatch>> watches;
  for (int rank = 0; rank < kRanks; rank++) {
    PeerWatch::Config config{.rank = rank, .n_ranks = kRanks, .n_here = kRanks, .key = derive_key("a secret", 8)};
    config.group = group;
    config.of_process = {0, 1, 2};
    config.member = [](int r) { return PeerWatch::Member{"rank " + std::to_string(r), {}, "here"}; };
    config.neighbours = rank == 0 ? std::vector<int>{1, 2} : std::vector<int>{0};
    auto watch = PeerWatch::create(config, {}, Deadline::after_seconds(60));
    if (!watch) return {};
    watches.push_back(std::move(watch.value()));
  }
  return watches;
}

}  // namespace

int main() {
  t_is_main = true;
  bool lacked = true;
  for (long left = 0; lacked; left++) {
    const auto watches = make_watches(static_cast<uint64_t>(left) + 1);
    if (watches.empty()) return 1;
    const Error error{Code::kTimeout, "a sentence for which a string needs memory", 1};
    t_left = left;
    (void)contained([&]() -> Result<void> { return watches[0]->ending().fail(error), Result<void>(); });
    lacked = t_left < 0;
    t_left = -1;
    for (size_t r = 0; r < kRanks; r++) {
      const Deadline deadline = Deadline::after_seconds(10);
      while (!watches[r]->ending().failed() && !deadline.passed())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (watches[r]->ending().failed()) continue;
      fprintf(stderr, "rank %zu does not know of the failure in which allocation %ld failed\n", r, left);
      return 2;
    }
  }
  return 0;
}
