// What a message costs: instructions of the sender and of the receiver, those of the device's library apart, writes
// posted and completions taken. Both ends are in one process, which is single-stepped while it sends or receives one
// message. Means over many messages of 64 bytes, because some things are done once in several. Only what runs in user
// space is counted. A benchmark, not a test;
// TUTTI_IB_HCA says with which devices.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/ptrace.h>

#include "traffic.h"
#include "transports/verbs/port.h"

extern "C" const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes);

namespace {

enum Kind : int { kNothing, kMark, kSend, kReceive, kKinds };  // kMark: what the counting itself takes
constexpr const char* kNames[] = {"nothing", "mark", "send", "receive"};
constexpr int kWarmUps = 40, kMessages = 64;  // whole rounds of the slots

struct Page {
  int kind, inside;  // what is being counted, and whether the device's library has it
  uint64_t posts, completions;
};
Page* g_page = nullptr;

int (*real_post)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
int (*real_poll)(ibv_cq*, int, ibv_wc*);
int (*real_receive)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**);

template <class Call>
int counted(Call&& call) {
  g_page->inside = 1;
  const int result = call();
  g_page->inside = 0;
  return result;
}
int count_post(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  g_page->posts++;
  return counted([&] { return real_post(pair, request, bad); });
}
int count_poll(ibv_cq* queue, int most, ibv_wc* taken) {
  const int n = counted([&] { return real_poll(queue, most, taken); });
  g_page->completions += static_cast<uint64_t>(std::max(n, 0));
  return n;
}
int count_receive(ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
  return counted([&] { return real_receive(pair, request, bad); });
}

}  // namespace

// In front of the library's: the device's functions are replaced by those that count.
extern "C" ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  const auto next = reinterpret_cast<decltype(&ibv_create_qp)>(dlsym(RTLD_NEXT, "ibv_create_qp"));
  auto& ops = domain->context->ops;
  if (ops.post_send != count_post) {
    real_post = std::exchange(ops.post_send, count_post);
    real_poll = std::exchange(ops.poll_cq, count_poll);
    real_receive = std::exchange(ops.post_recv, count_receive);
  }
  return next(domain, attributes);
}

using namespace tutti;
using namespace tutti::test;

namespace {

template <class Work>
void step_through(bool counts, Kind kind, Work&& work) {
  if (counts) {
    g_page->kind = kind;
    raise(SIGUSR1);
  }
  work();
  g_page->kind = kNothing;
}

[[noreturn]] void be_watched() {
  alarm(100);
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  const Ask ask{1, 0, 8, 64 << 10};
  auto sender = open_endpoint(tuttiTransportPlugin(nullptr, 0), 0);
  auto receiver = open_endpoint(tuttiTransportPlugin(nullptr, 0), 1);
  if (!sender || !receiver) _exit(3);
  Link out, in;
  if (!join(sender.value(), ask, receiver.value(), &out, &in)) _exit(3);
  while (out.try_acquire() == nullptr) poll_once(out);
  tuttiMessage message;
  for (int i = 0; i < kWarmUps + kMessages; i++) {
    const bool counts = i >= kWarmUps;
    if (i == kWarmUps) g_page->posts = g_page->completions = 0;
    while (out.try_acquire() == nullptr) poll_once(out);
    step_through(counts, kMark, [] {});
    step_through(counts, kSend, [&] {
      out.try_acquire();
      out.publish(64, tuttiTag{});
    });
    usleep(1000);  // it arrives
    step_through(counts, kReceive, [&] {
      if (!in.try_peek(&message)) _exit(2);
      in.release();
    });
    usleep(1000);
  }
  printf("64 B: %.2f writes and %.2f completions a message\n", static_cast<double>(g_page->posts) / kMessages,
         static_cast<double>(g_page->completions) / kMessages);
  fflush(stdout);
  _exit(0);
}

// Its status when it has ended, or -1 if it stopped with *signal.
int wait_for(pid_t child, int* signal) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return 1;
  if (WIFSTOPPED(status)) return *signal = WSTOPSIG(status), -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main() {
  g_page = static_cast<Page*>(mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (g_page == MAP_FAILED) return 1;
  const pid_t child = fork();
  if (child == 0) be_watched();
  uint64_t ours[kKinds] = {}, librarys[kKinds] = {};
  int signal = 0, status = -1;
  while ((status = wait_for(child, &signal)) < 0) {
    if (signal != SIGUSR1) {
      ptrace(PTRACE_CONT, child, nullptr, signal);
      continue;
    }
    while (g_page->kind != kNothing) {
      (g_page->inside != 0 ? librarys : ours)[g_page->kind]++;
      ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
      if ((status = wait_for(child, &signal)) >= 0) return 1;
    }
    ptrace(PTRACE_CONT, child, nullptr, nullptr);
  }
  for (const Kind kind : {kSend, kReceive})
    printf("%s: %llu instructions, and %llu in the device's library\n", kNames[kind],
           static_cast<unsigned long long>((ours[kind] - ours[kMark]) / kMessages),
           static_cast<unsigned long long>(librarys[kind] / kMessages));
  return status;
}
