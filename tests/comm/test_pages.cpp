// A lane with more steps than are bound at a time.
#include <algorithm>
#include <cstring>

#include "catch.h"
#include "comm/made_up_link.h"
#include "exec/wait.h"

namespace tutti::test_pages {

using test::made_up_link, test::MadeUpEnd;

// Of two ranks.
BoundCall by_ring(Collective collective) {
  BoundCall operation{.call = {.sequence = 7,
                               .collective = collective,
                               .dtype = DataType::kFloat32,
                               .op = RedOp::kSum,
                               .algo = Algo::kRing}};
  operation.n_ranks = 2;
  operation.stream_from_bytes = UINT64_MAX;
  return operation;
}

TEST_CASE("executor: a lane of many steps is bound a page at a time, in every round and operation") {
  MadeUpEnd to;
  Link link = made_up_link(to, 1);
  Recorder recorder;
  BoundCall operation = by_ring(Collective::kAllReduce);
  std::vector<float> input(size_t{2 * kPageSteps + 88} * 32), output;
  constexpr uint32_t kChunks = 2 * kPageSteps + 88;
  const size_t n = size_t{kChunks} * 32;  // two cache lines per chunk, one per message: two rounds
  Schedule schedule{.rank = 0, .n_ranks = 2, .n_chunks = kChunks};
  Steps steps;
  const Slice in{Buffer::kInput, 0}, out{Buffer::kOutput, 0};
  steps.repeat({{{.send = 1, .chunk = 0, .local = in}}}, kChunks / 2, {.stride = 1, .modulus = kChunks});
  steps.repeat(
      {{{.send = 1, .chunk = kChunks / 2, .local = {in.buffer, kChunks / 2}, .store = {out.buffer, kChunks / 2}}}},
      kChunks / 2, {.stride = 1, .modulus = kChunks});
  schedule.lanes = {{0, std::move(steps)}, {1, {}}};
  Program program = bind_program(std::move(schedule), {.slot_bytes = 64}, [&](int, uint32_t, bool) { return &link; });
  CHECK(program.lanes.size() == 1);
  CHECK(program.sends.size() == 1);
  program.step_by_step = GENERATE(false, true);
  operation.call.count = operation.blocks.uniform_elems = n;
  for (size_t i = 0; i < n; i++) input[i] = static_cast<float>(i);
  operation.input = input.data();
  for (int again = 0; again < 2; again++) {
    to.sent.clear();
    output.assign(n, -1);
    operation.output = output.data();
    Run run(program, operation, recorder);
    CHECK(program.lanes[0].steps.size() == kPageSteps);
    CHECK(run.advance() == Run::Poll::kDone);
    REQUIRE(to.sent.size() == 2 * kChunks);
    CHECK(program.lanes[0].before == 2 * kPageSteps);
    CHECK(
        std::equal(output.begin() + static_cast<long>(n / 2), output.end(), input.begin() + static_cast<long>(n / 2)));
    std::vector<float> sent;  // first element of each message
    for (const std::string& message : to.sent) memcpy(&sent.emplace_back(), message.data(), sizeof(float));
    for (uint32_t c = 0; c < kChunks; c++)
      for (uint32_t round = 0; round < 2; round++) {
        const size_t at = program.step_by_step ? 2 * c + round : round * kChunks + c;
        REQUIRE(sent[at] == static_cast<float>(32 * c + 16 * round));
      }
  }
  // A small run is prepared for the whole program or not at all.
  Program in_one_round =
      bind_program(program.schedule, {.slot_bytes = 128}, [&](int, uint32_t, bool) { return &link; });
  SmallRun small;
  small.prepare(in_one_round, operation);
  CHECK_FALSE(static_cast<bool>(small));
  // A run leaves the lane at its last page.
  Run run(in_one_round, operation, recorder);
  REQUIRE(run.advance() == Run::Poll::kDone);
  small.prepare(in_one_round, operation);
  CHECK_FALSE(static_cast<bool>(small));
}

// Its last chunk takes what the others leave of their last segment.
TEST_CASE("executor: of unequal blocks the smaller one may have the longest chunk, and no message is too long") {
  constexpr uint32_t kSlotBytes = kTcpMessageBytes;
  constexpr size_t kRounds = 13;  // 375'000 - 178'992 elements, 16'272 in a message
  constexpr uint64_t kElems[] = {387'500, 375'000}, kAt[] = {0, kElems[0]};
  MadeUpEnd to;
  Link link = made_up_link(to, 1);
  Recorder recorder;
  BoundCall operation = by_ring(Collective::kAllGather);
  operation.blocks = {kElems[0] + kElems[1], kElems, kAt, kAt};
  const std::vector<float> input(kElems[0] + kElems[1]);
  operation.input = input.data();
  Schedule schedule{.rank = 0, .n_ranks = 2, .n_chunks = 2};
  Steps steps;
  steps.repeat({{{.send = 1, .chunk = 2, .local = {Buffer::kInput, 2}}}}, 2, {.stride = 1, .modulus = 4});
  schedule.lanes = {{0, std::move(steps)}};
  Program program = bind_program(std::move(schedule), {.slot_bytes = kSlotBytes, .segment_bytes = kTcpMessageBytes},
                                 [&](int, uint32_t, bool) { return &link; });
  Run run(program, operation, recorder);
  REQUIRE(run.advance() == Run::Poll::kDone);
  CHECK(to.sent.size() == 2 * kRounds);  // and no message is shorter than it need be
  size_t sent_bytes = 0;
  for (const std::string& message : to.sent) {
    CHECK(message.size() <= kSlotBytes);
    sent_bytes += message.size();
  }
  CHECK(sent_bytes == kElems[1] * sizeof(float));
}

}  // namespace tutti::test_pages
