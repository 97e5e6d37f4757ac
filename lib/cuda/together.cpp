// All ranks are threads of one process and share one GPU. Nothing guarantees that kernels of different
// streams run side by side, so no kernel may wait for another one: one kernel serves all ranks (household.h), reads all
// inputs and writes all outputs where they lie.
#include "cuda/household.h"
#include "cuda/launcher.h"
#include "cuda/programs.h"
#include "cuda/ways.h"

namespace tutti::cuda {
namespace {

// The launches of one group, made by one rank at a time.
class Launches {
 public:
  Launches(Port& port, const DeviceInfo& info, int n_ranks, Algo algo)
      : port_(port), info_(info), algo_(algo), programs_(port, n_ranks, info.multiprocessors) {}

  Result<void> launch(const Arrivals& everyone, StreamRef stream) {
    return interprets(everyone[0].operation, algo_) ? launch_program(everyone, stream) : launch_jobs(everyone, stream);
  }

 private:
  // The schedule that the user wants, instead of one that needs no messages.
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
    const auto n_ranks = static_cast<int>(everyone.size());
    Launcher launcher(port_, info_, operation, stream);
    if (operation.op == RedOp::kPreMulSum && traits(operation.collective).reduces)
      for (int r = 0; r < n_ranks; r++) launcher.scale(r, everyone[static_cast<size_t>(r)].operation);
    for (const Move& move : moves_of(operation, n_ranks))
      TUTTI_TRY(add_move(launcher, everyone, move, {0, move.elems}));
    return launcher.launch();
  }

  Port& port_;
  const DeviceInfo info_;
  const Algo algo_;
  SharedPrograms programs_;
};

class Together final : public Way {
 public:
  Together(Host& host, std::shared_ptr<Household> household, std::shared_ptr<Launches> launches)
      : n_ranks_(host.n_ranks()), resident_(std::move(household), host.rank()), launches_(std::move(launches)) {}

  const char* name() const override { return "by one kernel for all ranks"; }
  bool waits_unseen() const override { return true; }
  bool takes(const Operation& operation) const override {
    return operation.collective != Collective::kSendRecv && n_ranks_ <= kMaxPlaces;
  }
  Result<bool> tell(const Operation& operation) override { return resident_.pass(operation); }
  Result<bool> meet(const Operation& operation, const Turn& turn) override { return resident_.meet(operation, turn); }
  Result<void> submit(const Operation&, const Turn&) override {
    return resident_.enqueue(
        [this](const Arrivals& everyone, StreamRef stream) { return launches_->launch(everyone, stream); });
  }
  EventRef end() const override { return resident_.end(); }
  std::optional<uint64_t> called_by(int rank) const override { return resident_.called_by(rank); }

 private:
  const int n_ranks_;
  Resident resident_;
  const std::shared_ptr<Launches> launches_;
};

}  // namespace

std::unique_ptr<Way> make_together(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Household> household,
                                   const std::string& name) {
  auto launches = find_shared<Launches>(
      name, [&] { return std::make_shared<Launches>(port, info, host.n_ranks(), host.forced_algo()); });
  return std::make_unique<Together>(host, std::move(household), std::move(launches));
}

}  // namespace tutti::cuda
