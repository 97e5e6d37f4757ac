// Kernels that wait for each other, on memory as weak as PTX allows, with threads scheduled at random: they are right
// with any seed. Mistakes planted in their PTX are found.
#include <cstdio>
#include <memory>
#include <regex>
#include <vector>

#include "../fake.h"
#include "catch.h"
#include "cuda/programs.h"
#include "launch.h"
#include "plan/planner.h"
#include "real_kernels.h"
#include "weak_memory.h"

using namespace tutti;
using tutti_test::FakePort;
using namespace tutti_test::ptx;

namespace {

constexpr uint32_t kMostSeeds = 1000;
constexpr DataType kType = DataType::kUint32;

std::vector<uint32_t> numbers(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> all(count);
  for (uint32_t& number : all) number = static_cast<uint32_t>(random());
  return all;
}

// Inputs and outputs of each rank in several operations.
struct Data {
  std::vector<std::vector<std::vector<uint32_t>>> in, out;  // by operation and rank

  Data(size_t n_operations, size_t n_ranks, size_t count, uint32_t seed) : in(n_operations), out(n_operations) {
    for (size_t o = 0; o < n_operations; o++)
      for (size_t r = 0; r < n_ranks; r++) {
        in[o].push_back(numbers(count, seed * 100 + static_cast<uint32_t>(o * 10 + r)));
        out[o].emplace_back(count);
      }
  }
  std::string wrong() const {
    for (size_t o = 0; o < in.size(); o++)
      for (size_t i = 0; i < in[o][0].size(); i++) {
        uint32_t sum = 0;
        for (const auto& input : in[o]) sum += input[i];
        for (size_t r = 0; r < out[o].size(); r++)
          if (out[o][r][i] != sum) return format("operation %zu: element %zu of rank %zu is wrong", o, i, r);
      }
    return "";
  }
};

using Grids = std::vector<std::vector<std::unique_ptr<Grid>>>;  // by rank

std::string run_all(const Grids& grids, const Data& data, uint32_t seed) {
  std::vector<std::vector<Grid*>> ranks;
  for (size_t r = 0; r < grids.size(); r++) {
    ranks.emplace_back();
    for (const auto& grid : grids[r]) {
      grid->device = static_cast<uint32_t>(r);
      ranks.back().push_back(grid.get());
    }
  }
  const std::string fault = run_at_random(std::move(ranks), seed);
  return fault.empty() ? data.wrong() : fault;
}

// Launches by lines, one after the other, in the same rooms.
std::string lines(const Module& module, int hops, size_t n_ranks, uint32_t seed) {
  constexpr size_t kLaunches = 3;
  const size_t room = std::max(cuda::kOneHopRoomBytes, cuda::two_hop_room_bytes(static_cast<uint32_t>(n_ranks)));
  Data data(kLaunches, n_ranks, 37, seed);
  std::vector<std::vector<char>> rooms(n_ranks, std::vector<char>(room + 16));
  std::vector<std::vector<uint32_t>> epochs(n_ranks, std::vector<uint32_t>(cuda::kTwoHopBlocks));
  uint32_t abort = 0;
  Grids grids(n_ranks);
  for (size_t o = 0; o < kLaunches; o++)
    for (size_t r = 0; r < n_ranks; r++) {
      cuda::LineCall call{};
      for (size_t s = 0; s < n_ranks; s++)
        call.rooms[s] = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(rooms[s].data()) + 15) / 16 * 16);
      call.epochs = epochs[r].data();
      call.input = data.in[o][r].data();
      call.output = data.out[o][r].data();
      call.abort = &abort;
      call.elems = static_cast<uint32_t>(data.in[o][r].size());
      call.rank = static_cast<int16_t>(r);
      call.n_ranks = static_cast<int16_t>(n_ranks);
      call.n_hops = static_cast<int16_t>(hops);
      call.dtype = kType;
      grids[r].push_back(grid_of(module, call));
    }
  return run_all(grids, data, seed);
}

// Rings with one GPU per rank: messages of a few elements through two slots each.
std::string ring(const Module& module, size_t n_ranks, uint32_t seed) {
  FakePort port(static_cast<int>(n_ranks));
  cuda::Schedules schedules;
  const int n = static_cast<int>(n_ranks);
  for (int r = 0; r < n; r++)
    schedules.push_back(
        Planner(r, flat_layout(n), Algo::kRing, false).schedule(Collective::kAllReduce, Algo::kRing, 0, 2));
  std::vector<std::unique_ptr<cuda::SpreadPrograms>> programs;
  std::vector<void*> memory;
  for (int r = 0; r < n; r++) {
    programs.push_back(std::make_unique<cuda::SpreadPrograms>(port, std::vector<cuda::Schedules>{schedules},
                                                              cuda::ProgramShape{1, 2, 128}));
    memory.push_back(port.allocate(programs.back()->bytes(r)).value());
  }
  for (int r = 0; r < n; r++) REQUIRE(programs[static_cast<size_t>(r)]->load(r, memory));
  Data data(1, n_ranks, 200, seed);
  Grids grids(n_ranks);
  for (size_t r = 0; r < n_ranks; r++) {
    cuda::ProgramCall call = programs[r]->call(0);
    call.block_elems = data.in[0][r].size();
    call.dtype = kType;
    call.inputs[0] = data.in[0][r].data();
    call.outputs[0] = data.out[0][r].data();
    grids[r].push_back(grid_of(module, call));
  }
  const std::string wrong = run_all(grids, data, seed);
  grids.clear();
  programs.clear();
  for (void* m : memory) port.free(m);
  return wrong;
}

const char* kRing = "interpretILi3E";
const char* kOneHop = "sum_in_one_hopILi3E";
const char* kTwoHops = "sum_in_two_hopsILi3E";

// Replaces occurrence `number` of `from`, or all of them, by `to`; it must exist.
std::string replaced(std::string text, const std::string& from, const std::string& to, int number = -1) {
  int found = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1), found++)
    if (number < 0 || number == found) text.replace(at, from.size(), to);
  REQUIRE(found > std::max(number, 0));
  return text;
}

// Splits 64-bit accesses into two of 32 bits, as they once were.
std::string torn(const std::string& text) {
  const std::regex store("st.relaxed.sys.global.v2.b64 \\[(\\S+)\\], \\{(\\S+), (\\S+)\\};");
  const std::regex load("ld.relaxed.sys.global.v2.b64 \\{(\\S+), (\\S+)\\}, \\[(\\S+)\\];");
  const std::string four = "{%r9001, %r9002, %r9003, %r9004}";
  const std::string stores =
      "mov.b64 {%r9001, %r9002}, $2;\nmov.b64 {%r9003, %r9004}, $3;\n"
      "st.relaxed.sys.global.v4.u32 [$1], " +
      four + ";";
  const std::string loads = "ld.relaxed.sys.global.v4.u32 " + four +
                            ", [$3];\n"
                            "mov.b64 $1, {%r9001, %r9002};\nmov.b64 $2, {%r9003, %r9004};";
  const std::string changed = std::regex_replace(std::regex_replace(text, store, stores), load, loads);
  REQUIRE(changed != text);
  return changed;
}

// Requires a seed with which the run fails, and prints the first one.
template <class Run>
void require_found(const char* what, const std::string& text, Run&& run) {
  Module module;
  module.add_text(text);
  for (const std::string& problem : module.problems) FAIL_CHECK(problem);
  uint32_t seed = 1;
  std::string wrong;
  while (wrong.empty() && seed <= kMostSeeds) wrong = run(module, seed++);
  printf("planted: %s: found with seed %u: %s\n", what, seed - 1, wrong.substr(0, 90).c_str());
  INFO(what);
  REQUIRE(wrong != "");
}

}  // namespace

TEST_CASE("interpreted schedules are right with all orders that PTX allows") {
  for (uint32_t seed = 1; seed <= 60; seed++) {
    INFO("seed " << seed);
    REQUIRE(ring(real_module(), 2 + seed % 2, seed) == "");
  }
}

TEST_CASE("lines are right with all orders that PTX allows") {
  for (uint32_t seed = 1; seed <= 60; seed++) {
    INFO("seed " << seed);
    REQUIRE(lines(real_module(), 1, 2 + seed % 3, seed) == "");
    REQUIRE(lines(real_module(), 2, 2 + seed % 2, seed) == "");
  }
}

TEST_CASE("a release, an acquire or a barrier too few, and a fence too short, are found") {
  const auto run = [](const Module& module, uint32_t seed) { return ring(module, 2 + seed % 2, seed); };
  const std::string text = real_text("program", kRing);
  require_found("no release", replaced(text, "st.release.sys", "st.relaxed.sys"), run);
  require_found("a release that reaches the block", replaced(text, "st.release.sys", "st.release.cta"), run);
  require_found("a release that reaches the device", replaced(text, "st.release.sys", "st.release.gpu"), run);
  require_found("no acquire", replaced(text, "ld.acquire.sys", "ld.relaxed.sys"), run);
  int barriers = 0;
  for (size_t at = text.find("bar.sync"); at != std::string::npos; at = text.find("bar.sync", at + 1)) barriers++;
  for (int b = 0; b < barriers; b++) require_found("no barrier", replaced(text, "bar.sync \t0;", "", b), run);
}

TEST_CASE("lines whose flags do not come with their data are found") {
  for (const int hops : {1, 2})
    require_found(hops == 1 ? "torn lines, one hop" : "torn lines, two hops",
                  torn(real_text("lines", hops == 1 ? kOneHop : kTwoHops)),
                  [&](const Module& module, uint32_t seed) { return lines(module, hops, 2 + seed % 3, seed); });
}
