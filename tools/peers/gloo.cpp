// Gloo under the driver of bench.h, over TCP: between hosts, or on the loopback interface, since Gloo has nothing else
// within one machine. --variant ring, bcube or halving_doubling.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/stat.h>

#include <cstring>
#include <exception>
#include <memory>

#include "bench.h"

namespace {

using Algorithm = gloo::AllreduceOptions::Algorithm;

class Gloo : public bench::Library {
 public:
  Gloo(const bench::Meet& meet, const bench::Settings& settings) : variant_(settings.variant) {
    gloo::transport::tcp::attr where;
    if (settings.network.empty())
      where.hostname = "127.0.0.1";
    else
      where.iface = bench::kInterface;
    const std::string folder = settings.meet + ".gloo";
    mkdir(folder.c_str(), 0700);  // the first rank makes it
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(meet.rank(), meet.n_ranks());
    auto device = gloo::transport::tcp::CreateDevice(where);
    context->connectFullMesh(store, device);
    context_ = context;
  }

  bool works_on_caller() const override { return false; }

  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  void all_reduce(const float* in, float* out, size_t elems) override {
    const bool has_blocks = elems >= static_cast<size_t>(context_->size);
    if (variant_ == "halving_doubling" && has_blocks) return halving_doubling(in, out, elems);
    gloo::AllreduceOptions options(context_);
    options.setInput(const_cast<float*>(in), elems);
    options.setOutput(out, elems);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setAlgorithm(variant_ == "bcube" ? Algorithm::BCUBE : Algorithm::RING);
    gloo::allreduce(options);
  }

  void broadcast(float* data, size_t elems) override {
    gloo::BroadcastOptions options(context_);
    options.setRoot(0);
    options.setOutput(data, elems);
    gloo::broadcast(options);
  }

  void all_gather(const float* in, float* out, size_t elems_per_rank) override {
    gloo::AllgatherOptions options(context_);
    options.setInput(const_cast<float*>(in), elems_per_rank);
    options.setOutput(out, elems_per_rank * static_cast<size_t>(context_->size));
    gloo::allgather(options);
  }

  void reduce(const float* in, float* out, size_t elems) override {
    gloo::ReduceOptions options(context_);
    options.setRoot(0);
    options.setInput(const_cast<float*>(in), elems);
    options.setOutput(out, elems);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::reduce(options);
  }

  void all_to_all(const float* in, float* out, size_t elems_per_rank) override {
    gloo::AlltoallOptions options(context_);
    options.setInput(const_cast<float*>(in), elems_per_rank * static_cast<size_t>(context_->size));
    options.setOutput(out, elems_per_rank * static_cast<size_t>(context_->size));
    gloo::alltoall(options);
  }

 private:
  // In place only, and prepared for one buffer and count; all ranks must prepare it together.
  void halving_doubling(const float* in, float* out, size_t elems) {
    if (out != prepared_out_ || elems != prepared_elems_) {
      prepared_.reset();
      prepared_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context_, std::vector<float*>{out},
                                                                          static_cast<int>(elems));
      prepared_out_ = out;
      prepared_elems_ = elems;
    }
    memcpy(out, in, elems * sizeof(float));
    prepared_->run();
  }

  std::string variant_;
  std::shared_ptr<gloo::Context> context_;
  std::unique_ptr<gloo::AllreduceHalvingDoubling<float>> prepared_;
  float* prepared_out_ = nullptr;
  size_t prepared_elems_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Settings settings = bench::parse(argc, argv);
  return bench::run_forked(settings, [&](int rank) {
    try {
      bench::Meet meet(settings.meet, rank, settings.n_ranks);
      Gloo gloo(meet, settings);
      bench::measure(gloo, meet, settings);
    } catch (const std::exception& error) {
      bench::fail(std::string("gloo: ") + error.what());
    }
  });
}
