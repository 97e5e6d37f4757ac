// Accesses to memory, shuffles, and what instructions are called.
#include <sstream>

#include "cells.h"

namespace tutti_test::ptx {
namespace {

uint64_t sign_extended(uint64_t value, uint32_t bytes) {
  const uint32_t shift = 64 - 8 * bytes;
  return static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift);
}

template <class T>
uint64_t load_as(uint64_t at, Order order) {
  const T* const from = reinterpret_cast<const T*>(at);
  if (order == Order::kWeak) return *from;
  return __atomic_load_n(from, order == Order::kAcquire ? __ATOMIC_ACQUIRE : __ATOMIC_RELAXED);
}
uint64_t load_now(uint64_t at, uint32_t bytes, Order order) {
  switch (bytes) {
    case 1: return load_as<uint8_t>(at, order);
    case 2: return load_as<uint16_t>(at, order);
    case 4: return load_as<uint32_t>(at, order);
    default: return load_as<uint64_t>(at, order);
  }
}

template <class T>
void store_as(uint64_t at, uint64_t value, Order order) {
  T* const to = reinterpret_cast<T*>(at);
  if (order == Order::kWeak)
    *to = static_cast<T>(value);
  else
    __atomic_store_n(to, static_cast<T>(value), order == Order::kRelease ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
}
void store_now(uint64_t at, uint32_t bytes, uint64_t value, Order order) {
  switch (bytes) {
    case 1: return store_as<uint8_t>(at, value, order);
    case 2: return store_as<uint16_t>(at, value, order);
    case 4: return store_as<uint32_t>(at, value, order);
    default: return store_as<uint64_t>(at, value, order);
  }
}

constexpr uint64_t kWordBytes = 4;

// Null if threads of the block may access it as they do, else what is wrong.
const char* watch_load(Block& block, uint64_t at, uint64_t bytes, uint16_t thread) {
  for (uint64_t w = at / kWordBytes; w <= (at + bytes - 1) / kWordBytes; w++) {
    SharedWord& word = block.shared_words[w];
    if (word.written_in == 0) return "shared memory is read that nobody has written";
    if (word.written_in == block.barriers && word.writer != thread)
      return "shared memory is read while another thread writes it";
    word.read_by_several = word.read_in == block.barriers && (word.read_by_several || word.reader != thread);
    word.read_in = block.barriers;
    word.reader = thread;
  }
  return nullptr;
}
const char* watch_store(Block& block, uint64_t at, uint64_t bytes, uint16_t thread) {
  for (uint64_t w = at / kWordBytes; w <= (at + bytes - 1) / kWordBytes; w++) {
    SharedWord& word = block.shared_words[w];
    if (word.written_in == block.barriers && word.writer != thread) return "shared memory is written by two threads";
    if (word.read_in == block.barriers && (word.read_by_several || word.reader != thread))
      return "shared memory is written while another thread reads it";
    word.written_in = block.barriers;
    word.writer = thread;
  }
  return nullptr;
}

std::string hex(uint64_t at) {
  std::ostringstream text;
  text << "0x" << std::hex << at;
  return text.str();
}

// Where an access goes on this machine; 0 if it must not.
uint64_t place_of(Warp& w, const Instruction& i, uint32_t lane, bool stores) {
  const uint64_t bytes = uint64_t{i.bytes} * i.n_values;
  const uint64_t at = w.value(i.operands[i.n_values], lane) + static_cast<uint64_t>(i.offset);
  Block& block = *w.block;
  const char* problem = nullptr;
  if (at % bytes != 0) {
    problem = "an access that is not aligned";
  } else if (i.space == Space::kShared) {
    const uint64_t offset = at - kSharedBase;
    const auto thread = static_cast<uint16_t>(w.first_thread + lane);
    if (at < kSharedBase || offset + bytes > block.shared.size())
      problem = "an access outside of the block's shared memory";
    else
      problem = stores ? watch_store(block, offset, bytes, thread) : watch_load(block, offset, bytes, thread);
    if (problem == nullptr) return reinterpret_cast<uint64_t>(block.shared.data()) + offset;
  } else if (!(stores ? block.grid->writable : block.grid->readable).contain(at, bytes)) {
    problem = stores ? "a write outside of what the launch may write" : "a read outside of what the launch may read";
  }
  if (problem == nullptr) return at;
  w.lanes = 1u << lane;
  w.fail(i, std::string(problem) + ", " + hex(at) + ", " + std::to_string(bytes) + " bytes");
  return 0;
}

void load(Warp& w, const Instruction& i) {
  Memory* const memory = i.space == Space::kShared || i.space == Space::kParameter ? nullptr : w.block->grid->memory;
  for (uint32_t left = w.lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
    const uint64_t at = place_of(w, i, lane, false);
    if (at == 0) return;
    uint64_t values[4];
    for (uint32_t v = 0; v < i.n_values; v++) {
      values[v] =
          memory != nullptr ? memory->load(w, lane, i, at + v * i.bytes) : load_now(at + v * i.bytes, i.bytes, i.order);
      if (i.is_signed) values[v] = sign_extended(values[v], i.bytes);
    }
    for (uint32_t v = 0; v < i.n_values; v++) w.set(i.operands[v], lane, values[v]);
  }
}

void store(Warp& w, const Instruction& i) {
  Memory* const memory = i.space == Space::kShared ? nullptr : w.block->grid->memory;
  for (uint32_t left = w.lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
    const uint64_t at = place_of(w, i, lane, true);
    if (at == 0) return;
    for (uint32_t v = 0; v < i.n_values; v++) {
      const Operand& from = i.operands[v];
      const uint64_t value = i.bytes == 8 ? w.row<uint64_t>(from)[lane] : w.value(from, lane);
      if (memory != nullptr)
        memory->store(w, lane, i, at + v * i.bytes, value);
      else
        store_now(at + v * i.bytes, i.bytes, value, i.order);
    }
  }
}

// Operands: the old value, where, what.
template <bool kAdds>
void update(Warp& w, const Instruction& i) {
  auto* const old = w.row<uint64_t>(i.operands[0]);
  const auto* const by = w.row<uint64_t>(i.operands[2]);
  for (uint32_t left = w.lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
    const uint64_t at = place_of(w, i, lane, true);
    if (at == 0) return;
    if (w.block->grid->memory != nullptr) w.block->grid->memory->settle(w, at, 8);
    auto* const word = reinterpret_cast<uint64_t*>(at);
    uint64_t before = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &before, kAdds ? before + by[lane] : std::max(before, by[lane]), false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    old[lane] = before;
  }
}

// Operands: the result, whether there was one, the value, which lane's, the clamp, who takes part.
void shuffle(Warp& w, const Instruction& i) {
  uint32_t values[kLanes];
  memcpy(values, w.row<uint32_t>(i.operands[2]), sizeof values);
  auto *const result = w.row<uint32_t>(i.operands[0]), *const valid = w.row<uint32_t>(i.operands[1]);
  const auto *const distance = w.row<uint32_t>(i.operands[3]), *const clamp = w.row<uint32_t>(i.operands[4]),
                    *const members = w.row<uint32_t>(i.operands[5]);
  w.each_lane([&](uint32_t lane) {
    const uint32_t from = lane ^ distance[lane];
    valid[lane] = 1;
    result[lane] = values[from % kLanes];
  });
  if (w.lanes != ~0u || clamp[0] != kLanes - 1 || members[0] != ~0u) w.fail(i, "a shuffle of some of the threads");
}

Names all_names() {
  Names names;
  add_arithmetic(&names);
  add_comparisons(&names);
  add_conversions(&names);
  add_name(&names, "shfl.sync.bfly.b32", shuffle, 2);
  names["shfl.sync.bfly.b32"].kind = Kind::kShuffle;
  add_name(&names, "atom.global.add.u64", update<true>);
  add_name(&names, "atom.global.max.u64", update<false>);
  for (const char* name : {"atom.global.add.u64", "atom.global.max.u64"}) {
    names[name].bytes = 8;
    names[name].order = Order::kRelaxed;
    names[name].space = Space::kGlobal;
  }
  const std::pair<const char*, Kind> others[] = {
      {"bra", Kind::kBranch}, {"bra.uni", Kind::kBranch}, {"bar.sync", Kind::kBarrier}, {"ret", Kind::kReturn}};
  for (const auto& [name, kind] : others) {
    add_name(&names, name, nullptr, 0);
    names[name].kind = kind;
  }
  return names;
}

}  // namespace

// ld or st, then what is said of it in any order, then the type.
bool decode_access(const std::string& spelling, Instruction* i) {
  std::istringstream parts(spelling);
  std::string part, type;
  std::getline(parts, part, '.');
  const bool loads = part == "ld";
  if (!loads && part != "st") return false;
  while (std::getline(parts, part, '.')) {
    if (part == "global")
      i->space = Space::kGlobal;
    else if (part == "shared")
      i->space = Space::kShared;
    else if (part == "param" && loads)
      i->space = Space::kParameter;
    else if (part == "relaxed")
      i->order = Order::kRelaxed;
    else if (part == "acquire" && loads)
      i->order = Order::kAcquire;
    else if (part == "release" && !loads)
      i->order = Order::kRelease;
    else if (part == "cta")
      i->scope = Scope::kBlock;
    else if (part == "gpu")
      i->scope = Scope::kDevice;
    else if (part == "sys")
      i->scope = Scope::kSystem;
    else if (part == "v2")
      i->n_values = 2;
    else if (part == "v4")
      i->n_values = 4;
    else if (type.empty())
      type = part;
    else
      return false;
  }
  if (type.size() < 2 || std::string("usbf").find(type[0]) == std::string::npos) return false;
  const int bits = atoi(type.c_str() + 1);
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64) return false;
  i->bytes = static_cast<uint8_t>(bits / 8);
  i->is_signed = type[0] == 's';
  i->run = loads ? load : store;
  i->n_results = loads ? i->n_values : 0;
  return true;
}

bool decode(const std::string& spelling, Instruction* instruction) {
  static const Names kNames = all_names();
  const auto found = kNames.find(spelling);
  Instruction known = found == kNames.end() ? Instruction{} : found->second;
  if (found == kNames.end() && !decode_access(spelling, &known)) return false;
  known.line = instruction->line;
  known.is_guarded = instruction->is_guarded;
  known.guard_negated = instruction->guard_negated;
  known.guard = instruction->guard;
  *instruction = known;
  return true;
}

}  // namespace tutti_test::ptx
