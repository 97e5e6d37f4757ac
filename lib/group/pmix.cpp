// A client of PMIx, which Open MPI's mpirun and `srun --mpi=pmix` serve. libpmix is loaded at run time, so that Tutti
// neither needs it to be built nor to run under other launchers; only what is called is declared.
// The library is reference-counted: an MPI_Init in the same process shares it.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "group/launcher_store.h"

namespace tutti {
namespace {

// The binary interface of PMIx 2 to 5, as far as it is used here.
struct PmixProc {
  char name_space[256];
  uint32_t rank;
};
struct PmixValue {
  uint16_t type;
  union {
    bool flag;
    char* string;
    int integer;
    struct {
      char* name;
      char* value;
      char separator;
    } largest;
  } data;
};
struct PmixInfo {
  char key[512];
  uint32_t flags;
  PmixValue value;
};
static_assert(sizeof(PmixProc) == 260 && sizeof(PmixValue) == 32 && sizeof(PmixInfo) == 552);

constexpr int kPmixSuccess = 0, kPmixTimeout = -24;
constexpr uint16_t kTypeBool = 1, kTypeString = 3, kTypeInt = 6;
constexpr uint8_t kScopeGlobal = 3;
constexpr uint32_t kRankWildcard = UINT32_MAX - 1;

template <class Function>
bool load(void* handle, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(handle, name));
  return *function != nullptr;
}

PmixInfo time_limit(Deadline deadline) {
  const int seconds = std::max(1, (deadline.left_ms(INT32_MAX - 999) + 999) / 1000);  // 0 would mean: no limit
  return {.key = "pmix.timeout", .flags = 0, .value = {.type = kTypeInt, .data = {.integer = seconds}}};
}

constexpr PmixInfo kCollectData{
    .key = "pmix.collect", .flags = 0, .value = {.type = kTypeBool, .data = {.flag = true}}};

// Never destroyed: exit handlers of other libraries may still be running.
struct PmixClient {
  pid_t pid = 0;  // of the process that has begun to speak to its launcher: a forked child does not speak for it
  PmixProc self{};

  int (*init)(PmixProc*, PmixInfo*, size_t) = nullptr;
  int (*put)(uint8_t, const char*, PmixValue*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence)(const PmixProc*, size_t, const PmixInfo*, size_t) = nullptr;
  int (*get)(const PmixProc*, const char*, const PmixInfo*, size_t, PmixValue**) = nullptr;
  int (*finalize)(const PmixInfo*, size_t) = nullptr;
  const char* (*error_string)(int) = nullptr;
};
PmixClient& g_pmix = *new PmixClient;

Result<void> load_pmix() {
  // Never unloaded: the library has threads of its own.
  void* handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    return Error{Code::kSystemError,
                 format("the launcher speaks PMIx, but libpmix.so.2 cannot be loaded (%s): install it, or set "
                        "TUTTI_RANK, TUTTI_NRANKS and TUTTI_ROOT",
                        dlerror())};
  if (load(handle, "PMIx_Init", &g_pmix.init) && load(handle, "PMIx_Put", &g_pmix.put) &&
      load(handle, "PMIx_Commit", &g_pmix.commit) && load(handle, "PMIx_Fence", &g_pmix.fence) &&
      load(handle, "PMIx_Get", &g_pmix.get) && load(handle, "PMIx_Finalize", &g_pmix.finalize) &&
      load(handle, "PMIx_Error_string", &g_pmix.error_string))
    return {};
  return Error{Code::kSystemError, "libpmix.so.2 lacks a function that PMIx has had since version 2"};
}

Result<void> check_pmix(const char* doing, int status) {
  if (status == kPmixSuccess) return {};
  return Error{status == kPmixTimeout ? Code::kTimeout : Code::kRemoteError,
               format("%s: %s (%d)%s", doing, g_pmix.error_string(status), status,
                      status == kPmixTimeout ? ": did every rank get here?" : "")};
}

// A process that has spoken to its launcher and ends without a farewell counts as crashed. A later MPI_Init and the
// next group need the connection, so the farewell is said at exit.
Result<void> start_pmix() {
  if (g_pmix.pid != 0) return {};
  TUTTI_TRY(load_pmix());
  TUTTI_TRY(check_pmix("PMIx_Init", g_pmix.init(&g_pmix.self, nullptr, 0)));
  g_pmix.pid = getpid();
  std::atexit([] {
    if (g_pmix.pid == getpid()) g_pmix.finalize(nullptr, 0);
  });
  return {};
}

}  // namespace

Result<UniqueId> share_by_pmix(const std::string& key, int rank, Deadline deadline) {
  const std::lock_guard lock(launcher_mutex());
  TUTTI_TRY(start_pmix());
  Result<UniqueId> made = UniqueId{};
  if (rank == 0) {
    made = start_root(deadline);
    std::string mine = to_published(made);
    PmixValue published{.type = kTypeString, .data = {.string = mine.data()}};
    TUTTI_TRY(check_pmix("PMIx_Put", g_pmix.put(kScopeGlobal, key.c_str(), &published)));
    TUTTI_TRY(check_pmix("PMIx_Commit", g_pmix.commit()));
  }
  PmixProc everyone = g_pmix.self, root = g_pmix.self;
  everyone.rank = kRankWildcard;
  root.rank = 0;
  const PmixInfo fence_info[2] = {kCollectData, time_limit(deadline)};
  TUTTI_TRY(check_pmix("PMIx_Fence", g_pmix.fence(&everyone, 1, fence_info, 2)));
  TUTTI_TRY(std::move(made));
  const PmixInfo get_info = time_limit(deadline);
  PmixValue* found = nullptr;
  TUTTI_TRY(check_pmix("PMIx_Get", g_pmix.get(&root, key.c_str(), &get_info, 1, &found)));
  const bool text = found->type == kTypeString && found->data.string != nullptr;
  const std::string result = text ? found->data.string : "";
  if (text) free(found->data.string);
  free(found);
  return from_published(result);
}

}  // namespace tutti
