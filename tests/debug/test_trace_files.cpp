// What happens to abandoned recorder files, and what the files for people say of all operations.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
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

// In place of the C library's, as if signals came meanwhile.
static int g_interruptions = 0;
extern "C" int posix_fallocate(int file, off_t offset, off_t bytes) {
  static const auto call = reinterpret_cast<decltype(&posix_fallocate)>(dlsym(RTLD_NEXT, "posix_fallocate"));
  return g_interruptions > 0 ? g_interruptions--, EINTR : call(file, offset, bytes);
}

namespace {

Call numbered(uint64_t sequence, Collective collective = Collective::kAllReduce) {
  return {.sequence = sequence, .count = 1, .collective = collective, .dtype = DataType::kInt32};
}

// Leaves the file of a process that is killed in its only operation, or after it.
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

void add(Trace& trace, const Call& call, TracedOperation::State state, int64_t finished_ns = 0) {
  TracedOperation operation;
  operation.nth = trace.operations.size() + 1;
  operation.call = call;
  operation.state = state;
  operation.created_ns = 100;
  operation.started_ns = 200;
  operation.finished_ns = finished_ns;
  trace.operations.push_back(operation);
}

}  // namespace

TEST_CASE("what others have put into the folder under a user's name is not looked at") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  be_killed(true);
  const std::string path = trace_files(folder.path).at(0);
  REQUIRE(unlink(path.c_str()) == 0);
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK_FALSE(TraceFile::open(path));  // does not wait until somebody writes
  CHECK(trace_files(folder.path).empty());
  sweep_trace_files(folder.path);
  REQUIRE(unlink(path.c_str()) == 0);
  std::ofstream(path) << "anything";
  CHECK(trace_files(folder.path).size() == 1);
  if (chown(path.c_str(), 65534, 65534) != 0) {
    WARN("skipped: not run as root, so no file can be given to another user");
    return;
  }
  CHECK(trace_files(folder.path).empty());
}

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

TEST_CASE("the file of a recorder in use stays, though its process cannot be seen from here and it was made long ago") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  ProcessId elsewhere = this_process();
  elsewhere.pid_namespace++;
  const std::string path = folder.path + "/" + trace_file_name(elsewhere, 1);
  {
    Recorder recorder;
    recorder.share(0, 1, 1);
    std::filesystem::rename(recorder.path(), path);
    const auto now = std::filesystem::file_time_type::clock::now();
    std::filesystem::last_write_time(path, now - std::chrono::hours(8 * 24));
    sweep_trace_files(folder.path);
    CHECK(std::filesystem::exists(path));
  }
  sweep_trace_files(folder.path);
  CHECK_FALSE(std::filesystem::exists(path));
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

TEST_CASE("a process whose communicator has failed sweeps again for the next one") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  CHECK(goes_well_in_child([&] {
    Recorder first, second, third;
    first.share(0, 1, 1, true);
    be_killed(true);
    second.share(0, 1, 2, true);  // too soon
    const size_t with_that = trace_files(folder.path).size();
    first.fail("because");
    usleep(1'100'000);
    third.share(0, 1, 3, true);
    return with_that == 3 && trace_files(folder.path).size() == 3;  // its own
  }));
}

TEST_CASE("a recorder has its file though signals interrupt the making of it") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  Recorder recorder;
  g_interruptions = 3;
  recorder.share(0, 1, 1);
  CHECK(g_interruptions == 0);
  CHECK(!recorder.path().empty());
}

TEST_CASE("a trace file says how far the collectives are, whatever messages there were") {
  using State = TracedOperation::State;
  Trace trace;
  trace.n_ranks = 2;
  add(trace, numbered(1), State::kCompleted);
  add(trace, numbered(2), State::kStarted);
  add(trace, numbered(9, Collective::kSendRecv), State::kCompleted);
  CHECK(tutti_test::contains(to_json(trace),
                             "{\"last_enqueued_collective\": 2, \"last_started_collective\": 2, "
                             "\"last_completed_collective\": 1}"));
}

// The fields of PyTorch's flight recorder (torch/csrc/distributed/c10d/FlightRecorder.hpp), and Tutti's own.
TEST_CASE("a trace file says of each operation what PyTorch's tools read") {
  Trace trace;
  trace.n_ranks = 2;
  trace.real_offset_ns = 1000;
  add(trace, {.sequence = 4, .count = 5, .collective = Collective::kAllGather, .dtype = DataType::kFloat32},
      TracedOperation::State::kCompleted, 2700);
  add(trace, {.sequence = 9, .count = 3, .collective = Collective::kSendRecv, .dtype = DataType::kInt8},
      TracedOperation::State::kStarted);
  const std::string json = to_json(trace);
  INFO(json);
  CHECK(tutti_test::contains(
      json,
      R"({"record_id": 0, "pg_id": 0, "process_group": ["0", "tutti"], "collective_seq_id": 4, "p2p_seq_id": 0, )"
      R"("op_id": 1, "profiling_name": "nccl:all_gather", "time_created_ns": 1100, "time_discovered_started_ns": 1200, )"
      R"("time_discovered_completed_ns": 3700, "duration_ms": 0.002500, "input_sizes": [[5]], "output_sizes": [[10]], )"
      R"("input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed", "retired": true, )"
      R"("timeout_ms": 0, "is_p2p": false, "frames": [{"name": "", "filename": "", "line": 0}], )"
      R"("tutti": {"text": "AllGather(count=5, float) as operation 4", "bytes": 20, "plan": "auto", "failed": false}})"));
  CHECK(tutti_test::contains(json, R"("collective_seq_id": 0, "p2p_seq_id": 9, "op_id": 2, )"));
  CHECK(tutti_test::contains(json, R"("time_discovered_completed_ns": null, "input_sizes": [[3]], )"));
  CHECK(tutti_test::contains(json, R"("state": "started", "retired": false, "timeout_ms": 0, "is_p2p": true, )"));
}

TEST_CASE("an address is looked up only in the process that it is of") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  Recorder recorder;
  recorder.share(0, 2, 77);
  const void* const here = reinterpret_cast<const void*>(&be_killed);
  recorder.begin(to_tag(numbered(1)), 1, here);
  const Trace own = read_trace(recorder), from_file = read_trace(recorder.path()).value();
  CHECK(tutti_test::contains(place_of(own, own.operations.at(0)), " in "));
  CHECK(place_of(from_file, from_file.operations.at(0)) == format("%p", here));
}

TEST_CASE("a trace leads to the calendar's time, so that those of several hosts can be compared") {
  using Clock = std::chrono::system_clock;
  const auto real_ns = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  };
  constexpr int64_t kSlackNs = 1'000'000'000;  // the two clocks are read one after the other
  Recorder recorder;
  const int64_t before = real_ns();
  recorder.begin(numbered(1));
  const int64_t after = real_ns();
  const Trace trace = read_trace(recorder);
  REQUIRE(trace.operations.size() == 1);
  const int64_t started = trace.operations[0].started_ns + trace.real_offset_ns;
  CHECK(started > before - kSlackNs);
  CHECK(started < after + kSlackNs);
}
