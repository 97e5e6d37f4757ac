// Which rank comes late, with made-up ranks.
#include <algorithm>
#include <random>

#include "comm/ranks.h"
#include "comm/remote_attendants.h"
#include "debug/folder.h"
#include "debug/late_ones.h"
#include "debug/lateness.h"
#include "tutti/trace.h"

using namespace tutti_test;
using tutti::Attendance;

namespace {

// Enters and leaves at these times, after `outside` milliseconds outside of operations.
Attendance at(double came, double left, double outside, uint64_t sequence = 1, int host = 0, bool joins = true) {
  const auto ns = [](double ms) { return static_cast<int64_t>(ms * 1e6); };
  return {sequence, joins, host, ns(came), ns(left), ns(outside)};
}

tutti::TracedOperation operation(uint64_t nth, tutti::Collective collective, int64_t started_ms, int64_t finished_ms) {
  tutti::TracedOperation made;
  made.nth = nth;
  made.call.sequence = nth;
  made.call.collective = collective;
  made.started_ns = started_ms * kMs;
  made.finished_ns = finished_ms * kMs;
  return made;
}

}  // namespace

TEST_CASE("who comes last by its own doing is late, and the others waited for it") {
  const auto found = tutti::find_straggler({{0, at(10, 16, 10)}, {1, at(11, 16, 11)}, {2, at(15, 16, 15)}});
  CHECK(found.rank == 2);
  CHECK(found.late_ns == 5 * kMs);  // after rank 0: the median of two is the first
  CHECK(found.waited_ns == std::map<int, int64_t>{{0, 5 * kMs}, {1, 4 * kMs}});
  // On one host this holds for a broadcast, too, which some ranks leave before others come.
  CHECK(tutti::find_straggler({{0, at(10, 16, 10, 1, 0, false)}, {1, at(15, 16, 15, 1, 0, false)}}).rank == 1);
}

TEST_CASE("each rank is compared with the median of all others, the lower one of an even number") {
  std::mt19937 random(7);
  const auto some = [&] { return static_cast<int64_t>(random() % 8); };
  for (int turn = 0; turn < 500; turn++) {
    std::map<int, tutti::Attendance> ranks;
    for (int rank = 0; rank < 2 + turn % 7; rank++) ranks[rank] = at(some(), 16, some());
    const auto over_median = [&](int rank, int64_t tutti::Attendance::*time) {
      std::vector<int64_t> others;
      for (const auto& [other, one] : ranks)
        if (other != rank) others.push_back(one.*time);
      std::sort(others.begin(), others.end());
      return ranks[rank].*time - others[(others.size() - 1) / 2];
    };
    int64_t most = 0;
    for (const auto& [rank, one] : ranks)
      most = std::max(most, std::min(over_median(rank, &tutti::Attendance::came_ns),
                                     over_median(rank, &tutti::Attendance::outside_ns)));
    const auto found = tutti::find_straggler(ranks);
    CHECK(found.late_ns == most);  // 0, or 1 ms or more
    CHECK((found.rank < 0) == (most == 0));
  }
}

TEST_CASE("nobody leaves what gives each something of all before all have come") {
  using enum tutti::Collective;
  const auto joins = [](tutti::Collective collective) {
    tutti::Trace trace;
    trace.operations = {operation(1, collective, 10, 12)};
    return tutti::AttendanceReader().follow(trace).at(0).joins;
  };
  for (const auto all : {kAllReduce, kAllReduceQuantized, kAllGather, kReduceScatter, kAllToAll, kBarrier, kFinalize})
    CHECK(joins(all));
  for (const auto some : {kBroadcast, kReduce, kGather, kScatter}) CHECK_FALSE(joins(some));
}

TEST_CASE("who was held up in the operation before is not late") {
  // Rank 1 left the previous operation 5 ms after the others, and computes for as long as they do.
  CHECK(tutti::find_straggler({{0, at(10, 16, 10)}, {1, at(15, 16, 10)}, {2, at(10, 16, 10)}}).rank == -1);
  // Rank 2 was held up in the same way, and then was late itself by 2 ms.
  const auto found = tutti::find_straggler({{0, at(10, 18, 10)}, {1, at(15, 18, 10)}, {2, at(17, 18, 12)}});
  CHECK(found.rank == 2);
  CHECK(found.late_ns == 2 * kMs);
}

TEST_CASE("who takes long but comes first, or all that are slow together, are not late") {
  CHECK(tutti::find_straggler({{0, at(10, 16, 10)}, {1, at(5, 16, 40)}, {2, at(10, 16, 10)}}).rank == -1);
  CHECK(tutti::find_straggler({{0, at(50, 51, 50)}, {1, at(50.5, 51, 50.5)}}).rank == -1);
  CHECK(tutti::find_straggler({{0, at(50, 51, 50)}}).rank == -1);
  CHECK(tutti::find_straggler({}).rank == -1);
}

TEST_CASE("of two that are late it is the later one") {
  CHECK(tutti::find_straggler({{0, at(0, 9, 1)}, {1, at(5, 9, 6)}, {2, at(5.5, 9, 6.5)}, {3, at(0, 9, 1)}}).rank == 2);
}

TEST_CASE("between hosts, whose clocks differ, it counts how long before the end a rank came") {
  constexpr int kHour = 3'600'000;
  const auto came = [&](bool joins, int at_ms) {
    return tutti::find_straggler({{0, at(10, 16, 10, 1, 0, joins)},
                                  {1, at(10, 16, 10, 1, 0, joins)},
                                  {2, at(kHour + at_ms, kHour + 116, 15, 1, 1, joins)}});
  };
  CHECK(came(true, 115).rank == 2);
  CHECK(came(true, 115).late_ns == 5 * kMs);
  CHECK(came(true, 110).rank == -1);   // it took longer, but only its clock is ahead
  CHECK(came(false, 115).rank == -1);  // ranks leave a broadcast at different times
}

TEST_CASE("what is read of a rank is what it was outside of operations, messages included") {
  using enum tutti::Collective;
  tutti::Trace trace;
  trace.operations = {operation(1, kAllReduce, 10, 12), operation(2, kSendRecv, 15, 18),
                      operation(3, kBroadcast, 20, 21)};
  tutti::AttendanceReader reader;
  const auto ended = reader.follow(trace);
  REQUIRE(ended.size() == 2);
  CHECK(ended[0].outside_ns == 0);  // unknown before the first operation
  CHECK(ended[0].joins);
  CHECK(ended[1].outside_ns == 5 * kMs);  // 3 before the message, 2 after it
  CHECK_FALSE(ended[1].joins);
  CHECK(reader.read() == 3);

  // An operation in progress is reported next time; one that was overwritten meanwhile is not guessed at.
  trace.operations = {operation(4, kAllReduce, 25, 26), operation(5, kAllReduce, 27, 0)};
  CHECK(reader.follow(trace).at(0).outside_ns == 4 * kMs);
  CHECK(reader.read() == 4);
  trace.operations = {operation(5, kAllReduce, 27, 29), operation(9, kAllReduce, 60, 61),
                      operation(10, kAllReduce, 62, 63)};
  const auto later = reader.follow(trace);
  REQUIRE(later.size() == 3);
  CHECK(later[0].outside_ns == 1 * kMs);
  CHECK(later[1].outside_ns == 0);
  CHECK(later[2].outside_ns == 1 * kMs);
}

TEST_CASE("who waited for whom is kept of few ranks only, as pairs are many") {
  for (const int n : {256, 257}) {
    tutti::StragglerDetector roll;
    for (int rank = 0; rank < n; rank++) roll.enter(rank, {at(rank == 5 ? 9 : 0, 9, rank == 5 ? 9 : 0)});
    roll.compare();
    CHECK(roll.ranks().at(5).waited_ns == 9 * kMs * (n - 1));
    CHECK(roll.waited_ns().size() == (n == 256 ? 255 : 0));
  }
}

TEST_CASE("operations are compared when all have left them") {
  tutti::StragglerDetector roll;
  for (uint64_t i = 1; i <= 10; i++) {
    const auto t = static_cast<double>(100 * i);
    roll.enter(0, {at(t, t + 6, 94, i)});
    roll.enter(1, {at(t + 5, t + 6, 99, i)});
    if (i < 10) roll.enter(2, {at(t, t + 6, 94, i)});
  }
  roll.compare();
  CHECK(roll.ranks().at(1).operations == 9);
  CHECK(roll.ranks().at(1).late == 9);
  CHECK(roll.ranks().at(1).late_ns == 45 * kMs);
  CHECK(roll.ranks().at(1).worst_ns == 5 * kMs);
  CHECK(roll.ranks().at(1).waited_ns == 90 * kMs);
  CHECK(roll.ranks().at(0).late == 0);
  CHECK(roll.waited_ns() == std::map<std::pair<int, int>, int64_t>{{{0, 1}, 45 * kMs}, {{2, 1}, 45 * kMs}});
  CHECK(roll.sentence(true) ==
        "rank 1 came last to 9 of the last 9 operations that had to wait for somebody, 5.0 ms after the others in the "
        "median");
  for (uint64_t i = 11; i < 11 + 10; i++)
    for (int rank = 0; rank < 3; rank++) roll.enter(rank, {at(rank == 2 ? 9 : 0, 9, rank == 2 ? 9 : 0, i)});
  roll.compare();
  CHECK(roll.ranks().at(1).late == 10);  // not 11: rank 2's entry of the last one is not coming any more
  CHECK(roll.ranks().at(2).late == 10);
  CHECK_FALSE(roll.sentence(true).has_value());  // a tie
}

TEST_CASE("an operation is compared once, however often its entries come") {
  tutti::StragglerDetector roll;
  for (int i = 0; i < 3; i++) {
    roll.enter({{0, {at(0, 9, 0, 1), at(9, 18, 0, 2)}}, {1, {at(5, 9, 5, 1), at(14, 18, 5, 2)}}});
    roll.compare();
  }
  CHECK(roll.compared() == 2);
  CHECK(roll.ranks().at(1).operations == 2);
  CHECK(roll.ranks().at(1).late == 2);
  roll.enter(0, {at(20, 30, 0, 3)});
  roll.compare();
  CHECK(roll.compared() == 2);  // rank 1's entry may still come
  roll.compare_all();
  CHECK(roll.compared() == 3);
}

TEST_CASE("the worst that a rank was late by stays") {
  tutti::StragglerDetector roll;
  roll.enter({{0, {at(0, 9, 0, 1), at(20, 29, 0, 2)}}, {1, {at(8, 9, 8, 1), at(23, 29, 3, 2)}}});
  roll.compare_all();
  CHECK(roll.ranks().at(1).late_ns == 11 * kMs);
  CHECK(roll.ranks().at(1).worst_ns == 8 * kMs);
}

TEST_CASE("who was late long ago is not who is late now") {
  tutti::StragglerDetector roll;
  for (uint64_t i = 1; i <= 250; i++)
    for (int rank = 0; rank < 3; rank++) {
      const double late = rank == (i <= 150 ? 1 : 2) ? 5 : 0;
      roll.enter(rank, {at(late, 9, late, i)});
    }
  roll.compare();
  CHECK(roll.sentence() ==
        "rank 2 came last to 100 of the last 100 operations that had to wait for somebody, 5.0 ms after the others in "
        "the median");
}

// As other hosts hear it; tests/launch/late.sh shows what they conclude.
TEST_CASE("the first rank of a host answers for all operations in one message, or for an even sample of them") {
  const Folder folder("TUTTI_TRACE_DIR");
  tutti::Recorder recorder;
  recorder.share(0, 2, 77);
  const auto answer = [&](int rank, uint64_t after) {
    tutti::RemoteAttendants attendants(rank, {{0}, {1}}, recorder);
    const auto told =
        attendants.hear(tutti::ByteWriter().put(uint8_t{6}).put(int32_t{1 - rank}).put(uint64_t{1}).put(after).take());
    REQUIRE(told.has_value());
    CHECK(told->passes_on);
    return told->says;
  };
  const auto sequences = [&](const std::string& text) {
    std::vector<uint64_t> found;
    tutti::ByteReader reader(text);
    CHECK(reader.get<uint8_t>() == 7);
    CHECK(reader.get<int32_t>() == 0);
    CHECK(reader.get<uint64_t>() == 1);
    REQUIRE(reader.get<uint64_t>() == 1);  // ranks
    CHECK(reader.get<int32_t>() == 0);
    while (reader.ok() && !reader.at_end()) {
      found.push_back(reader.get<uint64_t>());
      for (int i = 0; i < 3; i++) reader.get<uint32_t>();
    }
    CHECK(reader.ok());
    return found;
  };
  for (uint64_t i = 1; i <= 1000; i++) {
    recorder.begin({.sequence = i, .count = 1, .collective = tutti::Collective::kBarrier});
    recorder.end();
  }
  const std::string text = answer(0, 0);
  CHECK(text.size() <= tutti::Ending::kMostQuestionBytes);
  const auto sample = sequences(text);
  REQUIRE(sample.size() == 250);
  for (size_t i = 0; i < sample.size(); i++) CHECK(sample[i] == 4 * (i + 1));
  CHECK(sequences(answer(0, 997)) == std::vector<uint64_t>{998, 999, 1000});
  CHECK(sequences(answer(0, 1000)).empty());

  // Malformed messages are refused, and only the first answer of a host is passed on.
  tutti::RemoteAttendants other(1, {{0}, {1}}, recorder);
  CHECK_FALSE(other.hear(text.substr(0, text.size() - 1)).has_value());
  CHECK_FALSE(other.hear("").has_value());
  CHECK_FALSE(other.hear(std::string(1, '\5') + text.substr(1)).has_value());
  CHECK_FALSE(other.hear(std::string(1, '\6')).has_value());
  tutti::RemoteAttendants another(1, {{0}, {1}}, recorder);
  CHECK(another.hear(text)->passes_on);
  CHECK_FALSE(another.hear(text)->passes_on);
}

TEST_CASE("answers to questions of other ranks are kept, too, in whatever order they come") {
  const Folder folder("TUTTI_TRACE_DIR");
  tutti::Recorder recorder;
  recorder.share(1, 2, 77);
  const auto watch =
      tutti::PeerWatch::create({.rank = 1, .n_ranks = 2, .n_here = 2, .key = tutti::derive_key("a secret", 8)}, {},
                               tutti::Deadline::after_seconds(10));
  REQUIRE(watch);
  tutti::RemoteAttendants mine(1, {{0}, {1}}, recorder);
  uint64_t number = 0;
  const auto answer = [&](uint64_t n_ranks, uint64_t from, uint64_t to) {
    tutti::ByteWriter writer;
    writer.put(uint8_t{7}).put(int32_t{0}).put(++number).put(n_ranks).put(int32_t{0});
    for (uint64_t i = from; i <= to; i++) writer.put(i).put(uint32_t{3}).put(uint32_t{2}).put(uint32_t{1});
    return writer.take();
  };
  mine.ask(*watch.value(), 0);
  CHECK(mine.hear(answer(1, 6, 8)).has_value());
  CHECK(mine.hear(answer(1, 3, 7)).has_value());
  CHECK_FALSE(mine.hear(answer(3, 9, 9)).has_value());  // more ranks than there are
  std::vector<uint64_t> kept;
  const tutti::Attendances heard = mine.heard();
  for (const tutti::Attendance& at : heard.at(0)) kept.push_back(at.sequence);
  CHECK(kept == std::vector<uint64_t>{3, 4, 5, 6, 7, 8});
}

TEST_CASE("the first rank of a host tells of no operation that one of its ranks has not left yet") {
  const Folder folder("TUTTI_TRACE_DIR");
  tutti::Recorder recorders[2];
  for (int rank = 0; rank < 2; rank++) {
    recorders[rank].share(rank, 3, 77);
    for (uint64_t i = 1; i <= (rank == 0 ? 3 : 2); i++) {
      recorders[rank].begin({.sequence = i, .count = 1, .collective = tutti::Collective::kBarrier});
      recorders[rank].end();
    }
  }
  tutti::RemoteAttendants attendants(0, {{0, 1}, {2}}, recorders[0]);
  const auto told =
      attendants.hear(tutti::ByteWriter().put(uint8_t{6}).put(int32_t{2}).put(uint64_t{1}).put(uint64_t{0}).take());
  REQUIRE(told.has_value());
  tutti::ByteReader reader(told->says);
  for (size_t i = 0; i < sizeof(uint8_t) + sizeof(int32_t) + sizeof(uint64_t); i++) reader.get<uint8_t>();
  REQUIRE(reader.get<uint64_t>() == 2);
  for (int rank = 0; rank < 2; rank++) CHECK(reader.get<int32_t>() == rank);
  for (uint64_t i = 1; i <= 2; i++) {
    CHECK(reader.get<uint64_t>() == i);
    for (int time = 0; time < 2 * 3; time++) reader.get<uint32_t>();
  }
  CHECK(reader.ok());
  CHECK(reader.at_end());
}

TEST_CASE("a rank that ends no more operations does not keep those of the others") {
  tutti::StragglerDetector roll;
  roll.enter(2, {at(0, 1, 0)});
  for (uint64_t i = 1; i <= 5000; i++) {
    for (int rank = 0; rank < 2; rank++) roll.enter(rank, {at(0, 1, 0, i)});
    roll.compare();
  }
  CHECK(roll.ranks().at(0).operations > 800);
  CHECK(roll.ranks().at(0).operations < 1000);
}

TEST_CASE("who looks for the ranks of its host finds those of its own group") {
  const Folder folder("TUTTI_TRACE_DIR");
  tutti::Recorder mine, foreign, peer;
  mine.share(0, 2, 77);
  foreign.share(1, 2, 78);
  tutti::Attendants early(mine);
  CHECK_FALSE(early.look().ended.contains(1));
  peer.share(1, 2, 77);
  CHECK(tutti::Attendants(mine).look().ended.contains(1));
  bool is_found = false;  // the communicator looks for files now and then
  for (int i = 0; i < 20; i++) is_found = is_found || early.look().ended.contains(1);
  CHECK(is_found);
}

// By their recorders the others have been in that operation for a while, so this rank is late for certain.
TEST_CASE("a rank that comes when the others have waited for a while is late") {
  const Folder folder("TUTTI_TRACE_DIR");
  constexpr int kLate = 2, kSteps = 6;
  constexpr uint64_t kOperations = 5;
  const auto body = [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    float value = 1;
    for (uint64_t i = 1; i <= kSteps * kOperations; i++) {
      while (rank == kLate && i % kOperations == 2 && !all_others_wait(folder.path, kLate, i)) usleep(1000);
      outcome.take(tuttiAllReduce(&value, &value, 1, tuttiFloat, tuttiMax, comm, nullptr));
    }
    if (rank != 0) return;
    tuttiLateness_t late = TUTTI_LATENESS_INITIALIZER;
    outcome.take(tuttiCommLateness(comm, kLate, &late));
    outcome.message += std::to_string(late.late) + " of " + std::to_string(late.operations) + ", " +
                       std::to_string(late.lateSeconds) + " s, waited " + std::to_string(late.waitedSeconds);
    const double least = 0.9 * kLateMs / 1e3;  // minus the error of converting between clocks
    outcome.wrong += late.operations < kSteps * kOperations - 1;
    outcome.wrong += late.late < kSteps || late.worstSeconds < least;
    outcome.wrong += late.lateSeconds < kSteps * least || late.waitedSeconds < 3 * kSteps * least;
    outcome.wrong += tuttiCommLateness(comm, 4, &late) != tuttiInvalidArgument;
    outcome.wrong += tuttiCommLateness(comm, 0, nullptr) != tuttiInvalidArgument;
    late.size = 8;
    outcome.wrong += tuttiCommLateness(comm, 0, &late) != tuttiInvalidArgument;
  };
  const auto outcomes = Processes(4, body).wait();
  INFO(outcomes[0].message);
  require_success(outcomes);
}

TEST_CASE("who reads again and again reads all that is there, or a sample where some of it is gone") {
  tutti::Recorder recorder;
  uint64_t begun = 0;
  const auto carry_out = [&](uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
      recorder.begin({.sequence = ++begun, .count = 1, .collective = tutti::Collective::kBarrier});
      recorder.end();
    }
  };
  carry_out(tutti::TraceMemory::kOperations);
  CHECK(tutti::read_from(recorder.header(), 0) == 0);
  CHECK(tutti::read_trace(recorder).operations.size() == tutti::TraceMemory::kOperations);
  CHECK(tutti::read_trace(recorder, begun - 3).operations.size() == 3);
  CHECK(tutti::read_trace(recorder, begun).operations.empty());
  carry_out(1);
  CHECK(tutti::read_from(recorder.header(), 1) == 1);
  const auto sample = tutti::read_trace(recorder, tutti::read_from(recorder.header(), 0)).operations;
  REQUIRE(!sample.empty());
  CHECK(sample.size() < tutti::TraceMemory::kOperations / 4);
  CHECK(sample.back().nth == begun);
}
