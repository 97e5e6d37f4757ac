// The PMI-1 client against a launcher in this test.
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <future>
#include <map>
#include <mutex>

#include "catch.h"
#include "group/launcher_store.h"
#include "group/pmi.h"
#include "ranks.h"
#include "sanitized.h"

using namespace tutti;
using namespace tutti::test;

namespace {

// Serves every rank on a socketpair and in a thread, with the launcher's two collective features: values that become
// visible at the barrier, and the barrier.
class FakeLauncher {
 public:
  FakeLauncher(int n_ranks, int max_value_chars) : n_ranks_(n_ranks), max_value_chars_(max_value_chars) {
    for (int r = 0; r < n_ranks; r++) {
      int pair[2] = {-1, -1};
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) continue;
      ours_.emplace_back(pair[0]);
      theirs_.emplace_back(pair[1]);
    }
    for (Fd& fd : ours_) threads_.emplace_back([this, &fd] { serve(fd.get()); });
  }
  ~FakeLauncher() {
    for (Fd& fd : theirs_) fd.reset();
    for (std::thread& t : threads_) t.join();
  }
  int fd(int rank) const { return theirs_[static_cast<size_t>(rank)].get(); }
  int n_finalized() const { return n_finalized_; }

 private:
  void serve(int fd) {
    std::string line;
    for (char c = 0; recv_all(fd, &c, 1, Deadline::never());) {
      if (c != '\n') {
        line += c;
        continue;
      }
      const std::string answer = reply(line) + "\n";
      if (!send_all(fd, answer.data(), answer.size(), Deadline::never())) return;
      line.clear();
    }
  }

  static std::string word(const std::string& line, const std::string& name) {
    const size_t at = line.find(name + "=");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 1;
    return line.substr(begin, line.find(' ', begin) - begin);
  }

  std::string reply(const std::string& line) {
    const std::string command = word(line, "cmd");
    if (command == "init") return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0";
    if (command == "get_maxes")
      return "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=" + std::to_string(max_value_chars_);
    if (command == "get_my_kvsname") return "cmd=my_kvsname kvsname=kvs_7_0";
    if (command == "barrier_in") return barrier();
    const std::lock_guard lock(mutex_);
    if (word(line, "kvsname") != "kvs_7_0" && command != "finalize") return "cmd=" + command + "_result rc=-1";
    if (command == "put") {
      if (word(line, "value").size() >= static_cast<size_t>(max_value_chars_))
        return "cmd=put_result rc=-1 msg=too_long";
      pending_[word(line, "key")] = word(line, "value");
      return "cmd=put_result rc=0 msg=success";
    }
    if (command == "get") {
      const auto found = visible_.find(word(line, "key"));
      if (found == visible_.end()) return "cmd=get_result rc=-1 msg=key_not_found value=unknown";
      return "cmd=get_result rc=0 msg=success value=" + found->second;
    }
    n_finalized_++;
    return "cmd=finalize_ack";
  }

  std::string barrier() {
    std::unique_lock lock(mutex_);
    const int turn = turn_;
    if (++n_waiting_ == n_ranks_) {
      visible_.insert(pending_.begin(), pending_.end());
      n_waiting_ = 0;
      turn_++;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return turn_ != turn; });
    return "cmd=barrier_out";
  }

  const int n_ranks_, max_value_chars_;
  std::vector<Fd> ours_, theirs_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> pending_, visible_;
  int n_waiting_ = 0, turn_ = 0, n_finalized_ = 0;
};

// A launcher that sends the same answer to everything (empty: it only listens).
Fate init_against(const std::string& answer, bool closes) {
  int pair[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return {};
  Fd ours(pair[0]), theirs(pair[1]);
  if (!answer.empty() && !send_all(ours.get(), answer.data(), answer.size(), Deadline::after_seconds(10))) return {};
  if (closes) ours.reset();
  const auto pmi = Pmi::init(theirs.get(), Deadline::after_seconds(0.2));
  return pmi ? Fate{} : fate_of(pmi.error());
}

}  // namespace

TEST_CASE("PMI carries rank 0's value to all, and of a long reason as much as fits") {
  const auto [max_value_chars, fitting] = GENERATE(table<int, size_t>({{1024, 1022}, {816, 814}, {259, 258}}));
  INFO("vallen_max " << max_value_chars);
  const std::string id = to_published(UniqueId{{1, 2, 3}});
  const std::string reason = to_published(Error{Code::kSystemError, std::string(1000, 'x')});
  FakeLauncher launcher(4, max_value_chars);
  const auto got = run_ranks<std::string>(first_ranks(4), [&](int rank) -> std::string {
    auto pmi = Pmi::init(launcher.fd(rank), Deadline::after_seconds(60));
    if (!pmi) return pmi.error().message;
    std::string all;
    for (const std::string& value : {id, reason}) {
      const std::string key = "tutti-" + std::to_string(value.size());
      if (rank == 0)
        if (const auto put = pmi.value().put(key, value); !put) return put.error().message;
      if (const auto barrier = pmi.value().barrier(); !barrier) return barrier.error().message;
      const auto found = pmi.value().get(key);
      if (!found) return found.error().message;
      all += found.value() + " ";
    }
    if (const auto end = pmi.value().finalize(); !end) return end.error().message;
    return all;
  });
  const std::string fits = reason.substr(0, fitting);
  for (const std::string& outcome : got) CHECK(outcome == id + " " + fits + " ");
  CHECK(contains(from_published(fits).error().message, "could not start the group's root: xxx"));
  CHECK(launcher.n_finalized() == 4);
}

TEST_CASE("PMI can be initialised again on the same descriptor, as a later MPI_Init does") {
  FakeLauncher launcher(1, 1024);
  REQUIRE(Pmi::init(launcher.fd(0), Deadline::after_seconds(60)));
  auto again = Pmi::init(launcher.fd(0), Deadline::after_seconds(60));
  REQUIRE(again);
  CHECK(again.value().barrier());
}

TEST_CASE("a key that nobody put is an error that shows the launcher's answer") {
  FakeLauncher launcher(1, 1024);
  auto pmi = Pmi::init(launcher.fd(0), Deadline::after_seconds(60));
  REQUIRE(pmi);
  const auto found = pmi.value().get("nothing");
  REQUIRE(!found);
  CHECK(contains(found.error().message, "key_not_found"));
}

TEST_CASE("launchers that are silent, gone, or speak nonsense are errors") {
  CHECK(init_against("", false).code == Code::kTimeout);
  CHECK(init_against("", true).code == Code::kRemoteError);
  CHECK(init_against("cmd=response_to_init rc=-1\n", false).code == Code::kRemoteError);
  CHECK(init_against("hello\n", false).code == Code::kRemoteError);
  CHECK(init_against("cmd=response_to_init rc=0\ncmd=maxes\ncmd=my_kvsname kvsname=k\n", false).code ==
        Code::kRemoteError);
  CHECK(contains(
      init_against("cmd=response_to_init rc=0\ncmd=maxes vallen_max=258\ncmd=my_kvsname kvsname=k\n", false).message,
      "no room for the 258 characters of a unique id"));
  CHECK(contains(init_against(std::string(20000, 'x'), false).message, "line without end"));
}

TEST_CASE("once PMI has not answered in time nothing more is asked") {
  int pair[2] = {-1, -1};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  const Fd ours(pair[0]), theirs(pair[1]);
  const timeval patience{.tv_sec = 30, .tv_usec = 0};
  REQUIRE(setsockopt(ours.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
  const auto say = [&](const std::string& words) {
    REQUIRE(send_all(ours.get(), words.data(), words.size(), Deadline::after_seconds(10)));
  };
  say("cmd=response_to_init rc=0\ncmd=maxes vallen_max=1024\ncmd=my_kvsname kvsname=k\n");
  auto answer = std::async(std::launch::async,
                           [&theirs] { return share_by_pmi(theirs.get(), "first", 1, Deadline::after_seconds(1)); });
  std::string asked;
  for (char byte; !contains(asked, "barrier_in") && recv(ours.get(), &byte, 1, 0) == 1;) asked += byte;
  REQUIRE(contains(asked, "barrier_in"));
#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
  const pid_t child = fork();
  if (child == 0) {  // does not wait for its parent's thread
    alarm(10);
    (void)share_by_pmi(theirs.get(), "child", 1, Deadline::after_seconds(0.1));
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
#endif
  const auto late = answer.get();
  REQUIRE(!late);
  CHECK(late.error().code == Code::kTimeout);
  say("cmd=barrier_out\ncmd=get_result rc=0 value=no6162\n");  // the late answer to the first call
  const auto next = share_by_pmi(theirs.get(), "second", 1, Deadline::after_seconds(5));
  REQUIRE(!next);
  CHECK(next.error().message == late.error().message);
}

TEST_CASE("a descriptor that is not open is an error that names PMI_FD") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  ::close(pair[0]);
  ::close(pair[1]);
  const auto pmi = Pmi::init(pair[0], Deadline::after_seconds(1));
  REQUIRE(!pmi);
  CHECK(contains(pmi.error().message, "PMI_FD"));
}
