// A rank of a group one of whose hosts vanishes: prints when it knows which ranks are lost, and when it goes on.
//   vanish idle|busy|stay SECONDS [majority]
// `stay`: no rank may be lost in that time. With `majority` a rank may also end because it is in the smaller part.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tutti/tutti.h"

namespace {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[noreturn]] void end(const char* what) {
  printf("FAILED: %s: %s\n", what, tuttiGetLastError(nullptr));
  exit(1);
}

tuttiResult_t work(tuttiComm_t comm) {
  std::vector<float> data(20'000, 1.0f);
  return tuttiAllReduce(data.data(), data.data(), data.size(), tuttiFloat, tuttiMax, comm, nullptr);
}

void print_lost(const std::vector<int>& lost, int n) {
  printf("lost");
  for (int i = 0; i < n; i++) printf(" %d", lost[static_cast<size_t>(i)]);
  printf(" at %.3f\n", clock_seconds());
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const bool busy = strcmp(argv[1], "busy") == 0, stays = strcmp(argv[1], "stay") == 0;
  tuttiComm_t comm = nullptr, left = nullptr;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.majority = argc > 3;
  if (tuttiCommInitFromEnv(&comm, &config) != tuttiSuccess) end("tuttiCommInitFromEnv");
  int n_ranks = 0, n_lost = 0;
  tuttiCommCount(comm, &n_ranks);
  std::vector<int> lost(static_cast<size_t>(n_ranks));
  if (work(comm) != tuttiSuccess) end("the first operation");
  printf("ready %d\n", getpid());
  fflush(stdout);
  tuttiResult_t state = tuttiSuccess;
  const double from = clock_seconds(), until = from + atof(argv[2]);
  // A few packets each, so that even a bad network passes them eventually.
  for (int turns = stays ? 20 : 0; turns > 0 && state == tuttiSuccess; turns--) {
    while (clock_seconds() < from + atof(argv[2]) / 4) usleep(10'000);
    state = tuttiBarrier(comm, nullptr);
  }
  while (state == tuttiSuccess && clock_seconds() < until) {
    if (busy)
      state = work(comm);
    else
      usleep(10'000);
    if (state == tuttiSuccess) tuttiCommGetAsyncError(comm, &state);
  }
  tuttiCommLostRanks(comm, lost.data(), &n_lost);
  print_lost(lost, n_lost);
  if (stays) {
    if (state != tuttiSuccess) work(comm), end("it should have stayed");
    if (tuttiCommFinalize(comm) != tuttiSuccess) end("tuttiCommFinalize");
    return static_cast<int>(tuttiCommDestroy(comm));
  }
  if (state == tuttiSuccess) end("nobody was lost");
  work(comm);  // to get the error text
  printf("because %s\n", tuttiGetLastError(nullptr));
  const tuttiResult_t shrunk = tuttiCommShrink(comm, nullptr, 0, &left, nullptr, TUTTI_SHRINK_DEFAULT);
  if (shrunk == tuttiRemoteError && config.majority == 1) {
    printf("ends: %s\n", tuttiGetLastError(nullptr));
    static_cast<void>(tuttiCommDestroy(comm));
    return 0;
  }
  if (shrunk != tuttiSuccess) end("tuttiCommShrink");
  if (work(left) != tuttiSuccess) end("an operation afterwards");
  tuttiCommCount(left, &n_ranks);
  printf("goes on with %d at %.3f\n", n_ranks, clock_seconds());
  static_cast<void>(tuttiCommDestroy(comm));
  if (tuttiCommFinalize(left) != tuttiSuccess) end("tuttiCommFinalize");
  return static_cast<int>(tuttiCommDestroy(left));
}
