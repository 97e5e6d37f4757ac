// Tutti under the driver of bench.h. --transport shm|tcp, --variant registered for buffers of tuttiMemAlloc, --expect
// the path of the libtutti.so that must be measured.
#include <dlfcn.h>
#include <tutti/tutti.h>

#include <filesystem>

#include "bench.h"

namespace {

void check(tuttiResult_t result) {
  if (result == tuttiSuccess) return;
  bench::fail(std::string("tutti: ") + tuttiGetErrorString(result) + ": " + tuttiGetLastError(nullptr));
}

// The loader silently uses another library if it cannot use the one that the environment names.
void require_library(const std::string& path) {
  Dl_info info = {};
  void* const function = dlsym(RTLD_DEFAULT, "tuttiAllReduce");
  if (function == nullptr || dladdr(function, &info) == 0) bench::fail("no libtutti.so is loaded");
  std::error_code error;
  if (!std::filesystem::equivalent(path, info.dli_fname, error))
    bench::fail(std::string("would measure ") + info.dli_fname + " instead of " + path);
}

class Tutti : public bench::Library {
 public:
  Tutti(bench::Meet& meet, const bench::Settings& settings) : registered_(settings.variant == "registered") {
    tuttiUniqueId id = {};
    if (meet.rank() == 0) check(tuttiGetUniqueId(&id));
    meet.share(&id, sizeof id);
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    if (!settings.transport.empty()) config.transports = settings.transport.c_str();
    check(tuttiCommInitRankConfig(&comm_, meet.n_ranks(), id, meet.rank(), &config));
  }
  Tutti(const Tutti&) = delete;
  Tutti& operator=(const Tutti&) = delete;
  ~Tutti() override { check(tuttiCommDestroy(comm_)); }

  void barrier() override { check(tuttiBarrier(comm_, nullptr)); }
  void all_reduce(const float* in, float* out, size_t elems) override {
    check(tuttiAllReduce(in, out, elems, tuttiFloat32, tuttiSum, comm_, nullptr));
  }
  void broadcast(float* data, size_t elems) override {
    check(tuttiBcast(data, elems, tuttiFloat32, 0, comm_, nullptr));
  }
  void all_gather(const float* in, float* out, size_t elems_per_rank) override {
    check(tuttiAllGather(in, out, elems_per_rank, tuttiFloat32, comm_, nullptr));
  }
  void reduce_scatter(const float* in, float* out, size_t elems_per_rank) override {
    check(tuttiReduceScatter(in, out, elems_per_rank, tuttiFloat32, tuttiSum, comm_, nullptr));
  }
  void reduce(const float* in, float* out, size_t elems) override {
    check(tuttiReduce(in, out, elems, tuttiFloat32, tuttiSum, 0, comm_, nullptr));
  }
  void all_to_all(const float* in, float* out, size_t elems_per_rank) override {
    check(tuttiAlltoAll(in, out, elems_per_rank, tuttiFloat32, comm_, nullptr));
  }
  float* allocate(size_t bytes) override {
    if (!registered_) return Library::allocate(bytes);
    void* memory = nullptr;
    check(tuttiMemAlloc(&memory, bytes));
    return static_cast<float*>(memory);
  }

 private:
  bool registered_;
  tuttiComm_t comm_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Settings settings = bench::parse(argc, argv);
  if (!settings.expect.empty()) require_library(settings.expect);
  return bench::run_forked(settings, [&](int rank) {
    bench::Meet meet(settings.meet, rank, settings.n_ranks);
    Tutti tutti(meet, settings);
    bench::measure(tutti, meet, settings);
  });
}
