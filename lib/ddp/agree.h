// What ranks settle among themselves: the outcome of a step, and that they mean the same.
#pragma once

#include <cstdint>
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
// The CUDA device that `comm` is on; -1: in host memory.
Status find_device(tuttiComm_t comm, int* device);

// For the words of those whose communicator is on a GPU: the same ranks in host memory. Making and ending it is
// collective.
class HostTwin {
 public:
  HostTwin() = default;
  HostTwin(HostTwin&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  HostTwin& operator=(HostTwin&&) = delete;
  ~HostTwin();
  Status make(tuttiComm_t comm);
  tuttiComm_t comm() const { return comm_; }

 private:
  tuttiComm_t comm_ = nullptr;
};

// Success if `mine` is one on all ranks; else the error of the highest rank that has one, on all ranks. By the way,
// flags[i] becomes the largest of all ranks' flags[i]. If the communicator fails, its error.
Status agree(const Group& group, const Status& mine, std::vector<int32_t>* flags = nullptr);

// The lines are the same on all ranks, or an error with the first line that differs and who has what.
Status same_lines(const Group& group, const std::vector<std::string>& lines);

// Each rank's `mine` in the order of ranks.
Status gather(const Group& group, const std::vector<uint64_t>& mine, std::vector<uint64_t>* all);

// A fast hash for finding out that bytes differ.
uint64_t hash_bytes(const void* data, size_t bytes);

}  // namespace tutti::ddp
