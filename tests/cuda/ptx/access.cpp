// Memory accesses, shuffles, and the decoding of instruction names.
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
  return __atomic_load_n(from, order == Order::kAcquire ? __ATOMIC_ACQUIRE : __ATOMIC_RELAXED);
}
template <class T>
void store_as(uint64_t at, uint64_t value, Order order) {
  T* const to = reinterpret_cast<T*>(at);
  __atomic_store_n(to, static_cast<T>(value), order == Order::kRelease ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
}

// Calls body(T{}) with the unsigned integer type of that size.
template <class Body>
void with_type(uint32_t bytes, Body&& body) {
  switch (bytes) {
    case 1: return body(uint8_t{});
    case 2: return body(uint16_t{});
    case 4: return body(uint32_t{});
    default: return body(uint64_t{});
  }
}

constexpr uint64_t kWordBytes = 4;

// Null if this access by a thread of the block is allowed, else what is wrong.
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

// The host address of a lane's access; 0 if the access is not allowed.
uint64_t place_of(Warp& w, const Instruction& i, uint32_t lane, uint64_t at, bool stores) {
  const uint64_t bytes = uint64_t{i.bytes} * i.n_values;
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

// Host addresses of the lanes' accesses, by lane.
struct Places {
  uint64_t at[kLanes];
  bool are_one = false;
};

// All lanes read one shared address: allowed if the first lane may, and nobody writes it before the next barrier.
bool watch_loads_of_one(Warp& w, uint64_t at, uint64_t bytes) {
  Block& block = *w.block;
  if (at < kSharedBase || at % bytes != 0 || at - kSharedBase + bytes > block.shared.size()) return false;
  const uint64_t first = (at - kSharedBase) / kWordBytes, last = (at - kSharedBase + bytes - 1) / kWordBytes;
  for (uint64_t word = first; word <= last; word++)
    if (block.shared_words[word].written_in == 0 || block.shared_words[word].written_in == block.barriers) return false;
  for (uint64_t word = first; word <= last; word++) {
    block.shared_words[word].read_in = block.barriers;
    block.shared_words[word].read_by_several = true;
  }
  return true;
}

// Checks all lanes at once where that is enough, else one by one. False if one of them must not.
bool find_places(Warp& w, const Instruction& i, bool stores, Places* places) {
  const uint64_t bytes = uint64_t{i.bytes} * i.n_values,
                 at_first = w.value(i.operands[i.n_values], static_cast<uint32_t>(__builtin_ctz(w.lanes)));
  const Operand& address = i.operands[i.n_values];
  if (address.is_wide)
    for (uint32_t lane = 0; lane < kLanes; lane++) places->at[lane] = w.row<uint64_t>(address)[lane];
  else
    for (uint32_t lane = 0; lane < kLanes; lane++) places->at[lane] = w.row<uint32_t>(address)[lane];
  uint64_t least = ~uint64_t{0}, most = 0, all = 0;
  for (uint32_t lane = 0; lane < kLanes; lane++) {
    const bool is_here = (w.lanes >> lane & 1) != 0;
    const uint64_t at = (is_here ? places->at[lane] : at_first) + static_cast<uint64_t>(i.offset);
    places->at[lane] = at;
    all |= at;
    least = std::min(least, at);
    most = std::max(most, at);
  }
  Block& block = *w.block;
  const bool are_several = (w.lanes & (w.lanes - 1)) != 0;
  places->are_one = least == most && !stores;
  if (i.space != Space::kShared) {
    if (all % bytes == 0 && (stores ? block.grid->writable : block.grid->readable).contain(least, most - least + bytes))
      return true;
  } else if (places->are_one && are_several && watch_loads_of_one(w, least, bytes)) {
    std::fill_n(places->at, kLanes, reinterpret_cast<uint64_t>(block.shared.data()) + least - kSharedBase);
    return true;
  }
  for (uint32_t left = w.lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
    places->at[lane] = place_of(w, i, lane, places->at[lane], stores);
    if (places->at[lane] == 0) return false;
  }
  return true;
}

template <class T, class Cell>
void load_value(Warp& w, const Instruction& i, uint32_t v, const Places& places) {
  Cell* const row = w.row<Cell>(i.operands[v]);
  const auto value_at = [&](uint64_t at) {
    const uint64_t value = load_as<T>(at + v * sizeof(T), i.order);
    return static_cast<Cell>(i.is_signed ? sign_extended(value, sizeof(T)) : value);
  };
  if (places.are_one) {
    const Cell value = value_at(places.at[__builtin_ctz(w.lanes)]);
    return w.each_lane([&](uint32_t lane) { row[lane] = value; });
  }
  w.each_lane([&](uint32_t lane) { row[lane] = value_at(places.at[lane]); });
}

// Through a Memory, which may delay and reorder.
void load_through(Memory& memory, Warp& w, const Instruction& i, const Places& places) {
  for (uint32_t left = w.lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
    for (uint32_t v = 0; v < i.n_values; v++) {
      const uint64_t value = memory.load(w, lane, i, places.at[lane] + v * i.bytes);
      w.set(i.operands[v], lane, i.is_signed ? sign_extended(value, i.bytes) : value);
    }
  }
}

void load(Warp& w, const Instruction& i) {
  Places places;
  if (!find_places(w, i, false, &places)) return;
  Memory* const memory = i.space == Space::kShared || i.space == Space::kParameter ? nullptr : w.block->grid->memory;
  if (memory != nullptr) return load_through(*memory, w, i, places);
  with_type(i.bytes, [&](auto type) {
    for (uint32_t v = 0; v < i.n_values; v++) {
      if (i.operands[v].is_wide)
        load_value<decltype(type), uint64_t>(w, i, v, places);
      else
        load_value<decltype(type), uint32_t>(w, i, v, places);
    }
  });
}

template <class T, class Cell>
void store_value(Warp& w, const Instruction& i, uint32_t v, const Places& places) {
  const Cell* const row = w.row<Cell>(i.operands[v]);
  w.each_lane([&](uint32_t lane) { store_as<T>(places.at[lane] + v * sizeof(T), row[lane], i.order); });
}

void store(Warp& w, const Instruction& i) {
  Places places;
  if (!find_places(w, i, true, &places)) return;
  Memory* const memory = i.space == Space::kShared ? nullptr : w.block->grid->memory;
  if (memory != nullptr) {
    for (uint32_t left = w.lanes; left != 0; left &= left - 1) {
      const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
      for (uint32_t v = 0; v < i.n_values; v++)
        memory->store(w, lane, i, places.at[lane] + v * i.bytes,
                      i.bytes == 8 ? w.row<uint64_t>(i.operands[v])[lane] : w.value(i.operands[v], lane));
    }
    return;
  }
  with_type(i.bytes, [&](auto type) {
    for (uint32_t v = 0; v < i.n_values; v++) {
      if (i.bytes == 8 || i.operands[v].is_wide)
        store_value<decltype(type), uint64_t>(w, i, v, places);
      else
        store_value<decltype(type), uint32_t>(w, i, v, places);
    }
  });
}

// Operands: old value, address, new value.
template <bool kAdds>
void update(Warp& w, const Instruction& i) {
  auto* const old = w.row<uint64_t>(i.operands[0]);
  const auto* const by = w.row<uint64_t>(i.operands[2]);
  for (uint32_t left = w.lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
    const uint64_t at = place_of(w, i, lane, w.value(i.operands[1], lane) + static_cast<uint64_t>(i.offset), true);
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

// Operands: value, address.
void add_there(Warp& w, const Instruction& i) {
  const auto* const by = w.row<uint64_t>(i.operands[0]);
  for (uint32_t left = w.lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
    const uint64_t at = place_of(w, i, lane, w.value(i.operands[1], lane) + static_cast<uint64_t>(i.offset), true);
    if (at == 0) return;
    if (w.block->grid->memory != nullptr) w.block->grid->memory->settle(w, at, 8);
    __atomic_fetch_add(reinterpret_cast<uint64_t*>(at), by[lane], __ATOMIC_RELAXED);
  }
}

// Operands: result, whether there is one, value, lane to read, clamp, participating lanes.
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
  add_name(&names, "red.global.add.u64", add_there, 0);
  add_name(&names, "atom.global.add.u64", update<true>);
  add_name(&names, "atom.global.max.u64", update<false>);
  for (const char* name : {"red.global.add.u64", "atom.global.add.u64", "atom.global.max.u64"}) {
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

// ld or st, then qualifiers in any order, then the type.
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
