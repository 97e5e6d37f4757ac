// A user's program that forks, as data loaders do: what the child inherits belongs to its parent only; it neither harms
// the parent nor stays open in the child.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <atomic>

#include "comm/ranks.h"
#include "transports/transport.h"
#include "tutti/ddp.h"

using namespace tutti_test;

namespace {

constexpr int kRight = 0, kWrong = 1, kOdd = 2;  // how a child ends

// Runs `body` in a child and returns how it ended. Its last line on stderr says what was wrong.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSanitized ? 200 : 40);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kOdd;
}

// Whether the call was refused because the handle is the parent's.
bool refused(const char* what, tuttiResult_t result, bool by_ddp = false) {
  const char* const message = by_ddp ? tuttiDdpGetLastError() : tuttiGetLastError(nullptr);
  if (result == tuttiInvalidUsage && contains(message, "belongs to the parent process")) return true;
  fprintf(stderr, "%s: %d, %s\n", what, result, message);
  return false;
}

// `kind` is "socket" or "pipe".
std::vector<int> descriptors(const std::string& kind) {
  std::vector<int> found;
  DIR* const all = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(all)) {
    char to[256];
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    const ssize_t bytes = readlink(path.c_str(), to, sizeof to);
    if (bytes > 0 && contains(std::string(to, static_cast<size_t>(bytes)), kind + ":"))
      found.push_back(atoi(entry->d_name));
  }
  closedir(all);
  return found;
}

int socket_option(int fd, int option) {
  int value = 0;
  socklen_t bytes = sizeof value;
  return getsockopt(fd, SOL_SOCKET, option, &value, &bytes) == 0 ? value : -1;
}

// Connections and listeners. The C library asks the kernel for interfaces through sockets of another kind, and tries to
// connect a socket of this kind to a name service that is rarely there.
size_t connections() {
  size_t n = 0;
  for (const int fd : descriptors("socket")) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof peer;
    const bool is_new = socket_option(fd, SO_DOMAIN) == AF_UNIX && socket_option(fd, SO_ACCEPTCONN) == 0 &&
                        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0;
    n += socket_option(fd, SO_TYPE) == SOCK_STREAM && !is_new;
  }
  return n;
}

std::array<int, 1024> g_in, g_out;

tuttiResult_t one_sum(tuttiComm_t comm, tuttiStream_t stream = nullptr) {
  return tuttiAllReduce(g_in.data(), g_out.data(), g_in.size(), tuttiInt32, tuttiSum, comm, stream);
}

bool calls_are_refused(tuttiComm_t comm) {
  int number = 0;
  tuttiResult_t state{};
  tuttiComm_t made = nullptr;
  void* handle = nullptr;
  const auto* in = g_in.data();
  bool right = refused("AllReduce", one_sum(comm));
  right &= refused("Broadcast", tuttiBroadcast(in, g_out.data(), 4, tuttiInt32, 0, comm, nullptr));
  right &= refused("Send", tuttiSend(in, 4, tuttiInt32, 1, comm, nullptr));
  right &= refused("Recv", tuttiRecv(g_out.data(), 4, tuttiInt32, 1, comm, nullptr));
  right &= refused("Barrier", tuttiBarrier(comm, nullptr));
  right &= refused("Count", tuttiCommCount(comm, &number));
  right &= refused("GetAsyncError", tuttiCommGetAsyncError(comm, &state));
  right &= refused("Split", tuttiCommSplit(comm, 0, 0, &made, nullptr));
  right &= refused("Register", tuttiCommRegister(comm, g_out.data(), sizeof g_out, &handle));
  right &= refused("Finalize", tuttiCommFinalize(comm));
  right &= refused("Abort", tuttiCommAbort(comm));
  right &= refused("Destroy", tuttiCommDestroy(comm));
  tuttiGroupStart();
  right &= refused("AllReduce in a group", one_sum(comm));
  return right & refused("the group's end", tuttiGroupEnd());
}

}  // namespace

TEST_CASE("a child may not use what it has inherited, and its parent goes on", "[processes]") {
  const char* const transport = GENERATE("shm", "tcp");
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  Processes ranks(
      2,
      [](int rank, tuttiComm_t comm, Outcome& outcome) {
        tuttiStream_t stream = nullptr;
        tuttiEvent_t event = nullptr;
        outcome.take(tuttiStreamCreate(&stream));
        outcome.take(tuttiEventCreate(&event));
        outcome.take(one_sum(comm, stream));
        outcome.take(tuttiStreamSynchronize(stream));
        tuttiGroupStart();
        outcome.take(one_sum(comm));
        if (rank == 0) {
          const int end = in_child([&] {
            bool right = refused("GroupEnd of the parent's", tuttiGroupEnd());
            right &= calls_are_refused(comm);
            right &= refused("StreamSynchronize", tuttiStreamSynchronize(stream));
            right &= refused("StreamDestroy", tuttiStreamDestroy(stream));
            right &= refused("EventSynchronize", tuttiEventSynchronize(event));
            const size_t left = connections();
            if (left > 0) fprintf(stderr, "%zu sockets are open in the child\n", left);
            return right && left == 0 ? kRight : kWrong;
          });
          outcome.wrong += end != kRight;
        }
        outcome.take(tuttiGroupEnd());
        outcome.take(one_sum(comm));
        outcome.take(tuttiStreamDestroy(stream));
        outcome.take(tuttiCommFinalize(comm));
        outcome.take(tuttiCommDestroy(comm));
      },
      &config);
  require_success(ranks.wait());
}

TEST_CASE("a child may not end its parent's group, nor simulate it", "[processes]") {
  Processes ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t part = nullptr;
    tuttiGroupStart();
    outcome.take(tuttiCommSplit(comm, 0, rank, &part, nullptr));
    if (rank == 0)
      outcome.wrong += in_child([] { return refused("GroupEnd", tuttiGroupEnd()) ? kRight : kWrong; }) != kRight;
    outcome.take(tuttiGroupEnd());
    tuttiGroupStart();
    outcome.take(one_sum(part));
    tuttiSimInfo_t info = TUTTI_SIM_INFO_INITIALIZER;
    outcome.wrong +=
        in_child([&] { return refused("SimulateEnd", tuttiGroupSimulateEnd(&info)) ? kRight : kWrong; }) != kRight;
    outcome.take(tuttiGroupEnd());
    outcome.take(one_sum(part));
    outcome.take(tuttiCommDestroy(part));
    outcome.take(tuttiCommFinalize(comm));
    outcome.take(tuttiCommDestroy(comm));
  });
  require_success(ranks.wait());
}

TEST_CASE("a child that outlives its parent does not hide its death", "[processes]") {
  const char* const transport = GENERATE("shm", "tcp");
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto& is_over = *static_cast<std::atomic<bool>*>(shared);
  Processes ranks(
      2,
      [&](int rank, tuttiComm_t comm, Outcome& outcome) {
        outcome.take(one_sum(comm));
        if (rank == 0) {
          if (fork() == 0) {
            for (const int end : descriptors("pipe")) close(end);  // else the test would wait for them
            for (int i = 0; i < 6000 && !is_over; i++) usleep(10000);
            _exit(kRight);
          }
          raise(SIGKILL);
        }
        outcome.take(one_sum(comm));
        tuttiCommAbort(comm);
      },
      &config);
  const auto outcomes = ranks.wait();
  is_over = true;
  INFO(outcomes[1].message);
  CHECK(outcomes[1].code == tuttiRemoteError);
  CHECK(contains(outcomes[1].message, "rank 0 "));
  CHECK(contains(outcomes[1].message, "died"));
}

TEST_CASE("a child makes a group of its own, and has its parent's memory", "[processes]") {
#ifdef TUTTI_TEST_TSAN
  WARN("skipped: under ThreadSanitizer such a child cannot start threads");
  return;
#endif
  Processes ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    void* memory = nullptr;
    outcome.take(tuttiMemAlloc(&memory, 1 << 20));
    auto* const ints = static_cast<int*>(memory);
    ints[5] = 55;
    outcome.take(one_sum(comm));
    const int end = in_child([&] {
      tuttiUniqueId id;
      tuttiComm_t own = nullptr;
      bool right = tuttiGetUniqueId(&id) == tuttiSuccess && tuttiCommInitRank(&own, 1, id, 0) == tuttiSuccess;
      right = right && one_sum(own) == tuttiSuccess && refused("the parent's", one_sum(comm));
      right = right && tuttiCommFinalize(own) == tuttiSuccess && tuttiCommDestroy(own) == tuttiSuccess;
      right = right && ints[5] == 55 && tuttiMemFree(memory) == tuttiSuccess;
      if (!right) fprintf(stderr, "the child of rank %d: %s\n", rank, tuttiGetLastError(nullptr));
      return right ? kRight : kWrong;
    });
    outcome.wrong += end != kRight;
    outcome.wrong += ints[5] != 55;
    outcome.take(tuttiMemFree(memory));
    outcome.take(one_sum(comm));
    outcome.take(tuttiCommFinalize(comm));
    outcome.take(tuttiCommDestroy(comm));
  });
  require_success(ranks.wait());
}

TEST_CASE("a child leaves its parent's averager alone", "[processes]") {
  Processes ranks(2, [](int, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> values(100, 1.0f);
    tuttiDdpTensor_t param{};
    param.data = values.data();
    param.count = values.size();
    param.datatype = param.gradDatatype = tuttiFloat32;
    param.device = TUTTI_DDP_HOST;
    tuttiDdp_t ddp = nullptr;
    outcome.take(tuttiDdpCreate(&ddp, comm, &param, 1, nullptr, 0, nullptr));
    void* grad = nullptr;
    outcome.take(tuttiDdpGradient(ddp, 0, &grad));
    if (grad == nullptr) return;
    auto* const floats = static_cast<float*>(grad);
    floats[7] = 7;
    const int end = in_child([&] {
      const auto is_refused = [&](const char* what, tuttiResult_t r) { return refused(what, r, true); };
      bool right = is_refused("ZeroGradients", tuttiDdpZeroGradients(ddp));
      right &= is_refused("Begin", tuttiDdpBegin(ddp));
      right &= is_refused("Destroy", tuttiDdpDestroy(ddp));
      return right ? kRight : kWrong;
    });
    outcome.wrong += end != kRight || floats[7] != 7;
    outcome.take(tuttiDdpBegin(ddp));
    outcome.take(tuttiDdpMarkReady(ddp, 0));
    outcome.take(tuttiDdpWait(ddp));
    outcome.wrong += floats[7] != 7;
    outcome.take(tuttiDdpDestroy(ddp));
    outcome.take(tuttiCommFinalize(comm));
    outcome.take(tuttiCommDestroy(comm));
  });
  require_success(ranks.wait());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(TUTTI_TEST_TSAN)  // their own locks may be held when a child is forked
TEST_CASE("threads make and drop sockets while others fork") {
  std::atomic<bool> stops{false}, goes_on{true};
  std::thread makes([&] {
    while (!stops && goes_on) {
      tuttiComm_t comms[2];
      goes_on = tuttiCommInitAll(comms, 2, nullptr) == tuttiSuccess;
      for (int r = 0; goes_on && r < 2; r++) tuttiCommDestroy(comms[r]);
    }
  });
  int wrong = 0;
  for (int i = 0; i < 100; i++) wrong += in_child([] { return connections() == 0 ? kRight : kWrong; }) != kRight;
  stops = true;
  makes.join();
  CHECK(wrong == 0);
  CHECK(goes_on);
}

TEST_CASE("threads ask for handles of averagers, and load plugins, while others fork", "[long]") {
  constexpr char kNoPlugin[] = "/nonexistent/plugin.so";
  auto* const no_handle = reinterpret_cast<tuttiDdp_t>(1);
  std::atomic<bool> stops{false};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    while (!stops) tuttiDdpBegin(no_handle);
  });
  threads.emplace_back([&] {
    while (!stops) (void)tutti::load_plugin(kNoPlugin);
  });
  int wrong = 0;
  for (int i = 0; i < 60 && wrong == 0; i++)
    wrong += in_child([&] {
               const bool is_refused = tuttiDdpBegin(no_handle) == tuttiInvalidArgument;
               return is_refused && !tutti::load_plugin(kNoPlugin) ? kRight : kWrong;
             }) != kRight;
  stops = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
#endif
