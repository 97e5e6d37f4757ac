#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "catch.h"
#include "group/launcher.h"
#include "group/launcher_address.h"
#include "moving_host.h"
#include "ranks.h"

using namespace tutti;
using namespace tutti::test;

namespace {

// A launcher's environment, instead of the one that this test was started with; restored at the end.
class FakeEnvironment {
 public:
  explicit FakeEnvironment(const std::map<std::string, std::string>& wanted) {
    for (const char* name : {"TUTTI_RANK",
                             "TUTTI_NRANKS",
                             "TUTTI_ROOT",
                             "TUTTI_SECRET",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMI_FD",
                             "MPI_LOCALRANKID",
                             "OMPI_COMM_WORLD_RANK",
                             "PMIX_NAMESPACE",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_JOB_NODELIST",
                             "TORCHELASTIC_USE_AGENT_STORE"}) {
      const char* before = getenv(name);
      before_[name] = before == nullptr ? "" : before;
      unsetenv(name);
    }
    for (const auto& [name, value] : wanted) setenv(name.c_str(), value.c_str(), 1);
  }
  ~FakeEnvironment() {
    for (const auto& [name, value] : before_)
      if (value.empty())
        unsetenv(name.c_str());
      else
        setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> before_;
};

const std::map<std::string, std::string> kSlurm = {{"SLURM_PROCID", "2"},
                                                   {"SLURM_NTASKS", "8"},
                                                   {"SLURM_JOB_ID", "77"},
                                                   {"SLURM_STEP_ID", "0"},
                                                   {"SLURM_LOCALID", "1"}};

std::map<std::string, std::string> plus(std::map<std::string, std::string> all,
                                        const std::map<std::string, std::string>& more) {
  all.insert(more.begin(), more.end());
  return all;
}

void check_detected(const std::map<std::string, std::string>& environment, const std::string& launcher, int rank,
                    int n_ranks, int local_rank) {
  const FakeEnvironment fake(environment);
  const auto info = detect_launcher();
  INFO(launcher << ": " << (info ? "" : info.error().message));
  REQUIRE(info);
  CHECK(info.value().launcher == launcher);
  CHECK(info.value().rank == rank);
  CHECK(info.value().n_ranks == n_ranks);
  CHECK(info.value().local_rank == local_rank);
}

std::string refusal(const std::map<std::string, std::string>& environment) {
  const FakeEnvironment fake(environment);
  const auto info = detect_launcher();
  REQUIRE(!info);
  CHECK(info.error().code == Code::kInvalidUsage);
  return info.error().message;
}

std::string meet_and_gather(const MeetingPoint& point, int rank, int n_ranks, int call, double seconds = 60) {
  const Deadline deadline = Deadline::after_seconds(seconds);
  const auto id = meet(point, rank, call, deadline);
  if (!id) return id.error().message;
  auto joined = Bootstrap::join(id.value(), rank, n_ranks, deadline);
  if (!joined) return joined.error().message;
  const auto all = joined.value().all_gather(std::to_string(call));
  if (!all) return all.error().message;
  const std::vector<std::string> expected(static_cast<size_t>(n_ranks), std::to_string(call));
  return all.value().bytes() == Blobs::pack(expected).bytes() ? "good" : "ranks of different groups met";
}

}  // namespace

TEST_CASE("launchers are recognised by their variables") {
  check_detected({{"TUTTI_RANK", "1"}, {"TUTTI_NRANKS", "4"}, {"TUTTI_ROOT", "a:1"}}, "tutti", 1, 4, -1);
  const std::map<std::string, std::string> torch = {
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  check_detected(torch, "torchrun", 3, 4, -1);
  check_detected(plus(torch, {{"LOCAL_RANK", "1"}}), "torchrun", 3, 4, 1);
  const std::map<std::string, std::string> pmi = {{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}, {"PMI_FD", "9"}};
  check_detected(plus(pmi, {{"MPI_LOCALRANKID", "2"}}), "mpich", 5, 6, 2);
  const std::map<std::string, std::string> openmpi = {{"OMPI_COMM_WORLD_RANK", "0"},
                                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                      {"PMIX_NAMESPACE", "x"}};
  check_detected(openmpi, "openmpi", 0, 2, 0);
  check_detected(kSlurm, "slurm", 2, 8, 1);
  SECTION("srun --mpi=pmi2 looks like MPICH, but the step's name is the better one") {
    check_detected(plus(kSlurm, pmi), "slurm", 5, 6, 1);
  }
  SECTION("the one started last wins: torchrun, mpiexec and mpirun under srun, TUTTI_ over all") {
    check_detected(plus(kSlurm, torch), "torchrun", 3, 4, -1);
    check_detected(plus(plus(kSlurm, pmi), openmpi), "openmpi", 0, 2, 0);
    check_detected(plus(kSlurm, plus(pmi, {{"MPI_LOCALRANKID", "2"}})), "mpich", 5, 6, 2);
    check_detected(plus(plus(kSlurm, torch), {{"TUTTI_RANK", "0"}, {"TUTTI_NRANKS", "1"}, {"TUTTI_ROOT", "a:1"}}),
                   "tutti", 0, 1, -1);
  }
}

TEST_CASE("no launcher: the error lists what was looked for and what is missing") {
  const std::string nothing = refusal({});
  for (const char* name : {"TUTTI_ROOT", "MASTER_ADDR", "PMI_FD", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"})
    CHECK(contains(nothing, name));
  CHECK(contains(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}),
                 "torchrun: MASTER_ADDR is not set"));
  CHECK(contains(refusal({{"TUTTI_RANK", "0"}, {"TUTTI_NRANKS", "2"}}), "TUTTI_ROOT is not set"));
  CHECK(contains(refusal(plus(kSlurm, {{"TUTTI_ROOT", "a:1"}})), "TUTTI_RANK is not set"));
}

TEST_CASE("the shell of Slurm's salloc is no rank of the job") {
  std::map<std::string, std::string> shell = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}};
  for (const char* step : {"4294967290", "4294967291", "4294967293"}) {
    shell["SLURM_STEP_ID"] = step;
    CHECK(contains(refusal(shell), "slurm: SLURM_STEP_ID is not set"));
  }
  shell["SLURM_STEP_ID"] = "4294967289";
  check_detected(shell, "slurm", 0, 4, -1);
}

TEST_CASE("numbers out of range are refused by name") {
  const auto tutti_refusal = [](const char* rank, const char* n_ranks) {
    return refusal({{"TUTTI_RANK", rank}, {"TUTTI_NRANKS", n_ranks}, {"TUTTI_ROOT", "a:1"}});
  };
  CHECK(contains(tutti_refusal("2", "2"), "TUTTI_RANK=2 is not valid: give a whole number from 0 to 1"));
  CHECK(contains(tutti_refusal("-1", "2"), "TUTTI_RANK=-1"));
  CHECK(contains(tutti_refusal("1x", "2"), "TUTTI_RANK=1x"));
  CHECK(contains(tutti_refusal("0", "0"), "TUTTI_NRANKS=0"));
  CHECK(contains(tutti_refusal("0", "99999999999"), "TUTTI_NRANKS=99999999999"));
}

TEST_CASE("the first host of a node list") {
  CHECK(first_host("node1") == "node1");
  CHECK(first_host("node1,node2") == "node1");
  CHECK(first_host("node[01-03,7],other5") == "node01");
  CHECK(first_host("node[7,9-12]") == "node7");
  CHECK(first_host("node[3]") == "node3");
  CHECK(first_host("rack[2-4]node[010-020]-ib,x") == "rack2node010-ib");
  CHECK(first_host("a-b.example.org,c") == "a-b.example.org");
  CHECK(first_host("") == "");
  CHECK(first_host("node[1-") == "");
  CHECK(first_host("node[]") == "node");
}

TEST_CASE("host and port") {
  const auto v4 = parse_host_port("node1:4000", "TUTTI_ROOT");
  REQUIRE(v4);
  CHECK(v4.value().host == "node1");
  CHECK(v4.value().port == 4000);
  const auto v6 = parse_host_port("[fe80::1%eth0]:65535", "TUTTI_ROOT");
  REQUIRE(v6);
  CHECK(v6.value().host == "fe80::1%eth0");
  CHECK(v6.value().port == 65535);
  for (const char* wrong : {"", "node1", ":1", "node1:", "node1:0", "node1:65536", "node1:4x", "node1:-1", "::1:4000",
                            "[]:1", "node1:999999999999"}) {
    INFO(wrong);
    const auto parsed = parse_host_port(wrong, "TUTTI_ROOT");
    REQUIRE(!parsed);
    CHECK(parsed.error().code == Code::kInvalidUsage);
    CHECK(contains(parsed.error().message, "TUTTI_ROOT"));
  }
}

TEST_CASE("ports of Slurm jobs stay in their range and differ between neighbours") {
  int same = 0;
  for (uint64_t job = 0; job < 2000; job++)
    for (uint64_t step = 0; step < 5; step++) {
      const uint16_t port = slurm_port(job, step);
      CHECK((port >= 20000 && port < 30000));
      same += port == slurm_port(job + 1, step);
    }
  CHECK(same < 100);
}

TEST_CASE("every call and every job has a secret of its own") {
  const auto secret = [](const std::string& job, int call) {
    std::string mixed(16, '\0');
    mix_secret({"h", 1, job}, call, reinterpret_cast<uint8_t*>(mixed.data()));
    return mixed;
  };
  CHECK(secret("a", 0) == secret("a", 0));
  CHECK(secret("a", 0) != secret("a", 1));
  CHECK(secret("a", 0) != secret("b", 0));
  CHECK(secret("1 a", 0) != secret("a", 1));
}

TEST_CASE("groups follow each other on one port without mixing") {
  const ReservedPort reserved = reserve_port();
  const MeetingPoint point{"127.0.0.1", reserved.port, "secret"};
  const auto outcomes = run_ranks<std::string>(first_ranks(4), [&](int rank) {
    for (int call = 0; call < 5; call++)
      if (const std::string outcome = meet_and_gather(point, rank, 4, call); outcome != "good") return outcome;
    return std::string("good");
  });
  for (const std::string& outcome : outcomes) CHECK(outcome == "good");
}

TEST_CASE("rank 0 waits for a busy port") {
  uint16_t port = 0;
  auto busy = listen_any(0, &port);
  REQUIRE(busy);
  const MeetingPoint point{"127.0.0.1", port, "secret"};
  SECTION("until it is free") {
    std::string outcome;
    std::thread rank([&] { outcome = meet_and_gather(point, 0, 1, 0); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    busy.value().reset();
    rank.join();
    CHECK(outcome == "good");
  }
  SECTION("or until the deadline") {
    CHECK(contains(meet_and_gather(point, 0, 1, 0, 0.2), "another program uses it"));
  }
}

// As where rank 0's container was just replaced. Nobody has the first address.
TEST_CASE("who finds nobody at the address of rank 0's host looks the host's name up again") {
  const ReservedPort reserved = reserve_port();
  const MovingHost host({"192.0.2.1", "127.0.0.1"});
  const auto outcomes = run_ranks<std::string>({0, 1}, [&](int rank) {
    return meet_and_gather({rank == 0 ? "127.0.0.1" : MovingHost::kName, reserved.port, "secret"}, rank, 2, 0);
  });
  for (const std::string& outcome : outcomes) CHECK(outcome == "good");
}

// Rank 1 tries until its limit, and then says what it heard last: so rank 0 has to be there for longer.
TEST_CASE("ranks with different secrets do not meet, and are told so") {
  const ReservedPort reserved = reserve_port();
  const auto outcomes = run_ranks<std::string>({0, 1}, [&](int rank) {
    return meet_and_gather({"127.0.0.1", reserved.port, rank == 0 ? "mine" : "yours"}, rank, 2, 0, rank == 0 ? 3 : 1.5);
  });
  CHECK(contains(outcomes[0], "rank 1 of 2 never joined"));
  CHECK(contains(outcomes[1], "does not know this group's secret"));
  for (const std::string& outcome : outcomes) CHECK(contains(outcome, "is TUTTI_SECRET, or the unique id, the same"));
}

TEST_CASE("a faked Slurm step, TUTTI_ROOT and torchrun without its store lead to working groups") {
  const ReservedPort reserved = reserve_port();
  const auto environment = GENERATE_REF(
      std::map<std::string, std::string>{{"SLURM_PROCID", "0"},
                                         {"SLURM_NTASKS", "1"},
                                         {"SLURM_JOB_ID", std::to_string(getpid())},
                                         {"SLURM_STEP_ID", "3"},
                                         {"SLURM_STEP_NODELIST", "localhost"}},
      std::map<std::string, std::string>{
          {"TUTTI_RANK", "0"}, {"TUTTI_NRANKS", "1"}, {"TUTTI_ROOT", "localhost:" + std::to_string(reserved.port)}},
      std::map<std::string, std::string>{{"RANK", "0"},
                                         {"WORLD_SIZE", "1"},
                                         {"MASTER_ADDR", "localhost"},
                                         {"MASTER_PORT", std::to_string(reserved.port)},
                                         {"TORCHELASTIC_RUN_ID", "none"}});
  const FakeEnvironment fake(environment);
  const auto info = detect_launcher();
  REQUIRE(info);
  for (int call = 0; call < 2; call++) {
    const auto id = unique_id_from_launcher(info.value(), Deadline::after_seconds(60));
    REQUIRE(id);
    auto joined = Bootstrap::join(id.value(), 0, 1, Deadline::after_seconds(60));
    REQUIRE(joined);
    CHECK(joined.value().all_gather("x"));
  }
}

TEST_CASE("who encrypts needs a secret that cannot be guessed") {
  const FakeEnvironment fake(kSlurm);
  LaunchInfo info = detect_launcher().value();
  setenv("SLURM_JOB_NODELIST", "localhost", 1);
  info.encrypts = true;
  const auto id = unique_id_from_launcher(info, Deadline::after_seconds(1));
  REQUIRE(!id);
  CHECK(id.error().code == Code::kInvalidUsage);
  CHECK(contains(id.error().message, "TUTTI_SECRET"));
}

// In a shell of `srun --mpi=pmi2` whose descriptor mpirun closes: the number may belong to any file by now.
TEST_CASE("mpirun's ranks say nothing on the descriptor of an outer launcher") {
  int pair[2] = {-1, -1};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  const Fd ours(pair[0]), anybodys(pair[1]);
  const FakeEnvironment fake({{"PMI_FD", std::to_string(anybodys.get())}});
  LaunchInfo info;
  info.launcher = "openmpi";
  info.n_ranks = 2;
  CHECK(!unique_id_from_launcher(info, Deadline::after_seconds(0.1)));
  char byte;
  CHECK(::recv(ours.get(), &byte, 1, 0) < 0);
}

TEST_CASE("a Slurm step without a node list is refused by name") {
  const FakeEnvironment fake(kSlurm);
  const auto id = unique_id_from_launcher(detect_launcher().value(), Deadline::after_seconds(1));
  REQUIRE(!id);
  CHECK(id.error().code == Code::kInvalidUsage);
  CHECK(contains(id.error().message, "SLURM_JOB_NODELIST"));
}

namespace {

// Whether the id is that of one of the job's first calls.
bool has_secret(const UniqueId& id, const std::string& job) {
  const UniqueIdParts parts = unpack_unique_id(id).value();
  uint8_t mixed[sizeof parts.secret];
  for (int call = 0; call < 1000; call++) {
    mix_secret({"", 0, job}, call, mixed);
    if (memcmp(mixed, parts.secret, sizeof mixed) == 0) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("of a Slurm step's hosts and its job's the step's count") {
  const FakeEnvironment fake(
      plus(kSlurm, {{"SLURM_STEP_NODELIST", "localhost"}, {"SLURM_JOB_NODELIST", "no-such-host.invalid"}}));
  const auto id = unique_id_from_launcher(detect_launcher().value(), Deadline::after_seconds(60));
  INFO((id ? "" : id.error().message));
  REQUIRE(id);
  CHECK(has_secret(id.value(), "slurm 77.0 localhost"));
}

TEST_CASE("however ranks name rank 0's host, and torchrun's agents count restarts, their secrets are the same") {
  for (const std::string host : {"localhost", "127.0.0.1"}) {
    for (const char* restarts : {"0", "1"}) {
      const FakeEnvironment fake({{"RANK", "1"},
                                  {"WORLD_SIZE", "2"},
                                  {"MASTER_ADDR", host},
                                  {"MASTER_PORT", "29500"},
                                  {"TORCHELASTIC_RUN_ID", "job"},
                                  {"TORCHELASTIC_RESTART_COUNT", restarts}});
      const auto id = unique_id_from_launcher(detect_launcher().value(), Deadline::after_seconds(60));
      REQUIRE(id);
      CHECK(has_secret(id.value(), "MASTER_PORT 29500 job"));
    }
    const FakeEnvironment fake({{"TUTTI_RANK", "1"}, {"TUTTI_NRANKS", "2"}, {"TUTTI_ROOT", host + ":4711"}});
    const auto id = unique_id_from_launcher(detect_launcher().value(), Deadline::after_seconds(60));
    REQUIRE(id);
    CHECK(has_secret(id.value(), "TUTTI_ROOT 4711"));
  }
}
