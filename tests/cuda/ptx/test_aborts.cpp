// Aborted launches end, whatever they wait for; until then they have done what their twins do.
#include <algorithm>
#include <vector>

#include "../fake.h"
#include "../twins.h"
#include "catch.h"
#include "cuda/programs.h"
#include "launch.h"
#include "plan/planner.h"
#include "real_kernels.h"

using namespace tutti;
using namespace tutti::cuda;
using namespace tutti_test::ptx;

namespace {

constexpr uint32_t kAborted = 1;

// Rank 0 of two, alone, with blocks of which it can only start the first: then it waits for rank 1, either to receive a
// message or for room to send. Returns the content of both ranks' links afterwards.
std::vector<char> links_of_one(Collective collective, DataType type, bool on_host) {
  constexpr uint64_t kManyElems = (uint64_t{1} << 33) + 5;
  constexpr ProgramShape kShape{1, 2, 1024};
  tutti_test::FakePort port(2);
  Schedules schedules;
  for (int r = 0; r < 2; r++)
    schedules.push_back(Planner(r, flat_layout(2), Algo::kRing, false).schedule(collective, Algo::kRing, 0, 2));
  SpreadPrograms programs(port, {schedules}, kShape);
  const size_t bytes[] = {programs.bytes(0), programs.bytes(1)};
  std::vector<void*> memory;
  for (const size_t n : bytes) memory.push_back(port.allocate(n).value());
  REQUIRE(programs.load(0, memory));
  std::vector<char> in(1 << 16), out(in.size());
  for (size_t i = 0; i < in.size(); i++) in[i] = static_cast<char>(i % 61);
  ProgramCall call = programs.call(0);
  call.block_elems = kManyElems;
  call.dtype = type;
  call.inputs[0] = in.data();
  call.outputs[0] = out.data();
  call.abort = &kAborted;
  if (on_host)
    run_program_on_host(call);
  else
    REQUIRE(run(real_module(), call) == "");
  std::vector<char> found;
  for (size_t r = 0; r < 2; r++) {
    const char* const begin = static_cast<const char*>(memory[r]);
    found.insert(found.end(), begin, begin + bytes[r]);
    port.free(memory[r]);
  }
  return found;
}

// Two ranks by lines, run one after the other, so that rank 0 waits in vain for the inputs of rank 1, and rank 1 in two
// hops for the sums of rank 0. Returns the content of both rooms afterwards.
std::vector<char> rooms_of_two(int16_t hops, DataType type, bool on_host) {
  const size_t room = hops == 1 ? kOneHopRoomBytes : two_hop_room_bytes(2);
  tutti_test::FakePort port(2);
  char* const rooms[] = {static_cast<char*>(port.allocate(room).value()),
                         static_cast<char*>(port.allocate(room).value())};
  std::vector<char> in(256), out(in.size()), found;
  for (size_t i = 0; i < in.size(); i++) in[i] = static_cast<char>(i % 61);
  for (int16_t r = 0; r < 2; r++) {
    uint32_t epochs[kTwoHopBlocks] = {};
    LineCall call{};
    call.rooms[0] = rooms[0];
    call.rooms[1] = rooms[1];
    call.epochs = epochs;
    call.input = in.data();
    call.output = out.data();
    call.abort = &kAborted;
    call.elems = static_cast<uint32_t>(32 / dtype_bytes(type));
    call.rank = r;
    call.n_ranks = 2;
    call.n_hops = hops;
    call.dtype = type;
    if (on_host)
      run_lines_on_host(call);
    else
      REQUIRE(run(real_module(), call) == "");
  }
  for (char* const at : rooms) {
    found.insert(found.end(), at, at + room);
    port.free(at);
  }
  return found;
}

bool is_all_zero(const std::vector<char>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
}

}  // namespace

TEST_CASE("aborted launches of schedules end, with their messages sent, in blocks of more than 2^32 elements") {
  for (int type = 0; type < kDataTypes; type++)
    for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast}) {
      INFO(dtype_name(static_cast<DataType>(type)) << " " << traits(collective).name);
      const auto expected = links_of_one(collective, static_cast<DataType>(type), true);
      CHECK(!is_all_zero(expected));
      CHECK(links_of_one(collective, static_cast<DataType>(type), false) == expected);
    }
}

TEST_CASE("aborted launches by lines end, with their lines sent") {
  for (int type = 0; type < kDataTypes; type++)
    for (const int16_t hops : {1, 2}) {
      INFO(dtype_name(static_cast<DataType>(type)) << " in " << hops << " hops");
      const auto expected = rooms_of_two(hops, static_cast<DataType>(type), true);
      CHECK(!is_all_zero(expected));
      CHECK(rooms_of_two(hops, static_cast<DataType>(type), false) == expected);
    }
}
