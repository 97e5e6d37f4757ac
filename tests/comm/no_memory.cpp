// Operations that find no memory: their waiters are told, and the operations behind them still get their turns.
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/scarce_memory.h"
#include "tutti/ddp.h"
#include "tutti/tutti.h"

constexpr size_t kCount = 4 << 20;

// An operation that needs memory for its messages.
static tuttiResult_t sum(std::vector<float>& data, tuttiComm_t comm) {
  return tuttiAllReduceQuantized(data.data(), data.data(), kCount, tuttiFloat, tuttiSum, tuttiInt8, 256, nullptr, comm,
                                 nullptr);
}

// Only one rank has no memory: the other one does not wait for it, and the rank cannot carry on as if nothing happened.
static bool one_rank_lacks() {
  tuttiComm_t comms[2];
  if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
  std::vector<float> data[2] = {std::vector<float>(kCount), std::vector<float>(kCount)};
  tuttiResult_t other = tuttiSuccess;
  std::thread thread([&] { other = sum(data[1], comms[1]); });
  t_lacks = true;
  const tuttiResult_t mine = sum(data[0], comms[0]);
  t_lacks = false;
  thread.join();
  const tuttiResult_t again = tuttiBarrier(comms[0], nullptr);
  for (tuttiComm_t comm : comms) (void)tuttiCommAbort(comm);
  return mine == tuttiSystemError && other == tuttiSystemError && again == tuttiSystemError;
}

// A group does not run if one of its calls is missing.
static bool a_call_lacks() {
  tuttiComm_t comm;
  if (tuttiCommInitAll(&comm, 1, nullptr) != tuttiSuccess) return false;
  float value = 1;
  int refused = 0;
  t_lacks = true;
  tuttiGroupStart();
  for (int i = 0; i < 10'000; i++)  // the list of calls gets longer than 1 MiB
    refused += tuttiAllReduce(&value, &value, 1, tuttiFloat, tuttiMax, comm, nullptr) != tuttiSuccess;
  t_lacks = false;
  const tuttiResult_t ended = tuttiGroupEnd(), again = tuttiBarrier(comm, nullptr);
  (void)tuttiCommAbort(comm);
  return refused > 0 && ended == tuttiSystemError && again == tuttiSuccess;
}

// One of the first allocations of a call fails: nobody waits afterwards for a turn that never comes.
static bool comes_back(tuttiResult_t (*call)(tuttiComm_t)) {
  for (long left = 0; left < 60; left++) {
    tuttiComm_t comm;
    if (tuttiCommInitAll(&comm, 1, nullptr) != tuttiSuccess) return false;
    t_left = left;
    (void)call(comm);
    t_left = -1;
    (void)tuttiBarrier(comm, nullptr);
    (void)tuttiCommAbort(comm);
  }
  return true;
}

static tuttiResult_t split(tuttiComm_t comm) {
  tuttiComm_t part;
  return tuttiCommSplit(comm, 0, 0, &part, nullptr);
}
static tuttiResult_t list(tuttiComm_t comm) {
  const int rank = 0;
  tuttiComm_t part;
  return tuttiCommCreateGroup(comm, &rank, 1, &part, nullptr);
}
// The communicator has failed, and this thread has collected a call on it.
static tuttiResult_t destroy_in_group(tuttiComm_t comm) {
  (void)tuttiCommRevoke(comm, 0);
  tuttiGroupStart();
  (void)tuttiBarrier(comm, nullptr);
  const tuttiResult_t destroyed = tuttiCommDestroy(comm);
  t_left = -1;
  (void)tuttiGroupEnd();
  return destroyed;
}

// A repeated operation fails, and there is no memory for the error text either.
static bool a_repetition_lacks() {
  for (long left = 0; left < 20; left++) {
    tuttiComm_t comms[2];
    if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
    std::thread other([&] {
      for (int i = 0; i < 3; i++) (void)tuttiBarrier(comms[1], nullptr);
      usleep(20'000);
      (void)tuttiCommAbort(comms[1]);
    });
    for (int i = 0; i < 3; i++) (void)tuttiBarrier(comms[0], nullptr);
    t_left = left;
    const tuttiResult_t failed = tuttiBarrier(comms[0], nullptr);
    t_left = -1;
    other.join();
    (void)tuttiCommAbort(comms[0]);
    if (failed == tuttiSuccess) return false;
  }
  return true;
}

// An abort ends the operation that another thread is in, without taking the communicator away from that thread.
static bool an_abort_lacks(bool in_group) {
  bool lacked = true;
  for (long left = 0; lacked; left++) {
    tuttiComm_t comms[2];
    if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
    tuttiResult_t ended = tuttiSuccess;
    std::thread thread([&] {
      t_is_slow = true;
      ended = tuttiBarrier(comms[0], nullptr);
      t_is_slow = false;
    });
    usleep(100'000);
    if (in_group) tuttiGroupStart();
    if (in_group) (void)tuttiBarrier(comms[0], nullptr);
    t_left = left;
    (void)tuttiCommAbort(comms[0]);
    lacked = t_left < 0;
    t_left = -1;
    if (in_group) (void)tuttiGroupEnd();
    thread.join();
    (void)tuttiCommAbort(comms[1]);
    if (ended == tuttiSuccess) return false;
  }
  return true;
}

// An abort ends the operations that are queued on a stream behind other work, and drops those of this thread's group.
static bool an_abort_of_queued_lacks() {
  bool lacked = true;
  for (long left = 0; lacked; left++) {
    tuttiComm_t comms[2];
    tuttiStream_t stream;
    if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess || tuttiStreamCreate(&stream) != tuttiSuccess) return false;
    const auto takes_long = [](tuttiStream_t, tuttiResult_t, void*) { usleep(20'000); };
    (void)tuttiStreamAddCallback(stream, takes_long, nullptr);
    for (int i = 0; i < 2; i++) (void)tuttiBarrier(comms[0], stream);
    tuttiGroupStart();
    (void)tuttiBarrier(comms[0], nullptr);
    t_left = left;
    (void)tuttiCommAbort(comms[0]);
    lacked = t_left < 0;
    t_left = -1;
    const tuttiResult_t ended = tuttiGroupEnd(), queued = tuttiStreamDestroy(stream);
    (void)tuttiCommAbort(comms[1]);
    if (queued == tuttiSuccess || (!lacked && ended != tuttiInvalidUsage)) return false;
  }
  return true;
}

// In the middle of a creation: the other rank is told, long before its deadline.
static bool a_creation_lacks() {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.initTimeoutSeconds = 600;
  bool has_failed = false;
  for (long left = 60; left <= 120; left += 10) {  // fails while the rank looks at its machine
    tuttiComm_t comms[2], made[2] = {};
    if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
    tuttiResult_t other = tuttiSuccess;
    std::thread thread([&] { other = tuttiCommShrink(comms[1], nullptr, 0, &made[1], &config, 0); });
    t_left = left;
    const tuttiResult_t mine = tuttiCommShrink(comms[0], nullptr, 0, &made[0], &config, 0);
    t_left = -1;
    thread.join();
    for (tuttiComm_t comm : {comms[0], comms[1], made[0], made[1]})
      if (comm != nullptr) (void)tuttiCommAbort(comm);
    if ((mine == tuttiSuccess) != (other == tuttiSuccess)) return false;
    has_failed = has_failed || mine == tuttiSystemError;
  }
  return has_failed;
}

// Any one allocation of tuttiGroupEnd fails, also where a thread is lacking: nobody waits for a turn that never comes.
static bool one_allocation_lacks(bool has_threads) {
  const int n = has_threads ? 2 : 3;
  bool lacked = true;
  for (long left = 0; lacked; left++) {
    tuttiComm_t comms[3];
    tuttiStream_t stream;
    if (tuttiCommInitAll(comms, n, nullptr) != tuttiSuccess || tuttiStreamCreate(&stream) != tuttiSuccess) return false;
    tuttiGroupStart();
    for (tuttiStream_t of_first : {tuttiStream_t{nullptr}, stream, tuttiStream_t{nullptr}}) {
      for (int r = 0; r < n; r++) (void)tuttiBarrier(comms[r], r == 0 ? of_first : nullptr);
      if (!has_threads) break;
    }
    t_threads_left = has_threads ? -1 : 1;
    t_left = left;
    const tuttiResult_t ended = tuttiGroupEnd();
    lacked = t_left < 0;
    t_left = t_threads_left = -1;
    for (int r = 0; r < n; r++) (void)tuttiCommAbort(comms[r]);
    const tuttiResult_t queued = tuttiStreamDestroy(stream);
    const bool went_well = ended == tuttiSuccess && queued == tuttiSuccess;
    if (has_threads ? !lacked && !went_well : ended != tuttiSystemError) return false;
  }
  return true;
}

// ---- calls of two ranks, by the rank

static float g_data[2][2][1 << 17];  // what each rank sends, and what it receives

static tuttiResult_t blocks(int rank, tuttiComm_t comm) {
  const size_t counts[2] = {5, 70'000}, displs[2] = {0, 5};
  return tuttiAllGatherv(g_data[rank][0], g_data[rank][1], counts, displs, tuttiFloat, comm, nullptr);
}
static tuttiResult_t messages(int rank, tuttiComm_t comm) {
  tuttiGroupStart();
  (void)tuttiSend(g_data[rank][0], 70'000, tuttiFloat, 1 - rank, comm, nullptr);
  (void)tuttiRecv(g_data[rank][1], 70'000, tuttiFloat, 1 - rank, comm, nullptr);
  return tuttiGroupEnd();
}
static tuttiResult_t registered(int rank, tuttiComm_t comm) {
  void* handle = nullptr;
  const tuttiResult_t made = tuttiCommRegister(comm, g_data[rank][0], sizeof g_data[rank][0], &handle);
  const tuttiResult_t summed =
      tuttiAllReduce(g_data[rank][0], g_data[rank][1], 1 << 17, tuttiFloat, tuttiSum, comm, nullptr);
  (void)tuttiCommDeregister(comm, handle);
  return made != tuttiSuccess ? made : summed;
}
static tuttiResult_t split_in_two(int rank, tuttiComm_t comm) {
  tuttiComm_t part = nullptr;
  const tuttiResult_t result = tuttiCommSplit(comm, rank, 0, &part, nullptr);
  if (part != nullptr) (void)tuttiCommAbort(part);
  return result;
}
static tuttiResult_t queued(int, tuttiComm_t comm) {
  tuttiStream_t stream = nullptr;
  if (const tuttiResult_t made = tuttiStreamCreate(&stream); made != tuttiSuccess) return made;
  const tuttiResult_t called = tuttiBarrier(comm, stream), ended = tuttiStreamDestroy(stream);
  return called != tuttiSuccess ? called : ended;
}

// One allocation of rank 0's call fails, whichever it is: once that rank has aborted, rank 1's call returns too.
static bool both_come_back(tuttiResult_t (*call)(int rank, tuttiComm_t comm)) {
  bool lacked = true;
  for (long left = 0; lacked; left += left < 100 ? 1 : 7) {
    tuttiComm_t comms[2];
    if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
    std::thread other([&] { (void)call(1, comms[1]); });
    t_left = left;
    const tuttiResult_t mine = call(0, comms[0]);
    lacked = t_left < 0;
    t_left = -1;
    if (mine != tuttiSuccess) (void)tuttiCommAbort(std::exchange(comms[0], nullptr));
    other.join();
    for (tuttiComm_t comm : comms)
      if (comm != nullptr) (void)tuttiCommAbort(comm);
    if (!lacked && mine != tuttiSuccess) return false;
  }
  return true;
}

// How many descriptors of this file are open.
static long descriptors_of(const char* name) {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::count_if(begin(all), end(all), [&](const auto& entry) {
    std::error_code is_closed;
    return std::filesystem::read_symlink(entry, is_closed) == name;
  });
}

// Any one allocation of a registration fails: then no descriptor of its memory stays open.
static bool a_registration_lacks() {
  constexpr size_t kBytes = 4096;
  tuttiComm_t comm;
  void* handle;
  const int file = memfd_create("registered", 0);
  if (tuttiCommInitAll(&comm, 1, nullptr) != tuttiSuccess || ftruncate(file, kBytes) != 0) return false;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  bool lacked = true;
  for (long left = 0; lacked; left++) {
    t_left = left;
    const tuttiResult_t made = tuttiCommRegister(comm, memory, kBytes, &handle);
    lacked = t_left < 0;
    t_left = -1;
    if (made == tuttiSuccess && descriptors_of("/memfd:registered (deleted)") != 2) return false;
    if (made == tuttiSuccess) (void)tuttiCommDeregister(comm, handle);
    if (descriptors_of("/memfd:registered (deleted)") != 1 || (!lacked && made != tuttiSuccess)) return false;
  }
  (void)tuttiCommAbort(comm);
  return munmap(memory, kBytes) == 0 && close(file) == 0;
}

// The error that ends the group, or success if there is none for 5 s.
static tuttiResult_t end_of(tuttiComm_t comm) {
  tuttiResult_t state = tuttiSuccess;
  for (int i = 0; i < 5000 && state == tuttiSuccess; i++, usleep(1000)) tuttiCommGetAsyncError(comm, &state);
  return state;
}

// The watching thread has no memory for a peer's report: that ends the group, not the process.
static bool the_watcher_lacks() {
  bool lacked = true;
  for (long left = 0; lacked; left++) {
    tuttiComm_t comms[2];
    if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
    g_left_elsewhere = left;
    (void)tuttiCommAbort(comms[1]);
    const tuttiResult_t state = end_of(comms[0]);
    lacked = g_left_elsewhere.exchange(-1) < 0;
    (void)tuttiCommAbort(comms[0]);
    if (state != tuttiRemoteError && !(lacked && state == tuttiSystemError)) return false;
  }
  return true;
}

// The watching thread has no memory for a while, in which the only reports come: it looks again.
static bool the_watcher_lacks_for_a_while() {
  tuttiComm_t comms[2];
  if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
  g_elsewhere_lacks = true;
  (void)tuttiCommAbort(comms[1]);
  usleep(50'000);
  g_elsewhere_lacks = false;
  const tuttiResult_t state = end_of(comms[0]);
  (void)tuttiCommAbort(comms[0]);
  return state != tuttiSuccess;
}

// One of the last allocations of tuttiCommInitAll fails: then it gives back all ranks, or none.
static bool all_or_none() {
  constexpr long kMany = 1 << 30;
  bool has_failed = false;
  long last = kMany;
  for (long left = kMany; left <= last; left++) {
    const void* const rubbish = &left;
    tuttiComm_t comms[3];
    for (tuttiComm_t& comm : comms) memcpy(&comm, &rubbish, sizeof comm);
    t_left = left;
    const tuttiResult_t made = tuttiCommInitAll(comms, 3, nullptr);
    const long used = left - std::exchange(t_left, -1);
    for (tuttiComm_t comm : comms) {
      if ((comm != nullptr) != (made == tuttiSuccess)) return false;
      if (comm != nullptr) (void)tuttiCommAbort(comm);
    }
    has_failed |= made != tuttiSuccess;
    if (left == kMany) {
      last = used;
      left = used - 20;
    }
  }
  return has_failed;
}

// Threads that nobody waits for have no memory for a while.
static bool helpers_lack() {
  const std::string metrics = std::filesystem::temp_directory_path() / ("metrics." + std::to_string(getpid()));
  setenv("TUTTI_METRICS_FILE", metrics.c_str(), 1);
  tuttiComm_t comms[2];
  if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
  g_elsewhere_lacks = true;
  usleep(300'000);
  g_elsewhere_lacks = false;
  for (tuttiComm_t comm : comms) (void)tuttiCommAbort(comm);
  unsetenv("TUTTI_METRICS_FILE");
  return std::filesystem::remove(metrics);
}

// A step of two gradients, each a bucket. The allocation `left` fails while they are marked.
static tuttiResult_t step(tuttiDdp_t ddp, float (&gradients)[2], int rank, long left) {
  gradients[0] = static_cast<float>(1 + rank);
  gradients[1] = static_cast<float>(5 + rank);
  (void)tuttiDdpBegin(ddp);
  t_left = left;
  for (size_t i = 0; i < 2; i++) (void)tuttiDdpMarkReady(ddp, i);
  t_left = -1;
  return tuttiDdpWait(ddp);
}

// One allocation fails while gradients are marked: the step fails on both ranks, and the next one does not.
static bool a_mark_lacks() {
  tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
  config.firstBucketBytes = config.bucketCapBytes = 1;
  config.rebuildBuckets = 0;
  bool has_failed = false;
  for (long left = 0; left < 8; left++) {
    tuttiComm_t comms[2];
    if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return false;
    tuttiResult_t first[2] = {};
    bool are_good[2] = {};
    const auto body = [&](int rank) {
      float gradients[2];
      tuttiDdpTensor_t tensors[2] = {};
      for (size_t i = 0; i < 2; i++)
        tensors[i] = {.name = nullptr,
                      .data = nullptr,
                      .grad = &gradients[i],
                      .count = 1,
                      .datatype = tuttiFloat,
                      .gradDatatype = tuttiFloat,
                      .ndim = 0,
                      .shape = {},
                      .device = TUTTI_DDP_HOST};
      tuttiDdp_t ddp = nullptr;
      if (tuttiDdpCreate(&ddp, comms[rank], tensors, 2, nullptr, 0, &config) != tuttiSuccess) return;
      first[rank] = step(ddp, gradients, rank, rank == 0 ? left : -1);
      are_good[rank] = step(ddp, gradients, rank, -1) == tuttiSuccess && gradients[0] == 1.5F && gradients[1] == 5.5F;
      (void)tuttiDdpDestroy(ddp);
    };
    std::thread other([&] { body(1); });
    body(0);
    other.join();
    for (tuttiComm_t comm : comms) (void)tuttiCommAbort(comm);
    if (first[0] != first[1] || !are_good[0] || !are_good[1]) return false;
    has_failed |= first[0] != tuttiSuccess;
  }
  return has_failed;
}

// What is called on a stream is called even if the stream's thread has no memory.
static bool a_callback_lacks() {
  tuttiStream_t stream;
  std::atomic<bool> called{false};
  if (tuttiStreamCreate(&stream) != tuttiSuccess) return false;
  const auto callback = [](tuttiStream_t, tuttiResult_t so_far, void* to) {
    *static_cast<std::atomic<bool>*>(to) = so_far == tuttiSuccess;
  };
  g_elsewhere_lacks = true;
  const tuttiResult_t added = tuttiStreamAddCallback(stream, callback, &called);
  const tuttiResult_t ended = tuttiStreamSynchronize(stream);
  g_elsewhere_lacks = false;
  (void)tuttiStreamDestroy(stream);
  return added == tuttiSuccess && ended == tuttiSuccess && called;
}

// SIGTERM ends the process in its usual way though there is no memory for the traces.
static bool the_traces_lack() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    setenv("TUTTI_TRACE_ON_SIGTERM", "1", 1);
    setenv("TUTTI_TRACE_FILE", "/nonexistent/trace", 1);
    tuttiComm_t comm;
    if (tuttiCommInitAll(&comm, 1, nullptr) != tuttiSuccess) _exit(1);
    g_elsewhere_lacks = true;
    kill(getpid(), SIGTERM);
    for (;;) pause();
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
}

int main() {
  alarm(170);
  mallopt(M_PERTURB, 0xa5);  // fills freed memory, so that its use shows
  t_is_main = true;
  if (!one_rank_lacks()) return 4;
  if (!a_call_lacks()) return 5;
  for (const auto call : {split, list, tuttiCommDestroy, destroy_in_group})
    if (!comes_back(call)) return 6;
  if (!a_repetition_lacks()) return 7;
  if (!a_creation_lacks()) return 8;
  if (!an_abort_lacks(false) || !an_abort_lacks(true) || !an_abort_of_queued_lacks()) return 9;
  if (!one_allocation_lacks(true) || !one_allocation_lacks(false)) return 10;
  if (!the_watcher_lacks()) return 11;
  if (!the_watcher_lacks_for_a_while()) return 12;
  if (!a_mark_lacks()) return 13;
  for (const auto call : {blocks, messages, registered, split_in_two, queued})
    if (!both_come_back(call)) return 14;
  if (!a_registration_lacks()) return 15;
  if (!all_or_none()) return 16;
  if (!helpers_lack()) return 17;
  if (!a_callback_lacks()) return 18;
  if (!the_traces_lack()) return 19;
  tuttiComm_t comms[2];
  if (tuttiCommInitAll(comms, 2, nullptr) != tuttiSuccess) return 1;
  std::vector<float> data[2] = {std::vector<float>(kCount), std::vector<float>(kCount)};
  const auto barriers = [&] {
    for (tuttiComm_t comm : comms) (void)tuttiBarrier(comm, nullptr);
  };
  g_lacks = true;
  tuttiGroupStart();
  for (int r = 0; r < 2; r++) (void)sum(data[r], comms[r]);
  barriers();
  if (tuttiGroupEnd() != tuttiSystemError) return 2;
  g_lacks = false;
  tuttiGroupStart();
  barriers();
  return tuttiGroupEnd() == tuttiSystemError ? 0 : 3;  // the communicator is broken, but nobody waits
}
