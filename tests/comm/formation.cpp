// What it takes to form a group: seconds, bytes through the sockets of the process that has most of them, descriptors,
// and private memory per rank. A benchmark: `formation 256` as threads of this process, `formation -p 256` as
// processes, `formation 8 100` as 100 groups that are formed one after the other and all stay; "--check" makes it a
// test, which fails if more than 100 n log2 n bytes go through a process.
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

namespace {

std::atomic<uint64_t> g_bytes{0};  // sent and received

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

ssize_t counted(ssize_t n, int flags = 0) {
  if (n > 0 && (flags & MSG_PEEK) == 0) g_bytes += static_cast<uint64_t>(n);
  return n;
}

void require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s: %s\n", what, tuttiGetLastError(nullptr));
  _exit(1);
}

uint64_t private_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  uint64_t bytes = 0;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Private_Dirty:")) bytes += std::strtoull(line.c_str() + 14, nullptr, 10) << 10;
  return bytes;
}

size_t descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(open), end(open))) - 1;
}

struct Taken {
  uint64_t wire_bytes, private_bytes;
  size_t descriptors;
};

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

tuttiComm_t join(const tuttiUniqueId& id, int rank, int n_ranks) {
  tuttiComm_t comm = nullptr;
  require(tuttiCommInitRank(&comm, n_ranks, id, rank) == tuttiSuccess, "tuttiCommInitRank");
  return comm;
}

tuttiUniqueId new_id() {
  tuttiUniqueId id;
  require(tuttiGetUniqueId(&id) == tuttiSuccess, "tuttiGetUniqueId");
  return id;
}

double as_threads(int n_ranks, int n_groups, Taken* taken) {
  const uint64_t before = private_bytes();
  std::vector<tuttiComm_t> comms(static_cast<size_t>(n_ranks * n_groups));
  const auto begin = Clock::now();
  for (int group = 0; group < n_groups; group++) {
    const tuttiUniqueId id = new_id();
    std::vector<std::thread> ranks;
    for (int r = 0; r < n_ranks; r++)
      ranks.emplace_back([&, r] { comms[static_cast<size_t>(group * n_ranks + r)] = join(id, r, n_ranks); });
    for (std::thread& rank : ranks) rank.join();
  }
  const double seconds = since(begin);
  const auto n = static_cast<uint64_t>(n_ranks * n_groups);
  *taken = {g_bytes, (private_bytes() - before) / n, descriptors()};
  std::vector<std::thread> ranks;
  for (const tuttiComm_t comm : comms) ranks.emplace_back(tuttiCommDestroy, comm);
  for (std::thread& rank : ranks) rank.join();
  return seconds;
}

// No process measures itself while others still form the group: 256 of them doing so take a fifth of two CPUs.
struct Pipe {
  Pipe() { require(pipe(ends) == 0, "pipe"); }
  int ends[2];
};

[[noreturn]] void be_process(const Pipe& formed, const Pipe& go, const tuttiUniqueId& id, int rank, int n_ranks) {
  constexpr int kEvery = 32;  // every 32nd process measures its memory, which takes 0.1 ms
  close(go.ends[1]);
  const bool looks = rank % kEvery == 0;
  const uint64_t before = looks ? private_bytes() : 0;
  const tuttiComm_t comm = join(id, rank, n_ranks);
  char word = 0;
  require(write(formed.ends[1], &word, 1) == 1 && read(go.ends[0], &word, 1) == 0, "a pipe broke");
  const Taken mine{g_bytes, looks ? private_bytes() - before : 0, descriptors()};
  require(write(formed.ends[1], &mine, sizeof mine) == sizeof mine, "a pipe broke");
  require(read(go.ends[0], &word, 1) == 0, "a pipe broke");
  tuttiCommDestroy(comm);
  _exit(0);
}

double as_processes(int n_ranks, Taken* taken) {
  const Pipe formed, go;
  const tuttiUniqueId id = new_id();
  alarm(120);
  const auto begin = Clock::now();
  for (int r = 0; r < n_ranks; r++)
    if (fork() == 0) be_process(formed, go, id, r, n_ranks);
  close(formed.ends[1]);
  char word = 0;
  for (int r = 0; r < n_ranks; r++) require(read(formed.ends[0], &word, 1) == 1, "a rank failed");
  const double seconds = since(begin);
  close(go.ends[1]);
  taken->wire_bytes = g_bytes;
  for (int r = 0; r < n_ranks; r++) {
    Taken one;
    require(read(formed.ends[0], &one, sizeof one) == sizeof one, "a rank failed");
    taken->wire_bytes = std::max(taken->wire_bytes, one.wire_bytes);
    taken->private_bytes = std::max(taken->private_bytes, one.private_bytes);
    taken->descriptors = std::max(taken->descriptors, one.descriptors);
  }
  for (int r = 0; r < n_ranks; r++) {
    int status = 1;
    require(wait(&status) > 0 && status == 0, "a rank failed");
  }
  return seconds;
}

}  // namespace

extern "C" {
ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  static const auto call = next<ssize_t (*)(int, const void*, size_t, int)>("send");
  return counted(call(fd, data, bytes, flags));
}
ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  static const auto call = next<ssize_t (*)(int, void*, size_t, int)>("recv");
  return counted(call(fd, data, bytes, flags), flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto call = next<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  return counted(call(fd, message, flags));
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static const auto call = next<ssize_t (*)(int, msghdr*, int)>("recvmsg");
  return counted(call(fd, message, flags), flags);
}
}

int main(int argc, char** argv) {
  bool processes = false, checks = false;
  std::vector<int> numbers;
  for (int i = 1; i < argc; i++) {
    processes |= strcmp(argv[i], "-p") == 0;
    checks |= strcmp(argv[i], "--check") == 0;
    if (argv[i][0] != '-') numbers.push_back(atoi(argv[i]));
  }
  const int n = numbers.empty() ? 64 : numbers[0], groups = numbers.size() < 2 ? 1 : numbers[1];
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  Taken taken{};
  const double seconds = processes ? as_processes(n, &taken) : as_threads(n, groups, &taken);
  const double most_bytes = 100.0 * n * std::log2(n) * groups;
  printf("%d ranks as %s, %d groups: %.2f s; %llu bytes (%.2f of 100 n log2 n); %zu descriptors; %.0f kB per rank\n", n,
         processes ? "processes" : "threads", groups, seconds, static_cast<unsigned long long>(taken.wire_bytes),
         static_cast<double>(taken.wire_bytes) / most_bytes, taken.descriptors,
         static_cast<double>(taken.private_bytes) / 1024);
  return checks && static_cast<double>(taken.wire_bytes) > most_bytes ? 1 : 0;
}
