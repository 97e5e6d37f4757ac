// Every argument that ranks must agree on, with one rank that passes a different one: all end with an error that names
// both calls, and none of them takes wrong data for a result.
#include <algorithm>
#include <array>
#include <bit>

#include "comm/comparison.h"
#include "comm/ranks.h"
#include "contains.h"
#include "tutti/trace.h"

using namespace tutti_test;

namespace {

constexpr int kMostRanks = 3;

enum class What {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kAllGatherv,
  kReduceScatterv,
  kBarrier,
};
constexpr const char* kNames[] = {"AllReduce", "Reduce",  "Broadcast",  "AllGather",      "ReduceScatter", "AllToAll",
                                  "Gather",    "Scatter", "AllGatherv", "ReduceScatterv", "Barrier"};

struct Args {
  What what = What::kAllReduce;
  size_t count = 12;
  tuttiDataType_t type = tuttiInt32;
  tuttiRedOp_t op = tuttiSum;
  int root = 0;
  std::array<size_t, kMostRanks> counts{3, 4, 5}, displs{5, 1, 8};  // for unequal blocks
};

size_t total(const Args& args, int n) {
  size_t sum = 0;
  for (int r = 0; r < n; r++) sum += args.counts[static_cast<size_t>(r)];
  return sum;
}

bool is_unequal(What what) {
  return what == What::kAllGatherv || what == What::kReduceScatterv;
}
bool reduces(What what) {
  return what == What::kAllReduce || what == What::kReduce || what == What::kReduceScatter ||
         what == What::kReduceScatterv;
}
bool has_root(What what) {
  return what == What::kReduce || what == What::kBroadcast || what == What::kGather || what == What::kScatter;
}

// As error messages write the call.
std::string text_of(const Args& args, int n) {
  std::string text = kNames[static_cast<int>(args.what)];
  if (args.what == What::kBarrier) return text;
  text += "(count=" + std::to_string(is_unequal(args.what) ? total(args, n) : args.count);
  if (is_unequal(args.what)) text += " in all";
  text += args.type == tuttiInt32 ? ", int32" : ", float";
  if (reduces(args.what)) text += args.op == tuttiSum ? ", sum" : ", max";
  if (has_root(args.what)) text += ", root=" + std::to_string(args.root);
  return text + ")";
}

// Elements of either type, in four bytes.
class Elems {
 public:
  Elems(size_t size, tuttiDataType_t type) : words_(size + 1), type_(type) {}
  void* data() { return words_.data(); }
  void put(size_t i, int value) { words_[i] = word_of(value); }
  bool has(size_t i, int value) const { return words_[i] == word_of(value); }

 private:
  uint32_t word_of(int value) const {
    return type_ == tuttiInt32 ? static_cast<uint32_t>(value) : std::bit_cast<uint32_t>(static_cast<float>(value));
  }

  std::vector<uint32_t> words_;
  tuttiDataType_t type_;
};

int value_of(int rank, size_t i) {
  return static_cast<int>(i % 1000) + 1000 * rank + 1;
}
int reduced(const Args& args, int n, size_t i) {
  int sum = 0;
  for (int r = 0; r < n; r++) sum += value_of(r, i);
  return args.op == tuttiSum ? sum : value_of(n - 1, i);
}

// One rank's call, and the check of its result if it succeeds.
class Member {
 public:
  Member(const Args& args, int rank, int n)
      : args_(args), rank_(rank), n_(n), room_(std::max(3 * args.count, 2 * total(args, n)) + 32) {}

  void run(tuttiComm_t comm, Outcome& outcome) {
    Elems input(room_, args_.type), output(room_, args_.type);
    for (size_t i = 0; i < room_; i++) input.put(i, value_of(rank_, i));
    outcome.take(call(comm, input.data(), output.data()));
    if (outcome.code == tuttiSuccess) check(output, outcome);
  }

 private:
  tuttiResult_t call(tuttiComm_t comm, void* in, void* out) const {
    const Args& a = args_;
    switch (a.what) {
      case What::kAllReduce: return tuttiAllReduce(in, out, a.count, a.type, a.op, comm, nullptr);
      case What::kReduce: return tuttiReduce(in, out, a.count, a.type, a.op, a.root, comm, nullptr);
      case What::kBroadcast: return tuttiBroadcast(in, out, a.count, a.type, a.root, comm, nullptr);
      case What::kAllGather: return tuttiAllGather(in, out, a.count, a.type, comm, nullptr);
      case What::kReduceScatter: return tuttiReduceScatter(in, out, a.count, a.type, a.op, comm, nullptr);
      case What::kAllToAll: return tuttiAlltoAll(in, out, a.count, a.type, comm, nullptr);
      case What::kGather: return tuttiGather(in, out, a.count, a.type, a.root, comm, nullptr);
      case What::kScatter: return tuttiScatter(in, out, a.count, a.type, a.root, comm, nullptr);
      case What::kAllGatherv: return tuttiAllGatherv(in, out, a.counts.data(), a.displs.data(), a.type, comm, nullptr);
      case What::kReduceScatterv: return tuttiReduceScatterv(in, out, a.counts.data(), a.type, a.op, comm, nullptr);
      case What::kBarrier: return tuttiBarrier(comm, nullptr);
    }
    return tuttiInternalError;
  }

  void check(Elems& output, Outcome& outcome) const {
    const Args& a = args_;
    const auto me = static_cast<size_t>(rank_);
    const auto expect = [&](size_t at, size_t count, auto&& value) {
      for (size_t i = 0; i < count; i++) outcome.wrong += !output.has(at + i, value(i));
    };
    const auto sum_from = [&](size_t begin) { return [=, &a, this](size_t i) { return reduced(a, n_, begin + i); }; };
    const auto of = [](int rank, size_t begin) { return [=](size_t i) { return value_of(rank, begin + i); }; };
    if (a.what == What::kAllReduce || (a.what == What::kReduce && rank_ == a.root)) expect(0, a.count, sum_from(0));
    if (a.what == What::kBroadcast) expect(0, a.count, of(a.root, 0));
    if (a.what == What::kReduceScatter) expect(0, a.count, sum_from(me * a.count));
    if (a.what == What::kReduceScatterv) {
      size_t begin = 0;
      for (size_t r = 0; r < me; r++) begin += a.counts[r];
      expect(0, a.counts[me], sum_from(begin));
    }
    if (a.what == What::kScatter) expect(0, a.count, of(a.root, me * a.count));
    for (int r = 0; r < n_; r++) {
      const auto from = static_cast<size_t>(r);
      if (a.what == What::kAllGather || (a.what == What::kGather && rank_ == a.root))
        expect(from * a.count, a.count, of(r, 0));
      if (a.what == What::kAllToAll) expect(from * a.count, a.count, of(r, me * a.count));
      if (a.what == What::kAllGatherv) expect(a.displs[from], a.counts[from], of(r, 0));
    }
  }

  const Args args_;
  const int rank_, n_;
  const size_t room_;
};

struct Setting {
  int n;
  const char* transport;
  const char* algo;  // empty: the library's choice

  tuttiConfig_t config() const {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.transports = transport;
    config.algo = *algo == 0 ? nullptr : algo;
    config.opTimeoutSeconds = 20;  // a hang ends with a different error
    return config;
  }
  std::string text() const {
    return std::string(*algo == 0 ? "any algorithm" : algo) + " over " + transport + ", " + std::to_string(n) +
           " ranks";
  }
};

// Rank `odd_rank` calls `odd`, the others `usual`. With `used`, all ranks first make both calls successfully.
std::vector<Outcome> run_mismatch(const Setting& setting, const Args& usual, const Args& odd, int odd_rank, bool used) {
  const tuttiConfig_t config = setting.config();
  return run_threads(setting.n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (used) {
      Member(usual, rank, setting.n).run(comm, outcome);
      Member(odd, rank, setting.n).run(comm, outcome);
    }
    Member(rank == odd_rank ? odd : usual, rank, setting.n).run(comm, outcome);
    if (outcome.code == tuttiSuccess) outcome.take(tuttiCommFinalize(comm));  // a rank that got nothing learns it here
  });
}

void require_mismatch(const Setting& setting, const Args& usual, const Args& odd, int odd_rank, bool used,
                      const std::string& also = "") {
  const auto outcomes = run_mismatch(setting, usual, odd, odd_rank, used);
  for (size_t r = 0; r < outcomes.size(); r++) {
    INFO(setting.text() << (used ? ", used before" : "") << ", rank " << odd_rank << " calls "
                        << text_of(odd, setting.n) << ": rank " << r << " says: " << outcomes[r].message);
    const std::string& message = outcomes[r].message;
    CHECK(outcomes[r].code == tuttiInvalidUsage);
    CHECK(outcomes[r].wrong == 0);
    CHECK(message.find("rank " + std::to_string(odd_rank) + " called " + text_of(odd, setting.n)) != std::string::npos);
    CHECK(message.find(" called " + text_of(usual, setting.n)) != std::string::npos);
    CHECK(message.find(also) != std::string::npos);
  }
}

void require_agreement(const Setting& setting, const Args& usual, const Args& odd, int odd_rank) {
  INFO(setting.text());
  require_success(run_mismatch(setting, usual, odd, odd_rank, false));
}

const char* any_transport() {
  return GENERATE("shm", "tcp");
}

}  // namespace

TEST_CASE("one rank calls another operation, or the same with another count, type, operator or root", "[waits]") {
  const Setting setting{GENERATE(2, 3), any_transport(), GENERATE("ring", "direct", "tree", "")};
  if (kSanitized && setting.n == 2) return;
  // With the library's own choice every rank makes each difference once, otherwise one rank does.
  const bool is_on_each = *setting.algo == 0 && !kSanitized;
  int turn = 0;
  const auto differ = [&](const Args& usual, const Args& odd) {
    for (int rank = 0; is_on_each && rank < setting.n; rank++) require_mismatch(setting, usual, odd, rank, false);
    require_mismatch(setting, usual, odd, turn % setting.n, turn / setting.n % 2 == 1);
    turn++;
  };
  constexpr int kKinds = static_cast<int>(What::kBarrier) + 1;
  for (int i = 0; i < kKinds; i++) {
    const Args usual{.what = static_cast<What>(i)};
    const auto with = [&](auto&& change) {
      Args odd = usual;
      change(odd);
      differ(usual, odd);
    };
    with([&](Args& odd) { odd.what = static_cast<What>((i + 1 + turn % 3) % kKinds); });
    if (usual.what == What::kBarrier) continue;
    with([](Args& odd) { odd.type = tuttiFloat; });
    if (!is_unequal(usual.what)) with([](Args& odd) { odd.count += 4; });
    if (reduces(usual.what)) with([](Args& odd) { odd.op = tuttiMax; });
    if (has_root(usual.what)) with([](Args& odd) { odd.root = 1; });
  }
}

TEST_CASE("other algorithms of all-reduce find differences as well") {
  const Setting setting{3, any_transport(), GENERATE("oneshot", "linear", "circulant", "doubling", "hierarchical", "")};
  const bool used = GENERATE(false, true);
  require_mismatch(setting, {}, {.count = 13}, 0, used);
  require_mismatch(setting, {}, {.op = tuttiMax}, 1, used);
  require_mismatch(setting, {}, {.type = tuttiFloat}, 2, used);
}

TEST_CASE("one rank has other blocks, with the same elements in all or not", "[waits]") {
  const Setting setting{GENERATE(2, 3), any_transport(), GENERATE("ring", "direct", "tree", "")};
  const What what = GENERATE(What::kAllGatherv, What::kReduceScatterv);
  // Small blocks are copied, large ones exposed and sent in several messages.
  const size_t scale = GENERATE(1, kSanitized ? 9'000 : 12'000);
  const bool is_usual = *setting.algo == 'r' || *setting.algo == 0;
  if (kSanitized && (setting.n == 2 || scale == 1 || !is_usual)) return;
  Args usual{.what = what};
  for (int r = 0; r < kMostRanks; r++) {
    usual.counts[static_cast<size_t>(r)] *= scale;
    usual.displs[static_cast<size_t>(r)] *= scale;
  }
  int odd_rank = 0;
  for (int more = 0; more < setting.n; more++)
    for (int less = 0; less < setting.n; less++, odd_rank++) {  // one block: it is only larger
      if (kSanitized && less != more && less != (more + 1) % setting.n) continue;
      Args odd = usual;
      const auto first = static_cast<size_t>(more == less ? more : std::min(more, less));
      odd.counts[static_cast<size_t>(more)] += 1;
      if (more != less) odd.counts[static_cast<size_t>(less)] -= 1;
      odd.displs = {0, odd.counts[0], odd.counts[0] + odd.counts[1]};
      const std::string named = "recvcounts[" + std::to_string(first) + "] is ";
      require_mismatch(setting, usual, odd, odd_rank % setting.n, odd_rank % 2 == 1, named);
    }
}

TEST_CASE("the first block that differs is named with both ranks' sizes") {
  const int n = 3;
  Args odd{.what = What::kReduceScatterv};
  std::swap(odd.counts[1], odd.counts[2]);
  const auto outcomes = run_mismatch({n, "shm", "direct"}, {.what = What::kReduceScatterv}, odd, 2, true);
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    const bool is_named = outcome.message.find("recvcounts[1] is 5 on rank 2 and 4 on rank ") != std::string::npos ||
                          (outcome.message.find("recvcounts[1] is 4 on rank ") != std::string::npos &&
                           outcome.message.find(" and 5 on rank 2") != std::string::npos);
    CHECK(is_named);
  }
}

TEST_CASE("a rank that has waited for long states its blocks, too") {
  using namespace tutti;
  const auto call = [](Comparison& comparison, Recorder& recorder, std::vector<uint64_t> elems) {
    auto blocks = std::make_shared<Operation::Unequal>();
    blocks->hash = hash_of(elems);
    blocks->elems = std::move(elems);
    const Call called{.sequence = 7, .count = 12, .collective = Collective::kAllGather, .blocks = blocks->hash};
    comparison.add(called, blocks);
    recorder.begin(to_tag(called), called.sequence, caller_or_place(nullptr));
    return called;
  };
  Recorder recorder_of_waiting, recorder_of_other;
  Comparison waiting(1, 3, recorder_of_waiting), other(2, 3, recorder_of_other);
  set_place(name_place("all_gather at waiting.py:1"));
  const Call waits_in = call(waiting, recorder_of_waiting, {3, 4, 5});
  const auto stated =
      waiting.look({{1, waits_in, {}, recorder_of_waiting.memory().place_text(7)}, Standing::Doing::kCalls, 7});
  REQUIRE(stated);
  other.hear(stated.value());
  CHECK(static_cast<bool>(other.check()));  // this rank has not called yet
  set_place(name_place("all_gather at other.py:2"));
  call(other, recorder_of_other, {3, 5, 4});
  set_place(0);
  const auto checked = other.check();
  REQUIRE_FALSE(checked);
  CHECK(contains(checked.error().message,
                 "rank 2 called AllGatherv(count=12 in all, int8) as operation 7 (all_gather at "
                 "other.py:2), rank 1 called "));
  CHECK(contains(checked.error().message, " as operation 7 (all_gather at waiting.py:1)"));
  CHECK(checked.error().message.find("recvcounts[1] is 5 on rank 2 and 4 on rank 1") != std::string::npos);
}

TEST_CASE("where bindings have named the places of calls, both are in the sentences of all ranks") {
  const Setting setting{GENERATE(2, 3), any_transport(), ""};
  const tuttiConfig_t config = setting.config();
  const auto outcomes = run_threads(setting.n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    uint64_t place = 0;
    outcome.take(
        tuttiNamePlace(rank == 0 ? "all_reduce of float32[2, 2] at train.py:41" : "barrier at train.py:57", &place));
    outcome.take(tuttiSetPlace(place));
    std::array<float, 4> sum{};
    outcome.take(rank == 0 ? tuttiAllReduce(sum.data(), sum.data(), 4, tuttiFloat32, tuttiSum, comm, nullptr)
                           : tuttiBarrier(comm, nullptr));
  });
  for (const Outcome& outcome : outcomes) {
    INFO(setting.text() << ": " << outcome.message);
    CHECK(outcome.code != tuttiSuccess);
    CHECK(contains(outcome.message, "as operation 1 (all_reduce of float32[2, 2] at train.py:41)"));
    CHECK(contains(outcome.message, "called Barrier as operation 1 (barrier at train.py:57)"));
  }
}

TEST_CASE("blocks of unequal size are not taken for equal ones with the same count") {
  const Setting setting{GENERATE(2, 3), any_transport(), GENERATE("ring", "direct")};
  const bool used = GENERATE(false, true);
  const auto pair = [&](What equal, What unequal) {
    Args odd{.what = unequal};
    const Args usual{.what = equal, .count = total(odd, setting.n)};
    require_mismatch(setting, usual, odd, 0, used);
    require_mismatch(setting, odd, usual, 1, used);
  };
  pair(What::kAllGather, What::kAllGatherv);
  pair(What::kReduceScatter, What::kReduceScatterv);
}

TEST_CASE("where a rank puts the blocks that it gathers is its own affair") {
  const Setting setting{3, any_transport(), GENERATE("ring", "direct", "tree")};
  const Args usual{.what = What::kAllGatherv};
  Args odd = usual;
  odd.displs = {9, 14, 0};
  for (int rank = 0; rank < setting.n; rank++) require_agreement(setting, usual, odd, rank);
}

namespace {

// An all-to-all of 2 elements between every two ranks, except that this rank sends or expects more at `peer`.
tuttiResult_t exchange(tuttiComm_t comm, int n, tuttiDataType_t type, size_t more_to, size_t more_from, int peer) {
  constexpr size_t kRoom = 8;
  std::array<size_t, kMostRanks> sends{2, 2, 2}, receives{2, 2, 2}, at{0, kRoom, 2 * kRoom};
  sends[static_cast<size_t>(peer)] += more_to;
  receives[static_cast<size_t>(peer)] += more_from;
  std::vector<int> in(kRoom * static_cast<size_t>(n)), out(in.size());
  return tuttiAlltoAllv(in.data(), sends.data(), at.data(), out.data(), receives.data(), at.data(), type, comm,
                        nullptr);
}

}  // namespace

TEST_CASE("what one rank sends is what the other expects, in all-to-alls and between two") {
  const Setting setting{GENERATE(2, 3), any_transport(), ""};
  const int n = setting.n, odd_rank = GENERATE(0, 1, 2), peer = (odd_rank + GENERATE(1, 2)) % n;
  if (odd_rank >= n || peer == odd_rank) return;
  const tuttiConfig_t config = setting.config();
  const std::string to_peer = "to rank " + std::to_string(peer) + ", which receives ";
  const std::string to_odd = "to rank " + std::to_string(odd_rank) + ", which receives ";
  const auto require_told = [&](const std::string& sent, const std::string& received, auto&& body) {
    const auto outcomes = run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
      outcome.take(exchange(comm, n, tuttiInt32, 0, 0, 0));
      outcome.take(body(rank, comm));
      if (outcome.code == tuttiSuccess) outcome.take(tuttiCommFinalize(comm));
    });
    for (const Outcome& outcome : outcomes) {
      INFO(setting.text() << ", rank " << odd_rank << " differs: " << outcome.message);
      CHECK(outcome.code == tuttiInvalidUsage);
      CHECK(outcome.message.find(" sends " + sent + " as its message ") != std::string::npos);
      CHECK(outcome.message.find(received + " as message ") != std::string::npos);
    }
  };
  require_told("3 x int32", to_peer + "2 x int32", [&](int rank, tuttiComm_t comm) {
    return exchange(comm, n, tuttiInt32, rank == odd_rank ? 1 : 0, 0, rank == odd_rank ? peer : 0);
  });
  require_told("2 x int32", to_odd + "3 x int32", [&](int rank, tuttiComm_t comm) {
    return exchange(comm, n, tuttiInt32, 0, rank == odd_rank ? 1 : 0, rank == odd_rank ? peer : 0);
  });
  const auto pass = [&](tuttiComm_t comm, int rank, size_t count, tuttiDataType_t type) {
    std::array<int, 8> mine{};
    if (rank == odd_rank) return tuttiSend(mine.data(), count, type, peer, comm, nullptr);
    return rank == peer ? tuttiRecv(mine.data(), 4, tuttiInt32, odd_rank, comm, nullptr) : tuttiSuccess;
  };
  require_told("5 x int32", to_peer + "4 x int32",
               [&](int rank, tuttiComm_t comm) { return pass(comm, rank, 5, tuttiInt32); });
  require_told("4 x float", to_peer + "4 x int32",
               [&](int rank, tuttiComm_t comm) { return pass(comm, rank, 4, tuttiFloat); });
}

TEST_CASE("what a rank sends to itself is its own affair: it is refused, and the communicator can be used on") {
  const Setting setting{2, any_transport(), ""};
  const tuttiConfig_t config = setting.config();
  require_success(run_threads(2, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    if (rank == 1) outcome.wrong += exchange(comm, 2, tuttiInt32, 1, 0, 1) != tuttiInvalidUsage;
    outcome.take(exchange(comm, 2, tuttiInt32, 0, 0, 0));
  }));
}

TEST_CASE("ranks that are to use different algorithms are told when they meet") {
  const int n = GENERATE(2, 3), odd_rank = GENERATE(0, 1);
  const char* const transport = any_transport();
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; r++)
    threads.emplace_back([&, r] {
      const tuttiConfig_t config = Setting{n, transport, r == odd_rank ? "direct" : "ring"}.config();
      tuttiComm_t comm = nullptr;
      outcomes[static_cast<size_t>(r)].take(tuttiCommInitRankConfig(&comm, n, id, r, &config));
    });
  for (auto& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK((outcome.code == tuttiInvalidUsage || outcome.code == tuttiRemoteError));
    CHECK(outcome.message.find("TUTTI_ALGO") != std::string::npos);
    CHECK(outcome.message.find("direct") != std::string::npos);
  }
}
