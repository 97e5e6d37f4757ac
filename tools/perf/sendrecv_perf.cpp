#include "collective.h"

namespace tutti::perf {
namespace {

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

constexpr Collective kSendRecv = {
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

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kSendRecv);
}
