// The sentence that explains a hang, with made-up ranks.
#include "catch.h"
#include "contains.h"
#include "debug/why.h"

using namespace tutti;
using tutti_test::contains;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Began operation `sequence` some seconds ago and waits for `awaited`; or has ended it, if that is empty.
Witness rank(int number, char state, uint64_t sequence, std::vector<int> awaited = {}) {
  Witness w;
  w.process_state = state;
  w.trace.rank = number;
  w.trace.process.pid = 1000 + number;
  w.trace.read_ns = 100 * kSecond;
  TracedOperation operation;
  operation.nth = sequence;
  operation.call = {
      .sequence = sequence, .count = 4, .collective = Collective::kAllReduce, .dtype = DataType::kFloat32};
  operation.started_ns = 90 * kSecond;
  if (awaited.empty()) {
    operation.finished_ns = 95 * kSecond;
    operation.state = TracedOperation::State::kCompleted;
  }
  w.trace.operations.push_back(operation);
  if (!awaited.empty()) w.trace.wait.since_ns = 90 * kSecond + number;
  w.trace.wait.awaited = std::move(awaited);
  return w;
}

Witnesses group(std::vector<Witness> ranks) {
  Witnesses all;
  for (Witness& w : ranks) all[w.trace.rank] = std::move(w);
  return all;
}

}  // namespace

TEST_CASE("a call's tag keeps all that can be told of it") {
  const Call call{uint64_t{1} << 40, ~uint64_t{0}, Collective::kSendRecv,  DataType::kFloat64, RedOp::kPreMulSum,
                  Algo::kRing,       -1,           (uint64_t{5} << 32) + 1};
  CHECK(from_tag(to_tag(call)) == call);
}

TEST_CASE("a rank that is stopped is found at the end of the chain") {
  auto stopped = rank(2, 'T', 7, {1});
  stopped.trace.wait = {};
  const std::string text = why(group({rank(0, 'S', 7, {2}), rank(1, 'S', 7, {0}), stopped}), 1);
  CHECK(
      text ==
      "rank 1 waits for rank 0, which waits for rank 2 (in AllReduce(count=4, float, sum) as operation 7, for 10.0 s): "
      "rank 2 is stopped (in AllReduce(count=4, float, sum) as operation 7, for 10.0 s): its process 1002 was "
      "stopped by a signal or a debugger; kill -CONT 1002 lets it continue");
}

TEST_CASE("a rank that has not come is told from one that waits itself") {
  const std::string text = why(group({rank(0, 'S', 7, {1, 2}), rank(1, 'S', 7, {2}), rank(2, 'D', 6)}));
  CHECK(contains(text, "rank 0 waits for rank 2 (in "));
  CHECK(contains(text,
                 "rank 2 has not called it yet: it is after AllReduce(count=4, float, sum) as operation 6, "
                 "which ended 5.0 s ago, and its process 1002 is waiting for a disk"));
}

TEST_CASE("a rank that has done its part is not said to be late") {
  const std::string text = why(group({rank(0, 'S', 7, {1}), rank(1, 'S', 7)}));
  CHECK(contains(text, "rank 1 has done its part of that (it is after AllReduce(count=4, float, sum) as operation 7"));
  CHECK(contains(text, "what it sent has not arrived"));
  Witness sent = rank(1, 'R', 50);  // messages, which have numbers of their own
  sent.trace.operations[0].call.collective = Collective::kSendRecv;
  CHECK(contains(why(group({rank(0, 'S', 7, {1}), sent})), "rank 1 has not called it yet"));
}

TEST_CASE("one that is gone comes before one that is stopped, and that before one that is late") {
  const auto late = rank(1, 'R', 6), stopped = rank(2, 'T', 6), gone = rank(3, 'X', 6);
  CHECK(contains(why(group({rank(0, 'S', 7, {1, 2, 3}), late, stopped, gone})), ": rank 3 is gone"));
  const auto zombie = rank(3, 'Z', 6);  // its parent has not waited for it
  CHECK(contains(why(group({rank(0, 'S', 7, {1, 2, 3}), late, stopped, zombie})), ": rank 3 is gone"));
  CHECK(contains(why(group({rank(0, 'S', 7, {1, 2}), late, stopped})), ": rank 2 is stopped"));
  CHECK(contains(why(group({rank(0, 'S', 7, {1}), late})), "its process 1001 is computing outside Tutti"));
}

TEST_CASE("of two that are late the one that is nearer is named") {
  CHECK(contains(why(group({rank(0, 'S', 7, {1, 2}), rank(1, 'S', 7, {3}), rank(2, 'R', 6), rank(3, 'R', 6)}), 0),
                 "rank 0 waits for rank 2 (in "));
}

TEST_CASE("a rank that has given up is the cause, and says why") {
  auto failed = rank(2, 'S', 6);
  failed.trace.error = "rank 3 is gone";
  CHECK(contains(why(group({rank(0, 'S', 7, {1, 2}), rank(1, 'S', 6), failed})),
                 ": rank 2 has given up: rank 3 is gone"));
}

TEST_CASE("a rank that has given up and is gone since is gone") {
  auto failed = rank(1, 'X', 6);
  failed.trace.error = "rank 3 is gone";
  CHECK(contains(why(group({rank(0, 'S', 7, {1}), failed})), ": rank 1 is gone: its process 1001 has ended"));
}

TEST_CASE("of a job that has ended as a whole it is said that it has") {
  const std::string ended = "all of the group's processes on this host have ended; this is what they left: ";
  CHECK(why(group({rank(0, 'X', 7), rank(1, 'X', 7)})).starts_with(ended + "no rank has been waiting for long"));
  const std::string circle = why(group({rank(0, 'X', 7, {1}), rank(1, 'X', 7, {0})}));
  CHECK(circle.starts_with(ended + "rank 0 waits for rank 1"));
  CHECK_FALSE(contains(circle, "no rank that they wait for is stopped or gone"));
  CHECK_FALSE(contains(why(group({rank(0, 'X', 7), rank(1, 'R', 7)})), ended));
}

TEST_CASE("of those that wait the one that has waited longest is asked") {
  auto later = rank(0, 'S', 7, {2});
  later.trace.wait.since_ns += kSecond;
  CHECK(contains(why(group({later, rank(1, 'S', 7, {3}), rank(2, 'R', 6), rank(3, 'R', 6)})),
                 "rank 1 waits for rank 3 (in "));
}

TEST_CASE("who is in another group's operation is said to be") {
  auto away = rank(1, 'S', 6);
  away.elsewhere = "in Barrier as operation 1, for 3.0 s, where it waits for rank 0 of that group";
  CHECK(
      contains(why(group({rank(0, 'S', 7, {1}), away})),
               "its process 1001 is in another group's operation: in Barrier as operation 1, for 3.0 s, where it waits "
               "for rank 0 of that group"));
}

TEST_CASE("the places that called are told") {
  auto waits = rank(0, 'S', 7, {1}), late = rank(1, 'S', 6);
  waits.trace.operations[0].place = "all_reduce of float32[4] at train.py:41";
  late.trace.operations[0].place = "barrier at train.py:57";
  const std::string text = why(group({waits, late}));
  CHECK(contains(text, "as operation 7 (all_reduce of float32[4] at train.py:41), for 10.0 s): rank 1 has not called"));
  CHECK(contains(text, "as operation 6 (barrier at train.py:57), which ended 5.0 s ago"));
}

TEST_CASE("of a rank elsewhere nothing is made up") {
  CHECK(contains(why(group({rank(0, 'S', 7, {1})})), "nothing is known here about rank 1"));
  CHECK(contains(why(group({rank(0, 'S', 7, {1})}), 1), "nothing is known here about rank 1"));
  CHECK(contains(why({}), "no rank on this host can be seen"));
}

TEST_CASE("of a rank on another host it counts what it has told, or that it says nothing") {
  auto late = rank(1, 'S', 6);
  late.is_remote = true;
  late.trace.host = "node2";
  CHECK(contains(why(group({rank(0, 'S', 7, {1}), late})), "its process 1001 on host node2 is asleep outside Tutti"));
  auto mute = rank(2, '?', 6);
  mute.silent = "rank 2 (host node2, pid 77) has not answered for 4.0 s";
  CHECK(contains(why(group({rank(0, 'S', 7, {1, 2}), late, mute})),
                 ": rank 2 (host node2, pid 77) has not answered for 4.0 s, though its host is up: its process is "
                 "stopped, or gets no CPU time"));
}

TEST_CASE("where a rank cannot be seen from outside, what the waiting one has found counts, while it waits") {
  auto waits = rank(0, 'S', 7, {1});
  waits.trace.wait.found = "rank 0 waits for rank 1, which is away";
  CHECK(why(group({waits})) == "rank 0 waits for rank 1, which is away");
  CHECK(contains(why(group({waits, rank(1, 'T', 6)})), "rank 1 is stopped"));
}

TEST_CASE("ranks that wait for each other are both named") {
  const std::string text = why(group({rank(0, 'S', 7, {1}), rank(1, 'S', 8, {0})}));
  CHECK(contains(text, "rank 0 waits for rank 1 (in AllReduce(count=4, float, sum) as operation 7"));
  CHECK(contains(text, "rank 1 is in AllReduce(count=4, float, sum) as operation 8"));
}

TEST_CASE("a rank that does not wait is said to be in what it is in") {
  auto works = rank(1, 'R', 7, {0});
  works.trace.wait = {};
  CHECK(why(group({rank(0, 'S', 7, {1}), works}), 1) ==
        "rank 1 does not wait: it is in AllReduce(count=4, float, sum) as operation 7, for 10.0 s");
}

TEST_CASE("when the whole job was killed it counts what each rank was in") {
  const std::string text = why(group({rank(0, 'X', 7, {1}), rank(1, 'X', 6)}));
  CHECK(contains(text, "rank 1 has not called it yet"));
}

TEST_CASE("where nobody waits that is said") {
  CHECK(contains(why(group({rank(0, 'R', 7), rank(1, 'R', 7)})), "no rank has been waiting for long"));
  CHECK(contains(why(group({rank(0, 'R', 7), rank(1, 'T', 7)})), "rank 1 is stopped"));
}
