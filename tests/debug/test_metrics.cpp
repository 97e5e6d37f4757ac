// The Prometheus file: its content, and that nothing else suffers where it cannot be written.
#include <sys/resource.h>

#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include "comm/ranks.h"
#include "debug/folder.h"
#include "debug/late_ones.h"

using namespace tutti_test;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Samples by name and labels, without the group. Nothing if any of the text is malformed.
using Samples = std::map<std::string, double>;
std::optional<Samples> parse(const std::string& text) {
  static const std::regex help("# HELP ([a-z_]+) [^\\n]+"), type("# TYPE ([a-z_]+) (counter|gauge)");
  static const std::regex sample(
      "([a-z_]+)\\{group=\"[0-9a-f]{16}\",(([a-z]+=\"[A-Za-z0-9]+\",?)+)\\} ([0-9]+(\\.[0-9]+)?)");
  Samples samples;
  std::set<std::string> names;
  std::string name, helped;
  if (text.empty() || text.back() != '\n') return {};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch m;
    if (std::regex_match(line, m, help)) {
      helped = m[1];
    } else if (std::regex_match(line, m, type)) {
      name = m[1];
      if (name != helped || !names.insert(name).second) return {};
    } else if (!std::regex_match(line, m, sample) || m[1] != name || m.str(2).back() == ',' ||
               !samples.emplace(name + "{" + m.str(2) + "}", std::stod(m[4])).second) {
      return {};
    }
  }
  return samples;
}

double value_of(const Samples& samples, const std::string& name) {
  const auto found = samples.find(name);
  return found == samples.end() ? -1 : found->second;
}

void add_up(tuttiComm_t comm, Outcome& outcome) {
  float value = 1;
  outcome.take(tuttiAllReduce(&value, &value, 1, tuttiFloat, tuttiSum, comm, nullptr));
}

void leave(tuttiComm_t comm, Outcome& outcome) {
  outcome.take(tuttiCommFinalize(comm));
  outcome.take(tuttiCommDestroy(comm));
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) n++;
  return n;
}

}  // namespace

TEST_CASE("the parser of metrics takes what is well formed and nothing else") {
  const std::string head = "# HELP a_b Text.\n# TYPE a_b counter\n", group = "a_b{group=\"0123456789abcdef\",";
  CHECK(parse(head + group + "rank=\"0\",peer=\"1\"} 1.5\n") == Samples{{"a_b{rank=\"0\",peer=\"1\"}", 1.5}});
  for (const std::string& wrong :
       {std::string(), head + group + "rank=\"0\"} 1", head + group + "rank=\"0\"} x\n", head + group + "rank=0} 1\n",
        head + "b{group=\"0123456789abcdef\",rank=\"0\"} 1\n", head + head, head + group + "rank=\"0\",} 1\n",
        head + group + "rank=\"0\"} 1\n" + group + "rank=\"0\"} 2\n"})
    CHECK_FALSE(parse(wrong).has_value());
}

TEST_CASE("metrics have operations, bytes, and who has waited for whom") {
  const Folder traces("TUTTI_TRACE_DIR");
  const Folder folder("TUTTI_METRICS_FILE", "/rank%r.prom");
  constexpr int kLate = 2;
  constexpr uint64_t kOperations = 10;
  require_success(Processes(3, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
                    for (uint64_t i = 1; i <= kOperations; i++) {
                      while (rank == kLate && i % 2 == 0 && !all_others_wait(traces.path, kLate, i)) usleep(1000);
                      add_up(comm, outcome);
                    }
                    double block[4];
                    outcome.take(tuttiBroadcast(block, block, 4, tuttiFloat64, 0, comm, nullptr));
                    leave(comm, outcome);
                  }).wait());
  for (int rank = 0; rank < 3; rank++) {
    const std::string text = text_of(folder.path + "/rank" + std::to_string(rank) + ".prom");
    INFO(text);
    const auto samples = parse(text);
    REQUIRE(samples.has_value());
    const std::string me = "rank=\"" + std::to_string(rank) + "\"";
    CHECK(value_of(*samples, "tutti_operations_total{" + me + ",operation=\"AllReduce\"}") == kOperations);
    CHECK(value_of(*samples, "tutti_bytes_total{" + me + ",operation=\"AllReduce\"}") == 4 * kOperations);
    CHECK(value_of(*samples, "tutti_operations_total{" + me + ",operation=\"Broadcast\"}") == 1);
    CHECK(value_of(*samples, "tutti_bytes_total{" + me + ",operation=\"Broadcast\"}") == 32);
    CHECK(value_of(*samples, "tutti_errors_total{" + me + "}") == 0);
    CHECK(contains(text, "# TYPE tutti_control_retransmits_total counter"));
    CHECK(contains(text, "# TYPE tutti_retransmits_total counter"));
    // Only one rank of the host compares.
    CHECK(contains(text, "tutti_late_operations_total") == (rank == 0));
    if (rank != 0) continue;
    constexpr double kLeast = 0.9 * kLateMs / 1e3 * kOperations / 2;
    CHECK(value_of(*samples, "tutti_late_operations_total{rank=\"2\"}") >= kOperations / 2);
    CHECK(value_of(*samples, "tutti_late_seconds_total{rank=\"2\"}") >= kLeast);
    for (const char* who : {"0", "1"}) {
      const std::string labels = "{rank=\"" + std::string(who) + "\",peer=\"2\"}";
      CHECK(value_of(*samples, "tutti_waited_seconds_total" + labels) >= kLeast);
      CHECK(value_of(*samples, "tutti_compared_operations_total{rank=\"" + std::string(who) + "\"}") > kOperations);
    }
  }
  const auto files = std::filesystem::directory_iterator(folder.path);
  CHECK(std::distance(begin(files), end(files)) == 3);  // no temporary file is left
}

TEST_CASE("metrics have what was sent again, by the peers that are reached over a network") {
  const Folder folder("TUTTI_METRICS_FILE", "/rank%r.prom");
  const bool by_tcp = GENERATE(true, false);
  setenv("TUTTI_TRANSPORTS", by_tcp ? "tcp" : "shm", 1);
  require_success(Processes(2, [](int, tuttiComm_t comm, Outcome& outcome) {
                    add_up(comm, outcome);
                    leave(comm, outcome);
                  }).wait());
  unsetenv("TUTTI_TRANSPORTS");
  const auto samples = parse(text_of(folder.path + "/rank0.prom"));
  REQUIRE(samples.has_value());
  CHECK(samples->contains("tutti_retransmits_total{rank=\"0\",peer=\"1\"}") == by_tcp);
}

// More operations than the recorder keeps, all of them between two looks.
TEST_CASE("metrics count what nobody has looked at in time, and are written when a communicator is finalized") {
  const Folder folder("TUTTI_METRICS_FILE", "/rank%r.prom");
  constexpr int kOperations = 5000;
  require_success(Processes(1, [&](int, tuttiComm_t comm, Outcome& outcome) {
                    for (int i = 0; i < kOperations; i++) add_up(comm, outcome);
                    outcome.take(tuttiCommFinalize(comm));
                    const auto samples = parse(text_of(folder.path + "/rank0.prom"));
                    outcome.wrong += !samples;
                    if (!samples) return;
                    const double operations =
                        value_of(*samples, "tutti_operations_total{rank=\"0\",operation=\"AllReduce\"}");
                    const double bytes = value_of(*samples, "tutti_bytes_total{rank=\"0\",operation=\"AllReduce\"}");
                    outcome.wrong += operations > kOperations || operations < 0.99 * kOperations;
                    outcome.wrong += bytes > 4 * kOperations || bytes < 0.99 * 4 * kOperations;
                    outcome.take(tuttiCommDestroy(comm));
                  }).wait());
}

TEST_CASE("a communicator that breaks says so in its metrics") {
  const Folder folder("TUTTI_METRICS_FILE", "/rank%r.prom");
  const auto outcomes = Processes(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
                          add_up(comm, outcome);
                          if (rank == 1) outcome.take(tuttiCommAbort(comm));
                          if (rank == 0) add_up(comm, outcome);
                        }).wait();
  CHECK(outcomes[0].code == tuttiRemoteError);
  for (const char* rank : {"0", "1"}) {
    const auto samples = parse(text_of(folder.path + "/rank" + rank + ".prom"));
    REQUIRE(samples.has_value());
    CHECK(value_of(*samples, "tutti_errors_total{rank=\"" + std::string(rank) + "\"}") == 1);
  }
}

TEST_CASE("metrics that cannot be written are one warning, and operations go on") {
  const Folder logs("TUTTI_LOG_FILE", "/log");
  const Folder folder("TUTTI_METRICS_FILE", "/metrics");
  const std::string path = folder.path + "/metrics", other = folder.path + "/other";
  std::string reason = "it exists and is not a regular file";
  bool is_full = false;
  SECTION("a folder that is not there") {
    setenv("TUTTI_METRICS_FILE", (folder.path + "/none/metrics").c_str(), 1);
    reason = folder.path + "/none/metrics: No such file or directory";
  }
  SECTION("a link that somebody has put there") {
    std::ofstream(other) << "precious";
    std::filesystem::create_symlink(other, path);
  }
  SECTION("no room") {
    is_full = true;
    setenv("TUTTI_LOG", "none", 1);  // no room for log lines either
  }
  require_success(Processes(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
                    const rlimit none{0, 0};
                    if (is_full && rank == 0) outcome.wrong += setrlimit(RLIMIT_FSIZE, &none) != 0;
                    add_up(comm, outcome);
                    leave(comm, outcome);
                  }).wait());
  unsetenv("TUTTI_LOG");
  const std::string log = text_of(logs.path + "/log");
  INFO(log);
  if (is_full) return;
  CHECK(count_of(log, "TUTTI_METRICS_FILE: rank 0 cannot write its metrics: writing ") == 1);
  CHECK(contains(log, reason));
  if (std::filesystem::exists(other)) CHECK(text_of(other) == "precious");
}

TEST_CASE("a forked child leaves its parent's metrics alone") {
  const Folder folder("TUTTI_METRICS_FILE", "/rank%r.prom");
  require_success(Processes(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
                    add_up(comm, outcome);
                    if (rank == 0) {
                      const pid_t child = fork();
                      if (child == 0) _exit(tuttiCommDestroy(comm) == tuttiInvalidUsage ? 0 : 1);
                      int status = -1;
                      outcome.wrong += waitpid(child, &status, 0) != child || status != 0;
                    }
                    add_up(comm, outcome);
                    leave(comm, outcome);
                  }).wait());
  const auto samples = parse(text_of(folder.path + "/rank0.prom"));
  REQUIRE(samples.has_value());
  CHECK(value_of(*samples, "tutti_operations_total{rank=\"0\",operation=\"AllReduce\"}") == 2);
}
