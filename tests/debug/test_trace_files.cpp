// What becomes of recorders' files that nobody else looks after, and what the files for people say of all operations.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <fstream>
#include <memory>

#include "catch.h"
#include "contains.h"
#include "debug/folder.h"
#include "debug/trace.h"
#include "debug/trace_json.h"

using namespace tutti;

namespace {

Call numbered(uint64_t sequence, Collective collective = Collective::kAllReduce) {
  return {.sequence = sequence, .count = 1, .collective = collective, .dtype = DataType::kInt32};
}

// Of a process that is killed in its only operation, or after it.
void be_killed(bool ends) {
  const pid_t child = fork();
  if (child == 0) {
    Recorder recorder;
    recorder.share(0, 2, 77);
    recorder.begin(numbered(1));
    if (ends) recorder.end();
    raise(SIGKILL);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
}

template <class Do>
bool goes_well_in_child(Do what) {
  const pid_t child = fork();
  if (child == 0) _exit(what() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace

TEST_CASE("what a killed process was in does not stay for more than an hour") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  be_killed(false);
  const std::string path = trace_files(folder.path).at(0);
  sweep_trace_files(folder.path);
  REQUIRE(trace_files(folder.path).size() == 1);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const uint64_t started = TraceFile::open(path).value().header().made_ticks - (uint64_t{1} << 62);  // years ago
  file.seekp(static_cast<std::streamoff>(TraceMemory::kHeaderBytes + sizeof(TraceSlot) + offsetof(TraceSlot, started)));
  file.write(reinterpret_cast<const char*>(&started), sizeof started);
  file.close();
  sweep_trace_files(folder.path);
  CHECK(trace_files(folder.path).empty());
}

TEST_CASE("a forked child that destroys its parent's recorder leaves the file") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  auto recorder = std::make_unique<Recorder>();
  recorder->share(0, 1, 1);
  CHECK(goes_well_in_child([&] {
    recorder.reset();
    return true;
  }));
  CHECK(trace_files(folder.path).size() == 1);
}

TEST_CASE("a forked child sweeps, too, though its parent has done so") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  Recorder mine;
  mine.share(0, 1, 1, true);
  be_killed(true);
  REQUIRE(trace_files(folder.path).size() == 2);
  CHECK(goes_well_in_child([&] {
    Recorder other;
    other.share(0, 1, 2, true);
    return trace_files(folder.path).size() == 2;  // its own and its parent's
  }));
}

TEST_CASE("a trace file says how far the collectives are, whatever messages there were") {
  using State = TracedOperation::State;
  Trace trace;
  trace.n_ranks = 2;
  const auto add = [&](const Call& call, State state) {
    TracedOperation operation;
    operation.nth = trace.operations.size() + 1;
    operation.call = call;
    operation.state = state;
    trace.operations.push_back(operation);
  };
  add(numbered(1), State::kCompleted);
  add(numbered(2), State::kStarted);
  add(numbered(9, Collective::kSendRecv), State::kCompleted);
  CHECK(tutti_test::contains(to_json(trace),
                             "{\"last_enqueued_collective\": 2, \"last_started_collective\": 2, "
                             "\"last_completed_collective\": 1}"));
}
