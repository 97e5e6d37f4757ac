// What a message costs: instructions of the sender and of the receiver, those of the device's library apart, writes
// posted and completions taken. Both ends are in one process, which is single-stepped while it sends or receives one
// message. Means over many messages of 64 bytes, because some things are done once in several. Only what runs in user
// space is counted. A benchmark, not a test;
// TUTTI_IB_HCA says with which devices.
#include <sys/mman.h>
#include <sys/ptrace.h>

#include "counters.h"
#include "traffic.h"
#include "transports/verbs/port.h"

extern "C" const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes);

namespace {

enum Kind : int { kNothing, kMark, kSend, kReceive, kKinds };  // kMark: what the counting itself takes
constexpr const char* kNames[] = {"nothing", "mark", "send", "receive"};
constexpr int kWarmUps = 40, kMessages = 64;  // whole rounds of the slots

struct Page {
  int kind;  // what is being counted
  tutti::test::Counters counters;
};
Page* g_page = nullptr;

}  // namespace

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
    if (i == kWarmUps) g_page->counters = {};
    while (out.try_acquire() == nullptr) poll_once(out);
    step_through(counts, kMark, [] {});
    step_through(counts, kSend, [&] {
      out.try_acquire();
      out.publish(64, tuttiTag{{static_cast<uint64_t>(i)}});
    });
    usleep(1000);  // it arrives
    step_through(counts, kReceive, [&] {
      if (!in.try_peek(&message)) _exit(2);
      in.release();
    });
    usleep(1000);
  }
  printf("64 B: %.2f writes and %.2f completions a message\n", static_cast<double>(g_page->counters.posts) / kMessages,
         static_cast<double>(g_page->counters.completions) / kMessages);
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
  g_counters = &g_page->counters;
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
      (g_page->counters.inside != 0 ? librarys : ours)[g_page->kind]++;
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
