#include "weak_memory.h"

#include <algorithm>

namespace tutti_test::ptx {
namespace {

constexpr size_t kMostWaiting = 48;   // stores per block or device
constexpr size_t kMostChanges = 512;  // remembered changes
constexpr uint64_t kWordBytes = 8;

bool overlap(uint64_t a, uint32_t a_bytes, uint64_t b, uint32_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// Copies the bytes of an access that another one covers into its value.
void overlay(uint64_t at, uint32_t bytes, uint64_t from, uint32_t from_bytes, uint64_t value, uint64_t* to) {
  char out[8], in[8];
  memcpy(out, to, 8);
  memcpy(in, &value, 8);
  const uint64_t begin = std::max(at, from), end = std::min(at + bytes, from + from_bytes);
  for (uint64_t byte = begin; byte < end; byte++) out[byte - at] = in[byte - from];
  memcpy(to, out, 8);
}

uint64_t read(uint64_t at, uint32_t bytes) {
  uint64_t value = 0;
  memcpy(&value, reinterpret_cast<const void*>(at), bytes);
  return value;
}

}  // namespace

WeakMemory::WeakMemory(uint32_t seed) : random_(seed) {
  constexpr uint32_t kSpeeds[] = {100, 40, 8, 2};  // with some seeds stores wait longer
  moves_of_100_ = kSpeeds[random_() % 4];
}

WeakMemory::BlockState& WeakMemory::state_of(const Block& block) {
  const auto [at, is_new] = blocks_.try_emplace(&block);
  if (is_new) {
    order_.push_back(&block);
    at->second.acquired.assign(block.grid->n_threads, now_);
    at->second.seen.resize(block.grid->n_threads);
  }
  return at->second;
}

// The content of an address at an earlier time.
uint64_t WeakMemory::memory_at(uint64_t when, uint64_t at, uint32_t bytes) const {
  uint64_t value = read(at, bytes);
  for (auto change = changes_.rbegin(); change != changes_.rend() && change->when > when; ++change)
    if (overlap(at, bytes, change->at, change->bytes))
      overlay(at, bytes, change->at, change->bytes, change->before, &value);
  return value;
}

uint64_t WeakMemory::oldest_allowed(BlockState& state, uint32_t thread, uint64_t at) {
  const uint64_t word = at / kWordBytes;
  uint64_t oldest = std::max(state.acquired[thread], changes_.size() < kMostChanges ? 0 : changes_.front().when);
  for (const auto* times : {&state.written, &state.seen[thread]})
    if (const auto found = times->find(word); found != times->end()) oldest = std::max(oldest, found->second);
  return oldest;
}

uint64_t WeakMemory::load(const Warp& warp, uint32_t lane, const Instruction& i, uint64_t at) {
  const Block& block = *warp.block;
  BlockState& state = state_of(block);
  const uint32_t thread = warp.first_thread + lane;
  uint64_t when = now_;
  if (i.order != Order::kAcquire && random_() % 3 == 0) {
    const uint64_t oldest = oldest_allowed(state, thread, at);
    when = oldest >= now_ ? now_ : oldest + random_() % (now_ - oldest + 1);
  }
  uint64_t value = memory_at(when, at, i.bytes);
  state.seen[thread][at / kWordBytes] = when;
  if (i.order == Order::kAcquire) state.acquired[thread] = now_;
  for (const Store& s : devices_[block.grid->device])
    if (overlap(at, i.bytes, s.at, s.bytes)) overlay(at, i.bytes, s.at, s.bytes, s.value, &value);
  for (const Store& s : state.queue)
    if ((s.thread == thread || s.barriers < block.barriers) && overlap(at, i.bytes, s.at, s.bytes))
      overlay(at, i.bytes, s.at, s.bytes, s.value, &value);
  return value;
}

void WeakMemory::store(const Warp& warp, uint32_t lane, const Instruction& i, uint64_t at, uint64_t value) {
  const Block& block = *warp.block;
  BlockState& state = state_of(block);
  const uint32_t thread = warp.first_thread + lane;
  if (i.order == Order::kRelease && i.scope != Scope::kBlock) {
    for (size_t s = 0; s < state.queue.size();) {
      const bool is_before = state.queue[s].thread == thread || state.queue[s].barriers < block.barriers;
      if (is_before)
        pass(state, s);
      else
        s++;
    }
    Queue& device = devices_[block.grid->device];
    for (; i.scope == Scope::kSystem && !device.empty(); device.erase(device.begin())) arrive(device.front());
  }
  state.queue.push_back({at, value, i.bytes, thread, block.barriers, &block});
  if (state.queue.size() > kMostWaiting) pass_any(&state.queue, &state);
}

// Moves a store from its block to its device.
void WeakMemory::pass(BlockState& state, size_t i) {
  const Store store = state.queue[i];
  state.queue.erase(state.queue.begin() + static_cast<ptrdiff_t>(i));
  Queue& device = devices_[store.block->grid->device];
  device.push_back(store);
  if (device.size() > kMostWaiting) pass_any(&device, nullptr);
}

void WeakMemory::arrive(const Store& s) {
  changes_.push_back({s.at, read(s.at, s.bytes), ++now_, s.bytes});
  if (changes_.size() > kMostChanges) changes_.pop_front();
  memcpy(reinterpret_cast<void*>(s.at), &s.value, s.bytes);
  if (const auto state = blocks_.find(s.block); state != blocks_.end()) state->second.written[s.at / kWordBytes] = now_;
}

// Moves on a random store that is not behind an earlier one to the same address.
void WeakMemory::pass_any(Queue* queue, BlockState* state) {
  if (queue->empty()) return;
  const Store chosen = (*queue)[random_() % queue->size()];
  const auto first = std::find_if(queue->begin(), queue->end(),
                                  [&](const Store& s) { return overlap(s.at, s.bytes, chosen.at, chosen.bytes); });
  if (state != nullptr) return pass(*state, static_cast<size_t>(first - queue->begin()));
  const Store store = *first;
  queue->erase(first);
  arrive(store);
}

void WeakMemory::move_on() {
  if (random_() % 100 >= moves_of_100_) return;
  for (const Block* block : order_) {
    BlockState& state = blocks_[block];
    for (auto left = random_() % 8; left > 0; left--) pass_any(&state.queue, &state);
  }
  for (auto& [device, queue] : devices_)
    for (auto left = random_() % 8; left > 0; left--) pass_any(&queue, nullptr);
}

void WeakMemory::settle(const Warp& warp, uint64_t at, uint64_t bytes) {
  const auto touches = [&](const Store& s) { return overlap(s.at, s.bytes, at, static_cast<uint32_t>(bytes)); };
  for (const Block* block : order_) {
    if (block->grid->device != warp.block->grid->device) continue;
    BlockState& state = blocks_[block];
    for (size_t s = 0; s < state.queue.size();) {
      if (touches(state.queue[s]))
        pass(state, s);
      else
        s++;
    }
  }
  Queue& device = devices_[warp.block->grid->device];
  for (size_t s = 0; s < device.size();) {
    if (!touches(device[s])) {
      s++;
      continue;
    }
    const Store store = device[s];
    device.erase(device.begin() + static_cast<ptrdiff_t>(s));
    arrive(store);
  }
}

// Afterwards all threads of the block have acquired and seen what any one of them had.
void WeakMemory::barrier(const Block& block) {
  BlockState& state = state_of(block);
  const uint64_t latest = *std::max_element(state.acquired.begin(), state.acquired.end());
  std::fill(state.acquired.begin(), state.acquired.end(), latest);
  for (auto& seen : state.seen) {
    for (const auto& [word, when] : seen) {
      uint64_t& known = state.written[word];
      known = std::max(known, when);
    }
    seen.clear();
  }
}

void WeakMemory::finish(const Grid& grid) {
  for (const Block* block : order_) {
    if (block->grid != &grid) continue;
    BlockState& state = blocks_[block];
    while (!state.queue.empty()) pass(state, 0);
    blocks_.erase(block);
  }
  std::erase_if(order_, [&](const Block* block) { return block->grid == &grid; });
  Queue& device = devices_[grid.device];
  for (; !device.empty(); device.erase(device.begin())) arrive(device.front());
}

// ---- turns

namespace {

class Turns {
 public:
  Turns(std::vector<std::vector<Grid*>> ranks, uint32_t seed)
      : ranks_(std::move(ranks)), memory_(seed), random_(seed) {}

  std::string run() {
    constexpr int kMostTurns = 400000;
    for (auto& grids : ranks_) begin(grids);
    for (int turn = 0; turn < kMostTurns; turn++) {
      std::erase_if(ranks_, [](const auto& grids) { return grids.empty(); });
      if (ranks_.empty()) return "";
      auto& grids = ranks_[random_() % ranks_.size()];
      Grid* const grid = grids.front();
      step(grid);
      memory_.move_on();
      if (!grid->fault.empty()) return grid->fault;
      if (!grid->blocks.empty()) continue;
      memory_.finish(*grid);
      grids.erase(grids.begin());
      begin(grids);
    }
    return "it does not end";
  }

 private:
  void begin(const std::vector<Grid*>& grids) {
    if (grids.empty()) return;
    grids.front()->memory = &memory_;
    grids.front()->place_all();
  }

  void step(Grid* grid) {
    auto& blocks = grid->blocks;
    const size_t b = random_() % blocks.size();
    Block& block = *blocks[b];
    const size_t n = block.warps.size(), first = random_() % n;
    const uint32_t most = random_() % 4 == 0 ? 300 : 1 + random_() % 40;
    for (size_t w = 0; w < n; w++)
      if (block.warps[(first + w) % n].run(most, random_())) break;
    block.pass_barrier();
    if (!block.is_done()) return;
    finished_.push_back(std::move(blocks[b]));  // its stores may still be waiting
    blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(b));
  }

  std::vector<std::vector<Grid*>> ranks_;
  WeakMemory memory_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Block>> finished_;
};

}  // namespace

std::string run_at_random(std::vector<std::vector<Grid*>> ranks, uint32_t seed) {
  for (const auto& grids : ranks)
    for (Grid* grid : grids) {
      grid->readable.finish();
      grid->writable.finish();
      if (!grid->fault.empty()) return grid->fault;
    }
  return Turns(std::move(ranks), seed).run();
}

}  // namespace tutti_test::ptx
