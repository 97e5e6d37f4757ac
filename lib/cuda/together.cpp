// All ranks are threads of one process and share one GPU. Nothing guarantees that kernels of different streams run
// concurrently, so no kernel may wait for another one: one kernel serves all ranks (device_group.h), reads all inputs
// and writes all outputs where they lie.
#include "cuda/device_group.h"
#include "cuda/launcher.h"
#include "cuda/programs.h"
#include "cuda/ways.h"

namespace tutti::cuda {
namespace {

class Together final : public Way {
 public:
  Together(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<DeviceGroup> device_group)
      : port_(port),
        info_(info),
        n_ranks_(host.n_ranks()),
        algo_(host.forced_algo()),
        member_(std::move(device_group), host.rank()),
        programs_(port, n_ranks_, info.multiprocessors) {}

  const char* name() const override { return "by one kernel for all ranks"; }
  bool waits_unseen() const override { return true; }
  bool takes(const Operation& operation) const override {
    return operation.collective != Collective::kSendRecv && n_ranks_ <= kMaxPlaces;
  }
  Attendee* others() override { return &member_.attendee(); }
  Result<bool> meet(const Operation& operation, const Turn& turn) override { return member_.meet(operation, turn); }
  bool withdraw(const Error& why) override { return member_.withdraw(why); }
  Result<void> submit(const Operation& operation, const Turn&) override {
    return member_.enqueue([&](const Arrivals& everyone, StreamRef stream) {
      return interprets(operation, algo_) ? launch_program(everyone, stream) : launch_jobs(everyone, stream);
    });
  }
  EventRef end() const override { return member_.end(); }

 private:
  // The schedule that the user has forced, instead of one that needs no messages.
  Result<void> launch_program(const Arrivals& everyone, StreamRef stream) {
    TUTTI_TRY_ASSIGN(ProgramCall call, programs_.find(everyone[0].operation, algo_));
    for (size_t r = 0; r < everyone.size(); r++) {
      call.inputs[r] = everyone[r].operation.input;
      call.outputs[r] = everyone[r].operation.output;
    }
    return port_.run(call, stream);
  }

  Result<void> launch_jobs(const Arrivals& everyone, StreamRef stream) {
    const Operation& operation = everyone[0].operation;
    Launcher launcher(port_, info_, operation, stream);
    if (operation.op == RedOp::kPreMulSum && traits(operation.collective).reduces)
      for (int r = 0; r < n_ranks_; r++) launcher.scale(r, everyone[static_cast<size_t>(r)].operation);
    for (const Move& move : moves_of(operation, n_ranks_))
      TUTTI_TRY(add_move(launcher, everyone, move, {0, move.elems}));
    return launcher.launch();
  }

  Port& port_;
  const DeviceInfo info_;
  const int n_ranks_;
  const Algo algo_;
  DeviceGroupMember member_;
  SharedPrograms programs_;  // of the rank that enqueues for all
};

}  // namespace

std::unique_ptr<Way> make_together(Host& host, Port& port, const DeviceInfo& info,
                                   std::shared_ptr<DeviceGroup> device_group) {
  return std::make_unique<Together>(host, port, info, std::move(device_group));
}

}  // namespace tutti::cuda
