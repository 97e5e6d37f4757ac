// What a message costs: instructions of the sender and of the receiver, separately those of the device's library,
// writes posted and completions taken. Both ends are in one process, which is single-stepped while it sends or receives
// one message. Means over many messages of 64 bytes, because some things are done once for several of them. Only user
// space is counted. A benchmark, not a test; TUTTI_IB_HCA names the devices.
//   count_verbs FROM END COMMAND...     counts another program instead, preloaded with count_preload.so, from its post
//                                       number FROM to number END; a device is faster than single steps, so the
//                                       program does not wait
#include <sys/mman.h>
#include <sys/ptrace.h>

#include "counters.h"
#include "traffic.h"
#include "transports/verbs/port.h"

extern "C" const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes);

using namespace tutti;
using namespace tutti::test;

namespace {

enum Kind : int { kNothing, kSend, kReceive, kMark, kKinds };  // kMark: the counting's own cost
constexpr int kWarmUps = 40, kMessages = 32;                   // whole rounds of the slots

template <class Work>
void step_through(bool counts, Kind kind, Work&& work) {
  if (counts) {
    g_counters->kind = kind;
    raise(SIGUSR1);
  }
  work();
  g_counters->kind = kNothing;
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
  while (out.acquire() == nullptr) poll_once(out);
  tuttiMessage message;
  for (int i = 0; i < kWarmUps + kMessages; i++) {
    const bool counts = i >= kWarmUps;
    if (i == kWarmUps) *g_counters = {};
    while (out.acquire() == nullptr) poll_once(out);
    step_through(counts, kMark, [] {});
    step_through(counts, kSend, [&] {
      out.acquire();
      out.publish(64, tuttiTag{{static_cast<uint64_t>(i)}});
    });
    usleep(1000);  // until it arrives
    step_through(counts, kReceive, [&] {
      if (!in.peek(&message)) _exit(2);
      in.release();
    });
    usleep(1000);
  }
  printf("64 B: %.2f writes and %.2f completions a message\n", static_cast<double>(g_counters->posts) / kMessages,
         static_cast<double>(g_counters->completions) / kMessages);
  fflush(stdout);
  _exit(0);
}

[[noreturn]] void be_watched(char** command) {
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  execvp(command[0], command);
  _exit(127);
}

// The exit status if it has ended, or -1 if it stopped with *signal.
int wait_for(pid_t child, int* signal) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return 1;
  if (WIFSTOPPED(status)) return *signal = WSTOPSIG(status), -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

struct Instructions {
  uint64_t ours = 0, librarys = 0;

  void print(const char* of, uint64_t messages, uint64_t marks) const {
    printf("%s: %llu instructions, and %llu in the device's library\n", of,
           static_cast<unsigned long long>((ours - marks) / messages),
           static_cast<unsigned long long>(librarys / messages));
  }
};

// Until it ends.
int watch(pid_t child, Instructions* by_kind) {
  int signal = 0, status = -1;
  while ((status = wait_for(child, &signal)) < 0) {
    if (signal != SIGUSR1) {
      // The stop may also be for an exec.
      ptrace(PTRACE_CONT, child, nullptr, signal == SIGTRAP ? 0 : signal);
      continue;
    }
    while (g_counters->kind != kNothing) {
      Instructions& here = by_kind[g_counters->kind];
      (g_counters->inside != 0 ? here.librarys : here.ours)++;
      ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
      if ((status = wait_for(child, &signal)) >= 0) return 1;
    }
    ptrace(PTRACE_CONT, child, nullptr, nullptr);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const int memory = memfd_create("counters", 0);
  if (memory < 0 || ftruncate(memory, sizeof(Counters)) != 0) return 1;
  void* page = mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (page == MAP_FAILED) return 1;
  g_counters = static_cast<Counters*>(page);
  const bool is_ours = argc < 4;
  if (!is_ours) {
    g_counters->from = strtoull(argv[1], nullptr, 10);
    g_counters->end = strtoull(argv[2], nullptr, 10);
    if (g_counters->end <= g_counters->from) return 1;
    setenv(kCountersVariable, std::to_string(memory).c_str(), 1);
  }
  const pid_t child = fork();
  if (child == 0) is_ours ? be_watched() : be_watched(argv + 3);
  Instructions counts[kKinds];
  const int status = watch(child, counts);
  if (!is_ours) {
    counts[1].print("send", g_counters->end - g_counters->from, 0);
    return status;
  }
  counts[kSend].print("send", kMessages, counts[kMark].ours);
  counts[kReceive].print("receive", kMessages, counts[kMark].ours);
  return status;
}
