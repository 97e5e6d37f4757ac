// What ranks settle among themselves: the outcome of a step, and that they mean the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "status.h"

namespace tutti::ddp {

// A rank's place. All functions here are collective and block.
struct Group {
  tuttiComm_t comm = nullptr;
  int rank = 0;
  int size = 1;
};

Status find_group(tuttiComm_t comm, Group* group);

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
