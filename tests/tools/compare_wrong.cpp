// A library whose all-reduce may be wrong, under the driver of tools/compare, which must find the mistake.
//   --variant right     nothing
//   --variant last      the last element, always
//   --variant stale     from the tenth operation on the output is not written
#include "../../tools/peers/bench.h"

namespace {

// One rank, so the sum is the input.
class Suspect : public bench::Library {
 public:
  explicit Suspect(std::string fault) : fault_(std::move(fault)) {}
  void barrier() override {}
  void all_reduce(const float* in, float* out, size_t elems) override {
    operations_++;
    if (fault_ == "stale" && operations_ > 10) return;
    for (size_t i = 0; i < elems; i++) out[i] = in[i];
    if (fault_ == "last") out[elems - 1] += 1;
  }

 private:
  std::string fault_;
  long operations_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Settings settings = bench::parse(argc, argv);
  return bench::run_forked(settings, [&](int rank) {
    bench::Meet meet(settings.meet, rank, settings.n_ranks);
    Suspect suspect(settings.variant);
    bench::measure(suspect, meet, settings);
  });
}
