/* A program for NCCL, built against the interface alone and linked to libnccl.so.2: two processes on host memory. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl/abi.h"

enum { kRanks = 2, kCount = 100003, kInt8 = 0, kInt32 = 2, kFloat = 7, kSum = 0, kMax = 2, kHostImmediate = 1 };
enum { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7 };

static int failures = 0;

static void check(int holds, const char* what, int line) {
  if (holds) return;
  failures++;
  printf("pid %d, line %d: not so: %s (%s)\n", (int)getpid(), line, what, ncclGetLastError(NULL));
}
#define CHECK(expression) check((expression) != 0, #expression, __LINE__)
#define OK(call) CHECK((call) == kSuccess)

static int says(const char* part) {
  return strstr(ncclGetLastError(NULL), part) != NULL;
}

static ncclConfig_t new_config(void) {
  ncclConfig_t config;
  memset(&config, 0x7f, sizeof config); /* what Tutti must not look at */
  config.size = sizeof config;
  config.magic = NCCL_ABI_MAGIC;
  config.version = NCCL_ABI_VERSION;
  config.blocking = NCCL_ABI_UNDEF_INT;
  return config;
}

static void all_reduce(ncclComm_t comm, int rank, int n_ranks) {
  static int32_t input[kCount], output[kCount];
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; i++) input[i] = (int32_t)i + rank;
  OK(ncclAllReduce(input, output, kCount, kInt32, kSum, comm, NULL));
  for (size_t i = 0; i < kCount; i++) wrong += output[i] != n_ranks * (int32_t)i + n_ranks * (n_ranks - 1) / 2;
  CHECK(wrong == 0);
}

static void other_operations(ncclComm_t comm, int rank) {
  float mine[2] = {(float)(rank + 1), (float)(rank + 1)}, both[4] = {0}, half = 0.5f;
  ncclRedOp_t scaled = 0;
  const cudaStream_t legacy = (cudaStream_t)1, per_thread = (cudaStream_t)2;
  OK(ncclAllGather(mine, both, 2, kFloat, comm, legacy));
  CHECK(both[0] == 1 && both[1] == 1 && both[2] == 2 && both[3] == 2);
  OK(ncclReduceScatter(both, mine, 2, kFloat, kSum, comm, per_thread));
  CHECK(mine[0] == (rank == 0 ? 2 : 4));
  OK(ncclAlltoAll(both, mine, 1, kFloat, comm, NULL));
  CHECK(mine[0] == 1 && mine[1] == 1);
  OK(ncclReduce(both, mine, 1, kFloat, kMax, 1, comm, NULL));
  OK(ncclBcast(both, 4, kFloat, 1, comm, NULL));
  OK(ncclBroadcast(both, mine, 2, kFloat, 0, comm, NULL));
  OK(ncclGather(mine, both, 2, kFloat, 0, comm, NULL));
  OK(ncclScatter(both, mine, 2, kFloat, 0, comm, NULL));
  OK(ncclRedOpCreatePreMulSum(&scaled, &half, kFloat, kHostImmediate, comm));
  mine[0] = 8;
  OK(ncclAllReduce(mine, both, 1, kFloat, scaled, comm, NULL));
  CHECK(both[0] == 8);
  OK(ncclRedOpDestroy(scaled, comm));
  CHECK(ncclAllReduce(mine, both, 1, kFloat, scaled, comm, NULL) == kInvalidArgument);
  mine[0] = (float)rank;
  OK(ncclGroupStart());
  OK(ncclSend(mine, 1, kFloat, 1 - rank, comm, NULL));
  OK(ncclRecv(both, 1, kFloat, 1 - rank, comm, NULL));
  OK(ncclGroupEnd());
  CHECK(both[0] == (float)(1 - rank));
}

static ncclCollConfig_t new_operation_config(void) {
  ncclCollConfig_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.magic = NCCL_ABI_MAGIC;
  config.version = NCCL_ABI_VERSION;
  config.minCTAs = 7; /* a hint */
  config.forceAlgSelection = 1;
  return config;
}

static void configured_operations(ncclComm_t comm, int rank) {
  float mine[2] = {(float)(rank + 1), (float)(rank + 1)}, both[4] = {0};
  ncclCollConfig_t config = new_operation_config();
  OK(ncclAllReduceConfig(mine, both, 2, kFloat, kSum, comm, NULL, &config));
  CHECK(both[0] == 3 && both[1] == 3);
  OK(ncclAllGatherConfig(mine, both, 2, kFloat, comm, NULL, NULL));
  CHECK(both[0] == 1 && both[1] == 1 && both[2] == 2 && both[3] == 2);
  OK(ncclReduceScatterConfig(both, mine, 2, kFloat, kSum, comm, NULL, &config));
  CHECK(mine[0] == (rank == 0 ? 2 : 4));
  OK(ncclAlltoAllConfig(both, mine, 1, kFloat, comm, NULL, &config));
  CHECK(mine[0] == 1 && mine[1] == 1);
  OK(ncclReduceConfig(both, mine, 1, kFloat, kSum, 1, comm, NULL, &config));
  CHECK(rank == 0 || mine[0] == 2);
  mine[0] = mine[1] = 0;
  OK(ncclBroadcastConfig(both, mine, 2, kFloat, 0, comm, NULL, &config));
  CHECK(mine[0] == 1 && mine[1] == 1);
  mine[1] = (float)(rank + 5);
  OK(ncclGatherConfig(mine, both, 2, kFloat, 0, comm, NULL, &config));
  CHECK(rank == 1 || (both[1] == 5 && both[2] == 1 && both[3] == 6));
  mine[0] = mine[1] = 0;
  OK(ncclScatterConfig(both, mine, 2, kFloat, 0, comm, NULL, &config));
  CHECK(mine[0] == 1 && mine[1] == (float)(rank + 5));
  config.algSelection = "ring";
  CHECK(ncclAllReduceConfig(mine, both, 2, kFloat, kSum, comm, NULL, &config) == kInvalidUsage && says("\"ring\""));
  config.forceAlgSelection = 0;
  OK(ncclAllReduceConfig(mine, both, 2, kFloat, kSum, comm, NULL, &config));
  config.launchCompletionEvent = (cudaEvent_t)mine;
  config.size = offsetof(ncclCollConfig_t, launchCompletionEvent); /* as NCCL 2.31 has it */
  OK(ncclAllReduceConfig(mine, both, 2, kFloat, kSum, comm, NULL, &config));
  config.size = sizeof config;
  CHECK(ncclAllReduceConfig(mine, both, 2, kFloat, kSum, comm, NULL, &config) == kInvalidUsage &&
        says("launchCompletionEvent"));
  OK(ncclGroupStart()); /* of which nothing is run, as one call is wrong */
  both[0] = 0;
  OK(ncclAllReduce(mine, both, 1, kFloat, kSum, comm, NULL));
  CHECK(ncclAllReduceConfig(mine, both, 2, kFloat, kSum, comm, NULL, &config) == kInvalidUsage);
  CHECK(ncclGroupEnd() == kInvalidUsage && says("launchCompletionEvent") && both[0] == 0);
  config.magic = 0;
  CHECK(ncclAllReduceConfig(mine, both, 2, kFloat, kSum, comm, NULL, &config) == kInvalidArgument &&
        says("NCCL_COLLCONFIG_INITIALIZER"));
}

static void encryption(void) {
  ncclEncryptionConfig_t config = {sizeof config, NCCL_ABI_MAGIC, NCCL_ABI_VERSION, 0, NULL};
  OK(ncclSetEncryption(&config));
  config.mode = 1;
  config.psk = "secret";
  CHECK(ncclSetEncryption(&config) == kInvalidUsage && says("TUTTI_ENCRYPT") && !says("secret"));
  CHECK(ncclSetEncryption(NULL) == kInvalidArgument);
}

/* Rank 0 has a communicator of its own, which rank 1 joins; then it is revoked. */
static void growth(ncclComm_t comm, int rank) {
  ncclComm_t alone = NULL, grown = NULL;
  ncclUniqueId id;
  ncclResult_t state = kSuccess;
  float value = 1;
  if (rank == 0) {
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&alone, 1, id, 0));
    OK(ncclCommGetUniqueId(alone, &id));
  }
  OK(ncclBcast(&id, sizeof id, kInt8, 0, comm, NULL));
  OK(ncclCommGrow(alone, 2, &id, rank == 0 ? -1 : 1, &grown, NULL));
  if (grown == NULL) return;
  all_reduce(grown, rank, 2);
  if (rank == 0) {
    CHECK(ncclCommRevoke(grown, 7) == kInvalidArgument);
    OK(ncclCommRevoke(grown, 0));
    CHECK(ncclAllReduce(&value, &value, 1, kFloat, kSum, grown, NULL) == kInvalidUsage);
    OK(ncclCommDestroy(alone));
  } else {
    CHECK(ncclCommSuspend(grown, 0) == kInvalidUsage);
    while (state == kSuccess) OK(ncclCommGetAsyncError(grown, &state));
    CHECK(state == kRemoteError && says("rank 0")); /* PyTorch and NCCL's tests ask without a communicator */
    CHECK(strstr(ncclGetLastError(grown), "rank 0") != NULL);
  }
  OK(ncclCommAbort(grown));
  CHECK(ncclCommGetUniqueId(NULL, &id) == kInvalidArgument);
}

static void memory(ncclComm_t comm) {
  void *buffer = NULL, *registration = NULL, *pointer = NULL;
  ncclWindow_t window = NULL;
  uint64_t bytes = 0;
  OK(ncclMemAlloc(&buffer, 4096));
  OK(ncclCommRegister(comm, buffer, 4096, &registration));
  OK(ncclCommDeregister(comm, registration));
  CHECK(ncclCommDeregister(comm, registration) == kInvalidArgument);
  OK(ncclCommWindowRegister(comm, buffer, 4096, &window, 0));
  OK(ncclWinGetUserPtr(comm, window, &pointer));
  CHECK(pointer == buffer);
  OK(ncclCommWindowDeregister(comm, window));
  OK(ncclCommWindowDeregister(comm, NULL));
  window = (ncclWindow_t)&bytes; /* what is none */
  CHECK(ncclCommWindowRegister(comm, NULL, 4096, &window, 0) == kInvalidArgument && window == NULL);
  OK(ncclMemFree(buffer));
  for (int which = 2; which < 4; which++) { /* what stays, and all */
    bytes = 0;
    OK(ncclCommMemStats(comm, which, &bytes));
    CHECK(bytes > 0);
  }
  for (int which = 0; which < 2; which++) {
    bytes = 7;
    OK(ncclCommMemStats(comm, which, &bytes));
    CHECK(bytes == 0);
  }
  CHECK(ncclCommMemStats(comm, 4, &bytes) == kInvalidArgument && says("stat=4"));
}

static void simulate(ncclComm_t comm) {
  float value = 0;
  ncclSimInfo_t info = {sizeof info, NCCL_ABI_SIM_MAGIC, NCCL_ABI_VERSION, -1.0f}, wrong = {0};
  OK(ncclGroupStart());
  OK(ncclAllReduce(&value, &value, 1, kFloat, kSum, comm, NULL));
  OK(ncclGroupSimulateEnd(&info));
  CHECK(info.estimatedTime > 0);
  info.estimatedTime = 5;
  OK(ncclGroupStart());
  OK(ncclGroupStart());
  OK(ncclGroupSimulateEnd(&info));
  CHECK(info.estimatedTime == 5); /* a nested group has no estimate */
  OK(ncclGroupEnd());
  OK(ncclGroupStart()); /* the outermost one: that before is over */
  CHECK(ncclSignal(0, 0, 0, 0, comm, NULL) == kInvalidUsage);
  CHECK(ncclGroupEnd() == kInvalidUsage && says("ncclSignal"));
  OK(ncclGroupStart());
  CHECK(ncclGroupSimulateEnd(&wrong) == kInvalidArgument && says("NCCL_SIM_INFO_INITIALIZER"));
  CHECK(ncclGroupEnd() == kInvalidUsage); /* the group is over */
}

static void children(ncclComm_t comm, int rank) {
  int excluded[1] = {1}, count = 0, place = -1, device = 7;
  ncclComm_t part = NULL, left = NULL;
  ncclConfig_t config = new_config();
  ncclResult_t state = kInProgress;
  config.blocking = 0;
  CHECK(ncclCommSplit(comm, 0, -rank, &part, &config) == kInProgress);
  while (state == kInProgress) OK(ncclCommGetAsyncError(part, &state));
  OK(state);
  OK(ncclCommUserRank(part, &place));
  OK(ncclCommCount(part, &count));
  OK(ncclCommCuDevice(part, &device));
  CHECK(place == 1 - rank && count == 2 && device == -1);
  OK(ncclCommDestroy(part));
  OK(ncclCommSplit(comm, rank, 0, &part, NULL));
  OK(ncclCommCount(part, &count));
  CHECK(count == 1);
  OK(ncclCommDestroy(part));
  if (rank == 1) return;
  config.magic = 0;
  CHECK(ncclCommShrink(comm, excluded, 1, &left, &config, 0) == kInvalidArgument && says("NCCL_CONFIG_INITIALIZER"));
  CHECK(ncclCommShrink(comm, excluded, 1, &left, NULL, 2) == kInvalidArgument && says("shrinkFlags=2"));
  OK(ncclCommShrink(comm, excluded, 1, &left, NULL, 0));
  all_reduce(left, 0, 1);
  OK(ncclCommDestroy(left));
}

/* What Tutti does not have, by both names, and wrong calls: errors with a sentence. */
static void refusals(ncclComm_t comm) {
  void* at = NULL;
  ncclComm_t none = NULL;
  ncclUniqueId id, two[2];
  ncclConfig_t config = new_config();
  float value = 0, sum = 0;
  CHECK(ncclCommSuspend(comm, 0) == kInvalidUsage && says("ncclCommSuspend") && says("destroy the communicator"));
  CHECK(ncclSignal(0, 0, 0, 0, comm, NULL) == kInvalidUsage && says("ncclSend and ncclRecv"));
  CHECK(ncclParamBind(NULL, NULL) == kInvalidUsage && says("ncclParamBind"));
  CHECK(ncclDevCommCreate(comm, NULL, NULL) == kInvalidUsage && says("ncclDevCommCreate") && says("ncclAllReduce"));
  CHECK(ncclDevCommDestroy(comm, NULL) == kInvalidUsage && ncclCommQueryProperties(comm, NULL) == kInvalidUsage);
  CHECK(ncclTeamLsa(comm).nRanks == 1 && ncclTeamLsa(comm).rank == 0);
  CHECK(ncclTeamWorld(comm).nRanks == 2 && ncclTeamWorld(comm).stride == 1);
  CHECK(ncclGetLsaMultimemDevicePointer(NULL, 0, &at) == kInvalidUsage && says("ncclGetLsaMultimemDevicePointer"));
  ncclParamDumpAll();
  ncclResetDebugInit();
  CHECK(ncclAllReduce(&value, NULL, 1, kFloat, kSum, comm, NULL) == kInvalidArgument && says("recvbuff"));
  CHECK(ncclAllReduce(&value, &value, 1, 99, kSum, comm, NULL) == kInvalidArgument && says("99"));
  CHECK(ncclCommCount(comm, NULL) == kInvalidArgument && says("count is NULL"));
  config.magic = 0;
  OK(ncclGetUniqueId(&id));
  none = comm; /* what the program had there */
  CHECK(ncclCommInitRankConfig(&none, 1, id, 0, &config) == kInvalidArgument && says("NCCL_CONFIG_INITIALIZER"));
  CHECK(none == NULL);
  OK(ncclGroupStart());
  OK(ncclGroupStart());
  CHECK(ncclSignal(0, 0, 0, 0, comm, NULL) == kInvalidUsage);
  OK(ncclGroupEnd()); /* the outermost end tells of the first call that was wrong */
  CHECK(ncclCommInitRankConfig(&none, 1, id, 0, &config) == kInvalidArgument);
  CHECK(ncclGroupEnd() == kInvalidUsage && says("ncclSignal"));
  OK(ncclGroupStart());
  CHECK(ncclCommInitRankConfig(&none, 1, id, 0, &config) == kInvalidArgument);
  CHECK(ncclGroupEnd() == kInvalidArgument && says("NCCL_CONFIG_INITIALIZER"));
  config = new_config();
  config.size = offsetof(ncclConfig_t, blocking); /* before there was anything in it */
  OK(ncclGetUniqueId(&two[0]));
  CHECK(ncclCommInitRankConfig(&none, 1, two[0], 0, &config) == kInvalidArgument && none == NULL);
  config = new_config();
  config.blocking = 2;
  CHECK(ncclCommInitRankConfig(&none, 1, id, 0, &config) == kInvalidArgument && says("blocking=2"));
  config = new_config();
  config.size = offsetof(ncclConfig_t, cgaClusterSize); /* the first version's front */
  OK(ncclCommInitRankConfig(&none, 1, id, 0, &config));
  OK(ncclCommAbort(none));
  CHECK(ncclCommInitRankScalable(&none, 1, 0, 0, &id, NULL) == kInvalidArgument && says("nId=0"));
  CHECK(strcmp(ncclGetErrorString(kInvalidUsage), ncclGetErrorString(kSuccess)) != 0);
  OK(ncclGetUniqueId(&two[0]));
  two[1] = two[0];
  OK(ncclCommInitRankScalable(&none, 1, 0, 2, two, NULL));
  OK(ncclCommDestroy(none));
  value = 1;
  OK(ncclGroupStart());
  OK(ncclAllReduce(&value, &sum, 1, kFloat, kSum, comm, NULL));
  CHECK(ncclSignal(0, 0, 0, 0, comm, NULL) == kInvalidUsage);
  CHECK(ncclGroupEnd() == kInvalidUsage && says("ncclSignal") && sum == 0);
  OK(ncclCommFinalize(NULL)); /* as NCCL's: a rank without a color has it */
  OK(ncclCommRevoke(NULL, 0));
  OK(ncclCommAbort(NULL));
  OK(ncclCommDestroy(NULL));
}

static void profiler_names(void) {
  ncclResult_t (*get_version)(int*) = NULL;
  void* symbol = dlsym(RTLD_DEFAULT, "pncclGetVersion");
  int version = 0;
  CHECK(symbol != NULL && symbol == dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (symbol == NULL) return;
  memcpy(&get_version, &symbol, sizeof get_version);
  OK(get_version(&version));
  CHECK(version == NCCL_ABI_VERSION);
}

static void roots_and_operators(ncclComm_t comm, int rank) {
  float own = (float)(rank + 1), got[2] = {0};
  OK(ncclBroadcast(&own, got, 1, kFloat, 1, comm, NULL));
  CHECK(got[0] == 2);
  OK(ncclGather(&own, got, 1, kFloat, 1, comm, NULL));
  CHECK(rank == 0 || (got[0] == 1 && got[1] == 2));
  got[0] = (float)(10 * rank);
  got[1] = (float)(10 * rank + 1);
  OK(ncclScatter(got, &own, 1, kFloat, 1, comm, NULL));
  CHECK(own == (float)(10 + rank));
  OK(ncclAllReduce(&own, got, 1, kFloat, kMax, comm, NULL));
  CHECK(got[0] == 11);
  OK(ncclReduce(&own, got, 1, kFloat, kMax, 1, comm, NULL));
  CHECK(rank == 0 || got[0] == 11);
  got[0] = got[1] = own;
  OK(ncclReduceScatter(got, &own, 1, kFloat, kMax, comm, NULL));
  CHECK(own == 11);
  own = (float)rank;
  OK(ncclBcast(&own, 1, kFloat, 1, comm, NULL));
  CHECK(own == 1);
}

static void wait_for(ncclComm_t comm) {
  ncclResult_t state = kInProgress;
  while (state == kInProgress) OK(ncclCommGetAsyncError(comm, &state));
  OK(state);
}

/* One thread ends its ranks one after the other, as NCCL's examples do: also in a group, and in the background. */
static void endings(void) {
  ncclComm_t all[2] = {NULL, NULL}, parts[2] = {NULL, NULL};
  ncclConfig_t config = new_config();
  ncclUniqueId id;
  float value = 1;
  setenv("TUTTI_OP_TIMEOUT", "5", 1); /* what waits for the other rank fails */
  OK(ncclCommInitAll(all, 2, NULL));
  for (int r = 0; r < 2; r++) {
    OK(ncclCommFinalize(all[r]));
    CHECK(ncclAllReduce(&value, &value, 1, kFloat, kSum, all[r], NULL) == kInvalidUsage && says("finalized"));
    OK(ncclCommFinalize(all[r]));
    OK(ncclCommDestroy(all[r]));
  }
  OK(ncclCommInitAll(all, 2, NULL));
  OK(ncclGroupStart());
  OK(ncclCommFinalize(all[0]));
  OK(ncclGroupEnd());
  for (int r = 0; r < 2; r++) OK(ncclCommDestroy(all[r])); /* rank 1 without finalizing */
  config.blocking = 0;
  OK(ncclGetUniqueId(&id));
  for (int r = 0; r < 2; r++) CHECK(ncclCommInitRankConfig(&all[r], 2, id, r, &config) == kInProgress);
  for (int r = 0; r < 2; r++) wait_for(all[r]);
  config.blocking = NCCL_ABI_UNDEF_INT; /* with a config, nothing is inherited */
  OK(ncclGroupStart());
  for (int r = 0; r < 2; r++) OK(ncclCommSplit(all[r], 0, r, &parts[r], &config));
  OK(ncclGroupEnd());
  for (int r = 0; r < 2; r++) {
    OK(ncclCommFinalize(parts[r]));
    OK(ncclCommDestroy(parts[r]));
  }
  for (int r = 0; r < 2; r++) {
    CHECK(ncclCommFinalize(all[r]) == kInProgress);
    wait_for(all[r]);
    CHECK(ncclAllReduce(&value, &value, 1, kFloat, kSum, all[r], NULL) == kInvalidUsage && says("finalized"));
    OK(ncclCommDestroy(all[r]));
  }
  unsetenv("TUTTI_OP_TIMEOUT");
}

static int be_rank(int rank, ncclUniqueId id) {
  ncclComm_t comm = NULL, all[2] = {NULL, NULL};
  const ncclConfig_t good = new_config();
  ncclConfig_t config = good;
  alarm(60);
  OK(ncclCommInitRankConfig(&comm, kRanks, id, rank, rank == 0 ? &config : NULL));
  if (comm == NULL) return 1;
  CHECK(memcmp(&config, &good, sizeof config) == 0); /* it is the program's */
  all_reduce(comm, rank, kRanks);
  other_operations(comm, rank);
  roots_and_operators(comm, rank);
  configured_operations(comm, rank);
  encryption();
  growth(comm, rank);
  memory(comm);
  simulate(comm);
  children(comm, rank);
  refusals(comm);
  profiler_names();
  OK(ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));
  OK(ncclCommInitAll(all, 2, NULL));
  for (int r = 0; r < 2; r++) OK(ncclCommDestroy(all[r]));
  endings();
  return failures != 0;
}

int main(void) {
  int ends[2], status = 1, mine;
  ncclUniqueId id;
  pid_t child;
  if (pipe(ends) != 0 || (child = fork()) < 0) return 1;
  if (child == 0) {
    close(ends[1]);
    if (read(ends[0], &id, sizeof id) != (ssize_t)sizeof id) return 1;
    return be_rank(1, id);
  }
  OK(ncclGetUniqueId(&id));
  if (write(ends[1], &id, sizeof id) != (ssize_t)sizeof id) return 1;
  mine = be_rank(0, id);
  waitpid(child, &status, 0);
  printf("%s\n", mine == 0 && status == 0 ? "both ranks are right" : "wrong");
  return mine != 0 || status != 0;
}
