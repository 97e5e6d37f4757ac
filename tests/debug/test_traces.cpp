// What communicators leave for people: while they hang, when they break, and on request.
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/log.h"
#include "comm/ranks.h"
#include "debug/folder.h"
#include "debug/why.h"
#include "overheard.h"
#include "tutti/trace.h"

using namespace tutti_test;

namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 600; i++, usleep(50'000))
    if (holds()) return true;
  return false;
}

// Whether a fork of this process, one that the library did not make, ends by SIGTERM.
bool fork_ends_by_sigterm() {
#ifdef TUTTI_TEST_TSAN
  return true;  // a fork of a process with threads may never get the signal there: ThreadSanitizer keeps it
#else
  const pid_t grandchild = fork();
  if (grandchild == 0)
    for (;;) pause();
  kill(grandchild, SIGTERM);
  int status = 0;
  waitpid(grandchild, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
#endif
}

// Of the only group of the folder.
std::string why_of(const std::string& folder) {
  const auto groups = tutti::find_witnesses(folder);
  return groups.empty() ? "" : tutti::why(groups.begin()->second);
}

void sum(tuttiComm_t comm, Outcome& outcome) {
  float value = 1;
  outcome.take(tuttiAllReduce(&value, &value, 1, tuttiFloat, tuttiSum, comm, nullptr));
}

}  // namespace

TEST_CASE("from outside a rank that is stopped is found while the others hang") {
  const Folder folder("TUTTI_TRACE_DIR");
  Processes ranks(3, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (int i = 0; i < 3; i++) sum(comm, outcome);
    if (rank == 2) raise(SIGSTOP);
    sum(comm, outcome);
    outcome.take(tuttiCommFinalize(comm));
    outcome.take(tuttiCommDestroy(comm));
  });
  CHECK(soon([&] {
    const std::string text = why_of(folder.path);
    return contains(text, "waits for rank 2 ") &&
           contains(text, "rank 2 is stopped (after AllReduce(count=1, float, sum)");
  }));
  INFO(why_of(folder.path));
  kill(ranks.pid(2), SIGCONT);
  require_success(ranks.wait());
  CHECK(tutti::trace_files(folder.path).empty());
}

TEST_CASE("from inside a rank that has not come is found, while another thread hangs") {
  const Folder folder("TUTTI_TRACE_DIR");
  Processes ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    sum(comm, outcome);
    std::string answer;
    if (rank == 1) return sleep(3), sum(comm, outcome);
    Outcome of_other;
    std::thread other([&] { sum(comm, of_other); });
    for (int i = 0; i < 2000 && !contains(answer, "rank 1 has not called it yet"); i++, usleep(1000)) {
      char text[1000];
      size_t bytes = sizeof text;
      outcome.take(tuttiCommExplainWait(comm, text, &bytes));
      answer = text;
      outcome.wrong += bytes != answer.size() + 1;
      size_t needed = 0;
      outcome.take(tuttiCommExplainWait(comm, nullptr, &needed));
      outcome.wrong += needed == 0;
    }
    other.join();
    outcome.take(of_other.code);
    if (!contains(answer, "rank 0 waits for rank 1 (in AllReduce(count=1, float, sum)")) outcome.wrong++;
    outcome.message = answer;
  });
  const auto outcomes = ranks.wait();
  INFO(outcomes[0].message);
  require_success(outcomes);
}

TEST_CASE("a rank that is killed leaves its last operation, and the others say why they broke") {
  const Folder folder("TUTTI_TRACE_DIR");
  const Folder dumps("TUTTI_TRACE_FILE", "/rank%r.json");
  Processes ranks(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    sum(comm, outcome);
    if (rank == 1) {
      usleep(200'000);  // until rank 0 has left the first one
      soon([&] { return tutti::find_witnesses(folder.path).begin()->second.at(0).trace.is_in_operation(); });
      raise(SIGKILL);
    }
    sum(comm, outcome);
  });
  const auto outcomes = ranks.wait();
  CHECK(outcomes[0].code == tuttiRemoteError);
  const std::string dump = content_of(dumps.path + "/rank0.json");
  CHECK(contains(dump, "\"error\": \"rank 1 (host "));
  CHECK(contains(dump, "\"profiling_name\": \"nccl:all_reduce\""));
  CHECK(contains(dump, "\"failed\": true"));
  const auto groups = tutti::find_witnesses(folder.path);
  REQUIRE(groups.size() == 1);
  REQUIRE(groups.begin()->second.contains(1));
  const tutti::Trace& killed = groups.begin()->second.at(1).trace;
  REQUIRE(killed.last() != nullptr);
  CHECK(killed.last()->state == tutti::TracedOperation::State::kCompleted);
}

TEST_CASE("what was done is written when somebody asks, and by who aborts") {
  const Folder dumps("TUTTI_TRACE_FILE", "/aborted%r-%g.json");
  tuttiComm_t comms[2];
  REQUIRE(tuttiCommInitAll(comms, 2, nullptr) == tuttiSuccess);
  Outcome outcomes[2];
  std::thread other([&] { sum(comms[1], outcomes[1]); });
  sum(comms[0], outcomes[0]);
  other.join();
  int value = 0, received = 0;
  tuttiGroupStart();
  CHECK(tuttiSend(&value, 1, tuttiInt32, 1, comms[0], nullptr) == tuttiSuccess);
  CHECK(tuttiRecv(&received, 1, tuttiInt32, 0, comms[1], nullptr) == tuttiSuccess);
  CHECK(tuttiGroupEnd() == tuttiSuccess);
  const std::string path = dumps.path + "/asked%r";
  CHECK(tuttiDumpTrace(comms[0], path.c_str()) == tuttiSuccess);
  const std::string dump = content_of(dumps.path + "/asked0");
  CHECK(contains(dump, "\"profiling_name\": \"nccl:all_reduce\""));
  CHECK(contains(dump, "\"profiling_name\": \"nccl:send 0->1\""));
  CHECK(contains(dump, "\"bytes\": 4"));
  CHECK(contains(dump, "\"ranks\": \"[0, 1]\""));
  CHECK(contains(dump, "test_debug"));  // the caller's location
  CHECK(content_of(dumps.path + "/asked1").empty());
  CHECK(tuttiDumpTrace(nullptr, path.c_str()) == tuttiSuccess);
  CHECK(contains(content_of(dumps.path + "/asked1"), "nccl:recv 1<-0"));
  CHECK(tuttiDumpTrace(comms[0], nullptr) == tuttiInvalidArgument);
  CHECK(tuttiDumpTrace(comms[0], "/nonexistent/x") == tuttiSystemError);
  CHECK(contains(tuttiGetLastError(nullptr), "/nonexistent/x"));
  CHECK(tuttiCommAbort(comms[0]) == tuttiSuccess);
  tuttiResult_t heard = tuttiSuccess;
  for (int i = 0; i < 100'000 && heard == tuttiSuccess; i++) {
    REQUIRE(tuttiCommGetAsyncError(comms[1], &heard) == tuttiSuccess);
    usleep(100);
  }
  CHECK(tuttiCommDestroy(comms[1]) == tuttiRemoteError);
  size_t aborted = 0;
  for (const auto& file : std::filesystem::directory_iterator(dumps.path))
    if (contains(file.path(), "/aborted0-")) aborted += contains(content_of(file.path()), "tuttiCommAbort was called");
  CHECK(aborted == 1);
}

TEST_CASE("files that are named from the program's folder do not move when the program goes to another one") {
  const Folder folder("TUTTI_TRACE_DIR"), traces("TUTTI_TRACE_FILE"), metrics("TUTTI_METRICS_FILE");
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directory(folder.path + "/elsewhere");
  std::filesystem::current_path(folder.path);
  setenv("TUTTI_TRACE_DIR", ".", 1);
  setenv("TUTTI_TRACE_FILE", "trace%r", 1);
  setenv("TUTTI_METRICS_FILE", "metrics%r", 1);
  tuttiComm_t comm = nullptr;
  CHECK(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  std::filesystem::current_path(folder.path + "/elsewhere");
  CHECK(tuttiCommAbort(comm) == tuttiSuccess);
  std::filesystem::current_path(before);
  CHECK_FALSE(content_of(folder.path + "/trace0").empty());
  CHECK_FALSE(content_of(folder.path + "/metrics0").empty());
  for (const auto& file : std::filesystem::directory_iterator(folder.path))
    CHECK_FALSE(contains(file.path(), "tutti-trace."));
}

TEST_CASE("an operation that was queued is known with the time of its call") {
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  tuttiStream_t stream = nullptr;
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  std::atomic<bool> may_begin = false;
  const auto hold_up = [](tuttiStream_t, tuttiResult_t, void* may) {
    while (!*static_cast<std::atomic<bool>*>(may)) usleep(1'000);
  };
  REQUIRE(tuttiStreamAddCallback(stream, hold_up, &may_begin) == tuttiSuccess);
  float value = 1;
  REQUIRE(tuttiAllReduce(&value, &value, 1, tuttiFloat, tuttiSum, comm, stream) == tuttiSuccess);
  usleep(25'000);
  may_begin = true;
  REQUIRE(tuttiStreamSynchronize(stream) == tuttiSuccess);
  size_t queued = 0;
  tutti::for_each_recorder([&](const tutti::Recorder& recorder) {
    for (const auto& operation : tutti::read_trace(recorder).operations)
      queued += operation.started_ns - operation.created_ns >= 20'000'000;
  });
  CHECK(queued == 1);
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("SIGTERM writes the traces if it is asked to, and ends the process as before") {
  const bool asked = GENERATE(true, false);
  const Folder dumps("TUTTI_TRACE_FILE", "/rank%r.json");
  if (asked) setenv("TUTTI_TRACE_ON_SIGTERM", "1", 1);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, SIG_DFL);  // Catch2 installs a handler
    tuttiComm_t comm = nullptr;
    Outcome outcome;
    if (tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess) sum(comm, outcome);
    const char went_well = fork_ends_by_sigterm() && outcome.code == tuttiSuccess;
    usleep(100'000);
    if (write(ready[1], &went_well, 1) != 1) _exit(1);
    for (;;) pause();
  }
  unsetenv("TUTTI_TRACE_ON_SIGTERM");
  char went_well = 0;
  close(ready[1]);
  CHECK(read(ready[0], &went_well, 1) == 1);
  close(ready[0]);
  CHECK(went_well == 1);
  CHECK(content_of(dumps.path + "/rank0.json").empty());
  int status = 0;
  REQUIRE(kill(child, SIGTERM) == 0);
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(contains(content_of(dumps.path + "/rank0.json"), "nccl:all_reduce") == asked);
}

TEST_CASE("files that all ranks would write to, and a folder where none can, are told of at the start, once") {
  const Folder traces("TUTTI_TRACE_FILE", "/none/%h.json"), metrics("TUTTI_METRICS_FILE", "/%r-%g");
  Overheard overheard;
  require_success(Processes(2, [](int, tuttiComm_t comm, Outcome& outcome) {
                    tuttiComm_t other = nullptr;
                    outcome.take(tuttiCommSplit(comm, 0, 0, &other, nullptr));
                    outcome.take(tuttiCommDestroy(other));
                    outcome.take(tuttiCommFinalize(comm));
                    outcome.take(tuttiCommDestroy(comm));
                  }).wait());
  if (!tutti::log_enabled(tutti::LogLevel::kWarn)) return;
  CHECK(overheard.count("TUTTI_TRACE_FILE=" + traces.path + "/none/%h.json is one file for several ranks") == 1);
  CHECK(overheard.count("cannot be saved: writing to " + traces.path + "/none: No such file") == 1);
  CHECK(overheard.count("TUTTI_METRICS_FILE=") == 0);
}

TEST_CASE("traces on SIGTERM are refused where no file is named for them") {
  setenv("TUTTI_TRACE_ON_SIGTERM", "1", 1);
  tuttiComm_t comm = nullptr;
  CHECK(tuttiCommInitAll(&comm, 1, nullptr) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "TUTTI_TRACE_FILE, which is not set"));
  unsetenv("TUTTI_TRACE_ON_SIGTERM");
}

TEST_CASE("after the traces SIGTERM goes to the program's own handler, however many communicators there are") {
  const Folder dumps("TUTTI_TRACE_FILE", "/rank%r.json");
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(15);  // if SIGTERM does not end it
    signal(SIGTERM, [](int) { _exit(7); });
    setenv("TUTTI_TRACE_ON_SIGTERM", "1", 1);
    bool went_well = true;
    for (int i = 0; i < 2; i++) {
      tuttiComm_t comm = nullptr;
      if (i > 0) setenv("TUTTI_TRACE_FILE", (dumps.path + "/second.json").c_str(), 1);
      went_well = went_well && tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess;
    }
    if (!went_well || write(ready[1], "", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  close(ready[1]);
  CHECK(read(ready[0], &byte, 1) == 1);
  close(ready[0]);
  int status = 0;
  REQUIRE(kill(child, SIGTERM) == 0);
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  CHECK_FALSE(content_of(dumps.path + "/rank0.json").empty());
  CHECK_FALSE(content_of(dumps.path + "/second.json").empty());
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("a forked child that makes a communicator writes its traces, too") {
  const bool chains = GENERATE(false, true);  // to the handler found there, which its parent's library installed
  static struct sigaction found;
  const Folder dumps("TUTTI_TRACE_FILE", "/%p.json");
  int pids[2];
  REQUIRE(pipe(pids) == 0);
  const auto make_one = [] {
    tuttiComm_t comm = nullptr;
    return tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess;
  };
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, SIG_DFL);  // Catch2 installs a handler
    setenv("TUTTI_TRACE_ON_SIGTERM", "1", 1);
    if (!make_one()) _exit(1);
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      alarm(15);
      sigaction(SIGTERM, nullptr, &found);
      if (chains) signal(SIGTERM, [](int number) { found.sa_handler(number); });
      const pid_t me = getpid();
      if (!make_one() || write(pids[1], &me, sizeof me) != sizeof me) _exit(1);
      for (;;) pause();
    }
    int status = 0;
    _exit(waitpid(grandchild, &status, 0) == grandchild && WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  }
  pid_t grandchild = 0;
  close(pids[1]);
  REQUIRE(read(pids[0], &grandchild, sizeof grandchild) == sizeof grandchild);
  close(pids[0]);
  REQUIRE(kill(grandchild, SIGTERM) == 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == SIGTERM));
  CHECK_FALSE(content_of(dumps.path + "/" + std::to_string(grandchild) + ".json").empty());
}
#endif

TEST_CASE("why a rank waits, and a place's name, need somewhere to be written; what does not fit is cut off") {
  require_success(run_threads(1, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    const auto refuses = [&](tuttiResult_t result, const char* why) {
      outcome.wrong += result != tuttiInvalidArgument || !contains(tuttiGetLastError(nullptr), why);
    };
    char whole[1000] = "", cut[8] = "";
    size_t bytes = sizeof whole, cut_bytes = sizeof cut;
    refuses(tuttiCommExplainWait(comm, whole, nullptr), "bytes is NULL");
    refuses(tuttiCommExplainWait(comm, nullptr, &bytes), "text is NULL");
    refuses(tuttiCommExplainWait(nullptr, whole, &bytes), "comm");
    outcome.take(tuttiCommExplainWait(comm, whole, &bytes));
    outcome.take(tuttiCommExplainWait(comm, cut, &cut_bytes));
    outcome.wrong += bytes <= sizeof cut || bytes != strlen(whole) + 1 || cut_bytes != bytes;
    outcome.wrong += std::string(whole).substr(0, sizeof cut - 1) != cut;
    uint64_t place = 7;
    refuses(tuttiNamePlace(nullptr, &place), "text is NULL");
    refuses(tuttiNamePlace("train.py:41", nullptr), "place is NULL");
    outcome.wrong += place != 7;
  }));
}
