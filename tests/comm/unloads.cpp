// Programs that load the library late, from the given path. One unloads it while it is in a group: its threads must not
// find their code gone when a peer leaves. One forks while another thread uses the library for the first time.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "../sanitized.h"
#include "tutti/tutti.h"

namespace {

template <class Function>
Function* find(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) _exit(2);
  return reinterpret_cast<Function*>(symbol);
}

void* load(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  fprintf(stderr, "%s\n", dlerror());
  _exit(2);
}

// Rank 0 unloads; rank 1 leaves afterwards.
int be_rank(const char* path, int rank, int id_from, int id_to, int go_from, int go_to) {
  alarm(60);
  void* const library = load(path);
  tuttiUniqueId id;
  if (rank == 0 && find<decltype(tuttiGetUniqueId)>(library, "tuttiGetUniqueId")(&id) != tuttiSuccess) return 3;
  if (rank == 0 && write(id_to, &id, sizeof id) != sizeof id) return 3;
  if (rank == 1 && read(id_from, &id, sizeof id) != sizeof id) return 3;
  tuttiComm_t comm = nullptr;
  if (find<decltype(tuttiCommInitRank)>(library, "tuttiCommInitRank")(&comm, 2, id, rank) != tuttiSuccess) return 4;
  char byte = 0;
  if (rank == 1) {
    if (read(go_from, &byte, 1) != 1) return 5;
    _exit(0);  // which breaks its connections
  }
  dlclose(library);
  if (write(go_to, &byte, 1) != 1) return 5;
  usleep(300'000);  // for the thread that notices
  return 0;
}

std::atomic<bool> g_forks{false};

// Runs after the library's own handlers: those loaded last prepare first.
void let_the_other_begin() {
  g_forks = true;
  usleep(100'000);
}

// 0: the child, too, can make an event.
int fork_in_the_first_use(const char* path) {
  alarm(60);
  pthread_atfork(let_the_other_begin, nullptr, nullptr);
  const auto create = find<decltype(tuttiEventCreate)>(load(path), "tuttiEventCreate");
  tuttiEvent_t event = nullptr;
  std::thread first([&] {
    while (!g_forks) usleep(100);
    create(&event);
  });
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(create(&event) == tuttiSuccess ? 0 : 6);
  }
  first.join();
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  printf("a child whose parent's other thread used the library for the first time hangs\n");
  return 7;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
  if (const int code = fork_in_the_first_use(argv[1]); code != 0) return code;
#endif
  int id[2], go[2];
  if (pipe(id) != 0 || pipe(go) != 0) return 2;
  pid_t pids[2];
  for (int rank = 0; rank < 2; rank++) {
    pids[rank] = fork();
    if (pids[rank] == 0) _exit(be_rank(argv[1], rank, id[0], id[1], go[0], go[1]));
  }
  int failures = 0;
  for (int rank = 0; rank < 2; rank++) {
    int status = 0;
    waitpid(pids[rank], &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    failures++;
    printf("rank %d: %s %d\n", rank, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit code",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  return failures == 0 ? 0 : 1;
}
