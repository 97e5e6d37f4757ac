#include "machine.h"

#include <sched.h>

#include <algorithm>

namespace tutti_test::ptx {

void Ranges::add(const void* begin, uint64_t bytes) {
  const auto at = reinterpret_cast<uint64_t>(begin);
  if (bytes > 0) all_.push_back({at, at + bytes});
}

void Ranges::finish() {
  std::sort(all_.begin(), all_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> joined;
  for (const Range& range : all_) {
    if (!joined.empty() && range.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, range.end);
    else
      joined.push_back(range);
  }
  all_ = joined;
}

bool Ranges::contain(uint64_t at, uint64_t bytes) {
  if (last_ < all_.size() && at >= all_[last_].begin && at + bytes <= all_[last_].end) return true;
  const auto after =
      std::upper_bound(all_.begin(), all_.end(), at, [](uint64_t a, const Range& r) { return a < r.begin; });
  if (after == all_.begin()) return false;
  last_ = static_cast<size_t>(after - all_.begin()) - 1;
  return at + bytes <= all_[last_].end;
}

// ---- a warp

// Usually all lanes agree, which needs no loop over them.
static uint32_t lanes_where(const uint32_t* predicate) {
  uint32_t any = 0, all = ~0u;
  for (uint32_t lane = 0; lane < kLanes; lane++) {
    any |= predicate[lane];
    all &= predicate[lane];
  }
  if (any == 0 || all != 0) return any == 0 ? 0 : ~0u;
  uint32_t chosen = 0;
  for (uint32_t lane = 0; lane < kLanes; lane++) chosen |= uint32_t{predicate[lane] != 0} << lane;
  return chosen;
}

void Warp::fail(const Instruction& i, const std::string& what) const {
  std::string& fault = block->grid->fault;
  if (!fault.empty()) return;
  const uint32_t lane = lanes == 0 ? 0 : static_cast<uint32_t>(__builtin_ctz(lanes));
  fault = what + ": kernel " + kernel->name + ", line " + std::to_string(i.line) + " \"" +
          kernel->text[static_cast<size_t>(&i - kernel->code.data())] + "\", block " + std::to_string(block->number) +
          ", thread " + std::to_string(first_thread + lane);
}

void Warp::put(const Group& group) {
  if (group.lanes == 0) return;
  for (Group& other : groups) {
    if (other.at != group.at) continue;
    other.lanes |= group.lanes;
    return;
  }
  groups.push_back(group);
}

// The group that is furthest behind runs first, so that diverged groups meet again; sometimes `pick` chooses another
// one, because the first may wait for what the others do.
bool Warp::run(uint32_t most_instructions, uint32_t pick) {
  const std::string& fault = block->grid->fault;
  bool moved = false;
  while (most_instructions > 0 && !groups.empty() && fault.empty()) {
    std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.at < b.at; });
    const size_t first = pick % groups.size();
    pick = 0;
    size_t chosen = first;
    // A shuffle needs all living threads, so the others must get there first.
    while (kernel->code[groups[chosen].at].kind == Kind::kShuffle && groups[chosen].lanes != living) {
      chosen = (chosen + 1) % groups.size();
      if (chosen != first) continue;
      if (groups.size() > 1 || waiting != 0)
        fail(kernel->code[groups[chosen].at], "a shuffle that not all threads reach");
      return moved;
    }
    const Group group = groups[chosen];
    groups.erase(groups.begin() + static_cast<ptrdiff_t>(chosen));
    most_instructions = run_group(most_instructions, group);
    moved = true;
  }
  return moved;
}

// Until the group meets another one, diverges, waits or ends. Returns how many instructions are left.
uint32_t Warp::run_group(uint32_t left, Group group) {
  uint32_t meets = ~0u;
  for (const Group& other : groups)
    if (other.at > group.at) meets = std::min(meets, other.at);
  uint32_t at = group.at;
  const Instruction* const code = kernel->code.data();
  for (; left > 0; left--) {
    const Instruction& i = code[at];
    kernel->was_run[at].store(1, std::memory_order_relaxed);
    lanes = group.lanes;
    if (i.is_guarded) {
      const uint32_t chosen = lanes_where(row<uint32_t>(i.guard));
      lanes &= i.guard_negated ? ~chosen : chosen;
    }
    if (i.kind == Kind::kPlain || i.kind == Kind::kShuffle) {
      if (lanes != 0) i.run(*this, i);
      if (++at != meets) continue;
      put({at, group.lanes});
      return left - 1;
    }
    if (i.kind == Kind::kBranch) {
      if (lanes == group.lanes && i.target > at && i.target < meets) {
        at = i.target;
        continue;
      }
      if (lanes == 0 && at + 1 != meets) {
        at++;
        continue;
      }
      if (lanes == group.lanes && groups.empty() && block->grid->fault.empty()) {
        at = i.target;
        continue;
      }
      put({i.target, lanes});
      put({at + 1, group.lanes & ~lanes});
      return left - 1;
    }
    if (i.kind == Kind::kReturn) {
      living &= ~lanes;
      put({at + 1, group.lanes & ~lanes});
      return left - 1;
    }
    if (waiting != 0 && barrier_at != at) fail(i, "threads of a warp are at different barriers");
    waiting |= lanes;
    barrier_at = at;
    put({at + 1, group.lanes & ~lanes});
    return left - 1;
  }
  put({at, group.lanes});
  return 0;
}

void Warp::release() {
  put({barrier_at + 1, waiting});
  waiting = 0;
}

// ---- a block

Block::Block(Grid* of, uint32_t block_number) : grid(of), number(block_number) {
  const Kernel& kernel = *of->kernel;
  const uint32_t n_warps = (of->n_threads + kLanes - 1) / kLanes;
  constexpr char kNothing = static_cast<char>(0xa5);
  registers.assign(size_t{n_warps} * kernel.register_bytes, kNothing);
  shared.assign(kernel.shared_bytes, kNothing);
  shared_words.resize((kernel.shared_bytes + 3) / 4);
  warps.resize(n_warps);
  for (uint32_t w = 0; w < n_warps; w++) {
    Warp& warp = warps[w];
    warp.block = this;
    warp.kernel = &kernel;
    warp.registers = registers.data() + size_t{w} * kernel.register_bytes;
    warp.first_thread = w * kLanes;
    const uint32_t n = std::min(kLanes, of->n_threads - warp.first_thread);
    warp.living = n == kLanes ? ~0u : (1u << n) - 1;
    warp.groups = {{0, warp.living}};
    const uint32_t special[] = {0, number, of->n_threads, of->n_blocks};
    const auto parameters = reinterpret_cast<uint64_t>(of->argument.data());
    for (uint32_t lane = 0; lane < kLanes; lane++) {
      for (uint32_t s = 0; s < 4; s++) {
        const uint32_t value = s == 0 ? warp.first_thread + lane : special[s];
        memcpy(warp.registers + s * kNarrowRow + lane * 4, &value, 4);
      }
      memcpy(warp.registers + kParameters + lane * 8, &parameters, 8);
    }
  }
}

bool Block::is_done() const {
  return std::all_of(warps.begin(), warps.end(), [](const Warp& warp) { return warp.living == 0; });
}

bool Block::pass_barrier() {
  const Warp* waits = nullptr;
  bool all = true, some_left = false;
  for (const Warp& warp : warps) {
    if (warp.waiting != 0) waits = &warp;
    if (!warp.groups.empty()) return false;
    all = all && warp.waiting == warp.living;
    some_left = some_left || warp.living != (grid->n_threads - warp.first_thread >= kLanes
                                                 ? ~0u
                                                 : (1u << (grid->n_threads - warp.first_thread)) - 1);
  }
  if (waits == nullptr) return false;
  const Instruction& barrier = grid->kernel->code[waits->barrier_at];
  for (const Warp& warp : warps)
    if (warp.waiting != 0 && warp.barrier_at != waits->barrier_at)
      waits->fail(barrier, "threads are at different barriers");
  if (!all || some_left) waits->fail(barrier, "a barrier that not all threads reach");
  if (grid->memory != nullptr) grid->memory->barrier(*this);
  barriers++;
  for (Warp& warp : warps) warp.release();
  return true;
}

bool Block::take_turn(uint32_t instructions) {
  bool moved = false;
  for (Warp& warp : warps) moved = warp.run(instructions, grid->turns++ % 64 == 0 ? 1 : 0) || moved;
  if (!grid->fault.empty()) return false;
  moved = pass_barrier() || moved;
  if (is_done()) return false;
  if (!moved) warps[0].fail(grid->kernel->code[0], "a block in which no thread can go on");
  return grid->fault.empty();
}

// ---- a grid

Grid::Grid(const Kernel* of, const void* data, size_t bytes, uint32_t blocks_wanted, uint32_t threads_wanted)
    : kernel(of), argument((bytes + 7) / 8), n_blocks(blocks_wanted), n_threads(threads_wanted) {
  memcpy(argument.data(), data, bytes);
  if (bytes != of->parameter_bytes) fault = "the argument of " + of->name + " has another size";
  if (threads_wanted > of->most_threads) fault = "too many threads for " + of->name;
  readable.add(argument.data(), bytes);
}

void Grid::place_all() {
  for (uint32_t b = 0; b < n_blocks; b++) blocks.push_back(std::make_unique<Block>(this, b));
}

void Grid::run(bool all_at_once) {
  const uint32_t turn = all_at_once ? 400 : 20000;
  for (uint32_t b = 0; b < n_blocks && !all_at_once && fault.empty(); b++) {
    Block block(this, b);
    while (block.take_turn(turn)) {
    }
  }
  if (!all_at_once) return;
  place_all();
  while (!blocks.empty() && fault.empty()) {
    for (auto& block : blocks)
      if (!block->take_turn(turn)) block.reset();
    blocks.erase(std::remove(blocks.begin(), blocks.end(), nullptr), blocks.end());
    sched_yield();  // to threads of other grids, for which this one may wait
  }
}

}  // namespace tutti_test::ptx
