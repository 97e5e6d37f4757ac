// This header: collects jobs and launches them, as many at a time as a kernel's argument holds. Belongs to one thread.
#pragma once

#include <cstring>
#include <vector>

#include "cuda/port.h"
#include "exec/operation.h"

namespace tutti::cuda {

class Launcher {
 public:
  Launcher(Port& port, const DeviceInfo& info, const Operation& operation, StreamRef stream)
      : port_(port), info_(info), stream_(stream) {
    empty_.dtype = operation.dtype;
    empty_.op = operation.op == RedOp::kPreMulSum ? RedOp::kSum : operation.op;
    list_ = empty_;
  }

  // From now on the s-th source of every job is multiplied by the operation's scalar.
  void scale(int s, const Operation& operation) {
    empty_.scaled = true;
    Scale& scale = empty_.scales[s];
    scale.at = operation.scalar_at;
    memcpy(&scale.bits, operation.scalar.data(), sizeof scale.bits);
    list_ = empty_;
  }

  // The jobs are not begun any more once the word is set.
  void stop_at(const uint32_t* word) { list_.stop = empty_.stop = word; }

  Result<void> add(uint64_t elems, uint32_t divisor, const std::vector<const void*>& src,
                   const std::vector<void*>& dst) {
    if (elems == 0 || dst.empty()) return {};
    const auto add = [&] {
      return list_.add(elems, divisor, src.data(), static_cast<int>(src.size()), dst.data(),
                       static_cast<int>(dst.size()));
    };
    if (add()) return {};
    TUTTI_TRY(launch());
    add();  // an empty list has room for any job
    return {};
  }

  Result<void> launch() {
    if (list_.n_jobs == 0) return {};
    finish_list(list_, info_.multiprocessors);
    TUTTI_TRY(port_.run(list_, stream_));
    list_ = empty_;
    return {};
  }

 private:
  Port& port_;
  const DeviceInfo& info_;
  StreamRef stream_;
  JobList empty_, list_;
};

}  // namespace tutti::cuda
