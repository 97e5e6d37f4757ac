// The C API: bytes become a sequence of calls with arbitrary arguments on a group of one or two ranks. Handles may be
// NULL, dead or of no kind; enums and counts any number; buffers NULL, misaligned or overlapping. A pointer that is to
// be read or written leads to memory that is there, as the contract says.
#include <array>
#include <atomic>
#include <thread>

#include "member.h"

namespace {

using namespace tutti::fuzz;

constexpr int kSlots = 2;      // of each kind of handle that a script makes
constexpr int kMaxCalls = 24;  // of a script
constexpr size_t kMaxElems = 255;
std::atomic<int> g_callbacks{0};

// One rank's run through a script.
class Script {
 public:
  Script(Input in, Member& member, int rank, int n_ranks) : in_(in), member_(member), rank_(rank), n_ranks_(n_ranks) {}
  ~Script() {
    leave_group();
    checked(tuttiCommAbort(split_));  // ends what waits for another rank
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
        &Script::reduce_all,  &Script::move,   &Script::exchange, &Script::unequal,    &Script::message,
        &Script::group,       &Script::stream, &Script::event,    &Script::memory,     &Script::op,
        &Script::ask,         &Script::create, &Script::split,    &Script::end_a_comm, &Script::register_memory,
        &Script::create_group};
    for (int i = 0; i < kMaxCalls && !in_.done(); i++) (this->*kCalls[in_.below(std::size(kCalls))])();
  }

 private:
  // ---- arguments

  tuttiComm_t comm() {
    static const std::array<uint64_t, 32> nothing{};  // readable, but no communicator
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
  // What fits an arena for all ranks, or more than any buffer has.
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

  // ---- calls

  void reduce_all() {
    const uint8_t which = in_.byte();
    const tuttiComm_t c = comm();
    const char* from = buffer();
    char* to = buffer();
    const size_t n = count();
    const auto t = type();
    const auto o = reduction();
    if (which % 3 == 0) checked(tuttiAllReduce(from, to, n, t, o, c, stream_handle()));
    if (which % 3 == 1) checked(tuttiReduceScatter(from, to, n, t, o, c, stream_handle()));
    if (which % 3 == 2) {
      const int root = number();
      checked(tuttiReduce(from, to, n, t, o, root, c, stream_handle()));
    }
  }

  void move() {
    const uint8_t which = in_.byte();
    const tuttiComm_t c = comm();
    const char* from = buffer();
    char* to = buffer();
    const size_t n = count();
    const auto t = type();
    const int root = number();
    const auto s = stream_handle();
    switch (which % 7) {
      case 0: checked(tuttiBroadcast(from, to, n, t, root, c, s)); break;
      case 1: checked(tuttiBcast(to, n, t, root, c, s)); break;
      case 2: checked(tuttiAllGather(from, to, n, t, c, s)); break;
      case 3: checked(tuttiAlltoAll(from, to, n, t, c, s)); break;
      case 4: checked(tuttiGather(from, to, n, t, root, c, s)); break;
      case 5: checked(tuttiScatter(from, to, n, t, root, c, s)); break;
      default: checked(tuttiBarrier(c, s));
    }
  }

  // Messages that match: to the rank `distance` on, from the one as far back. In a group of its own.
  void exchange() {
    const tuttiComm_t c = comm();
    const int distance = in_.byte() % 2, times = 1 + in_.byte() % 3;
    const int to = (rank_ + distance) % n_ranks_, from = (rank_ + n_ranks_ - distance) % n_ranks_;
    checked(tuttiGroupStart());
    for (int i = 0; i < times; i++) {
      const size_t n = in_.byte();
      const auto t = any<tuttiDataType_t>(in_.byte() % tuttiNumTypes);
      checked(tuttiSend(arena_->at(in_.byte()), n, t, to, c, nullptr));
      checked(tuttiRecv(arena_->at(kOffsets + in_.byte()), n, t, from, c, nullptr));
    }
    checked(tuttiGroupEnd());
  }

  void unequal() {
    std::array<size_t, 4> counts{}, displs{}, other_displs{};
    const uint8_t which = in_.byte();
    const tuttiComm_t c = comm();
    const bool huge = which > 250;
    for (size_t i = 0; i < counts.size(); i++) {
      counts[i] = huge ? count() : in_.byte() % 64;
      displs[i] = in_.byte() % 192;
      other_displs[i] = in_.byte() % 192;
    }
    const char* from = buffer();
    char* to = buffer();
    const size_t* lists[] = {counts.data(), displs.data(), nullptr};
    const auto list = [&](size_t usual) { return lists[in_.byte() > 250 ? 2 : usual]; };
    const size_t* n = list(0);
    const size_t* at = list(1);
    const auto t = type();
    // What all ranks send to each other is the same count, so that their receives match; at other places.
    if (which % 3 == 2) counts.fill(counts[0]);
    if (which % 3 == 0) checked(tuttiAllGatherv(from, to, n, at, t, c, stream_handle()));
    if (which % 3 == 1) checked(tuttiReduceScatterv(from, to, n, t, reduction(), c, stream_handle()));
    if (which % 3 == 2) checked(tuttiAlltoAllv(from, n, at, to, n, other_displs.data(), t, c, stream_handle()));
  }

  // A message that is refused.
  void message() {
    const uint8_t wrong = in_.byte();
    const tuttiComm_t c = wrong % 4 == 0 ? nullptr : comm();
    const int peer = wrong % 4 == 1 ? n_ranks_ + in_.byte() : -1 - in_.byte();
    const auto t = wrong % 4 == 2 ? any<tuttiDataType_t>(tuttiNumTypes + in_.byte()) : type();
    const bool sends = in_.byte() % 2 == 0;
    char* data = buffer();
    const size_t n = count();
    const auto s = stream_handle();
    checked(sends ? tuttiSend(data, n, t, peer, c, s) : tuttiRecv(data, n, t, peer, c, s));
  }

  void group() {
    const bool starts = in_.byte() % 3 != 0;
    if (checked(starts ? tuttiGroupStart() : tuttiGroupEnd()) == tuttiSuccess || !starts)
      depth_ = std::max(0, depth_ + (starts ? 1 : -1));
  }

  void stream() {
    const uint8_t which = in_.byte();
    auto& slot = streams_[in_.below(kSlots)];
    const tuttiStreamCallback_t callback = [](tuttiStream_t, tuttiResult_t status, void* data) {
      expect(status >= tuttiSuccess && status < tuttiNumResults, "a status is a result");
      (*static_cast<std::atomic<int>*>(data))++;
    };
    const tuttiStream_t s = stream_handle();
    switch (which % 6) {
      case 0:
        if (slot == nullptr) checked(tuttiStreamCreate(&slot));
        break;
      case 1: checked(tuttiStreamSynchronize(s)); break;
      case 2: checked(tuttiStreamQuery(s)); break;
      case 3: checked(tuttiStreamAddCallback(s, in_.byte() > 250 ? nullptr : callback, &g_callbacks)); break;
      case 4: checked(tuttiStreamWaitEvent(s, event_handle())); break;
      default: checked(tuttiStreamDestroy(slot)); slot = nullptr;
    }
    checked(tuttiStreamCreate(nullptr));
  }

  void event() {
    const uint8_t which = in_.byte();
    auto& slot = events_[in_.below(kSlots)];
    const tuttiEvent_t e = event_handle();
    switch (which % 5) {
      case 0:
        if (slot == nullptr) checked(tuttiEventCreate(&slot));
        break;
      case 1: checked(tuttiEventRecord(e, stream_handle())); break;
      case 2: checked(tuttiEventQuery(e)); break;
      case 3: checked(tuttiEventSynchronize(e)); break;
      default: checked(tuttiEventDestroy(slot)); slot = nullptr;
    }
    checked(tuttiEventCreate(nullptr));
  }

  void memory() {
    auto& slot = memory_[in_.below(kSlots)];
    const uint8_t kind = in_.byte();
    checked(tuttiMemFree(kind % 4 == 0 ? arena_->at(kind) : slot));  // an arena's middle is nothing that was given out
    if (kind % 4 == 0) return;
    const size_t bytes = kind > 250 ? SIZE_MAX - in_.take<uint16_t>() : in_.take<uint16_t>();
    const tuttiResult_t result = checked(tuttiMemAlloc(&slot, bytes));
    expect(result != tuttiSuccess || (slot == nullptr) == (bytes == 0), "there is memory, if any was asked for");
    if (result != tuttiSuccess) slot = nullptr;
    if (slot != nullptr) memset(slot, kind, bytes);
    checked(tuttiMemAlloc(nullptr, bytes));
  }

  void op() {
    const uint8_t which = in_.byte();
    const tuttiComm_t c = comm();
    auto& slot = ops_[in_.below(kSlots)];
    if (which % 3 == 0) return void(checked(tuttiRedOpDestroy(reduction(), c)));
    static thread_local std::array<char, 8> scalars[kSlots];
    auto& scalar = scalars[in_.below(kSlots)];
    const auto t = type();
    const auto residence = any<tuttiScalarResidence_t>(number());
    checked(tuttiRedOpCreatePreMulSum(which < 200 ? &slot : nullptr, which % 8 == 1 ? nullptr : scalar.data(), t,
                                      residence, c));
  }

  void ask() {
    const tuttiComm_t c = comm();
    int value = 0;
    int* to = in_.byte() > 250 ? nullptr : &value;
    tuttiResult_t state = tuttiSuccess;
    switch (in_.below(6)) {
      case 0:
        if (checked(tuttiCommCount(c, to)) == tuttiSuccess) expect(value > 0 && value <= n_ranks_, "a group has ranks");
        break;
      case 1:
        if (checked(tuttiCommUserRank(c, to)) == tuttiSuccess) expect(value >= 0 && value < n_ranks_, "a rank is one");
        break;
      case 2: checked(tuttiCommGetAsyncError(c, to == nullptr ? nullptr : &state)); break;
      case 3: checked(tuttiGetVersion(to)); break;
      case 4: expect(tuttiGetErrorString(any<tuttiResult_t>(number()))[0] != '\0', "every result has a name"); break;
      default: expect(tuttiGetLastError(c) != nullptr, "a sentence is never NULL");
    }
    expect(state < tuttiNumResults, "a state is a result");
  }

  void finish_operations() {
    leave_group();
    for (tuttiStream_t s : streams_) checked(tuttiStreamSynchronize(s));
  }

  void register_memory() {
    const uint8_t which = in_.byte();
    const tuttiComm_t c = comm();
    auto& slot = registrations_[in_.below(kSlots)];
    const auto place = in_.take<uint16_t>();
    void* known = which > 250 ? &slot : slot;  // or what is no registration
    if (which % 3 == 0) {
      finish_operations();
      checked(tuttiCommDeregister(c, known));
      return;
    }
    const size_t bytes = place % 16 == 0 ? 0 : 1 + in_.take<uint16_t>() % kOffsets;
    checked(tuttiCommRegister(c, place % 16 == 15 ? nullptr : arena_->at(place % kOffsets), bytes,
                              which > 240 ? nullptr : &slot));
    tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
    if (which > 200) stats.size = in_.byte();
    checked(tuttiCommMemStats(c, which > 240 ? nullptr : &stats));
  }

  // All ranks of the group in one order or the other, or lists that are refused.
  void create_group() {
    leave_group();
    checked(tuttiCommAbort(split_));
    split_ = nullptr;
    arena_ = &member_.arenas[0];
    const uint8_t which = in_.byte();
    int ranks[] = {0, 1, 0, -1, 0, 0, 0};
    if (which % 2 == 0) std::reverse(ranks, ranks + n_ranks_);
    if (which > 200) ranks[in_.below(std::size(ranks))] = number();
    const int n = which > 150 ? std::min(number(), static_cast<int>(std::size(ranks))) : n_ranks_;
    checked(tuttiCommCreateGroup(member_.comm, which > 250 ? nullptr : ranks, n, &split_, config()));
  }

  // Creations that are refused.
  void create() {
    tuttiUniqueId id{};
    const std::string_view bytes = in_.text(4);
    memcpy(id.internal, bytes.data(), bytes.size());
    id.internal[0] = '\0';
    tuttiComm_t made = member_.comm;
    tuttiComm_t* to = in_.byte() > 240 ? nullptr : &made;
    const int devices[] = {-2};
    tuttiResult_t result = tuttiSuccess;
    const int n = number(), rank = number();
    tuttiUniqueId ids[] = {id, id};
    switch (in_.below(5)) {
      case 0: result = checked(tuttiCommInitRank(to, n, id, rank)); break;
      case 1: result = checked(tuttiCommInitRankConfig(to, n, id, rank, config())); break;
      case 2: result = checked(tuttiCommInitAll(to, in_.byte() % 2, devices)); break;
      case 3: result = checked(tuttiCommInitFromEnv(to, config())); break;
      default: result = checked(tuttiCommInitRankScalable(to, n, rank, in_.byte() % 3, ids, config()));
    }
    if (depth_ == 0)
      expect(result != tuttiSuccess, "nothing comes of an id that is none");
    else if (result == tuttiSuccess)
      leave_group();  // it fails at the end, and `made` is to be there
    checked(tuttiGetUniqueId(nullptr));
  }

  void leave_group() {
    while (depth_ > 0) {
      depth_--;
      checked(tuttiGroupEnd());
    }
  }

  void split() {
    leave_group();
    checked(tuttiCommAbort(split_));
    split_ = nullptr;
    arena_ = &member_.arenas[0];
    tuttiComm_t* to = in_.byte() > 250 ? nullptr : &split_;
    const int color = number(), key = number();
    checked(tuttiCommSplit(member_.comm, color, key, to, config()));
  }

  void end_a_comm() {
    const uint8_t which = in_.byte();
    const tuttiComm_t c = which > 250 ? comm() : split_;
    switch (which % 3) {
      case 0: checked(tuttiCommFinalize(c)); break;
      case 1: checked(tuttiCommDestroy(c)); break;
      default: checked(tuttiCommAbort(c));
    }
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

// One of the two groups, kept from input to input as long as it works.
struct Group {
  explicit Group(int n) : members(static_cast<size_t>(n)) {}
  std::vector<Member> members;
};

// After the script all ranks that are still well add up ones.
bool run_rank(Input in, Group& group, int rank) {
  const int n = static_cast<int>(group.members.size());
  Member& member = group.members[static_cast<size_t>(rank)];
  { Script(in, member, rank, n).run(); }
  // More than a script ever has: another rank's script cannot be taken for it.
  std::array<int, kMaxElems + 1> ones, sums{};
  ones.fill(1);
  const tuttiResult_t result =
      checked(tuttiAllReduce(ones.data(), sums.data(), sums.size(), tuttiInt32, tuttiSum, member.comm, nullptr));
  const bool adds_up = std::all_of(sums.begin(), sums.end(), [n](int sum) { return sum == n; });
  if (result == tuttiSuccess) expect(adds_up, "a group that works adds up");
  return result == tuttiSuccess;
}

void run_group(Input in, Group& group) {
  if (group.members[0].comm == nullptr) {
    std::vector<tuttiComm_t> comms(group.members.size());
    expect(tuttiCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr) == tuttiSuccess, "a group forms");
    for (size_t i = 0; i < comms.size(); i++) group.members[i].comm = comms[i];
  }
  // In one of eight inputs the second rank does something else at one place.
  const uint8_t deviates = in.byte(), where = in.byte();
  const std::string script(in.rest());
  std::string other = script;
  if (deviates % 8 == 7 && where < other.size()) other[where] = static_cast<char>(other[where] ^ deviates);
  bool second_is_well = true;
  std::thread second;
  if (group.members.size() > 1) second = std::thread([&] { second_is_well = run_rank(Input(other), group, 1); });
  const bool first_is_well = run_rank(Input(script), group, 0);
  if (second.joinable()) second.join();
  if (first_is_well && second_is_well) return;
  for (Member& member : group.members) checked(tuttiCommAbort(std::exchange(member.comm, nullptr)));
}

std::string repeated(const std::string& bytes, int times) {
  std::string all;
  for (int i = 0; i < times; i++) all += bytes;
  return all;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  // call, its kind, comm, sendbuff, recvbuff, count, type, op, ... , stream
  const std::string reduce = {0, 0, 0, 0, 0, 0, 16, 100, 7, 0, 3}, scatter = {0, 1, 0, 0, 0, 0, 16, 60, 2, 1, 3};
  const std::string in_place = {0, 0, 0, 0, 0, 0, 0, 100, 7, 4, 3}, to_root = {0, 2, 0, 0, 0, 0, 16, 9, 8, 2, 1, 3};
  const std::string gather = {1, 2, 0, 0, 0, 0, 16, 100, 7, 1, 3}, barrier = {1, 6, 0, 0, 0, 0, 16, 0, 0, 1, 3};
  const std::string messages = {2, 0, 1, 2, 10, 7, 0, 0, 20, 3, 0, 0, 30, 4, 0, 0};
  const std::string start = {5, 1}, finish = {5, 0}, new_stream = {6, 0, 0, 3}, new_event = {7, 0, 0, 3};
  const std::string queued = {0, 0, 0, 0, 0, 0, 16, 100, 7, 0, 0};
  const std::string record = {7, 1, 0, 0, 0}, wait = {6, 4, 0, 3, 0}, sync = {6, 1, 0, 0}, callback = {6, 3, 0, 0, 0};
  const std::string split = {12, 0, 2, 1, 0}, on_split = {0, 0, 1, 0, 0, 0, 16, 100, 7, 0, 3};
  const std::string scaled = {9, 2, 0, 0, 0, 7, 2}, with_it = {0, 0, 0, 0, 0, 0, 16, 50, 7, '\xc8', 3};
  const std::string allocate = {8, 0, 1, 0, 4}, finalize = {13, 0}, registered = {14, 1, 0, 0, 1, 0, 0, 4};
  const std::string new_group = {15, 1, 4, 2}, reversed = {15, 0, 4, 2};
  const std::string blocks = {3, 0, 0, 5, 0, 0, 9, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 7, 3};
  std::vector<std::string> seeds;
  for (const char n : {'\0', '\1'}) {
    const std::string group = {n, 0, 0};
    seeds.push_back(group + reduce + scatter + in_place + to_root + gather + barrier);
    seeds.push_back(group + messages + start + reduce + gather + finish + blocks);
    seeds.push_back(group + new_stream + new_event + repeated(queued, 3) + record + callback + wait + sync);
    seeds.push_back(group + split + on_split + finalize + scaled + with_it + allocate);
    seeds.push_back(group + registered + reduce + new_group + on_split + reversed + on_split);
    seeds.push_back(std::string{n, 7, 6} + reduce + gather);
  }
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  // What never comes is not waited for longer than this.
  [[maybe_unused]] static const int limited = setenv("TUTTI_OP_TIMEOUT", "5", 1) + setenv("TUTTI_LOG", "none", 1);
  static auto* groups = new Group[2]{Group(1), Group(2)};  // stay until the end
  Input in(data, bytes);
  Group& group = groups[in.below(2)];
  run_group(in, group);
  return 0;
}
