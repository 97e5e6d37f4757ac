#include <vector>

#include "collective.h"

namespace tutti::perf {
namespace {

// What `from` sends to `to`, in fifths of about twice a block. The weights differ between the two directions of a pair
// and between ranks, and every fifth is 0:
//
//            to 0  1  2  3
//   from 0      2  0  3  1
//   from 1      4  2  0  3
//   from 2      1  4  2  0
//   from 3      3  1  4  2
size_t pair_count(size_t block, size_t n_ranks, size_t from, size_t to) {
  const size_t weight = (2 * from + 3 * to + 2) % 5;
  return block * n_ranks * weight / (2 * n_ranks + 2);  // n in a row have a weight of 2n + 2 at most
}

Layout unequal(size_t total, size_t n_ranks, size_t rank) {
  const size_t block = total / n_ranks;
  Layout layout = {.count = block, .send = 0, .recv = 0};
  for (size_t peer = 0; peer < n_ranks; peer++) {
    layout.send += pair_count(block, n_ranks, rank, peer);
    layout.recv += pair_count(block, n_ranks, peer, rank);
  }
  return layout;
}

tuttiResult_t exchange(const Call& c) {
  const auto n = static_cast<size_t>(c.n_ranks), rank = static_cast<size_t>(c.rank);
  // Kept between calls, so that allocating them is not timed.
  static thread_local std::vector<size_t> send_counts, send_displs, recv_counts, recv_displs;
  for (auto* list : {&send_counts, &send_displs, &recv_counts, &recv_displs}) list->assign(n + 1, 0);
  for (size_t peer = 0; peer < n; peer++) {
    send_counts[peer] = pair_count(c.count, n, rank, peer);
    recv_counts[peer] = pair_count(c.count, n, peer, rank);
    send_displs[peer + 1] = send_displs[peer] + send_counts[peer];
    recv_displs[peer + 1] = recv_displs[peer] + recv_counts[peer];
  }
  return tuttiAlltoAllv(c.send, send_counts.data(), send_displs.data(), c.recv, recv_counts.data(), recv_displs.data(),
                        c.type, c.comm, c.stream);
}

size_t count_wrong(const Received& r) {
  const auto n = static_cast<size_t>(r.key.n_ranks), rank = static_cast<size_t>(r.rank);
  const char* data = static_cast<const char*>(r.data);
  size_t wrong = 0;
  for (size_t from = 0; from < n; from++) {
    size_t at = r.first;
    for (size_t to = 0; to < rank; to++) at += pair_count(r.count, n, from, to);
    const size_t count = pair_count(r.count, n, from, rank);
    wrong += count_wrong_copy(r.key, static_cast<int>(from), at, count, data);
    data += count * r.elem_bytes;
  }
  return wrong;
}

constexpr Collective kAlltoAllv = {
    .tool = "alltoallv_perf",
    .call = "tuttiAlltoAllv",
    .has_in_place = false,
    .layout = unequal,
    .bus_factor = all_but_own,
    .run = exchange,
    .count_wrong = count_wrong,
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kAlltoAllv);
}
