#include "schedule_text.h"
#include "testing.h"

using namespace tutti;
using namespace tutti::testing;

TEST_CASE("to_text: a ring of three") {
  CHECK(to_text(all_ring_all_reduce(natural_order(3), 1)[0]) ==
        "rank 0 of 3: 3 chunks, 0 scratch, 1 lanes\n"
        "lane 0: channel 0, 5 steps\n"
        "lane 0 step 0: in[2], send 1\n"
        "lane 0 step 1: recv 2 + in[1], send 1\n"
        "lane 0 step 2: recv 2 + in[0] -> out[0], send 1 (complete)\n"
        "lane 0 step 3: recv 2 -> out[2], send 1\n"
        "lane 0 step 4: recv 2 -> out[1]\n");
}

TEST_CASE("to_text: a tree's top and a root of a broadcast") {
  CHECK(to_text(all_of("tree", Goal::kAllReduce, natural_order(3))[1]) ==
        "rank 1 of 3: 2 chunks, 0 scratch, 3 lanes\n"
        "lane 0: channel 0, 3 steps\n"
        "lane 0 step 0: recv 0 + in[0] -> out[0]\n"
        "lane 0 step 1: recv 2 + out[0] -> out[0], send 0 (complete)\n"
        "lane 0 step 2: out[0], send 2\n"
        "lane 1: channel 1, 1 steps\n"
        "lane 1 step 0: in[1], send 2\n"
        "lane 2: channel 1, 1 steps\n"
        "lane 2 step 0: recv 2 -> out[1]\n");
  CHECK(to_text(all_of("ring", Goal::kBroadcast, natural_order(2), 1, 1)[1]) ==
        "rank 1 of 2: 1 chunks, 0 scratch, 1 lanes\n"
        "lane 0: channel 0, 1 steps\n"
        "lane 0 step 0: in[0] -> out[0], send 0\n");
}

TEST_CASE("to_text: slices that no builder makes") {
  Schedule schedule{.rank = 2, .n_ranks = 4, .n_chunks = 1, .n_scratch = 1};
  schedule.lanes.push_back({.channel = 7,
                            .steps = {{.recv = 3, .local = {static_cast<Buffer>(9), 0}, .store = {Buffer::kScratch, 0}},
                                      {.recv = 1, .send = 0}}});
  CHECK(to_text(schedule) ==
        "rank 2 of 4: 1 chunks, 1 scratch, 1 lanes\n"
        "lane 0: channel 7, 2 steps\n"
        "lane 0 step 0: recv 3 + ?[0] -> scratch[0]\n"
        "lane 0 step 1: recv 1, send 0\n");
}
