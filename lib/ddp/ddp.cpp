// The C functions of an averager.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "agree.h"
#include "reducer.h"

using namespace tutti::ddp;  // NOLINT: this file is the boundary

struct tuttiDdp {};

namespace {

// The main thread's last_error is destroyed before static objects, whose destructors may still call these functions.
constinit thread_local bool last_error_is_gone = false;
struct LastError {
  std::string sentence;
  ~LastError() { last_error_is_gone = true; }
};
thread_local LastError last_error;

// The live handles: numbers that are given out once, so that a dead one does no harm. A call shares the ownership. A
// forked child has none of its parent's threads, and shares the gradients' memory with the parent, so `process` tells
// whose a handle is. The table is never destroyed: other threads may outlive main.
struct Owned {
  std::shared_ptr<Reducer> reducer;
  pid_t process = getpid();
};
struct Handles {
  std::mutex mutex;
  std::map<tuttiDdp_t, Owned> live;
  uintptr_t given = 1 << 20;
};

Handles& handles() {
  static auto* all = new Handles;
  return *all;
}

// The mutex is locked during a fork, so that a child can look up a handle and learn that it is the parent's. Installed
// when the library is loaded, because a first use may race with another thread's fork.
void unlock_handles() {
  handles().mutex.unlock();
}
[[maybe_unused]] const int held_while_forking =
    pthread_atfork([] { handles().mutex.lock(); }, unlock_handles, unlock_handles);

Status find(tuttiDdp_t handle, std::shared_ptr<Reducer>* reducer, bool erase = false) {
  if (handle == nullptr) return invalid_argument("ddp is NULL");
  const std::lock_guard lock(handles().mutex);
  const auto found = handles().live.find(handle);
  if (found == handles().live.end())
    return invalid_argument(text("ddp=%p is not a live handle", static_cast<void*>(handle)));
  if (found->second.process != getpid())
    return invalid_usage(
        text("ddp=%p belongs to the parent process, where it still works: a forked child has to make its own",
             static_cast<void*>(handle)));
  *reducer = found->second.reducer;
  if (erase) handles().live.erase(found);
  return {};
}

// Runs body(reducer) on a live handle.
template <class Body>
tuttiResult_t with(tuttiDdp_t handle, Body&& body) noexcept {
  return guarded([&]() -> Status {
    std::shared_ptr<Reducer> reducer;
    const Status found = find(handle, &reducer);
    return found ? body(*reducer) : found;
  });
}

// ---- creation ------------------------------------------------------------------------------------------------------

Status check_flags(const tuttiDdpConfig_t& config) {
  const struct {
    const char* name;
    int value;
  } flags[] = {{"broadcastBuffers", config.broadcastBuffers},
               {"findUnused", config.findUnused},
               {"staticGraph", config.staticGraph},
               {"rebuildBuckets", config.rebuildBuckets},
               {"overlap", config.overlap},
               {"joinable", config.joinable},
               {"errorFeedback", config.errorFeedback}};
  for (const auto& flag : flags)
    if (flag.value != 0 && flag.value != 1)
      return invalid_argument(text("config.%s=%d; it has to be 0 or 1", flag.name, flag.value));
  return {};
}

Status take_config(const tuttiDdpConfig_t* given, tuttiDdpConfig_t* config) {
  *config = TUTTI_DDP_CONFIG_INITIALIZER;
  if (given == nullptr) return {};
  if (given->magic != TUTTI_DDP_CONFIG_MAGIC || given->size < offsetof(tuttiDdpConfig_t, firstBucketBytes))
    return invalid_argument("config was not initialised; start from TUTTI_DDP_CONFIG_INITIALIZER");
  memcpy(config, given, std::min(given->size, sizeof *config));
  config->size = sizeof *config;
  const int compression = static_cast<int>(config->compression);
  if (compression < tuttiDdpAverage || compression > tuttiDdpFloat8e4m3)
    return invalid_argument(text("config.compression=%d is not one of tuttiDdpCompression_t", compression));
  if (config->checkEvery < 0)
    return invalid_argument(text("config.checkEvery=%d; it must not be negative", config->checkEvery));
  if (config->powerSgdRank < 1)
    return invalid_argument(text("config.powerSgdRank=%d; it has to be 1 or more", config->powerSgdRank));
  if (config->powerSgdStartStep < 0)
    return invalid_argument(text("config.powerSgdStartStep=%d; it must not be negative", config->powerSgdStartStep));
  return check_flags(*config);
}

Status take_all(const tuttiDdpTensor_t* given, size_t n, const char* what, int cuda_device, std::vector<Tensor>* out) {
  if (given == nullptr && n > 0)
    return invalid_argument(text("the array of %ss is NULL, but its length is %zu", what, n));
  try {
    out->resize(n);
  } catch (const std::exception&) {  // becomes an error that the other ranks are told
    return invalid_argument(text("%zu %ss are more than memory can hold", n, what));
  }
  for (size_t i = 0; i < n; i++)
    if (Status s = take_tensor(given, i, what, cuda_device, &(*out)[i]); !s) return s;
  return {};
}

// What must be the same on all ranks, the most informative lines first.
std::vector<std::string> lines_of(const Replica& replica) {
  const tuttiDdpConfig_t& c = replica.config;
  std::vector<std::string> lines;
  for (const Tensor& param : replica.params) lines.push_back(describe("parameter", lines.size(), param));
  for (size_t i = 0; i < replica.buffers.size(); i++) lines.push_back(describe("buffer", i, replica.buffers[i]));
  lines.push_back(text("firstBucketBytes=%zu, bucketCapBytes=%zu", c.firstBucketBytes, c.bucketCapBytes));
  lines.push_back(
      text("broadcastBuffers=%d, findUnused=%d, staticGraph=%d, rebuildBuckets=%d, joinable=%d, checkEvery=%d",
           c.broadcastBuffers, c.findUnused, c.staticGraph, c.rebuildBuckets, c.joinable, c.checkEvery));
  lines.push_back(
      text("compression=%d, powerSgdRank=%d, powerSgdStartStep=%d, powerSgdSeed=%llu, %s hook, errorFeedback=%d",
           static_cast<int>(c.compression), c.powerSgdRank, c.powerSgdStartStep,
           static_cast<unsigned long long>(c.powerSgdSeed), c.hook == nullptr ? "no" : "a", c.errorFeedback));
  return lines;
}

// An error of one rank alone is told to the others before they wait for that rank.
Status create(tuttiDdp_t* handle, tuttiComm_t comm, const tuttiDdpTensor_t* params, size_t n_params,
              const tuttiDdpTensor_t* buffers, size_t n_buffers, const tuttiDdpConfig_t* config) {
  if (handle == nullptr) return invalid_argument("ddp is NULL");
  *handle = nullptr;
  int cuda_device = -1;
  if (Status s = library(tuttiCommCuDevice(comm, &cuda_device)); !s) return s;
  Replica replica;
  if (cuda_device >= 0)
    if (Status s = make_twin(comm, &replica.twin); !s) return s;
  if (Status s = find_group(cuda_device < 0 ? comm : replica.twin.get(), &replica.group); !s) return s;
  replica.host = make_host_device(replica.group.comm);
  Status mine = take_config(config, &replica.config);
  if (mine) mine = take_all(params, n_params, "parameter", cuda_device, &replica.params);
  if (mine) mine = take_all(buffers, n_buffers, "buffer", cuda_device, &replica.buffers);
  if (mine && cuda_device >= 0) mine = make_cuda_device(comm, cuda_device, 2 * replica.params.size(), &replica.cuda);
  if (Status s = agree(replica.group, mine); !s) return s;
  if (Status s = same_lines(replica.group, lines_of(replica)); !s) return s;
  auto reducer = std::make_shared<Reducer>(std::move(replica));
  if (Status s = reducer->prepare(); !s) return s;
  const std::lock_guard lock(handles().mutex);
  auto* const made = reinterpret_cast<tuttiDdp_t>(++handles().given);
  handles().live[made] = {std::move(reducer)};
  *handle = made;
  return {};
}

}  // namespace

tuttiResult_t tutti::ddp::finish(const Status& status) {
  if (status) return tuttiSuccess;
  if (!last_error_is_gone) last_error.sentence = status.error().message;
  return status.error().code;
}

// A function that calls one of the averager's on a live handle: its name, that call, and its own parameters.
#define TUTTI_DDP_CALL(name, call, ...)                               \
  tuttiResult_t tuttiDdp##name(__VA_ARGS__) {                         \
    return with(ddp, [&](Reducer& reducer) { return reducer.call; }); \
  }

extern "C" {

tuttiResult_t tuttiDdpCreate(tuttiDdp_t* ddp, tuttiComm_t comm, const tuttiDdpTensor_t* params, size_t nparams,
                             const tuttiDdpTensor_t* buffers, size_t nbuffers, const tuttiDdpConfig_t* config) {
  return guarded([&] { return create(ddp, comm, params, nparams, buffers, nbuffers, config); });
}

tuttiResult_t tuttiDdpDestroy(tuttiDdp_t ddp) {
  return guarded([&]() -> Status {
    std::shared_ptr<Reducer> last;
    if (Status s = find(ddp, &last, true); !s) return s;
    // Other threads may still be in a short call, as for statistics. The last owner waits for the buckets: this thread.
    while (last.use_count() > 1) std::this_thread::yield();
    return {};
  });
}

const char* tuttiDdpGetLastError(void) {
  return last_error_is_gone ? "" : last_error.sentence.c_str();
}

TUTTI_DDP_CALL(Broadcast, broadcast(root), tuttiDdp_t ddp, int root)
TUTTI_DDP_CALL(BroadcastBuffers, broadcast_buffers(root), tuttiDdp_t ddp, int root)
TUTTI_DDP_CALL(Gradient, gradient(index, grad), tuttiDdp_t ddp, size_t index, void** grad)
TUTTI_DDP_CALL(ZeroGradients, zero_gradients(), tuttiDdp_t ddp)
TUTTI_DDP_CALL(SetStream, set_stream(stream), tuttiDdp_t ddp, tuttiStream_t stream)
TUTTI_DDP_CALL(Begin, begin(), tuttiDdp_t ddp)
TUTTI_DDP_CALL(MarkReady, mark(index, Mark::kReady), tuttiDdp_t ddp, size_t index)
TUTTI_DDP_CALL(MarkUnused, mark(index, Mark::kUnused), tuttiDdp_t ddp, size_t index)
TUTTI_DDP_CALL(Wait, wait(), tuttiDdp_t ddp)
TUTTI_DDP_CALL(NoSyncBegin, enter_no_sync(), tuttiDdp_t ddp)
TUTTI_DDP_CALL(NoSyncEnd, leave_no_sync(), tuttiDdp_t ddp)
TUTTI_DDP_CALL(Join, join(), tuttiDdp_t ddp)

tuttiResult_t tuttiDdpGetStats(tuttiDdp_t ddp, tuttiDdpStats_t* stats) {
  return with(ddp, [&](Reducer& reducer) -> Status {
    if (stats == nullptr) return invalid_argument("stats is NULL");
    if (stats->size < sizeof *stats)
      return invalid_argument(text("stats->size=%zu; start from TUTTI_DDP_STATS_INITIALIZER", stats->size));
    *stats = reducer.stats();
    return {};
  });
}

}  // extern "C"
