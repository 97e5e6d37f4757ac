// Programs whose communicator belongs to a static object: it leaves its group after the main thread's thread-local
// objects are gone. Some end in the middle of a group, or while a communicator is being made in the background.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "tutti/ddp.h"
#include "tutti/tutti.h"

namespace {

// Ends the process and prints the line of the failed check.
void require(bool right, int line) {
  if (right) return;
  fprintf(stderr, "line %d: %s\n", line, tuttiGetLastError(nullptr));
  _exit(1);
}
#define REQUIRE(condition) require(condition, __LINE__)

int g_rank = 0;

struct Owner {
  tuttiComm_t comm = nullptr;
  ~Owner() {
    if (comm == nullptr) return;
    if (g_rank == 1) usleep(50'000);  // so that rank 0 waits long enough to sleep
    REQUIRE(tuttiCommFinalize(comm) == tuttiSuccess);
    REQUIRE(tuttiCommDestroy(comm) == tuttiSuccess);
    // Longer than the previous error text, so that it does not fit into that one's memory.
    REQUIRE(tuttiCommDestroy(comm) == tuttiInvalidArgument);
    REQUIRE(strstr(tuttiGetLastError(nullptr), "not a live communicator") != nullptr);
    REQUIRE(tuttiDdpBroadcast(reinterpret_cast<tuttiDdp_t>(~uintptr_t{0}), 0) == tuttiInvalidArgument);
    REQUIRE(tuttiDdpGetLastError() != nullptr);
  }
} owner;

void be_rank(int rank, const tuttiUniqueId& id) {
  alarm(60);
  g_rank = rank;
  REQUIRE(tuttiCommInitRank(&owner.comm, 2, id, rank) == tuttiSuccess);
  float data = 1;
  REQUIRE(tuttiAllReduce(nullptr, &data, 1, tuttiFloat, tuttiSum, owner.comm, nullptr) == tuttiInvalidArgument);
  REQUIRE(tuttiDdpBroadcast(reinterpret_cast<tuttiDdp_t>(uintptr_t{1}), 0) == tuttiInvalidArgument);
  if (rank == 1) usleep(50'000);
  REQUIRE(tuttiAllReduce(&data, &data, 1, tuttiFloat, tuttiSum, owner.comm, nullptr) == tuttiSuccess);
  exit(0);  // which calls the destructors
}

// The handler that is registered first is called last: the library's static objects are destroyed before it.
tuttiUniqueId g_id;
tuttiComm_t g_other = nullptr;
void join_late() {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  REQUIRE(tuttiCommInitRankConfig(&g_other, 2, g_id, 1, &config) == tuttiInProgress);
  usleep(500'000);
}

void end_while_one_is_made() {
  alarm(60);
  atexit(join_late);
  tuttiComm_t one = nullptr, other = nullptr;
  REQUIRE(tuttiCommInitAll(&one, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiCommDestroy(one) == tuttiSuccess);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  REQUIRE(tuttiGetUniqueId(&g_id) == tuttiSuccess);
  REQUIRE(tuttiCommInitRankConfig(&other, 2, g_id, 0, &config) == tuttiInProgress);
  exit(0);
}

// The calls that a group has collected are destroyed with the main thread's thread-locals, before the owner.
void end_in_a_group() {
  alarm(20);
  static float data[64];
  REQUIRE(tuttiCommInitAll(&owner.comm, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiGroupStart() == tuttiSuccess);
  for (float& one : data)
    REQUIRE(tuttiAllReduce(&one, &one, 1, tuttiFloat, tuttiSum, owner.comm, nullptr) == tuttiSuccess);
  exit(0);
}

bool ends_well(pid_t pid) {
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int main() {
  int ends[2];
  tuttiUniqueId id;
  if (pipe(ends) != 0) return 2;
  const pid_t first = fork();
  if (first == 0) {
    REQUIRE(tuttiGetUniqueId(&id) == tuttiSuccess);
    REQUIRE(write(ends[1], &id, sizeof id) == sizeof id);
    be_rank(0, id);
  }
  close(ends[1]);  // else nobody would notice the death of that child
  if (read(ends[0], &id, sizeof id) != sizeof id) return 2;
  const pid_t second = fork();
  if (second == 0) be_rank(1, id);
  const pid_t third = fork();
  if (third == 0) end_while_one_is_made();
  const pid_t fourth = fork();
  if (fourth == 0) end_in_a_group();
  bool well = true;
  for (const pid_t child : {first, second, third, fourth}) well = ends_well(child) && well;
  return well ? 0 : 1;
}
