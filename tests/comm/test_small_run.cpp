// What the executor prepares in advance, and where it falls back to a run; over made-up links.
#include "catch.h"
#include "comm/executor_bench.h"

namespace tutti::test_small_run {

using test::Bench, test::bytes_of, test::kBytes, test::kElems;

TEST_CASE("executor: a small sum has every message that it takes") {
  Bench bench;
  bench.operation.call.count = bench.operation.blocks.uniform_elems = 2;
  BoundStep sum = bench.add_up(nullptr);
  sum.recvs = {&bench.in, &bench.also_out};
  bench.add_lane({sum});
  const std::vector<float> others(2, 5);
  bench.from.messages = {bench.message(bench.theirs.data(), 8)};
  bench.also_to.messages = {bench.message(others.data(), 8)};
  SmallRun small;
  small.prepare(bench.program, bench.operation);
  CHECK(small.advance(7, bench.input.data(), bench.output.data(), {1, nullptr}));
  CHECK(bench.output[1] == 12);
}

TEST_CASE("executor: a small operation is not over while a message of its own holds it up") {
  Bench bench;
  bench.operation.call.count = bench.operation.blocks.uniform_elems = 2;
  bench.to.pushed = 1;
  bench.to.unsent = 1;
  bench.add_lane({Bench::send(bench.out), bench.receive()});
  bench.from.messages = {bench.message(bench.theirs.data(), 8)};
  SmallRun small;
  small.prepare(bench.program, bench.operation);
  REQUIRE(static_cast<bool>(small));
  CHECK_FALSE(small.advance(7, bench.input.data(), bench.output.data(), {1, nullptr}));
  CHECK(small.steps_done() == 2);
  Run run(bench.program, bench.operation, bench.recorder, small.steps_done());
  CHECK(run.advance() == Run::Poll::kIdle);
  bench.to.unsent = 0;
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.to.sent.size() == 1);
  CHECK(bench.output[1] == 4);
  // A link that sends without this rank's help need not be polled.
  bench.to.pushed = 2;
  bench.from.messages = {bench.message(bench.theirs.data(), 8)};
  CHECK(small.advance(7, bench.input.data(), bench.output.data(), {1, nullptr}));
}

TEST_CASE("executor: what could be exposed is copied beforehand, or left to a run from then on") {
  Bench bench;
  bench.add_lane({Bench::send(bench.out), bench.add_up(&bench.also_out)});
  SmallRun small;
  small.prepare(bench.program, bench.operation);
  REQUIRE(static_cast<bool>(small));
  const auto advance = [&] {
    bench.from.messages = {bench.message(bench.theirs.data())};
    return small.advance(7, bench.input.data(), bench.output.data(), {1, nullptr});
  };
  const auto go_on = [&] {
    Run run(bench.program, bench.operation, bench.recorder, small.steps_done());
    CHECK(run.advance() == Run::Poll::kDone);
  };
  SECTION("none") {
    CHECK(advance());
    CHECK(advance());
    CHECK(bench.to.sent.size() == 2);
    CHECK(bench.to.exposed_at.empty());
  }
  SECTION("the input") {
    bench.to.exposes = true;
    for (const bool is_first : {true, false}) {
      CAPTURE(is_first);
      CHECK_FALSE(advance());
      CHECK(small.steps_done() == 0);
      go_on();
    }
    CHECK(bench.to.exposed_at == std::vector<const void*>(2, bench.input.data()));
  }
  SECTION("the sum") {
    bench.also_to.exposes = true;
    for (const size_t done : {1, 0}) {
      CHECK_FALSE(advance());
      CHECK(small.steps_done() == done);
      go_on();
    }
    CHECK(bench.to.sent.size() == 2);
    CHECK(bench.also_to.exposed_at == std::vector<const void*>(2, bench.output.data()));
  }
  CHECK(bench.also_to.sent == std::vector<std::string>(2, bytes_of(std::vector<float>(kElems, 7))));
}

TEST_CASE("executor: a small operation does not wait for a message that is exposed, nor do the next ones") {
  Bench bench;
  int looks = 0;
  bench.add_lane({bench.receive()});
  bench.from.exposed = bench.theirs.data();
  bench.from.on_peek = [&] { looks++; };
  SmallRun small;
  small.prepare(bench.program, bench.operation);
  for (const bool is_first : {true, false}) {
    CAPTURE(is_first);
    looks = 0;
    bench.from.messages = {bench.message(nullptr)};
    CHECK_FALSE(small.advance(7, bench.input.data(), bench.output.data(), {kSpins, nullptr}));
    CHECK(looks <= (is_first ? kTurnsPerPoll + 2 : 0));
    Run run(bench.program, bench.operation, bench.recorder, small.steps_done());
    CHECK(run.advance() == Run::Poll::kDone);
    CHECK(bench.output == bench.theirs);
  }
}

TEST_CASE("executor: a value that is copied to the output may be exposed where it came from") {
  Bench bench;
  bench.operation.exposes.copied_input = GENERATE(true, false);
  bench.to.exposes = true;
  BoundStep copy = Bench::send(bench.out);
  copy.store.buffer = Buffer::kOutput;
  bench.add_lane({copy});
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.to.exposed_at[0] == (bench.operation.exposes.copied_input ? bench.input.data() : bench.output.data()));
  CHECK(bench.output == bench.input);
}

TEST_CASE("executor: a copy is exposed if what was copied cannot be") {
  Bench bench;
  bench.operation.exposes.copied_input = true;
  const bool exposes_outputs = GENERATE(true, false);
  bench.operation.exposes.outputs_from_bytes = kBytes + !exposes_outputs;
  bench.to.exposes = true;
  bench.to.private_memory = bench.input.data();
  BoundStep copy = Bench::send(bench.out);
  copy.store.buffer = Buffer::kOutput;
  bench.add_lane({copy});
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kDone);
  const std::vector<const void*> the_copy = {bench.output.data()};
  CHECK(bench.to.exposed_at == (exposes_outputs ? the_copy : std::vector<const void*>{}));
  CHECK(bench.output == bench.input);
}

TEST_CASE("executor: outputs are read and written by others from a size on") {
  Bench bench;
  const bool is_shared = GENERATE(true, false);
  bench.operation.exposes.outputs_from_bytes = kBytes + !is_shared;
  bench.to.exposes = bench.also_to.exposes = true;
  bench.add_lane({Bench::send(bench.out), bench.add_up(&bench.also_out), bench.receive()});
  bench.program.lanes[0].steps[0].expects = {{.step = 2, .from = 0, .ahead = 1}};
  bench.from.messages = {bench.message(bench.theirs.data())};
  const bool is_posted = GENERATE(true, false);
  if (is_posted) bench.let_post(bench.also_to);
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(run.advance() == Run::Poll::kProgress);
  CHECK(bench.from.posts_ahead == is_shared);
  CHECK(bench.to.exposed_at == std::vector<const void*>{bench.input.data()});
  CHECK((bench.place[0] == 7) == (is_posted && is_shared));
  CHECK(bench.also_to.exposed_at.empty() == (is_posted || !is_shared));
  CHECK(bench.also_to.sent == std::vector<std::string>{bytes_of(std::vector<float>(kElems, 7))});
}

TEST_CASE("executor: a small operation that cannot go on is taken up where it stands") {
  Bench bench;
  bench.operation.call.count = bench.operation.blocks.uniform_elems = 2;
  bench.add_lane({Bench::send(bench.out), bench.add_up(&bench.also_out)});
  SmallRun small;
  small.prepare(bench.program, bench.operation);
  REQUIRE(static_cast<bool>(small));
  size_t done = 0;
  SECTION("no message") {
    done = 1;
  }
  SECTION("no free slot for the first message") {
    bench.to.pushed = 0;
  }
  SECTION("no free slot for the sum") {
    bench.also_to.has_slot = false;
    bench.from.messages = {bench.message(bench.theirs.data(), 8)};
    done = 1;
  }
  SECTION("a message of another call") {
    bench.from.messages = {bench.message(bench.theirs.data(), 4)};
    done = 1;
  }
  CHECK_FALSE(small.advance(7, bench.input.data(), bench.output.data(), {1, nullptr}));
  CHECK(small.steps_done() == done);
  CHECK(bench.output[0] == -1);
  CHECK(bench.from.releases == 0);
  bench.to.sent.clear();
  bench.also_to.has_slot = true;
  bench.from.messages = {bench.message(bench.theirs.data(), 8)};
  Run run(bench.program, bench.operation, bench.recorder, small.steps_done());
  CHECK(run.advance() == Run::Poll::kDone);
  CHECK(bench.to.sent.size() == 1 - done);
  CHECK(bench.also_to.sent == std::vector<std::string>{bytes_of({7, 7})});
}

}  // namespace tutti::test_small_run
