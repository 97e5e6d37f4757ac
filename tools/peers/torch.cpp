// The module that torch_gloo.py loads: the driver of bench.h for a library that is called from Python.
#include "bench.h"

namespace {

struct Calls {
  void (*begin)(int rank, int n_ranks);
  void (*barrier)();
  void (*all_reduce)(const float* in, float* out, size_t elems);
};

class Python : public bench::Library {
 public:
  explicit Python(const Calls& calls) : calls_(calls) {}
  bool works_on_caller() const override { return false; }
  void barrier() override { calls_.barrier(); }
  void all_reduce(const float* in, float* out, size_t elems) override { calls_.all_reduce(in, out, elems); }

 private:
  const Calls& calls_;
};

}  // namespace

extern "C" int bench_main(int argc, char** argv, const Calls* calls) {
  const bench::Settings settings = bench::parse(argc, argv);
  return bench::run_forked(settings, [&](int rank) {
    bench::Meet meet(settings.meet, rank, settings.n_ranks);
    calls->begin(rank, settings.n_ranks);
    Python python(*calls);
    bench::measure(python, meet, settings);
  });
}
