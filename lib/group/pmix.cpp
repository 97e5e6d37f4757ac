#include "group/pmix.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

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

}  // namespace

struct Pmix::Library {
  int (*init)(PmixProc*, PmixInfo*, size_t);
  int (*put)(uint8_t, const char*, PmixValue*);
  int (*commit)();
  int (*fence)(const PmixProc*, size_t, const PmixInfo*, size_t);
  int (*get)(const PmixProc*, const char*, const PmixInfo*, size_t, PmixValue**);
  int (*finalize)(const PmixInfo*, size_t);
  const char* (*error_string)(int);

  static Result<const Library*> open();
};

Result<const Pmix::Library*> Pmix::Library::open() {
  // Never unloaded: the library has threads of its own.
  void* handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    return Error{Code::kSystemError,
                 format("the launcher speaks PMIx, but libpmix.so.2 cannot be loaded (%s): install it, or set "
                        "TUTTI_RANK, TUTTI_NRANKS and TUTTI_ROOT",
                        dlerror())};
  static Library library;
  if (load(handle, "PMIx_Init", &library.init) && load(handle, "PMIx_Put", &library.put) &&
      load(handle, "PMIx_Commit", &library.commit) && load(handle, "PMIx_Fence", &library.fence) &&
      load(handle, "PMIx_Get", &library.get) && load(handle, "PMIx_Finalize", &library.finalize) &&
      load(handle, "PMIx_Error_string", &library.error_string))
    return &library;
  return Error{Code::kSystemError, "libpmix.so.2 lacks a function that PMIx has had since version 2"};
}

Error Pmix::failed(const char* doing, int status) const {
  return Error{status == kPmixTimeout ? Code::kTimeout : Code::kRemoteError,
               format("%s: %s (%d)%s", doing, library_->error_string(status), status,
                      status == kPmixTimeout ? ": did every rank get here?" : "")};
}

Result<Pmix> Pmix::init() {
  TUTTI_TRY_ASSIGN(const Library* library, Library::open());
  Pmix pmix(library);
  PmixProc self{};
  const int status = library->init(&self, nullptr, 0);
  if (status != kPmixSuccess) return pmix.failed("PMIx_Init", status);
  memcpy(pmix.name_space_, self.name_space, sizeof pmix.name_space_);
  return pmix;
}

Result<std::string> Pmix::share(const std::string& key, const std::string& value, int rank, Deadline deadline) {
  if (rank == 0) {
    std::string copy = value;
    PmixValue published{.type = kTypeString, .data = {.string = copy.data()}};
    if (const int s = library_->put(kScopeGlobal, key.c_str(), &published); s != kPmixSuccess)
      return failed("PMIx_Put", s);
    if (const int s = library_->commit(); s != kPmixSuccess) return failed("PMIx_Commit", s);
  }
  PmixProc everyone{}, root{};
  memcpy(everyone.name_space, name_space_, sizeof name_space_);
  everyone.rank = kRankWildcard;
  const PmixInfo fence_info[2] = {kCollectData, time_limit(deadline)};
  if (const int s = library_->fence(&everyone, 1, fence_info, 2); s != kPmixSuccess) return failed("PMIx_Fence", s);

  memcpy(root.name_space, name_space_, sizeof name_space_);
  const PmixInfo get_info = time_limit(deadline);
  PmixValue* found = nullptr;
  if (const int s = library_->get(&root, key.c_str(), &get_info, 1, &found); s != kPmixSuccess)
    return failed("PMIx_Get", s);
  const bool text = found->type == kTypeString && found->data.string != nullptr;
  std::string result = text ? found->data.string : "";
  if (text) free(found->data.string);
  free(found);
  return result;
}

void Pmix::finalize() {
  library_->finalize(nullptr, 0);
}

}  // namespace tutti
