// What ranks agree on: the outcome of a step, and that their models and options are the same.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "status.h"

namespace tutti::ddp {

// A communicator in host memory, and a rank's place in it. All functions here are collective and block.
struct Group {
  tuttiComm_t comm = nullptr;
  int rank = 0;
  int size = 1;
};

// `comm` must be in host memory.
Status find_group(tuttiComm_t comm, Group* group);

// A communicator of the same ranks in host memory, for the messages of ranks whose communicator is on a GPU. Creating
// and destroying it is collective.
struct EndTwin {
  void operator()(tuttiComm_t comm) const;
};
using HostTwin = std::unique_ptr<tuttiComm, EndTwin>;
Status make_twin(tuttiComm_t comm, HostTwin* twin);

// The outcome of a step on this rank: the first error, whichever thread meets it.
class Outcome {
 public:
  void note(const Status& status) {
    if (status) return;
    const std::lock_guard lock(mutex_);
    if (first_) first_ = status;
  }
  Status take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(first_, {});
  }

 private:
  std::mutex mutex_;
  Status first_;
};

// Success if `mine` is success on all ranks; otherwise, on all ranks, the error of the highest rank that has one. In
// the same exchange flags[i] becomes the maximum of all ranks' flags[i]. If the communicator fails, its error.
Status agree(const Group& group, const Status& mine, std::vector<int32_t>* flags = nullptr);

// Success if the lines are the same on all ranks, else an error with the first line that differs and each rank's text.
Status same_lines(const Group& group, const std::vector<std::string>& lines);

// Each rank's `mine` in the order of ranks.
Status gather(const Group& group, const std::vector<uint64_t>& mine, std::vector<uint64_t>* all);

// Uneven inputs (if joining is allowed): ranks that have input for a step lead it, those that have joined follow.
class Attendance {
 public:
  explicit Attendance(bool may_join) : may_join_(may_join) {}
  // Collective, before a step: `follows`: this rank has joined; `learns`: it leads, and does not know its graph yet.
  Status meet(const Group& group, bool follows, bool learns);
  bool follows() const { return follows_; }
  bool anybody_leads() const { return anybody_leads_; }
  bool anybody_learns() const { return anybody_learns_; }
  // The lowest rank that leads, or led last: its buffers and its order of gradients count.
  int leader() const { return leader_; }

 private:
  const bool may_join_;
  bool follows_ = false, anybody_leads_ = true, anybody_learns_ = false;
  int leader_ = 0;
};

// A fast hash for detecting that bytes differ.
uint64_t hash_bytes(const void* data, size_t bytes);

}  // namespace tutti::ddp
