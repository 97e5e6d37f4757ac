// This header: what a communicator does for its GPU's side. Any thread: each waits for its turn among the operations.
#pragma once

#include "cuda/device.h"

namespace tutti {

class Communicator;

class GpuHost final : public cuda::Host {
 public:
  explicit GpuHost(Communicator& comm) : comm_(comm) {}
  int rank() const override;
  int n_ranks() const override;
  int host_of(int rank) const override;
  Algo forced_algo() const override;
  Result<void> run_on_host(const Operation& operation) override;
  Result<void> check_direct(const void* memory, size_t bytes) override;
  void forget_direct() override;
  Result<void> connect_direct() override;
  Result<void> move_directly(const Operation& operation, const std::vector<Message>& messages) override;
  bool broken() override;
  int wake_fd() override;
  Error breakage() override;
  Result<void> check_open() override;
  void break_with(const Error& error) override;
  const Recorder& recorder() override;
  double operation_limit_seconds() override;

 private:
  Communicator& comm_;
};

}  // namespace tutti
