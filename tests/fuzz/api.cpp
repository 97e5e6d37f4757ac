// The C API: bytes become a sequence of calls (script.h) on a group of one or two ranks.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "script.h"

namespace {

using namespace tutti::fuzz;

// One of the two groups, kept from input to input while it works.
struct Group {
  explicit Group(int n) : members(static_cast<size_t>(n)) {}
  std::vector<Member> members;
};

// After the script all ranks whose group still works sum up ones.
bool run_rank(Input in, Group& group, int rank) {
  const int n = static_cast<int>(group.members.size());
  Member& member = group.members[static_cast<size_t>(rank)];
  { Script(in, member, rank, n).run(); }
  // More elements than a script ever uses, so it cannot be taken for another rank's script.
  std::array<int, kMaxElems + 1> ones, sums{};
  ones.fill(1);
  const tuttiResult_t result =
      checked(tuttiAllReduce(ones.data(), sums.data(), sums.size(), tuttiInt32, tuttiSum, member.comm, nullptr));
  const bool adds_up = std::all_of(sums.begin(), sums.end(), [n](int sum) { return sum == n; });
  if (result == tuttiSuccess) expect(adds_up, "a group that works adds up");
  return result == tuttiSuccess;
}

// True if all groups work. A rank whose script ended differently from its peer's may wait for it until a time-out,
// which takes seconds. Their communicators are aborted from here instead.
bool run_ranks(const std::string (&scripts)[2], Group& group) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t n_ended = 0, n_well = 0;
  const size_t n = group.members.size();
  const auto be_rank = [&](size_t rank) {
    const bool is_well = run_rank(Input(scripts[rank]), group, static_cast<int>(rank));
    const std::lock_guard lock(mutex);
    n_ended++;
    n_well += is_well ? 1 : 0;
    group.members[rank].has_run = true;
    changed.notify_one();
  };
  if (n == 1) {
    be_rank(0);
    return n_well == 1;
  }
  std::thread threads[] = {std::thread(be_rank, 0), std::thread(be_rank, 1)};
  std::unique_lock lock(mutex);
  constexpr auto kPatience = std::chrono::milliseconds(20);
  changed.wait_for(lock, 10 * kPatience, [&] { return n_ended > 0; });
  changed.wait_for(lock, kPatience, [&] { return n_ended == n; });
  for (Member& member : group.members) member.is_ended = n_well == 0 && !member.has_run;
  lock.unlock();
  for (const Member& member : group.members)
    if (member.is_ended) checked(tuttiCommAbort(member.comm));
  for (std::thread& thread : threads) thread.join();
  for (Member& member : group.members) member.has_run = false;
  return n_well == n;
}

void run_group(Input in, Group& group) {
  if (group.members[0].comm == nullptr) {
    std::vector<tuttiComm_t> comms(group.members.size());
    expect(tuttiCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr) == tuttiSuccess, "a group forms");
    for (size_t i = 0; i < comms.size(); i++) group.members[i].comm = comms[i];
  }
  // In one of eight inputs the second rank's script differs in one place.
  const uint8_t deviates = in.byte(), where = in.byte();
  const std::string script(in.rest());
  std::string other = script;
  if (deviates % 8 == 7 && where < other.size()) other[where] = static_cast<char>(other[where] ^ deviates);
  std::string scripts[] = {script, other};
  if (run_ranks(scripts, group)) return;
  for (Member& member : group.members) {
    const tuttiComm_t comm = std::exchange(member.comm, nullptr);
    if (!member.is_ended) checked(tuttiCommAbort(comm));
    member.is_ended = false;
  }
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
  const std::string simulate = {5, '\x81'}, shrink = {16, 1, 4, 2}, whole = {16, 0, 4, 2};
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
    seeds.push_back(group + start + reduce + gather + simulate + whole + on_split + shrink);
    seeds.push_back(std::string{n, 7, 6} + reduce + gather);
  }
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  // Ranks wait no longer than this for what never comes.
  [[maybe_unused]] static const int limited =
      setenv("TUTTI_OP_TIMEOUT", "5", 1) + setenv("TUTTI_INIT_TIMEOUT", "5", 1) + setenv("TUTTI_LOG", "none", 1);
  static auto* groups = new Group[2]{Group(1), Group(2)};  // never destroyed
  Input in(data, bytes);
  Group& group = groups[in.below(2)];
  run_group(in, group);
  return 0;
}
