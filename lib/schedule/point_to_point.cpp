#include <algorithm>

#include "schedule/schedule.h"

namespace tutti {

//   k = 0   1   2     n = 5: rank r tells r + 2^k and hears from r - 2^k. Each message goes on with all that its sender
//   r --> r+1         has heard so far; what was heard last goes out with the next one.
//   r ------> r+2
//   r ----------> r+4
Schedule barrier(int n_ranks, int rank) {
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = 1, .input_blocks = 0, .output_blocks = 0};
  Steps steps;
  int heard_from = -1;
  for (int d = 1; d < n_ranks; d *= 2) {
    steps.push_back({.recv = heard_from, .send = (rank + d) % n_ranks});
    heard_from = (rank - d + n_ranks) % n_ranks;
  }
  if (heard_from >= 0) steps.push_back({.recv = heard_from});
  schedule.add_lane(0, std::move(steps));
  return schedule;
}

namespace {

std::vector<uint32_t> blocks_with(const std::vector<Transfer>& transfers, int peer) {
  std::vector<uint32_t> blocks;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == peer) blocks.push_back(transfer.block);
  }
  return blocks;
}

uint32_t n_blocks(const std::vector<Transfer>& transfers) {
  uint32_t n = 0;
  for (const Transfer& transfer : transfers) n = std::max(n, transfer.block + 1);
  return n;
}

}  // namespace

Schedule send_recv(int n_ranks, int rank, const Transfers& transfers, uint32_t n_chunks) {
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = n_chunks};
  schedule.input_blocks = n_blocks(transfers.sends);
  schedule.output_blocks = n_blocks(transfers.receives);
  const auto add_lane = [&](size_t n_messages, auto step) {
    Steps steps;
    for (size_t i = 0; i < n_messages; i++)
      for (uint32_t c = 0; c < n_chunks; c++) steps.push_back(step(i, c));
    schedule.add_lane(0, std::move(steps));
  };
  const auto in = [&](uint32_t block, uint32_t c) { return Slice{Buffer::kInput, block * n_chunks + c}; };
  const auto out = [&](uint32_t block, uint32_t c) { return Slice{Buffer::kOutput, block * n_chunks + c}; };
  for (int peer = 0; peer < n_ranks; peer++) {
    const std::vector<uint32_t> sends = blocks_with(transfers.sends, peer);
    const std::vector<uint32_t> receives = blocks_with(transfers.receives, peer);
    if (peer == rank) {
      add_lane(std::min(sends.size(), receives.size()), [&](size_t i, uint32_t c) {
        const Slice from = in(sends[i], c);
        return Step{.chunk = from.chunk, .local = from, .store = out(receives[i], c)};
      });
      continue;
    }
    add_lane(sends.size(), [&](size_t i, uint32_t c) {
      const Slice from = in(sends[i], c);
      return Step{.send = peer, .chunk = from.chunk, .local = from};
    });
    add_lane(receives.size(), [&](size_t i, uint32_t c) {
      const Slice to = out(receives[i], c);
      return Step{.recv = peer, .chunk = schedule.input_blocks * n_chunks + to.chunk, .store = to};
    });
  }
  return schedule;
}

}  // namespace tutti
