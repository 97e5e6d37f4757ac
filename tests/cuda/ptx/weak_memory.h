// Memory of several devices as weak as PTX allows, and grids on it whose threads take turns at random, from a seed.
//
// A store waits in its block, then in its device, and arrives in memory in any order, except that stores to one address
// stay in order; a vector's elements arrive separately. A release at a scope first performs there what is ordered
// before it: the thread's own stores and those that barriers order before them. A load may return an old value, but
// none older than what the thread, or one ordered before it, has already seen at that address, or has acquired.
#pragma once

#include <deque>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "machine.h"

namespace tutti_test::ptx {

class WeakMemory final : public Memory {
 public:
  explicit WeakMemory(uint32_t seed);

  uint64_t load(const Warp& warp, uint32_t lane, const Instruction& i, uint64_t at) override;
  void store(const Warp& warp, uint32_t lane, const Instruction& i, uint64_t at, uint64_t value) override;
  void settle(const Warp& warp, uint64_t at, uint64_t bytes) override;
  void barrier(const Block& block) override;

  // Moves some stores on.
  void move_on();
  // A grid has ended: its stores arrive.
  void finish(const Grid& grid);

 private:
  struct Store {
    uint64_t at, value;
    uint32_t bytes, thread, barriers;
    const Block* block;
  };
  using Queue = std::vector<Store>;
  struct BlockState {
    Queue queue;
    std::vector<uint64_t> acquired;                            // by thread: no older value is visible to it
    std::unordered_map<uint64_t, uint64_t> written;            // by word: the time of this block's last store
    std::vector<std::unordered_map<uint64_t, uint64_t>> seen;  // by thread and word
  };
  struct Change {
    uint64_t at, before, when;
    uint32_t bytes;
  };

  BlockState& state_of(const Block& block);
  void arrive(const Store& store);
  void pass(BlockState& state, size_t i);
  void pass_any(Queue* queue, BlockState* state);
  uint64_t oldest_allowed(BlockState& state, uint32_t thread, uint64_t at);
  uint64_t memory_at(uint64_t when, uint64_t at, uint32_t bytes) const;

  std::mt19937 random_;
  uint32_t moves_of_100_;
  uint64_t now_ = 1;
  std::unordered_map<const Block*, BlockState> blocks_;
  std::vector<const Block*> order_;  // in order of arrival, so that only the seed matters
  std::unordered_map<uint32_t, Queue> devices_;
  std::deque<Change> changes_;
};

// Runs each rank's grids one after the other, all ranks concurrently; each grid names its device. Returns the fault, or
// that there is no end; empty if all went well.
std::string run_at_random(std::vector<std::vector<Grid*>> ranks, uint32_t seed);

}  // namespace tutti_test::ptx
