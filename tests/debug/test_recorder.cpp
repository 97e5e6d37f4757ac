// The recorder itself: what it keeps, where, and what happens to its files.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "catch.h"
#include "contains.h"
#include "debug/folder.h"
#include "debug/trace.h"
#include "debug/trace_json.h"
#include "debug/why.h"

using namespace tutti;

namespace {

Call sum(uint64_t sequence) {
  return {
      .sequence = sequence, .count = 10 * sequence, .collective = Collective::kAllReduce, .dtype = DataType::kInt32};
}

// A child that starts `n` operations, ends the last one only if `ends`, and is killed.
void leave_a_file(uint64_t n, bool ends) {
  const pid_t child = fork();
  if (child == 0) {
    Recorder recorder;
    recorder.share(0, 2, 77);
    for (uint64_t i = 1; i <= n; i++) {
      recorder.begin(sum(i));
      if (i < n || ends) recorder.end();
    }
    raise(SIGKILL);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
}

}  // namespace

TEST_CASE("a recorder keeps the last 1,024 operations with their times") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  Recorder recorder;
  recorder.share(3, 4, 9);
  int here = 0;
  const int64_t before = now_ns();
  for (uint64_t i = 1; i <= 1500; i++) {
    recorder.begin(to_tag(sum(i)), i, &here);
    recorder.end(i % 2 == 0);
  }
  recorder.begin(sum(1501));
  const Trace trace = read_trace(recorder);
  CHECK(trace.rank == 3);
  CHECK(trace.n_ranks == 4);
  CHECK(trace.group == 9);
  CHECK(trace.process.pid == getpid());
  REQUIRE(trace.operations.size() == TraceMemory::kOperations);
  CHECK(trace.is_in_operation());
  CHECK(trace.last()->finished_ns == 0);
  int64_t last_ns = before - 1'000'000;  // ticks are converted to time with some error
  for (size_t i = 0; i < trace.operations.size(); i++) {
    const TracedOperation& operation = trace.operations[i];
    const uint64_t number = 1501 - TraceMemory::kOperations + 1 + i;
    REQUIRE(operation.call == sum(number));
    REQUIRE(operation.nth == number);
    REQUIRE(operation.started_ns >= last_ns);
    REQUIRE(operation.created_ns == operation.started_ns);
    last_ns = operation.started_ns;
    if (number == 1501) continue;
    REQUIRE(operation.caller == &here);
    REQUIRE(operation.finished_ns >= operation.started_ns - 1);
    REQUIRE((operation.state == TracedOperation::State::kCompleted) == (number % 2 == 0));
  }
  CHECK(last_ns <= now_ns() + 1'000'000);
  CHECK(recorder.memory().find(1000) == sum(1000));
  CHECK(recorder.memory().find(400).sequence == 0);
  CHECK(recorder.memory().is_past(400));
  CHECK_FALSE(recorder.memory().is_past(1502));
}

TEST_CASE("messages do not stand in the way of looking for a collective") {
  Recorder recorder;
  recorder.begin(sum(1));
  Call message;
  message.collective = Collective::kSendRecv;
  for (uint64_t i = 1; i < 5; i++) recorder.begin(to_tag(message), i);
  CHECK(recorder.memory().find(1) == sum(1));
  CHECK(recorder.memory().find(2).sequence == 0);
  CHECK_FALSE(recorder.memory().is_past(1));
}

TEST_CASE("what an operation waited for, and why, is not said of the next one") {
  Recorder recorder;
  const int awaited[] = {1};
  recorder.begin(sum(1));
  const int64_t before_ns = now_ns();
  recorder.record_wait(1'000'000'000, awaited);
  recorder.record_reason("because");
  const int64_t since_ns = read_trace(recorder).wait.since_ns + 1'000'000'000;
  CHECK((since_ns >= before_ns && since_ns <= now_ns()));
  CHECK(read_trace(recorder).wait.awaited.size() == 1);
  CHECK(read_trace(recorder).wait.found == "because");
  recorder.end();
  recorder.begin(sum(2));
  CHECK(read_trace(recorder).wait.awaited.empty());
  recorder.record_wait(1'000'000, awaited);
  CHECK(read_trace(recorder).wait.awaited.size() == 1);
  CHECK(read_trace(recorder).wait.found.empty());
}

TEST_CASE("what has ended is not ended again, and the first reason stays") {
  Recorder recorder;
  recorder.begin(sum(1));
  recorder.end();
  recorder.end(false);  // as when the group ends between operations
  CHECK(recorder.fail("this"));
  CHECK_FALSE(recorder.fail("that"));
  const Trace trace = read_trace(recorder);
  CHECK(trace.last()->state == TracedOperation::State::kCompleted);
  CHECK(trace.error == "this");
}

TEST_CASE("of the ranks that an operation waits for the first 64 are kept, and what follows them stays") {
  Recorder recorder;
  recorder.begin(sum(1));
  recorder.record_reason("because");
  const std::vector<int> awaited(70, 5);
  recorder.record_wait(1'000'000, awaited);
  CHECK(read_trace(recorder).wait.awaited.size() == 64);
  CHECK(read_trace(recorder).wait.found == "because");
}

TEST_CASE("the names of places are kept with their operations, also of a process that was killed") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  const pid_t child = fork();
  if (child == 0) {
    Recorder recorder;
    recorder.share(0, 2, 77);
    set_place(name_place("barrier at train.py:57"));
    recorder.begin(to_tag(sum(1)), 1, caller_or_place(nullptr));
    set_place(0);
    recorder.begin(to_tag(sum(2)), 2, caller_or_place(nullptr));
    raise(SIGKILL);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  const auto files = trace_files(folder.path);
  REQUIRE(files.size() == 1);
  const auto trace = read_trace(files[0]);
  REQUIRE(trace);
  CHECK(place_of(trace.value(), trace.value().operations.at(0)) == "barrier at train.py:57");
  CHECK(place_of(trace.value(), trace.value().operations.at(1)).empty());
}

TEST_CASE("places by the thousand: the last ones have their names, and the others none of another one") {
  Recorder recorder;
  for (uint64_t i = 1; i <= 1000; i++) {
    set_place(name_place(std::to_string(i)));
    recorder.begin(to_tag(sum(i)), i, caller_or_place(nullptr));
  }
  set_place(0);
  const Trace trace = read_trace(recorder);
  for (const TracedOperation& operation : trace.operations) {
    const uint64_t number = operation.nth;
    REQUIRE(operation.place == (number > 1000 - TraceMemory::kPlaces ? std::to_string(number) : ""));
  }
  CHECK(place_of(trace, trace.operations.front()).empty());
  CHECK(place_of(trace, trace.operations.back()) == "1000");
  CHECK(recorder.memory().place_text(1000) == " (1000)");
  CHECK(recorder.memory().place_text(2000).empty());
  CHECK(place_name(name_place(std::string(500, 'x'))).size() == kMostPlaceBytes);
  const uint64_t forgotten = name_place("forgotten"), kept = name_place("kept");
  for (size_t i = 1; i < kMostPlaces; i++) name_place("new");
  CHECK(place_name(forgotten).empty());
  CHECK(place_name(kept) == "kept");
}

TEST_CASE("how long an operation was queued is kept") {
  Recorder recorder;
  const uint64_t created = recorder.now();
  usleep(20'000);
  recorder.begin(to_tag(sum(1)), 1, nullptr, created);
  const Trace trace = read_trace(recorder);
  CHECK(trace.last()->started_ns - trace.last()->created_ns >= 15'000'000);
}

TEST_CASE("a trace file has texts, sizes and places of files as they are meant") {
  Trace trace;
  trace.rank = 1;
  trace.n_ranks = 3;
  trace.process.pid = 77;
  trace.host = "node1";
  trace.program = "a \"b\\c\"\n\xc3";    // cut within a character
  trace.error = "\xc3\xa9\xed\xa0\x80";  // one character, and half a surrogate pair
  TracedOperation operation;
  operation.nth = 1;
  operation.call = sum(1);
  operation.call.collective = Collective::kReduceScatter;
  operation.call.count = 5;
  trace.operations.push_back(operation);
  const std::string json = to_json(trace);
  CHECK(tutti_test::contains(json, "\"program\": \"a \\\"b\\\\c\\\"\\u000a?\""));
  CHECK(tutti_test::contains(json, "\"error\": \"\xc3\xa9???\""));
  CHECK(tutti_test::contains(json, "\"input_sizes\": [[15]], \"output_sizes\": [[5]]"));
  trace.operations[0].call.blocks = 77;  // of unequal size: the count is their sum
  CHECK(tutti_test::contains(to_json(trace), "\"input_sizes\": [[5]]"));
  CHECK(trace_path("/x/%h.%p.%r.%q%", trace) == "/x/node1.77.1.%q%");
}

TEST_CASE("whoever reads while others write sees no operation that is half another one") {
  Recorder recorder;
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (uint64_t i = 1; !ends; i++) {
      recorder.begin(sum(i));
      recorder.end();
      if (i % 100 == 0) usleep(1);  // else the writer overwrites all slots during one read
    }
  });
  while (recorder.header().begun == 0) usleep(100);
  size_t read = 0;
  for (int i = 0; i < 200 || (read == 0 && i < 100'000); i++)
    for (const TracedOperation& operation : read_trace(recorder).operations) {
      read++;
      if (operation.call != sum(operation.nth)) ends = true;
    }
  CHECK_FALSE(ends);
  ends = true;
  writer.join();
  CHECK(read > 0);
}

TEST_CASE("a killed process leaves its file, and the next one reads it") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  leave_a_file(7, false);
  const auto files = trace_files(folder.path);
  REQUIRE(files.size() == 1);
  const auto trace = read_trace(files[0]);
  REQUIRE(static_cast<bool>(trace));
  CHECK(trace.value().group == 77);
  CHECK(trace.value().is_in_operation());
  CHECK(trace.value().last()->call == sum(7));
  CHECK(process_state(trace.value().process) == 'X');
  sweep_trace_files(folder.path);
  CHECK(trace_files(folder.path).size() == 1);  // a file with an unfinished operation is kept
}

TEST_CASE("whoever asks what ranks are in reads the end of what they did") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  leave_a_file(2000, false);
  const Trace trace = find_witnesses(folder.path).at(77).at(0).trace;
  REQUIRE(trace.is_in_operation());
  CHECK(trace.last()->call == sum(2000));
  CHECK(trace.operations.size() < 20);  // there may be many files, and a user may be waiting
}

TEST_CASE("whose process is in another group's operation is told, and nobody else") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  leave_a_file(1, false);  // group 77, of another process
  Recorder idle, peer, busy;
  idle.share(0, 2, 78);
  peer.share(1, 2, 78);
  busy.share(0, 2, 79);
  const auto elsewhere = [&] { return find_witnesses(folder.path).at(78).at(0).elsewhere; };
  peer.begin(sum(1));
  CHECK(elsewhere() == "");  // neither another process's operation nor one of its own group
  const int awaited[] = {1};
  busy.begin(sum(1));
  busy.record_wait(0, awaited);
  CHECK(tutti_test::contains(elsewhere(), "in AllReduce(count=10, int32, sum) as operation 1, for "));
  CHECK(tutti_test::contains(elsewhere(), ", where it waits for rank 1 of that group"));
}

TEST_CASE("files of processes that are gone do not pile up") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  leave_a_file(3, true);
  CHECK(trace_files(folder.path).size() == 1);
  sweep_trace_files(folder.path);
  CHECK(trace_files(folder.path).empty());  // a finished one has nothing to tell
  for (int i = 0; i < 6; i++) leave_a_file(2, false);
  usleep(20'000);  // file times have the resolution of the kernel's ticks
  for (int i = 0; i < 64; i++) leave_a_file(3, false);
  sweep_trace_files(folder.path);
  CHECK(trace_files(folder.path).size() == 64);
  for (const std::string& path : trace_files(folder.path))
    CHECK(read_trace(path).value().operations.size() == 3);  // the oldest are gone
  const Recorder alive;
  {
    Recorder recorder;
    recorder.share(0, 1, 1);
    CHECK(trace_files(folder.path).size() == 65);
    sweep_trace_files(folder.path);
    CHECK(trace_files(folder.path).size() == 65);
  }
  CHECK(trace_files(folder.path).size() == 64);
}

TEST_CASE("a file whose process cannot be seen from here stays for a week") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  ProcessId elsewhere = this_process();
  elsewhere.pid_namespace++;
  REQUIRE(process_state(elsewhere) == '?');
  const std::string path = folder.path + "/" + trace_file_name(elsewhere, 1);
  std::ofstream(path) << "whatever";
  sweep_trace_files(folder.path);
  CHECK(trace_files(folder.path).size() == 1);
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(path, now - std::chrono::hours(8 * 24));
  sweep_trace_files(folder.path);
  CHECK(trace_files(folder.path).empty());
}

TEST_CASE("a file whose times are yet to come is left of the time before a reboot, and goes") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  leave_a_file(1, false);
  const std::string path = trace_files(folder.path).at(0);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const uint64_t started = TraceFile::open(path).value().header().made_ticks + (uint64_t{1} << 62);
  file.seekp(static_cast<std::streamoff>(TraceMemory::kHeaderBytes + sizeof(TraceSlot) + offsetof(TraceSlot, started)));
  file.write(reinterpret_cast<const char*>(&started), sizeof started);
  file.close();
  sweep_trace_files(folder.path);
  CHECK(trace_files(folder.path).empty());
}

TEST_CASE("files of another machine that shares the folder are let be") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  struct stat mine {};
  REQUIRE(stat("/proc/self/ns/pid", &mine) == 0);
  const ProcessId there{getpid(), this_process().start + 1, mine.st_ino};  // the same number, on another machine
  CHECK(process_state(there) == '?');
  const std::string path = folder.path + "/" + trace_file_name(there, 1);
  std::ofstream(path) << "whatever";
  CHECK(trace_files(folder.path).empty());
  sweep_trace_files(folder.path);
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("the first recorder of a process that is to sweep removes what is left of those that are gone") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  leave_a_file(3, true);
  const pid_t child = fork();
  if (child == 0) {
    Recorder one, other;
    one.share(0, 1, 1);
    const bool is_left = trace_files(folder.path).size() == 2;
    other.share(0, 1, 2, true);
    _exit(is_left && trace_files(folder.path).size() == 2 ? 0 : 1);  // both belong to this process
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a program that ends leaves no file, even if it destroys nothing; one that broke does") {
  enum Case { kOnHost, kOnGpu, kWaitsOnGpu };  // on a GPU its last operation's end may not have been seen yet
  const Case how = GENERATE(kOnHost, kOnGpu, kWaitsOnGpu);
  for (const bool breaks : {false, true}) {
    const tutti_test::Folder folder("TUTTI_TRACE_DIR");
    const pid_t child = fork();
    if (child == 0) {
      auto* recorder = new Recorder(how != kOnHost);
      recorder->share(0, 2, 1);
      recorder->begin(sum(1));
      if (how == kOnHost) recorder->end();
      if (how == kWaitsOnGpu) recorder->record_wait(0, std::vector{1});
      if (breaks) recorder->fail("because");
      exit(0);
    }
    REQUIRE(waitpid(child, nullptr, 0) == child);
    CHECK(trace_files(folder.path).size() == (breaks || how == kWaitsOnGpu ? 1 : 0));
  }
}

TEST_CASE("a forked child that ends does not take its parent's file along") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  Recorder recorder;
  recorder.share(0, 1, 1);
  const pid_t child = fork();
  if (child == 0) exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK(trace_files(folder.path).size() == 1);
}

// Must run before any other test where files cannot be made, because a process warns only once.
TEST_CASE("where files may have no bytes, a recorder does without, says so, and no signal ends the process") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    const rlimit none{0, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &none);
    Recorder recorder;
    recorder.share(0, 1, 1);
    _exit(recorder.path().empty() ? 0 : 1);
  }
  close(ends[1]);
  std::string said(4096, '\0');
  said.resize(static_cast<size_t>(std::max<ssize_t>(0, read(ends[0], said.data(), said.size()))));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(said.find("the flight recorder cannot be read from outside") != std::string::npos);
  CHECK(said.find("raise ulimit -f") != std::string::npos);
  CHECK(trace_files(folder.path).empty());
}

TEST_CASE("without a folder for files, or with a full one, a recorder goes on in private memory") {
  const std::string folder = GENERATE(std::string("/nonexistent"), std::string("/proc"), std::string("/dev/full"));
  setenv("TUTTI_TRACE_DIR", folder.c_str(), 1);
  Recorder recorder;
  recorder.share(1, 2, 3);
  unsetenv("TUTTI_TRACE_DIR");
  CHECK(recorder.path().empty());
  recorder.begin(sum(1));
  CHECK(read_trace(recorder).last()->call == sum(1));
  CHECK(read_trace(recorder).rank == 1);
}

TEST_CASE("who has no descriptor left takes no process for dead") {
  const ProcessId me = this_process();
  REQUIRE(process_state(me) != 'X');
  rlimit usual{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const char state = process_state(me);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(state != 'X');
}

TEST_CASE("a file is that of one process of one user") {
  const auto of_user = [](unsigned user) { return maker_of("tutti-trace." + std::to_string(user) + ".1.2.3.4"); };
  REQUIRE(of_user(getuid()).has_value());
  CHECK(of_user(getuid())->pid == 2);
  CHECK_FALSE(of_user(getuid() + 1).has_value());
  ProcessId later = this_process();
  later.start++;
  CHECK(process_state(later) == 'X');
}

TEST_CASE("a process is known whatever its name is") {
  const ProcessId before = this_process();
  char name[16] = "";
  REQUIRE(prctl(PR_GET_NAME, name) == 0);
  REQUIRE(prctl(PR_SET_NAME, "a) T 1 (b") == 0);
  const ProcessId renamed = this_process();
  const char state = process_state(before);
  REQUIRE(prctl(PR_SET_NAME, name) == 0);
  CHECK(renamed == before);
  CHECK(state == 'R');
}

TEST_CASE("a recorder's file whose numbers cannot be is refused, and times that cannot be are read") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  Recorder recorder;
  recorder.share(1, 2, 3);
  recorder.begin(sum(1));
  REQUIRE(static_cast<bool>(read_trace(recorder.path())));
  const auto put = [&](size_t at, auto value) {
    std::fstream file(recorder.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const uint64_t ticks : {uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0}}) {
    put(offsetof(TraceHeader, waiting_since_ns), ticks);
    put(offsetof(TraceHeader, n_awaited), ticks);
    put(TraceMemory::kHeaderBytes + sizeof(TraceSlot) + offsetof(TraceSlot, started), ticks);
    const auto trace = read_trace(recorder.path());
    REQUIRE(static_cast<bool>(trace));
    CHECK_FALSE(to_json(trace.value()).empty());
  }
  for (const int32_t n_ranks : {0x3e000000, 1, 0, -1}) {
    put(offsetof(TraceHeader, n_ranks), n_ranks);
    CHECK_FALSE(static_cast<bool>(read_trace(recorder.path())));
  }
}

TEST_CASE("what is no recorder's file is not taken for one") {
  const tutti_test::Folder folder("TUTTI_TRACE_DIR");
  const std::string path = folder.path + "/" + trace_file_name(this_process(), 1);
  std::ofstream(path) << std::string(sizeof(TraceMemory), 'x');
  CHECK_FALSE(static_cast<bool>(read_trace(path)));
  std::ofstream(path) << "short";
  const auto trace = read_trace(path);
  REQUIRE_FALSE(static_cast<bool>(trace));
  CHECK(tutti_test::contains(trace.error().message, "is not a flight recorder's file"));
}
