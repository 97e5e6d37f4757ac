// What ranks settle among themselves: the outcome of a step, and that they mean the same.
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

// `comm` is in host memory.
Status find_group(tuttiComm_t comm, Group* group);

// For the words of those whose communicator is on a GPU: the same ranks in host memory. Making and ending it is
// collective.
struct EndTwin {
  void operator()(tuttiComm_t comm) const;
};
using HostTwin = std::unique_ptr<tuttiComm, EndTwin>;
Status make_twin(tuttiComm_t comm, HostTwin* twin);

// How a step goes on this rank: the first error, whichever thread meets it.
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

// Success if `mine` is one on all ranks; else the error of the highest rank that has one, on all ranks. By the way,
// flags[i] becomes the largest of all ranks' flags[i]. If the communicator fails, its error.
Status agree(const Group& group, const Status& mine, std::vector<int32_t>* flags = nullptr);

// The lines are the same on all ranks, or an error with the first line that differs and who has what.
Status same_lines(const Group& group, const std::vector<std::string>& lines);

// Each rank's `mine` in the order of ranks.
Status gather(const Group& group, const std::vector<uint64_t>& mine, std::vector<uint64_t>* all);

// Uneven inputs: of those that may join, the ranks that have input for a step lead it, and those that have joined
// follow.
class Attendance {
 public:
  explicit Attendance(bool may_join) : may_join_(may_join) {}
  // Before a step: whether this rank follows, and if not, whether it has yet to learn its graph.
  Status meet(const Group& group, bool follows, bool learns);
  bool follows() const { return follows_; }
  bool anybody_leads() const { return anybody_leads_; }
  bool anybody_learns() const { return anybody_learns_; }
  // The lowest of those that lead, or led last: its buffers and its order of gradients count.
  int leader() const { return leader_; }

 private:
  const bool may_join_;
  bool follows_ = false, anybody_leads_ = true, anybody_learns_ = false;
  int leader_ = 0;
};

// A fast hash for finding out that bytes differ.
uint64_t hash_bytes(const void* data, size_t bytes);

}  // namespace tutti::ddp
