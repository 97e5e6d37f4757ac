// What a link costs compared with bare RDMA writes, for each size: the time of a message from rank to rank, the rate of
// many, and the writes posted and completions taken per message. Two processes, on the devices rxe1 and rxe2.
//   bench_verbs BYTES...        prints, a line for each size: bytes latency_us MiB_per_s writes completions
#include <algorithm>

#include "base/shared_memory.h"
#include "counters.h"
#include "traffic.h"
#include "transports/verbs/port.h"

extern "C" const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes);

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr int kRoundTrips = 1000, kWarmUps = 100;
constexpr uint32_t kMostBytes = 256 << 10, kLeastLentBytes = 4096;

uint64_t messages_of(uint32_t bytes) {
  return std::clamp<uint64_t>((64 << 20) / bytes, 500, 5000);
}

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
  TUTTI_TRY_ASSIGN(Link out, endpoint.connect(Ask{1 - rank, 0, 4, kMostBytes}, *peer));
  Link in;
  bool accepted = false;
  const bool joined = until([&] {
    accepted = accepted || take(endpoint, &in);
    return poll_once(out).ready && accepted;
  });
  if (!joined) return Error{Code::kInternalError, "no link came about"};
  return Ends{std::move(endpoint), std::move(out), std::move(in)};
}

void send_one(Link& link, const void* exposed, uint32_t bytes) {
  static uint64_t operations = 0;
  const tuttiTag tag{{++operations, bytes}};
  while (link.acquire() == nullptr) poll_once(link);
  if (exposed == nullptr || !link.publish(exposed, bytes, tag)) link.publish(bytes, tag);
}
void receive_one(Link& link) {
  tuttiMessage message;
  while (!link.peek(&message))
    if (!poll_once(link)) _exit(2);
  link.release();
}

// Large messages are sent directly from their memory, as from a user's registered memory.
const char* exposed_of(const char* data, uint32_t bytes) {
  return bytes >= kLeastLentBytes ? data : nullptr;
}

void echo(Ends& ends, const char* data, uint32_t bytes) {
  for (int i = 0; i < kWarmUps + kRoundTrips; i++) {
    receive_one(ends.in);
    send_one(ends.out, exposed_of(data, bytes), bytes);
  }
  for (uint64_t i = 0; i < messages_of(bytes); i++) receive_one(ends.in);
  send_one(ends.out, nullptr, 0);
}

void measure(Ends& ends, const char* data, uint32_t bytes) {
  std::vector<int64_t> times;
  for (int i = 0; i < kWarmUps + kRoundTrips; i++) {
    const int64_t start_ns = now_ns();
    send_one(ends.out, exposed_of(data, bytes), bytes);
    receive_one(ends.in);
    if (i >= kWarmUps) times.push_back(now_ns() - start_ns);
  }
  std::nth_element(times.begin(), times.begin() + kRoundTrips / 2, times.end());
  const double latency_us = static_cast<double>(times[kRoundTrips / 2]) / 2e3;
  g_counters->posts = g_counters->completions = 0;
  const int64_t start_ns = now_ns();
  const uint64_t messages = messages_of(bytes);
  for (uint64_t i = 0; i < messages; i++) send_one(ends.out, exposed_of(data, bytes), bytes);
  receive_one(ends.in);
  const double seconds = static_cast<double>(now_ns() - start_ns) * 1e-9, n = static_cast<double>(messages);
  printf("%u %.1f %.1f %.2f %.2f\n", bytes, latency_us, n * bytes / seconds / (1 << 20),
         static_cast<double>(g_counters->posts) / n, static_cast<double>(g_counters->completions) / n);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<uint32_t> sizes;
  for (int i = 1; i < argc; i++)
    sizes.push_back(static_cast<uint32_t>(std::clamp(atoi(argv[i]), 1, static_cast<int>(kMostBytes))));
  const auto run_all = [&](Mailbox& mail, int rank, void (*run)(Ends&, const char*, uint32_t)) -> std::string {
    auto ends = meet(mail, rank);
    if (!ends) return ends.error().message;
    char* data = static_cast<char*>(SharedMemory::allocate(kMostBytes).value());
    memset(data, 1, kMostBytes);
    for (const uint32_t bytes : sizes) run(ends.value(), data, bytes);
    return "";
  };
  Child child([&](Mailbox& mail) { return run_all(mail, 0, echo); });
  const std::string trouble = run_all(child.mail(), 1, measure);
  fprintf(stderr, "%s", trouble.c_str());
  return trouble.empty() && child.ended_well() ? 0 : 1;
}
