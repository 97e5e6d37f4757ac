// What a link costs next to bare RDMA writes: the time from rank to rank of a small message, the rate of large ones,
// and how many writes are posted and completions taken for each. Two processes, on the devices rxe1 and rxe2.
//   bench_verbs MESSAGE_BYTES        prints: latency_us MB_per_s writes_per_message completions_per_message
#include <dlfcn.h>

#include <algorithm>

#include "base/shared_memory.h"
#include "traffic.h"
#include "transports/verbs/port.h"

extern "C" const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes);

namespace {

uint64_t posts = 0, completions = 0;
int (*real_post)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
int (*real_poll)(ibv_cq*, int, ibv_wc*);

int count_post(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  posts++;
  return real_post(pair, request, bad);
}
int count_poll(ibv_cq* queue, int most, ibv_wc* taken) {
  const int n = real_poll(queue, most, taken);
  completions += static_cast<uint64_t>(std::max(n, 0));
  return n;
}

}  // namespace

// In front of the library's: the device's functions are replaced by those that count.
extern "C" ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  const auto next = reinterpret_cast<decltype(&ibv_create_qp)>(dlsym(RTLD_NEXT, "ibv_create_qp"));
  auto& ops = domain->context->ops;
  if (ops.post_send != count_post) {
    real_post = std::exchange(ops.post_send, count_post);
    real_poll = std::exchange(ops.poll_cq, count_poll);
  }
  return next(domain, attributes);
}

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr int kRoundTrips = 2000, kWarmUps = 200;
constexpr uint32_t kSmallBytes = 64;
constexpr uint64_t kStreamBytes = 256 << 20;

struct Ends {
  Endpoint endpoint;
  Link out, in;
};

Result<Ends> meet(Mailbox& mail, int rank) {
  setenv("TUTTI_IB_HCA", rank == 0 ? "=rxe1" : "=rxe2", 1);
  TUTTI_TRY_ASSIGN(Endpoint endpoint, open_endpoint(tuttiTransportPlugin(nullptr, 0), rank));
  const bool sent = mail.send(endpoint.address());
  const auto peer = mail.receive();
  if (!sent || !peer) return Error{Code::kInternalError, "the other process has gone"};
  TUTTI_TRY_ASSIGN(Link out, endpoint.connect(Ask{1 - rank, 0, 4, 256 << 10}, *peer));
  Link in;
  bool accepted = false;
  const bool joined = until([&] {
    accepted = accepted || take(endpoint, &in);
    return poll_once(out).ready && accepted;
  });
  if (!joined) return Error{Code::kInternalError, "no link came about"};
  return Ends{std::move(endpoint), std::move(out), std::move(in)};
}

void send_one(Link& link, const void* lent, uint32_t bytes) {
  while (link.try_acquire() == nullptr) poll_once(link);
  if (lent == nullptr || !link.lend(lent, bytes, tuttiTag{})) link.publish(bytes, tuttiTag{});
}
void receive_one(Link& link) {
  tuttiMessage message;
  while (!link.try_peek(&message))
    if (!poll_once(link)) _exit(2);
  link.release();
}

std::string echo(Ends& ends, uint32_t stream_bytes) {
  for (int i = 0; i < kWarmUps + kRoundTrips; i++) {
    receive_one(ends.in);
    send_one(ends.out, nullptr, kSmallBytes);
  }
  for (uint64_t got = 0; got < kStreamBytes; got += stream_bytes) receive_one(ends.in);
  send_one(ends.out, nullptr, 0);
  return "";
}

void measure(Ends& ends, uint32_t stream_bytes) {
  std::vector<int64_t> times;
  for (int i = 0; i < kWarmUps + kRoundTrips; i++) {
    const int64_t start_ns = now_ns();
    send_one(ends.out, nullptr, kSmallBytes);
    receive_one(ends.in);
    if (i >= kWarmUps) times.push_back(now_ns() - start_ns);
  }
  std::nth_element(times.begin(), times.begin() + kRoundTrips / 2, times.end());
  const double latency_us = static_cast<double>(times[kRoundTrips / 2]) / 2e3;
  char* data = static_cast<char*>(SharedMemory::allocate(4 * stream_bytes).value());
  memset(data, 1, 4 * stream_bytes);
  posts = completions = 0;
  const int64_t start_ns = now_ns();
  uint64_t messages = 0;
  for (uint64_t sent = 0; sent < kStreamBytes; sent += stream_bytes)
    send_one(ends.out, data + messages++ % 4 * stream_bytes, stream_bytes);
  receive_one(ends.in);
  const double seconds = static_cast<double>(now_ns() - start_ns) * 1e-9;
  const auto each = [&](uint64_t n) { return static_cast<double>(n) / static_cast<double>(messages); };
  printf("%.1f %.1f %.2f %.2f\n", latency_us, kStreamBytes / seconds / (1 << 20), each(posts), each(completions));
}

}  // namespace

int main(int argc, char** argv) {
  const auto bytes = static_cast<uint32_t>(argc > 1 ? std::min(256 << 10, std::max(64, atoi(argv[1]))) : 128 << 10);
  Child child([&](Mailbox& mail) {
    auto ends = meet(mail, 0);
    return ends ? echo(ends.value(), bytes) : ends.error().message;
  });
  auto ends = meet(child.mail(), 1);
  if (!ends) {
    fprintf(stderr, "%s\n", ends.error().message.c_str());
    return 1;
  }
  measure(ends.value(), bytes);
  return child.ended_well() ? 0 : 1;
}
