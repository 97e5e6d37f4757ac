// The same program gives the same bits in every run: random programs of reductions, run repeatedly in different
// surroundings.
#include <atomic>
#include <random>

#include "comm/ranks.h"
#include "cpus.h"
#include "extremes.h"

using namespace tutti_test;

namespace {

// What must make no difference.
struct Surroundings {
  const char* name;
  const char *slot_bytes = "", *proto = "", *stream_from = "";
  bool registered = false, in_place = false, pinned = false, busy = false, delays = false, streams = false;
  bool more_before = false;  // other operations run first
};
constexpr Surroundings kSurroundings[] = {
    {"as it comes"},
    {"again"},
    {"small slots", "4096"},
    {"odd slots", "100032", "", "1"},
    {"large slots", "1M", "copy"},
    {"registered", "", "", "", true},
    {"in place, after other operations", "", "", "", false, true, false, false, false, false, true},
    {"pinned to one CPU", "", "", "", false, false, true},
    {"beside busy threads, with delays", "", "", "", false, true, false, true, true},
    {"on streams, registered, small slots", "8192", "", "", true, false, false, false, true, true},
};

struct Step {
  int collective;  // 0 all-reduce, 1 reduce, 2 reduce-scatter
  tuttiDataType_t type;
  size_t elem_bytes, count;
  tuttiRedOp_t op;
  int root;
};

std::vector<Step> random_program(unsigned seed, int n_ranks) {
  constexpr std::pair<tuttiDataType_t, size_t> kTypes[] = {
      {tuttiFloat32, 4}, {tuttiFloat32, 4}, {tuttiFloat64, 8}, {tuttiFloat16, 2}, {tuttiBfloat16, 2}};
  constexpr tuttiRedOp_t kOps[] = {tuttiSum, tuttiSum, tuttiProd, tuttiAvg, tuttiMax};
  std::mt19937 random(seed);
  std::vector<Step> program;
  const int n_steps = kSanitized ? 8 : 24;
  for (int i = 0; i < n_steps; i++) {
    const auto [type, bytes] = kTypes[random() % std::size(kTypes)];
    const size_t count = 1 + random() % (size_t{1} << (random() % (kSanitized ? 15 : 19)));
    program.push_back({static_cast<int>(random() % 3), type, bytes, count, kOps[random() % std::size(kOps)],
                       static_cast<int>(random() % static_cast<unsigned>(n_ranks))});
  }
  return program;
}

// Finite numbers of all magnitudes below 2, which every rank can compute.
void fill(char* data, const Step& step, size_t elems, uint64_t seed) {
  const uint64_t first_of_exponent = uint64_t{1} << (8 * step.elem_bytes - 2);
  uint64_t state = seed * 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < elems; i++) {
    state = state * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
    const uint64_t bits = (state ^ state >> 29) & ~first_of_exponent;
    memcpy(data + i * step.elem_bytes, &bits, step.elem_bytes);
  }
}

// FNV-1a by words: a byte at a time took longer than the operations.
uint64_t fingerprint(const char* data, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325 ^ bytes;
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, data + at, std::min(sizeof word, bytes - at));
    hash = (hash ^ word) * 0x100000001b3;
    hash ^= hash >> 32;
  }
  return hash;
}

// Room for one step's input and output.
class Room {
 public:
  Room(bool registered, size_t bytes, Outcome& outcome) : registered_(registered), private_(registered ? 0 : bytes) {
    if (registered) outcome.take(tuttiMemAlloc(&shared_, bytes));
  }
  ~Room() {
    if (registered_) static_cast<void>(tuttiMemFree(shared_));
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  char* data() { return registered_ ? static_cast<char*>(shared_) : private_.data(); }

 private:
  bool registered_;
  void* shared_ = nullptr;
  std::vector<char> private_;
};

uint64_t run_step(const Step& step, unsigned seed, int rank, int n, const Surroundings& where, tuttiComm_t comm,
                  Outcome& outcome) {
  const bool scatters = step.collective == 2;
  const size_t in_elems = step.count * (scatters ? static_cast<size_t>(n) : 1), bytes = step.count * step.elem_bytes;
  Room in(where.registered, in_elems * step.elem_bytes, outcome), out(where.registered, bytes, outcome);
  if (outcome.code != tuttiSuccess) return 0;
  fill(in.data(), step, in_elems, seed * 64 + static_cast<unsigned>(rank));
  char* to = out.data();
  if (where.in_place) to = in.data() + (scatters ? static_cast<size_t>(rank) * bytes : 0);
  tuttiStream_t stream = nullptr;
  if (where.streams) outcome.take(tuttiStreamCreate(&stream));
  if (step.collective == 0)
    outcome.take(tuttiAllReduce(in.data(), to, step.count, step.type, step.op, comm, stream));
  else if (step.collective == 1)
    outcome.take(tuttiReduce(in.data(), to, step.count, step.type, step.op, step.root, comm, stream));
  else
    outcome.take(tuttiReduceScatter(in.data(), to, step.count, step.type, step.op, comm, stream));
  if (where.streams) {
    outcome.take(tuttiStreamSynchronize(stream));
    outcome.take(tuttiStreamDestroy(stream));
  }
  return step.collective == 1 && rank != step.root ? 0 : fingerprint(to, bytes);
}

using Bits = std::vector<std::vector<uint64_t>>;  // by rank and step

Bits run_program(int n, const char* transports, unsigned seed, const Surroundings& where) {
  setenv("TUTTI_SLOT_BYTES", where.slot_bytes, 1);
  setenv("TUTTI_PROTO", where.proto, 1);
  setenv("TUTTI_NT_BYTES", where.stream_from, 1);
  std::atomic<bool> over{false};
  std::vector<std::thread> busy;
  for (int i = 0; where.busy && i < 2; i++)
    busy.emplace_back([&] {
      while (!over) continue;
    });
  const std::vector<Step> program = random_program(seed, n);
  Bits bits(static_cast<size_t>(n));
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(static_cast<size_t>(n));
  std::vector<std::thread> ranks;
  for (int r = 0; r < n; r++)
    ranks.emplace_back([&, r] {
      if (where.pinned) stay_on({cpus_here().front()});  // before the other ranks are told of its CPUs
      Outcome& outcome = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.transports = transports;
      tuttiComm_t comm = nullptr;
      outcome.take(tuttiCommInitRankConfig(&comm, n, id, r, &config));
      if (comm == nullptr) return;
      std::mt19937 delay(seed + static_cast<unsigned>(r));
      for (int i = where.more_before ? -1 : 0; i < static_cast<int>(program.size()); i++) {
        if (where.delays && delay() % 3 == 0) usleep(delay() % 3000);
        const Step& step = program[static_cast<size_t>(i < 0 ? 3 : i)];
        const uint64_t got = run_step(step, static_cast<unsigned>(i + 1), r, n, where, comm, outcome);
        if (i >= 0) bits[static_cast<size_t>(r)].push_back(got);
      }
      outcome.take(tuttiCommDestroy(comm));
    });
  for (auto& rank : ranks) rank.join();
  over = true;
  for (auto& thread : busy) thread.join();
  for (const char* name : {"TUTTI_SLOT_BYTES", "TUTTI_PROTO", "TUTTI_NT_BYTES"}) unsetenv(name);
  require_success(outcomes);
  return bits;
}

}  // namespace

TEST_CASE("the same program gives the same bits in every run, whatever goes on around it", "[long]") {
  const auto [n, transports] =
      GENERATE(std::pair{2, ""}, std::pair{3, ""}, std::pair{4, "tcp"}, std::pair{5, "tcp"}, std::pair{6, ""});
  if (kSanitized && n > 4) return;
  const unsigned seed = 71 + static_cast<unsigned>(n);
  const Bits first = run_program(n, transports, seed, kSurroundings[0]);
  const std::vector<Step> program = random_program(seed, n);
  for (const Surroundings& where : kSurroundings) {
    const Bits bits = run_program(n, transports, seed, where);
    for (size_t r = 0; r < first.size(); r++)
      for (size_t i = 0; i < program.size(); i++) {
        INFO(n << " ranks over '" << transports << "', " << where.name << ": rank " << r << ", step " << i
               << ": collective " << program[i].collective << " of " << program[i].count << " x " << program[i].type
               << ", " << program[i].op);
        CHECK(bits[r][i] == first[r][i]);
      }
  }
}

TEST_CASE("deterministic groups give the same bits over every transport and by every algorithm") {
  const int n = GENERATE(3, 4);
  const Surroundings& plain = kSurroundings[0];
  setenv("TUTTI_DETERMINISTIC", "1", 1);
  const Bits first = run_program(n, "", 5, plain);
  const Bits over_tcp = run_program(n, "tcp", 5, plain);
  setenv("TUTTI_ALGO", "ring", 1);
  const Bits forced = run_program(n, "tcp", 5, kSurroundings[2]);
  setenv("TUTTI_ALGO", "chain", 1);
  const Bits along_chain = run_program(n, "tcp", 5, plain),
             in_other_surroundings = run_program(n, "", 5, kSurroundings[9]);
  unsetenv("TUTTI_ALGO");
  unsetenv("TUTTI_DETERMINISTIC");
  CHECK(along_chain == first);
  CHECK(in_other_surroundings == first);
  CHECK(over_tcp == first);
  CHECK(forced == first);
}

TEST_CASE("the minimum and maximum of zeros and NaNs have the same bits by every algorithm") {
  const int n = GENERATE(2, 3);
  const char* algo = GENERATE("", "oneshot", "direct", "ring", "tree", "doubling");
  const char* transport = GENERATE("shm", "tcp");
  INFO(n << " ranks, algorithm '" << algo << "' over " << transport);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = algo;
  config.transports = transport;
  config.deterministic = n == 2;  // with more ranks that would take the algorithms that keep the order of ranks
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (const FloatKind& kind : kFloatKinds)
      for (const size_t count : {size_t{7}, kSanitized ? size_t{5000} : size_t{65536}}) {
        std::vector<std::vector<char>> inputs;
        for (int r = 0; r < n; r++) inputs.push_back(special_operand(kind, static_cast<size_t>(r), count));
        for (const tuttiRedOp_t op : {tuttiMin, tuttiMax}) {
          std::vector<char> out(count * kind.bytes);
          outcome.take(tuttiAllReduce(inputs[static_cast<size_t>(rank)].data(), out.data(), count,
                                      static_cast<tuttiDataType_t>(kind.type), op, comm, nullptr));
          outcome.wrong += wrong_extremes(kind, op == tuttiMax, inputs, out);
        }
      }
  }));
}
