// One rank's run through a script: bytes become calls with arbitrary arguments. Handles may be NULL, dead or invalid;
// enums and counts any number; buffers NULL, misaligned or overlapping. A pointer that is read or written always points
// to existing memory, as the contract demands. The calls are in script_*.cpp, by kind.
#pragma once

#include <array>

#include "member.h"

namespace tutti::fuzz {

inline constexpr int kSlots = 2;      // for each kind of handle that a script makes
inline constexpr int kMaxCalls = 24;  // per script
inline constexpr size_t kMaxElems = 255;

class Script {
 public:
  Script(Input in, Member& member, int rank, int n_ranks) : in_(in), member_(member), rank_(rank), n_ranks_(n_ranks) {}
  ~Script() {
    leave_group();
    checked(tuttiCommAbort(split_));  // ends calls that wait for another rank
    for (tuttiStream_t stream : streams_) checked(tuttiStreamDestroy(stream));
    for (tuttiEvent_t event : events_) checked(tuttiEventDestroy(event));
    for (void* memory : memory_) checked(tuttiMemFree(memory));
    for (void* registration : registrations_) checked(tuttiCommDeregister(member_.comm, registration));
    for (const Arena& arena : member_.arenas) expect(arena.guards_hold(), "nothing is written outside of the buffers");
  }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  void run() {
    constexpr void (Script::*kCalls[])() = {
        &Script::reduce_all,   &Script::move,   &Script::exchange, &Script::unequal,    &Script::message,
        &Script::group,        &Script::stream, &Script::event,    &Script::memory,     &Script::op,
        &Script::ask,          &Script::create, &Script::split,    &Script::end_a_comm, &Script::register_memory,
        &Script::create_group, &Script::shrink};
    for (int i = 0; i < kMaxCalls && !in_.done(); i++) (this->*kCalls[in_.below(std::size(kCalls))])();
  }

 private:
  // ---- calls

  void reduce_all();
  void move();
  void exchange();
  void unequal();
  void message();
  void stream();
  void event();
  void memory();
  void op();
  void register_memory();
  void finish_operations();
  void group();
  void ask();
  void create_group();
  void create();
  void leave_group();
  void leave_split();
  void split();
  void end_a_comm();
  void shrink();

  // ---- arguments

  tuttiComm_t comm() {
    static const std::array<uint64_t, 32> nothing{};  // readable memory that is no communicator
    const uint8_t kind = in_.byte();
    arena_ = &member_.arenas[kind % 16 == 1];
    if (kind % 16 == 2) return nullptr;
    if (kind % 16 == 3) return reinterpret_cast<tuttiComm_t>(const_cast<uint64_t*>(nothing.data()));
    return kind % 16 == 1 ? split_ : member_.comm;
  }
  tuttiStream_t stream_handle() {
    const uint8_t kind = in_.byte();
    if (kind == 255) return reinterpret_cast<tuttiStream_t>(in_.take<uintptr_t>() | 1);
    return kind % 4 < kSlots ? streams_[kind % 4] : nullptr;
  }
  tuttiEvent_t event_handle() {
    const uint8_t kind = in_.byte();
    if (kind == 255) return reinterpret_cast<tuttiEvent_t>(in_.take<uintptr_t>() | 1);
    return kind % 4 < kSlots ? events_[kind % 4] : nullptr;
  }
  int number() {  // mostly small
    const uint8_t kind = in_.byte();
    return kind < 250 ? kind % 8 - 1 : in_.take<int>();
  }
  tuttiDataType_t type() {
    const uint8_t kind = in_.byte();
    return any<tuttiDataType_t>(kind < 240 ? kind % tuttiNumTypes : in_.take<int>());
  }
  tuttiRedOp_t reduction() {
    const uint8_t kind = in_.byte();
    if (kind < 200) return any<tuttiRedOp_t>(kind % tuttiNumOps);
    return kind < 240 ? ops_[kind % kSlots] : any<tuttiRedOp_t>(in_.take<int>());
  }
  // Fits an arena for all ranks, or is larger than any buffer.
  size_t count() {
    const uint8_t kind = in_.byte();
    return kind < 250 ? kind % (kMaxElems + 1) : SIZE_MAX - (in_.take<uint64_t>() >> 1);
  }
  char* buffer() {
    const uint16_t place = in_.take<uint16_t>();
    return place % 16 == 15 ? nullptr : arena_->at(place % kOffsets);
  }
  tuttiConfig_t* config() {
    static constexpr const char* kTexts[] = {nullptr, "", "shm", "tcp", "shm,tcp", "ring", "tree", "no such thing"};
    const tuttiConfig_t good = TUTTI_CONFIG_INITIALIZER;
    memcpy(config_.data(), &good, sizeof good);
    auto& c = *reinterpret_cast<tuttiConfig_t*>(config_.data());
    c.opTimeoutSeconds = 2;
    switch (in_.below(9)) {
      case 0: return nullptr;
      case 1: c.size = in_.byte(); break;
      case 2: c.magic = in_.take<unsigned>(); break;
      case 3: c.version = in_.take<unsigned>(); break;
      case 4: c.opTimeoutSeconds = std::min(number(), 2); break;
      case 5: c.transports = kTexts[in_.below(std::size(kTexts))]; break;
      case 6: c.algo = kTexts[in_.below(std::size(kTexts))]; break;
      case 7: c.deterministic = number(); break;
      default: c.blocking = number();
    }
    return &c;
  }

  Input in_;
  Member& member_;
  int rank_, n_ranks_;
  int depth_ = 0;
  Arena* arena_ = &member_.arenas[0];
  tuttiComm_t split_ = nullptr;
  std::array<tuttiStream_t, kSlots> streams_{};
  std::array<tuttiEvent_t, kSlots> events_{};
  std::array<void*, kSlots> memory_{};
  std::array<tuttiRedOp_t, kSlots> ops_{};
  std::array<void*, kSlots> registrations_{};
  alignas(tuttiConfig_t) std::array<char, 512> config_{};
};

}  // namespace tutti::fuzz
