// Running grids of a kernel (code.h). All device memory belongs to this process, at the same addresses.
//
// Threading: a grid belongs to one thread; grids of several threads may exchange data as kernels of several GPUs do.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "code.h"

namespace tutti_test::ptx {

struct Block;
struct Grid;

// Memory that a launch may read, or also write.
struct Range {
  uint64_t begin = 0, end = 0;
};

class Ranges {
 public:
  void add(const void* begin, uint64_t bytes);
  // Call it after the last range, before contain().
  void finish();
  bool contain(uint64_t at, uint64_t bytes);

 private:
  std::vector<Range> all_;
  size_t last_ = 0;
};

// Where accesses to global memory go unless they access memory directly: it may delay and reorder them.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual uint64_t load(const Warp& warp, uint32_t lane, const Instruction& i, uint64_t at) = 0;
  virtual void store(const Warp& warp, uint32_t lane, const Instruction& i, uint64_t at, uint64_t value) = 0;
  // Called before an atomic operation on memory itself.
  virtual void settle(const Warp& warp, uint64_t at, uint64_t bytes) = 0;
  // Called when all threads of a block have reached a barrier.
  virtual void barrier(const Block& block) = 0;
};

// Threads of a warp at the same instruction.
struct Group {
  uint32_t at = 0, lanes = 0;
};

struct Warp {
  Block* block = nullptr;
  const Kernel* kernel = nullptr;
  char* registers = nullptr;
  uint32_t first_thread = 0;
  uint32_t lanes = 0;    // that execute the current instruction
  uint32_t waiting = 0;  // at a barrier
  uint32_t living = 0;
  uint32_t barrier_at = 0;
  std::vector<Group> groups;  // those that can continue

  template <class Cell>
  Cell* row(const Operand& o) const {
    const char* const base = o.is_constant ? kernel->constants.data() : registers;
    return reinterpret_cast<Cell*>(const_cast<char*>(base) + (sizeof(Cell) == 4 ? o.narrow_at : o.at));
  }
  template <class Does>
  void each_lane(Does&& does) const {
    if (lanes == ~0u) {
#pragma GCC ivdep
      for (uint32_t lane = 0; lane < kLanes; lane++) does(lane);
    } else {
      for (uint32_t left = lanes; left != 0; left &= left - 1) does(static_cast<uint32_t>(__builtin_ctz(left)));
    }
  }
  uint64_t value(const Operand& o, uint32_t lane) const {
    return o.is_wide ? row<uint64_t>(o)[lane] : row<uint32_t>(o)[lane];
  }
  void set(const Operand& o, uint32_t lane, uint64_t value) {
    if (o.is_wide)
      row<uint64_t>(o)[lane] = value;
    else
      row<uint32_t>(o)[lane] = static_cast<uint32_t>(value);
  }

  // Runs until nothing can continue, or for that many instructions. False if no instruction could run.
  bool run(uint32_t most_instructions, uint32_t pick);
  void release();  // from a barrier
  void fail(const Instruction& i, const std::string& what) const;

 private:
  uint32_t run_group(uint32_t most_instructions, Group group);
  void put(const Group& group);
};

// The last accesses to a word of shared memory, with the number of the barrier before them.
struct SharedWord {
  uint32_t written_in = 0, read_in = 0;  // barriers counted from 1; 0: never
  uint16_t writer = 0, reader = 0;
  bool read_by_several = false;
};

struct Block {
  Grid* grid = nullptr;
  uint32_t number = 0;
  uint32_t barriers = 1;  // 1 + the number of barriers that all have reached
  std::vector<char> registers, shared;
  std::vector<SharedWord> shared_words;
  std::vector<Warp> warps;

  Block(Grid* grid, uint32_t number);
  bool is_done() const;
  // Releases all warps if all have reached the barrier. If nothing can continue, that is a fault.
  bool pass_barrier();
  // Gives every warp a turn. False if the block is done or has a fault.
  bool take_turn(uint32_t instructions);
};

struct Grid {
  Grid(const Kernel* kernel, const void* argument, size_t argument_bytes, uint32_t n_blocks, uint32_t n_threads);

  const Kernel* kernel;
  std::vector<uint64_t> argument;
  uint32_t n_blocks, n_threads;
  Ranges readable, writable;  // the launch fills them in; finish() before the run
  Memory* memory = nullptr;
  uint32_t device = 0, turns = 0;
  std::string fault;                           // the first one
  std::vector<std::unique_ptr<Block>> blocks;  // those on the device

  // Blocks one after the other, or all at once, so that they can wait for each other and for other grids. Ends at the
  // first fault.
  void run(bool all_at_once);
  void place_all();
};

}  // namespace tutti_test::ptx
