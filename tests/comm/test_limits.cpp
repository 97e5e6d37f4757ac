// Where a limit of the kernel is reached all ranks get an error at once that names the limit.
#include <linux/filter.h>
#include <netdb.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <fstream>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

// Runs body in a child, whose limits it may lower. Returns "", or what body says is wrong, or how the child ended.
std::string in_limited_child(const std::function<std::string()>& body) {
  if (kSanitized) wait_for_one_thread();
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  fflush(nullptr);  // else the child writes this output again, perhaps without room for it
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kSanitized ? 300 : 60);
    const std::string text = body();
    if (write(ends[1], text.data(), text.size()) < 0) _exit(1);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) text += "; ended by " + std::string(strsignal(WTERMSIG(status)));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
    text += "; ended with status " + std::to_string(WEXITSTATUS(status));
  return text;
}

void limit(__rlimit_resource resource, rlim_t value) {
  rlimit both{};
  getrlimit(resource, &both);
  both.rlim_cur = value;
  setrlimit(resource, &both);
}

rlim_t open_now() {
  rlim_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) n++;
  return n - 1;  // without the one that reads this folder
}

// The sockets of this process that accept connections.
std::vector<int> listening_sockets() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = atoi(entry.path().filename().c_str());
    int listens = 0;
    socklen_t bytes = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0) found.push_back(fd);
  }
  return found;
}

// Where it has some for other hosts.
std::string listening_beyond_loopback() {
  std::string found;
  for (const int fd : listening_sockets()) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
    if (address.ss_family == AF_UNIX) continue;
    char host[NI_MAXHOST] = "";
    getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
    if (std::string(host) != "127.0.0.1" && std::string(host) != "::1") found += std::string(host) + " ";
  }
  return found;
}

// A group of threads that add up once. `all_succeeded` is false if any failed; "" if all failures have `reason`.
std::string sum_in_threads(int n, const tuttiConfig_t* config, const char* reason, bool* all_succeeded) {
  tuttiUniqueId id;
  if (tuttiGetUniqueId(&id) != tuttiSuccess) {
    *all_succeeded = false;
    const std::string why = tuttiGetLastError(nullptr);
    return contains(why, reason) ? "" : why;
  }
  std::vector<Outcome> outcomes(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; r++)
    threads.emplace_back([&, r] {
      Outcome& outcome = outcomes[static_cast<size_t>(r)];
      tuttiComm_t comm = nullptr;
      outcome.take(tuttiCommInitRankConfig(&comm, n, id, r, config));
      if (comm == nullptr) return;
      float one = 1, sum = 0;
      outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiFloat, tuttiSum, comm, nullptr));
      if (outcome.code == tuttiSuccess && sum != static_cast<float>(n)) outcome.message = "a wrong sum";
      if (outcome.code == tuttiSuccess)
        outcome.take(tuttiCommDestroy(comm));
      else
        tuttiCommAbort(comm);
    });
  for (std::thread& thread : threads) thread.join();
  std::string unexpected;
  for (int r = 0; r < n; r++) {
    const Outcome& outcome = outcomes[static_cast<size_t>(r)];
    if (outcome.code != tuttiSuccess) *all_succeeded = false;
    if (!outcome.message.empty() && !contains(outcome.message, reason))
      unexpected += "rank " + std::to_string(r) + ": " + outcome.message + "\n";
  }
  return unexpected;
}

}  // namespace

// New threads get a stack of 1 GiB, which no other thread's can serve for, and there is room for `n_threads` of them.
void leave_room_for(rlim_t n_threads) {
  pthread_attr_t roomy;
  pthread_attr_init(&roomy);
  pthread_attr_setstacksize(&roomy, size_t{1} << 30);
  pthread_setattr_default_np(&roomy);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  limit(RLIMIT_AS, pages * static_cast<rlim_t>(getpagesize()) + n_threads * (rlim_t{1} << 30) + (rlim_t{512} << 20));
}

// What runs at the same time waits for each other, so nothing begins unless all can.
TEST_CASE("a group for which there are not enough threads fails, and leaves its communicators as they were") {
  if (kSanitized) {
    WARN("skipped: a sanitizer's memory has no limit");
    return;
  }
  const std::string said = in_limited_child([] {
    tuttiComm_t comms[3] = {};
    int32_t one = 1, sums[3] = {};
    if (tuttiCommInitAll(comms, 3, nullptr) != tuttiSuccess) return std::string("no group");
    const auto add_all = [&] {
      tuttiGroupStart();
      for (int r = 0; r < 3; r++) tuttiAllReduce(&one, &sums[r], 1, tuttiInt32, tuttiSum, comms[r], nullptr);
      return tuttiGroupEnd();
    };
    leave_room_for(1);
    std::string text = std::to_string(add_all());
    text += std::string(": ") + tuttiGetLastError(nullptr);
    limit(RLIMIT_AS, RLIM_INFINITY);
    text += "; again " + std::to_string(add_all());
    return text + ", " + std::to_string(sums[0] + sums[1] + sums[2]);
  });
  INFO(said);
  CHECK(contains(said, std::to_string(tuttiSystemError) + ": starting a thread (see ulimit -u)"));
  CHECK(contains(said, "; again 0, 9"));
}

TEST_CASE("creations for which there are not enough threads say so at once, and make none") {
  if (kSanitized) {
    WARN("skipped: a sanitizer's memory has no limit");
    return;
  }
  const std::string said = in_limited_child([] {
    tuttiComm_t first = nullptr, comms[3] = {};
    if (tuttiCommInitAll(&first, 1, nullptr) != tuttiSuccess) return std::string("the watcher does not run");
    leave_room_for(2);  // the root's and a rank's
    std::string text = std::to_string(tuttiCommInitAll(comms, 3, nullptr));
    text += std::string(": ") + tuttiGetLastError(nullptr);
    for (tuttiComm_t comm : comms) text += comm == nullptr ? "" : ", made one";
    return text;
  });
  INFO(said);
  CHECK(said.starts_with(std::to_string(tuttiSystemError) + ": starting a thread (see ulimit -u)"));
  CHECK_FALSE(contains(said, "made one"));
}

// The sender has its end, and cannot know that this rank will have none.
TEST_CASE("a rank without memory for its end of a link over TCP says so, and nobody waits for the link") {
  if (kSanitized) {
    WARN("skipped: a sanitizer's memory has no limit");
    return;
  }
  const auto run = []() -> std::string {
    setenv("TUTTI_TRANSPORTS", "tcp", 1);
    setenv("TUTTI_SLOTS", "16", 1);
    setenv("TUTTI_SLOT_BYTES", "64M", 1);
    std::string text;
    std::atomic<int> there = 0;
    const auto outcomes = run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
      outcome.take(tuttiBarrier(comm, nullptr));
      rlim_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      if (rank == 0) limit(RLIMIT_AS, pages * 4096 + (rlim_t{3} << 29));  // room for one and a half ends
      for (there++; there < 2;) usleep(1000);
      int32_t value = 0;
      outcome.take(rank == 0 ? tuttiSend(&value, 1, tuttiInt32, 1, comm, nullptr)
                             : tuttiRecv(&value, 1, tuttiInt32, 0, comm, nullptr));
      if (outcome.code == tuttiSuccess) outcome.take(tuttiBarrier(comm, nullptr));
    });
    for (const Outcome& outcome : outcomes) text += std::to_string(outcome.code) + ": " + outcome.message + "\n";
    return text;
  };
  // The end that is made first has room: mostly the sender's.
  std::string said;
  for (int i = 0; i < 8 && !contains(said, "with rank 0: 1073741824 bytes"); i++) said = in_limited_child(run);
  INFO(said);
  CHECK(contains(said, "2: no memory for a link with rank 0: 1073741824 bytes"));
  CHECK(contains(said, "reports: no memory for a link with rank 0: 1073741824 bytes"));
}

#if !defined(__SANITIZE_ADDRESS__)  // with UndefinedBehaviorSanitizer, which takes what it cannot look at by a pipe for
                                    // no object
TEST_CASE("too few descriptors for a process full of ranks are named as such by every rank, with how many it takes",
          "[long]") {
  bool enough = false;
  int refused = 0;
  for (rlim_t more = 6; more < 400 && !enough; more += 23) {
    const std::string said = in_limited_child([&] {
      limit(RLIMIT_NOFILE, open_now() + more);
      bool all = true;
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.initTimeoutSeconds = 30;  // before the child's alarm: with very few they try until then
      std::string wrong = sum_in_threads(8, &config, "ulimit -n", &all);
      return wrong.empty() ? (all ? "enough" : "refused") : wrong;
    });
    INFO("room for " << more << ": " << said);
    REQUIRE((said == "enough" || said == "refused"));
    enough = said == "enough";
    refused += said == "refused";
  }
  CHECK(enough);
  CHECK(refused > 2);
}

TEST_CASE("ranks of one process count the descriptors that they take together, also where they meet through a relay",
          "[long]") {
  bool enough = false;
  int counted = 0;
  for (rlim_t more = 100; more < 400 && !enough; more += 10) {
    const std::string said = in_limited_child([&] {
      setenv("TUTTI_TRANSPORTS", "tcp", 1);  // shared memory needs hardly any descriptors
      limit(RLIMIT_NOFILE, open_now() + more);
      bool all = true;
      const std::string wrong = sum_in_threads(12, nullptr, "12 of them in this process, needs at least", &all);
      return wrong.empty() ? (all ? "enough" : "counted") : wrong;
    });
    enough = said == "enough";
    counted += said == "counted";
  }
  CHECK(enough);
  CHECK(counted > 0);
}
#endif

// Each pair of ranks needs some for a moment, to meet: all pairs at once would need more than a thousand.
TEST_CASE("many ranks of one process link all pairs with few descriptors", "[processes]") {
  constexpr int kRanks = 24;
  bool all = true;
  const std::string said = in_limited_child([&] {
    setenv("TUTTI_ALGO", "direct", 1);
    limit(RLIMIT_NOFILE, open_now() + 600);
    const std::string wrong = sum_in_threads(kRanks, nullptr, "none", &all);
    return wrong + (all ? "" : "some failed");
  });
  CHECK(said == "");
}

// The network drops what would make it: no connection is refused. Every rank lacks some.
TEST_CASE("a collective whose new link does not come ends after the limit of operations, and names that", "[waits]") {
  constexpr int kRanks = 8;
  const std::string said = in_limited_child([] {
    setenv("TUTTI_TRANSPORTS", "tcp", 1);
    setenv("TUTTI_ALGO", "direct", 1);
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.opTimeoutSeconds = 1;
    std::string text;
    std::atomic<int> n_there = 0;
    std::atomic<bool> drops = false;
    const auto outcomes = run_threads(kRanks, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
      n_there++;
      while (rank == 0 && n_there < kRanks) usleep(1000);
      sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
      const sock_fprog none{1, &nothing};
      for (const int fd : rank == 0 ? listening_sockets() : std::vector<int>())
        setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &none, sizeof none);
      if (rank == 0) drops = true;
      while (!drops) usleep(1000);
      float one = 1, sum = 0;
      outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiFloat, tuttiSum, comm, nullptr));
    });
    for (const Outcome& outcome : outcomes) text += std::to_string(outcome.code) + ": " + outcome.message + "\n";
    return text;
  });
  INFO(said);
  CHECK(contains(
      said, std::to_string(tuttiTimeout) +
                ": no progress for 1 s (TUTTI_OP_TIMEOUT or the configuration's opTimeoutSeconds): waiting for rank "));
  CHECK_FALSE(contains(said, "0: \n"));
}

TEST_CASE("ranks that share a process have the descriptors that their communicators count, and no others",
          "[processes]") {
  const std::string said = in_limited_child([]() -> std::string {
    setenv("TUTTI_TRANSPORTS", "tcp", 1);
    const size_t before = open_now();
    constexpr size_t kWatchers = 2;  // the thread that watches for all of them
    size_t more = 0;
    std::atomic<size_t> counted = 0;
    std::string wrong;
    const auto outcomes = run_threads(8, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
      int32_t one = 1, sum = 0;
      outcome.take(tuttiAllReduce(&one, &sum, 1, tuttiInt32, tuttiSum, comm, nullptr));
      outcome.take(tuttiBarrier(comm, nullptr));
      tuttiCommMemStats_t held = TUTTI_COMM_MEM_STATS_INITIALIZER;
      outcome.take(tuttiCommMemStats(comm, &held));
      counted += held.descriptors;
      outcome.take(tuttiBarrier(comm, nullptr));
      const auto is_all = [&] { return (more = open_now() - before) == counted + kWatchers; };
      for (int i = 0; rank == 0 && !is_all() && i < 1000; i++) usleep(10'000);  // the root may still be closing its own
      outcome.take(tuttiBarrier(comm, nullptr));
    });
    for (const Outcome& outcome : outcomes) wrong += outcome.message;
    if (more != counted + kWatchers) wrong += std::to_string(more) + " instead of " + std::to_string(counted);
    return wrong;
  });
  CHECK(said == "");
}

TEST_CASE("where files may have no bytes, ranks say so or do without shared memory, and no signal ends them",
          "[processes]") {
  const std::string log = "/tmp/tutti-test-limits." + std::to_string(getpid());
  const std::string said = in_limited_child([&]() -> std::string {
    setenv("TUTTI_LOG", "info", 1);
    setenv("TUTTI_LOG_FILE", log.c_str(), 1);
    limit(RLIMIT_FSIZE, 0);
    void* memory = nullptr;
    if (tuttiMemAlloc(&memory, 4096) == tuttiSuccess) return "memory behind a file of no bytes";
    if (const std::string why = tuttiGetLastError(nullptr); !contains(why, "ulimit -f")) return why;
    bool all = true;
    if (std::string wrong = sum_in_threads(3, nullptr, "ulimit -f", &all); !wrong.empty() || !all)
      return "over TCP: " + wrong;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.transports = "shm";
    std::string wrong = sum_in_threads(3, &config, "ulimit -f", &all);
    return all ? "shared memory of no bytes" : wrong;
  });
  CHECK(said == "");
  unlink(log.c_str());
}

TEST_CASE("ranks of one host that cannot share memory are told once why they are slow", "[processes]") {
  const std::string log = "/tmp/tutti-test-detours." + std::to_string(getpid());
  const std::string said = in_limited_child([&]() -> std::string {
    setenv("TUTTI_LOG_FILE", log.c_str(), 1);
    limit(RLIMIT_FSIZE, 32 << 10);  // enough for the log
    bool all = true;
    const std::string wrong = sum_in_threads(3, nullptr, "ulimit -f", &all);
    return all ? wrong : "over TCP: " + wrong;
  });
  CHECK(said == "");
  std::ifstream file(log);
  int warnings = 0;
  for (std::string line; std::getline(file, line);)
    warnings += contains(line, "on this host, goes through ") && contains(line, "ulimit -f");
  CHECK(warnings == 1);
  unlink(log.c_str());
}

TEST_CASE("once a group of one host is there, its sockets for who comes are the loopback's and no others",
          "[processes]") {
  const std::string said = in_limited_child([&]() -> std::string {
    bool all = true;
    std::string open;
    const tuttiUniqueId id = [] {
      tuttiUniqueId made;
      tuttiGetUniqueId(&made);
      return made;
    }();
    std::vector<tuttiComm_t> comms(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; r++)
      threads.emplace_back([&, r] { tuttiCommInitRank(&comms[static_cast<size_t>(r)], 2, id, r); });
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < 1000; i++) {  // until the root's thread has closed its listener
      open = listening_beyond_loopback();
      if (open.empty()) break;
      usleep(10'000);
    }
    for (const tuttiComm_t comm : comms) all = tuttiCommDestroy(comm) == tuttiSuccess && all;
    return all ? open : "a group that cannot be left";
  });
  CHECK(said == "");
}

#ifndef __SANITIZE_ADDRESS__  // UndefinedBehaviorSanitizer needs descriptors to look at an object's type
TEST_CASE("memory that a rank cannot map for lack of descriptors is that rank's failure", "[processes]") {
  const std::string said = in_limited_child([]() -> std::string {
    constexpr size_t kBytes = 1 << 20;
    tuttiUniqueId id;
    int ends[2];
    if (pipe(ends) != 0) return "no pipe";
    const pid_t other = fork();  // before there are any threads
    const int rank = other == 0 ? 0 : 1;
    if (rank == 1 && (tuttiGetUniqueId(&id) != tuttiSuccess || write(ends[1], &id, sizeof id) != sizeof id))
      return tuttiGetLastError(nullptr);
    if (rank == 0 && read(ends[0], &id, sizeof id) != sizeof id) return "no id";
    tuttiComm_t comm = nullptr;
    void* data = nullptr;
    char small = 0;
    if (tuttiCommInitRank(&comm, 2, id, rank) != tuttiSuccess || tuttiMemAlloc(&data, kBytes) != tuttiSuccess ||
        tuttiBroadcast(&small, &small, 1, tuttiInt8, 0, comm, nullptr) != tuttiSuccess)
      return tuttiGetLastError(comm);
    std::vector<char> place(kBytes);
    const int lowest_free = dup(0);
    close(lowest_free);
    if (rank == 1) limit(RLIMIT_NOFILE, static_cast<rlim_t>(lowest_free));
    void* const buffer = rank == 0 ? data : place.data();
    const tuttiResult_t code = tuttiBroadcast(buffer, buffer, kBytes, tuttiInt8, 0, comm, nullptr);
    const std::string why = tuttiGetLastError(comm);
    tuttiCommAbort(comm);
    if (rank == 0) _exit(code == tuttiSystemError && contains(why, "rank 1 ") ? 0 : 1);
    int status = 0;
    waitpid(other, &status, 0);
    if (status != 0) return "rank 0 does not name rank 1";
    return code == tuttiSystemError && contains(why, "ulimit -n") ? "" : tuttiGetErrorString(code) + (": " + why);
  });
  CHECK(said == "");
}
#endif

// Runs in a separate program, because a process looks up only once where its log goes.
TEST_CASE("a group with streams whose links log", "[.logs]") {
  tuttiUniqueId id;
  REQUIRE(tuttiGetUniqueId(&id) == tuttiSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      tuttiComm_t comm = nullptr;
      tuttiStream_t stream = nullptr;
      if (tuttiCommInitRank(&comm, 2, id, r) != tuttiSuccess || tuttiStreamCreate(&stream) != tuttiSuccess) return;
      float value = 1;  // the first message makes its link, on the stream's thread
      if (r == 0)
        tuttiSend(&value, 1, tuttiFloat, 1, comm, stream);
      else
        tuttiRecv(&value, 1, tuttiFloat, 0, comm, stream);
      tuttiStreamSynchronize(stream);
      tuttiStreamDestroy(stream);
      // A thread's lines tell its rank in the group that they are about, not in the one that it has made last.
      tuttiComm_t reversed = nullptr;
      tuttiCommSplit(comm, 0, -r, &reversed, nullptr);
      if (r == 1)
        tuttiSend(&value, 1, tuttiFloat, 0, comm, nullptr);
      else
        tuttiRecv(&value, 1, tuttiFloat, 1, comm, nullptr);
      tuttiCommDestroy(reversed);
      tuttiCommDestroy(comm);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("lines that a stream's thread logs tell the rank") {
  const std::string log = "/tmp/tutti-test-log." + std::to_string(getpid());
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  REQUIRE(system(("TUTTI_LOG=info TUTTI_LOG_FILE=" + log + " '" + self + "' '[.logs]' >/dev/null").c_str()) == 0);
  std::ifstream lines(log);
  int links = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!contains(line, "link to rank")) continue;
    INFO(line);
    const auto number_after = [&](const std::string& words) { return line.substr(line.find(words) + words.size(), 1); };
    REQUIRE(contains(line, "] rank "));
    CHECK(number_after("] rank ") != number_after("link to rank "));
    links += contains(line, "channel 1000");
  }
  CHECK(links == 2);
  unlink(log.c_str());
}
