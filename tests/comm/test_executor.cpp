// What the executor does with its links when something fails, and what it must not do; over made-up links, so that
// everything happens at the step that a test chooses.
#include <unistd.h>

#include <algorithm>

#include "catch.h"
#include "comm/executor_bench.h"
#include "contains.h"

namespace tutti::test_executor {

using test::Bench, test::bytes_of, test::Context, test::kBytes, test::kElems, test::made_up_link, test::MadeUpEnd;
using tutti_test::contains;

TEST_CASE("executor: an operation that fails takes back what it has exposed and where it has expected messages") {
  Bench bench;
  Context context;
  bench.to.exposes = true;
  bench.to.unsent = 1;
  bench.add_lane({Bench::send(bench.out)});
  bench.add_lane({bench.receive()});
  const char* why = nullptr;
  SECTION("because a link fails") {
    bench.from.fails = why = "rank 1 is gone";
  }
  SECTION("because the group ends") {
    context.ended = true;
    why = "the group has ended";
  }
  SECTION("because the message is of another call") {
    Call other = bench.operation.call;
    other.count++;
    bench.from.messages = {Bench::message(bench.theirs.data(), kBytes, other)};
    why = "count=10001";
  }
  Run run(bench.program, bench.operation, bench.recorder);
  const auto result = drive(run, context, {bench.spins, 5});
  REQUIRE_FALSE(result);
  INFO(result.error().message);
  CHECK(contains(result.error().message, why));
  CHECK(bench.to.exposed_at == std::vector<const void*>{bench.input.data()});
  CHECK(bench.to.revokes == 1);
  CHECK(bench.from.revokes == 1);
}

TEST_CASE("executor: what was sent before the group ended completes the operation") {
  Bench bench;
  Context context;
  bench.add_lane({bench.receive()});
  bench.from.on_peek = [&, looks = 0]() mutable {
    context.ended = true;
    if (++looks == 2) bench.from.messages.push_back(bench.message(bench.theirs.data()));
  };
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(drive(run, context, {bench.spins, 5}));
  CHECK(bench.output == bench.theirs);
}

TEST_CASE("executor: what still holds the rank up is waited for, and a link that fails meanwhile ends the operation") {
  Bench bench;
  Context context;
  bench.to.exposes = true;
  bench.to.unsent = 1;
  bench.to.fails = "rank 1 is gone";
  bench.add_lane({Bench::send(bench.out)});
  Run run(bench.program, bench.operation, bench.recorder);
  const auto result = drive(run, context, {bench.spins, 5});
  REQUIRE_FALSE(result);
  CHECK(contains(result.error().message, "rank 1 is gone; this rank is in AllReduce"));
  CHECK(result.error().culprit_rank == 1);
  CHECK(bench.to.revokes == 1);
  bench.to.culprit_plus_1 = 1 + 5;  // a link to rank 5 that has failed on the same device
  CHECK(run.blockers().poll().error().culprit_rank == 5);
  bench.operation.call.collective = Collective::kSendRecv;  // no call of the program's
  CHECK_FALSE(contains(run.blockers().poll().error().message, "this rank is in"));
}

// The pauses are between the operation's steps, not in its waits, so no load on the machine makes a wait too long.
TEST_CASE("executor: an operation that goes on again and again may take longer than its limit") {
  Bench bench;
  Context context;
  constexpr double kLimitSeconds = 1.5;
  std::vector<BoundStep> steps;
  for (int i = 0; i < 4; i++) steps.push_back(bench.receive());
  bench.add_lane(steps);
  int looks = 0;
  bench.from.on_peek = [&] {
    if (++looks % 20 != 0) return;  // idle polls before each message
    usleep(500'000);
    bench.from.messages.push_back(bench.message(bench.theirs.data()));
  };
  Run run(bench.program, bench.operation, bench.recorder);
  const auto result = drive(run, context, {bench.yields, kLimitSeconds});
  INFO((result ? "" : result.error().message));
  CHECK(result);
  CHECK(bench.from.releases == 4);
}

TEST_CASE("executor: an operation whose links are made one by one may take longer than its limit") {
  Bench bench;
  Context context;
  constexpr double kLimitSeconds = 1.5;
  context.missing = 4;
  bench.add_lane({bench.receive()});
  context.on_housekeeping = [&]() -> Result<void> {
    if (context.missing == 0 || context.housekeepings % 20 != 0) return {};
    usleep(500'000);
    if (--context.missing == 0) bench.from.messages.push_back(bench.message(bench.theirs.data()));
    return {};
  };
  Run run(bench.program, bench.operation, bench.recorder);
  const auto result = drive(run, context, {bench.yields, kLimitSeconds});
  INFO((result ? "" : result.error().message));
  CHECK(result);
}

TEST_CASE(
    "executor: links are made though other messages arrive all the time, and one that cannot be made is an error") {
  Bench bench;
  Context context;
  context.missing = 1;
  const bool fails = GENERATE(false, true);
  bench.add_lane(std::vector<BoundStep>(64, bench.receive()));
  int looks = 0;
  bench.from.on_peek = [&] {
    if (++looks % 2 != 0) bench.from.messages.push_back(bench.message(bench.theirs.data()));
  };
  context.on_housekeeping = [&]() -> Result<void> {
    if (fails) return Error{Code::kRemoteError, "no transport reaches rank 5", 5};
    context.missing = 0;
    return {};
  };
  Run run(bench.program, bench.operation, bench.recorder);
  const auto result = drive(run, context, {bench.yields, 5});
  CHECK(context.housekeepings == 1);
  CHECK(context.missing == (fails ? 1 : 0));
  CHECK((fails ? !result && result.error().culprit_rank == 5 : bool(result)));
  CHECK((bench.from.revokes > 0) == fails);
}

TEST_CASE("executor: an operation that comes to nothing for its limit says so") {
  Bench bench;
  Context context;
  bench.add_lane({bench.receive()});
  Run run(bench.program, bench.operation, bench.recorder);
  const auto result = drive(run, context, {bench.yields, 0.05});
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::kTimeout);
  CHECK(contains(result.error().message, "waiting for rank 1 (to send)"));
  CHECK(bench.from.revokes == 1);
}

TEST_CASE("executor: who waits until a message is taken says so, and why, and keeps house meanwhile") {
  Bench bench;
  Context context;
  context.why = "rank 3 is late";
  bench.to.has_slot = false;
  bench.add_lane({Bench::send(bench.out)});
  Run run(bench.program, bench.operation, bench.recorder);
  const auto result = drive(run, context, {bench.yields, 0.05});
  REQUIRE_FALSE(result);
  CHECK(contains(result.error().message, "waiting for rank 1 (to receive what this rank sends); rank 3 is late"));
  CHECK(context.housekeepings > 0);
}

TEST_CASE("executor: what could not be exposed after all is copied") {
  Bench bench;
  bench.to.exposes = bench.to.exposes_in_vain = true;
  bench.add_lane({Bench::send(bench.out)});
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.to.sent == std::vector<std::string>{bytes_of(bench.input)});
}

TEST_CASE("executor: a sum goes to no place of what is sent after it, but is something else") {
  Bench bench;
  std::vector<float> other_place(kElems, -1);
  bench.let_post(bench.to);
  bench.also_to.place = other_place.data();
  bench.also_to.place_bytes = kBytes;
  bench.add_lane({bench.add_up(&bench.out), Bench::send(bench.also_out)});
  bench.from.messages = {bench.message(bench.theirs.data())};
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.place == std::vector<float>(kElems, 7));
  CHECK(other_place == bench.input);
}

TEST_CASE("executor: a sender whose sum cannot be made gives up the places that it would have written to") {
  Bench bench;
  bench.let_post(bench.to);
  bench.let_post(bench.also_to);
  BoundStep again = Bench::send(bench.also_out, Buffer::kOutput);
  bench.add_lane({bench.add_up(&bench.out), again});
  bench.from.messages = {bench.message(nullptr)};
  SECTION("it cannot be exposed") {
    bench.from.fails_to_read = "taken back";
  }
  SECTION("it was taken back while it was read") {
    bench.from.exposed = bench.theirs.data();
    bench.from.fails = "taken back";
  }
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kFailed);
  CHECK(contains(run.error().message, "taken back"));
  CHECK_FALSE(bench.to.placing);
  CHECK_FALSE(bench.also_to.placing);
  CHECK(bench.to.publishes + bench.also_to.publishes == 0);
  CHECK(bench.from.releases == 0);
}

TEST_CASE("executor: a sum goes to the places of all who expect it, once, and nothing of it is exposed as well") {
  Bench bench;
  std::vector<float> other_place(kElems, -1);
  bench.let_post(bench.to);
  bench.to.exposes = bench.also_to.exposes = true;
  bench.also_to.place = other_place.data();
  bench.also_to.place_bytes = kBytes;
  const bool in_place = GENERATE(false, true);
  if (in_place) bench.operation.input = bench.output.data();
  if (in_place) bench.output = bench.input;
  bench.add_lane({bench.add_up(&bench.out), Bench::send(bench.also_out, Buffer::kOutput)});
  bench.from.messages = {bench.message(bench.theirs.data())};
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  const std::vector<float> sum(kElems, 7);
  CHECK(bench.output == sum);
  CHECK(bench.place == sum);
  CHECK(other_place == sum);
  CHECK((bench.to.publishes == 1 && bench.also_to.publishes == 1));
  CHECK((bench.to.exposed_at.empty() && bench.also_to.exposed_at.empty()));
}

TEST_CASE("executor: a place that is taken by another length stays as it is") {
  Bench bench;
  bench.let_post(bench.to);
  bench.to.place_bytes = kBytes - 4;
  bench.add_lane({bench.add_up(&bench.out)});
  bench.from.messages = {bench.message(bench.theirs.data())};
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.place == std::vector<float>(kElems, -1));
  CHECK(bench.to.sent == std::vector<std::string>{bytes_of(std::vector<float>(kElems, 7))});
}

TEST_CASE("executor: an input that counts several times is never sent as it is") {
  Bench bench;
  const float factor = 5;
  bench.operation.call.op = RedOp::kPreMulSum;
  bench.operation.scalar = &factor;
  bench.operation.one_way = true;
  bench.to.exposes = true;
  const bool placed = GENERATE(false, true), in_place = GENERATE(false, true);
  INFO((placed ? "placed" : "in a slot") << (in_place ? ", in place" : ""));
  if (placed) bench.let_post(bench.to);
  if (in_place) bench.output = bench.input;
  if (in_place) bench.operation.input = bench.output.data();
  SECTION("sent, then the sum is received") {
    bench.add_lane({Bench::send(bench.out), bench.receive()});
    bench.from.messages = {bench.message(bench.theirs.data())};
    Run run(bench.program, bench.operation, bench.recorder);
    CHECK(run.advance() == Run::Poll::kDone);
    CHECK(bench.to.sent == std::vector<std::string>{bytes_of(std::vector<float>(kElems, 15))});
    CHECK(bench.to.exposed_at.empty());
    CHECK(bench.output == bench.theirs);
  }
  SECTION("added to a message") {
    bench.add_lane({bench.add_up(&bench.out)});
    bench.from.messages = {bench.message(bench.theirs.data())};
    Run run(bench.program, bench.operation, bench.recorder);
    // Before its first step: one that lacked memory later would hold places of ranks that lack it, too.
    CHECK_FALSE(bench.program.workspace.pieces.empty());
    CHECK(run.advance() == Run::Poll::kDone);
    CHECK(bench.to.sent == std::vector<std::string>{bytes_of(std::vector<float>(kElems, 19))});
    CHECK(bench.output == std::vector<float>(kElems, 19));
  }
}

TEST_CASE("executor: with TUTTI_PROTO=copy nothing is exposed and no place is told") {
  Bench bench;
  bench.operation.exposes.any = false;
  bench.to.exposes = true;
  BoundStep sends = Bench::send(bench.out);
  sends.expects = {{1, 0, 1}};
  bench.add_lane({sends, bench.receive()});
  bench.from.messages = {bench.message(bench.theirs.data())};
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.to.exposed_at.empty());
  CHECK(bench.to.publishes == 1);
  CHECK(bench.from.posts_ahead == 0);
}

// In place the output holds the value that the message must be added to.
TEST_CASE("executor: only a large message that is merely stored in the output is expected there") {
  Bench bench;
  BoundStep step = bench.receive();
  int expected = 0;
  SECTION("it is") {
    expected = 1;
  }
  SECTION("it is added to the input") {
    step = bench.add_up(&bench.out);
  }
  SECTION("the output is added to it") {
    step.before.buffer = Buffer::kOutput;
  }
  SECTION("it is stored in scratch") {
    step.store.buffer = Buffer::kScratch;
  }
  SECTION("it is only passed on") {
    step.store.buffer = Buffer::kNone;
    step.send = &bench.out;
  }
  SECTION("it is small") {
    bench.operation.call.count = bench.operation.blocks.uniform_elems = 100;
  }
  bench.add_lane({step});
  Run run(bench.program, bench.operation, bench.recorder);
  for (int i = 0; i < 3; i++) CHECK(run.advance() == Run::Poll::kIdle);
  CHECK(bench.from.posts == expected);
}

TEST_CASE("executor: every message of a lane is expected in its turn") {
  Bench bench;
  bench.add_lane({bench.receive(), bench.receive()});
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kIdle);
  CHECK(bench.from.posts == 1);
  bench.from.messages = {bench.message(bench.theirs.data())};
  CHECK(run.advance() == Run::Poll::kProgress);
  CHECK(run.advance() == Run::Poll::kIdle);
  CHECK(bench.from.posts == 2);
}

TEST_CASE("executor: a message that is exposed is read where it lies") {
  Bench bench;
  bench.add_lane({bench.add_up(&bench.out)});
  bench.from.messages = {bench.message(nullptr)};
  bench.from.exposed = bench.theirs.data();
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.output == std::vector<float>(kElems, 7));
}

TEST_CASE("executor: a rank does not sleep while one of its lanes can go on") {
  Bench bench;
  bench.from.may_sleep = bench.also_to.may_sleep = true;
  BoundStep other = bench.receive();
  other.recvs = {&bench.also_out};
  bench.add_lane({bench.receive()});
  bench.add_lane({other});
  Run run(bench.program, bench.operation, bench.recorder);
  std::vector<Blockers::Sleeper> sleepers;
  CHECK(run.blockers().prepare_sleep(&sleepers));
  CHECK(sleepers.size() == 2);
  bench.from.messages = {bench.message(bench.theirs.data())};
  CHECK_FALSE(run.blockers().prepare_sleep(&sleepers));
}

TEST_CASE("executor: a link that will be slept on is not polled any more, which might take the news that is to wake") {
  Bench bench;
  bench.to.has_slot = false;
  bench.to.may_sleep = bench.from.may_sleep = true;
  bench.to.unsent = GENERATE(0u, 1u);
  bench.add_lane({Bench::send(bench.out)});
  bench.add_lane({bench.receive()});
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kIdle);
  std::vector<Blockers::Sleeper> sleepers;
  CHECK(run.blockers().prepare_sleep(&sleepers));
  CHECK((bench.to.asleep && bench.from.asleep));
  CHECK(bench.to.polls_asleep + bench.from.polls_asleep == 0);
}

TEST_CASE("executor: what a rank copies for itself does not hold up its other lanes") {
  Bench bench;
  bench.program.sizes.slot_bytes = kBytes / 2;
  bench.program.step_by_step = true;
  BoundStep copy;
  copy.local.buffer = Buffer::kInput;
  copy.store.buffer = Buffer::kOutput;
  bench.add_lane({copy});
  bench.add_lane({Bench::send(bench.out)});
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kProgress);
  CHECK(bench.output.back() == -1);
  CHECK(bench.to.sent.size() == 2);
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.output == bench.input);
}

// 160 KB in slots of 128: two rounds, each of whole cache lines.
TEST_CASE("executor: a value that is larger than a slot goes in rounds, every step in each of them") {
  Bench bench;
  constexpr uint64_t kMany = 40'000;
  bench.operation.call.count = bench.operation.blocks.uniform_elems = kMany;
  bench.input.assign(kMany, 3);
  bench.theirs.assign(kMany, 4);
  bench.output.assign(kMany, -1);
  bench.operation.input = bench.input.data();
  bench.operation.output = bench.output.data();
  for (size_t i = 0; i < kMany; i++) bench.input[i] = static_cast<float>(i % 100);
  const bool by_step = GENERATE(false, true);
  bench.program.step_by_step = by_step;
  bench.add_lane({Bench::send(bench.also_out), bench.add_up(&bench.out)});
  const auto first = static_cast<uint32_t>(kMany / 2 * sizeof(float));
  bench.from.messages = {bench.message(bench.theirs.data(), first), bench.message(bench.theirs.data(), first)};
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  std::string sent, sums;
  for (const std::string& message : bench.also_to.sent) sent += message;
  for (const std::string& message : bench.to.sent) sums += message;
  CHECK((bench.also_to.sent.size() == 2 && bench.to.sent.size() == 2));
  CHECK(sent == bytes_of(bench.input));
  for (float& value : bench.input) value += 4;
  CHECK(sums == bytes_of(bench.input));
  CHECK(bench.output == bench.input);
}

TEST_CASE("executor: a message of another length than its call says is an error that names its rank") {
  Bench bench;
  bench.add_lane({bench.receive()});
  bench.from.messages = {bench.message(bench.theirs.data(), kBytes - 4)};
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kFailed);
  CHECK(contains(run.error().message, "rank 1 sent a chunk of 39996 bytes where 40000 were expected"));
  CHECK(bench.output == std::vector<float>(kElems, -1));
}

TEST_CASE("executor: a message on an idle link is a mismatch if it is of an earlier call or of this one, not later") {
  Bench bench;
  bench.add_lane({bench.receive()});
  Run run(bench.program, bench.operation, bench.recorder);
  Call other = bench.operation.call;
  const auto is_stray = [&] {
    bench.also_to.messages = {Bench::message(bench.theirs.data(), kBytes, other)};
    return run.check_stray(bench.also_out);
  };
  CHECK_FALSE(is_stray());  // this call's message
  other.sequence = 8;
  other.count = 5;
  CHECK_FALSE(is_stray());  // a later call's message
  other.sequence = 7;
  CHECK(is_stray());
  CHECK(contains(run.error().message, "count=5"));
  other.sequence = 6;
  CHECK(is_stray());
  other.collective = Collective::kSendRecv;
  CHECK_FALSE(is_stray());  // its receive may still be called
}

}  // namespace tutti::test_executor
