#include "collectives.h"

#include <vector>

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

size_t count_wrong_exchange(const Received& r) {
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

int before(int rank, int n_ranks) {
  return (rank + n_ranks - 1) % n_ranks;
}

// Every rank to the next:  0 -> 1 -> 2 -> ... -> n-1 -> 0
tuttiResult_t send_and_receive(const Call& c) {
  tuttiResult_t result = tuttiGroupStart();
  if (result != tuttiSuccess) return result;
  result = tuttiSend(c.send, c.count, c.type, (c.rank + 1) % c.n_ranks, c.comm, c.stream);
  if (result == tuttiSuccess) {
    result = tuttiRecv(c.recv, c.count, c.type, before(c.rank, c.n_ranks), c.comm, c.stream);
  }
  const tuttiResult_t end = tuttiGroupEnd();  // also after a failure: a group that was begun must end
  return result == tuttiSuccess ? end : result;
}

}  // namespace

const Collective kAllGather = {
    .tool = "all_gather_perf",
    .call = "tuttiAllGather",
    .layout = gathering,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiAllGather(c.send, c.recv, c.count, c.type, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_blocks(r.key, r.first, r.count, r.data); },
};

const Collective kAllReduce = {
    .tool = "all_reduce_perf",
    .call = "tuttiAllReduce",
    .has_op = true,
    .layout = same_size,
    .bus_factor = [](int n) { return 2 * all_but_own(n); },
    .run = [](const Call& c) { return tuttiAllReduce(c.send, c.recv, c.count, c.type, c.op, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_reduction(r.key, r.first, r.count, r.data); },
};

const Collective kAllReduceQuantized = {
    .tool = "all_reduce_quantized_perf",
    .call = "tuttiAllReduceQuantized",
    .has_op = true,
    .has_in_place = false,
    .quantises = true,
    .layout = same_size,
    .bus_factor = [](int n) { return 2 * all_but_own(n); },
    .run =
        [](const Call& c) {
          return tuttiAllReduceQuantized(c.send, c.recv, c.count, c.type, c.op, c.wire, kQuantisedBlockElems, nullptr,
                                         c.comm, c.stream);
        },
    .count_wrong = [](const Received& r) { return count_wrong_quantised(r.key, r.wire, r.first, r.count, r.data); },
};

const Collective kAlltoAll = {
    .tool = "alltoall_perf",
    .call = "tuttiAlltoAll",
    .has_in_place = false,
    .layout = exchanging,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiAlltoAll(c.send, c.recv, c.count, c.type, c.comm, c.stream); },
    .count_wrong =
        [](const Received& r) { return count_wrong_blocks(r.key, r.first_of_block(r.rank), r.count, r.data); },
};

const Collective kAlltoAllv = {
    .tool = "alltoallv_perf",
    .call = "tuttiAlltoAllv",
    .has_in_place = false,
    .layout = unequal,
    .bus_factor = all_but_own,
    .run = exchange,
    .count_wrong = count_wrong_exchange,
};

const Collective kBarrier = {
    .tool = "barrier_perf",
    .call = "tuttiBarrier",
    .has_in_place = false,
    .has_data = false,
    .layout = same_size,
    .bus_factor = everything,
    .run = [](const Call& c) { return tuttiBarrier(c.comm, c.stream); },
    .count_wrong = [](const Received&) { return size_t{0}; },
};

const Collective kBroadcast = {
    .tool = "broadcast_perf",
    .call = "tuttiBroadcast",
    .has_root = true,
    .layout = same_size,
    .bus_factor = everything,
    .run = [](const Call& c) { return tuttiBroadcast(c.send, c.recv, c.count, c.type, c.root, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_copy(r.key, r.root, r.first, r.count, r.data); },
};

const Collective kGather = {
    .tool = "gather_perf",
    .call = "tuttiGather",
    .has_root = true,
    .only_root_receives = true,
    .layout = gathering,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiGather(c.send, c.recv, c.count, c.type, c.root, c.comm, c.stream); },
    .count_wrong = [](const Received& r) { return count_wrong_blocks(r.key, r.first, r.count, r.data); },
};

const Collective kReduce = {
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

const Collective kReduceScatter = {
    .tool = "reduce_scatter_perf",
    .call = "tuttiReduceScatter",
    .has_op = true,
    .layout = scattering,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiReduceScatter(c.send, c.recv, c.count, c.type, c.op, c.comm, c.stream); },
    .count_wrong =
        [](const Received& r) { return count_wrong_reduction(r.key, r.first_of_block(r.rank), r.count, r.data); },
};

const Collective kScatter = {
    .tool = "scatter_perf",
    .call = "tuttiScatter",
    .has_root = true,
    .layout = scattering,
    .bus_factor = all_but_own,
    .run = [](const Call& c) { return tuttiScatter(c.send, c.recv, c.count, c.type, c.root, c.comm, c.stream); },
    .count_wrong =
        [](const Received& r) { return count_wrong_copy(r.key, r.root, r.first_of_block(r.rank), r.count, r.data); },
};

const Collective kSendRecv = {
    .tool = "sendrecv_perf",
    .call = "tuttiSend and tuttiRecv in a group",
    .has_in_place = false,
    .layout = same_size,
    .bus_factor = everything,
    .run = send_and_receive,
    .count_wrong =
        [](const Received& r) {
          return count_wrong_copy(r.key, before(r.rank, r.key.n_ranks), r.first, r.count, r.data);
        },
};

}  // namespace tutti::perf
