#include <algorithm>

#include "schedule/algorithms.h"

namespace tutti {

//   k = 0   1   2     n = 5: rank r signals r + 2^k and hears from r - 2^k. Each message passes on all that its sender
//   r --> r+1         has heard so far; each message heard is received in the step that sends the next one.
//   r ------> r+2
//   r ----------> r+4
Schedule barrier(int n_ranks, int rank) {
  Steps steps;
  int heard_from = -1;
  for (int d = 1; d < n_ranks; d *= 2) {
    steps.push_back({.recv = heard_from, .send = (rank + d) % n_ranks});
    heard_from = (rank - d + n_ranks) % n_ranks;
  }
  if (heard_from >= 0) steps.push_back({.recv = heard_from});
  return with_lane({.rank = rank, .n_ranks = n_ranks, .n_chunks = 1}, std::move(steps));
}

namespace {

// The blocks sent to, or received from, `peer`, in order.
std::vector<uint32_t> blocks_with(const std::vector<int>& peers, int peer) {
  std::vector<uint32_t> blocks;
  for (uint32_t block = 0; block < peers.size(); block++)
    if (peers[block] == peer) blocks.push_back(block);
  return blocks;
}

}  // namespace

Schedule send_recv(int n_ranks, int rank, const Transfers& transfers) {
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = 1};
  const auto n_sends = static_cast<uint32_t>(transfers.sends.size());
  for (int peer = 0; peer < n_ranks; peer++) {
    const std::vector<uint32_t> sends = blocks_with(transfers.sends, peer);
    const std::vector<uint32_t> receives = blocks_with(transfers.receives, peer);
    Steps out, in;
    for (size_t i = 0; peer == rank && i < std::min(sends.size(), receives.size()); i++)
      out.push_back({.chunk = sends[i], .local = input_of(sends[i]), .store = output_of(receives[i])});
    if (peer != rank) {
      for (const uint32_t block : sends) out.push_back({.send = peer, .chunk = block, .local = input_of(block)});
      for (const uint32_t block : receives)
        in.push_back({.recv = peer, .chunk = n_sends + block, .store = output_of(block)});
    }
    schedule.add_lane(0, std::move(out));
    schedule.add_lane(0, std::move(in));
  }
  return schedule;
}

}  // namespace tutti
