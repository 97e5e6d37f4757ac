#include "base/env.h"

#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/fd.h"
#include "catch.h"

using namespace tutti;

namespace {

// Sets one variable and restores it at the end.
class Set {
 public:
  Set(std::string_view name, const std::string& value) : name_(env_entry(name).name) {
    if (const char* before = getenv(name_)) before_ = before;
    setenv(name_, value.c_str(), 1);
  }
  ~Set() {
    if (before_.empty())
      unsetenv(name_);
    else
      setenv(name_, before_.c_str(), 1);
  }

 private:
  const char* name_;
  std::string before_;
};

std::string refusal(std::string_view name, const std::string& value) {
  const Set set(name, value);
  const auto number = env_int(name);
  INFO(name << "=" << value);
  REQUIRE(!number);
  CHECK(number.error().code == Code::kInvalidUsage);
  return number.error().message;
}

int64_t number(std::string_view name, const std::string& value) {
  const Set set(name, value);
  const auto parsed = env_int(name);
  INFO(name << "=" << value);
  REQUIRE(parsed);
  return parsed.value();
}

}  // namespace

TEST_CASE("the table is complete, and its defaults are valid") {
  std::set<std::string> names;
  for (const EnvEntry& entry : env_table()) {
    INFO(entry.name);
    CHECK(names.insert(entry.name).second);
    CHECK(strncmp(entry.name, "TUTTI_", 6) == 0);
    CHECK(strlen(entry.help) > 0);
    if (entry.min > entry.max || *entry.fallback == '\0') continue;
    unsetenv(entry.name);
    const auto value = env_int(entry.name);
    REQUIRE(value);
    CHECK(value.value() >= entry.min);
    CHECK(value.value() <= entry.max);
  }
  CHECK(names.size() == env_table().size());
}

TEST_CASE("numbers and sizes") {
  CHECK(number("TUTTI_SLOT_BYTES", "4096") == 4096);
  CHECK(number("TUTTI_SLOT_BYTES", "64K") == 65536);
  CHECK(number("TUTTI_SLOT_BYTES", "64k") == 65536);
  CHECK(number("TUTTI_SLOT_BYTES", "2M") == 2 << 20);
  CHECK(number("TUTTI_SLOT_BYTES", "2m") == 2 << 20);
  CHECK(number("TUTTI_NT_BYTES", "3G") == int64_t{3} << 30);
  CHECK(number("TUTTI_NT_BYTES", "3g") == int64_t{3} << 30);
  CHECK(number("TUTTI_NT_BYTES", "9223372036854775807") == INT64_MAX);
  CHECK(number("TUTTI_SLOTS", "2") == 2);
  CHECK(number("TUTTI_SLOTS", "64") == 64);
}

TEST_CASE("what is no number is refused with its name, its value and what it may be") {
  for (const char* wrong : {"x", "12x", "1KB", "K", "-", "1 ", "0x10", "1.5", "1e3", "--1", "1KK"}) {
    const std::string text = refusal("TUTTI_SLOT_BYTES", wrong);
    CHECK(text.find(std::string("TUTTI_SLOT_BYTES=") + wrong) != std::string::npos);
    CHECK(text.find("from 0 to 67108864, default 0") != std::string::npos);
  }
  for (const char* out_of_range : {"1", "65", "-4", "1K", "99999999999999999999", "9223372036854775807G"})
    CHECK(refusal("TUTTI_SLOTS", out_of_range).find("from 2 to 64") != std::string::npos);
  for (const char* too_large : {"17179869185G", "99999999999999999999"})  // the first times 2^30 is 2^64 + 2^30
    CHECK(refusal("TUTTI_NT_BYTES", too_large).find("from 0 to 9223372036854775807") != std::string::npos);
}

TEST_CASE("only what is in bytes takes K, M and G") {
  for (const char* minutes : {"30m", "1K"})
    CHECK(refusal("TUTTI_OP_TIMEOUT", minutes).find("give a whole number of seconds from 1 to") != std::string::npos);
  CHECK(refusal("TUTTI_NRANKS", "2k").find("give a whole number from 1 to") != std::string::npos);
  CHECK(refusal("TUTTI_SLOT_BYTES", "1T").find("give a whole number of bytes from 0 to") != std::string::npos);
  CHECK(number("TUTTI_TCP_MSS", "1k") == 1024);
  CHECK(number("TUTTI_IB_PIN_BYTES", "2G") == int64_t{2} << 30);
}

TEST_CASE("an empty variable counts as not set") {
  const Set set("TUTTI_SLOTS", "");
  CHECK(!env_is_set("TUTTI_SLOTS"));
  CHECK(env_string("TUTTI_SLOTS") == env_entry("TUTTI_SLOTS").fallback);
}

TEST_CASE("a variable without a default has to be set to be a number") {
  unsetenv("TUTTI_RANK");
  CHECK(!env_int("TUTTI_RANK"));
  CHECK(number("TUTTI_RANK", "0") == 0);
}

TEST_CASE("the check finds every wrong variable") {
  REQUIRE(env_check());
  {
    const Set set("TUTTI_OP_TIMEOUT", "soon");
    const auto checked = env_check();
    REQUIRE(!checked);
    CHECK(checked.error().message.find("TUTTI_OP_TIMEOUT=soon") != std::string::npos);
  }
  {
    const Set set("TUTTI_LOG", "loud");
    const auto checked = env_check();
    REQUIRE(!checked);
    CHECK(checked.error().message.find("TUTTI_LOG=loud") != std::string::npos);
  }
  for (const std::string name : {"TUTTI_PROTO", "TUTTI_ORDER"}) {
    const Set set(name, "odd");
    const auto checked = env_check();
    REQUIRE(!checked);
    CHECK(checked.error().message.find(name + "=odd is not valid: give ") != std::string::npos);
  }
  {
    const Set set("TUTTI_TCP_MSS", "87");
    const auto checked = env_check();
    REQUIRE(!checked);
    CHECK(checked.error().message.find("TUTTI_TCP_MSS=87 is not valid: give 0, or 88 to") != std::string::npos);
  }
  for (const char* segment_bytes : {"0", "88", "32767"}) {
    const Set set("TUTTI_TCP_MSS", segment_bytes);
    CHECK(env_check());
  }
  for (const std::string name : {"TUTTI_SOCKET_IFNAME", "TUTTI_IB_HCA"}) {
    for (const char* list : {"^lo,^docker", "=eth0,=eth1", "eth0, eth1", " eth0", "=^lo", "eth0,^lo"}) {
      const Set set(name, list);
      const auto checked = env_check();
      INFO(name << "=" << list);
      REQUIRE(!checked);
      CHECK(checked.error().code == Code::kInvalidUsage);
      CHECK(checked.error().message.find(name + "=" + list + " is not valid: give names separated by commas") !=
            std::string::npos);
    }
    for (const char* list : {"^lo,docker", "=eth0,eth1", "^=lo", "eth0,eth1", "mlx5_0:1", "eth0,"}) {
      const Set set(name, list);
      CHECK(env_check());
    }
  }
  CHECK(env_check());
}

namespace {

// What this program, with these variables, writes to stderr when the test above passes.
std::string check_elsewhere(const std::string& variables) {
  char program[PATH_MAX] = "";
  REQUIRE(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
  const std::string command =
      variables + " TUTTI_LOG=warn '" + program + "' 'the check finds every wrong variable' 2>&1 >/dev/null";
  FILE* const out = popen(command.c_str(), "r");
  REQUIRE(out != nullptr);
  std::string said;
  for (char text[256]; fgets(text, sizeof text, out) != nullptr;) said += text;
  CHECK(pclose(out) == 0);
  return said;
}

}  // namespace

// The warning appears once per process, so the test above is run in another process of this program.
TEST_CASE("a variable that nothing reads is warned of, with the name that was meant") {
  char program[PATH_MAX] = "", log[] = "/tmp/tutti-env-test-XXXXXX";
  REQUIRE(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
  const Fd file(mkstemp(log));
  REQUIRE(file);
  REQUIRE(::write(file.get(), "before\n", 7) == 7);  // which must be kept
  const std::string command = std::string("TUTTI_SLTOS=9 TUTTI_LOG=warn TUTTI_LOG_FILE=") + log + " '" + program +
                              "' 'the check finds every wrong variable' >/dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  char text[1000] = "";
  REQUIRE(::pread(file.get(), text, sizeof text - 1, 0) > 7);
  ::unlink(log);
  CHECK(std::string(text).find("TUTTI_SLTOS is set but nothing reads it; did you mean TUTTI_SLOTS?") !=
        std::string::npos);
  CHECK(std::string(text).starts_with("before\ntutti["));
}

TEST_CASE("what Kubernetes sets for a Service named tutti is ignored with one warning") {
  const std::string service = "TUTTI_SERVICE_HOST=10.0.0.1 TUTTI_SERVICE_PORT=29600 TUTTI_PORT_29600_TCP_PROTO=tcp ";
  for (const char* port : {"tcp://10.0.0.1:29600", "udp://10.0.0.1:29600"}) {
    const std::string said = check_elsewhere(service + "TUTTI_PORT=" + port);
    CHECK(said.find(std::string("TUTTI_PORT=") + port + " is ignored: Kubernetes sets it") != std::string::npos);
    CHECK(said.find("nothing reads it") == std::string::npos);
    const Set set("TUTTI_PORT", port);
    CHECK(!env_is_set("TUTTI_PORT"));
    CHECK(number("TUTTI_PORT", port) == 0);
  }
  CHECK(check_elsewhere(service + "TUTTI_PORT=29600").empty());
  CHECK(check_elsewhere("TUTTI_PORT_RAGE=1-2").find("did you mean TUTTI_PORT_RANGE?") != std::string::npos);
}

TEST_CASE("what cannot be logged to its file goes to stderr, which says why") {
  const std::string fifo = "/tmp/tutti-unread." + std::to_string(getpid());
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  const bool is_pipe = GENERATE(false, true);
  const std::string file = is_pipe ? fifo : "/nonexistent/log";
  const std::string said = check_elsewhere("TUTTI_SLTOS=9 TUTTI_LOG_FILE=" + file);
  unlink(fifo.c_str());
  const char* const why = is_pipe ? "No such device or address" : "No such file or directory";
  CHECK(said.find("TUTTI_LOG_FILE=" + file + " cannot be opened (" + why + ")") != std::string::npos);
  CHECK(said.find("TUTTI_SLTOS is set but nothing reads it") != std::string::npos);
}

namespace {

constexpr std::string_view kFiles[] = {"TUTTI_LOG_FILE",     "TUTTI_TRACE_DIR",        "TUTTI_TRACE_FILE",
                                       "TUTTI_METRICS_FILE", "TUTTI_TRANSPORT_PLUGIN", "TUTTI_TUNE_FILE",
                                       "TUTTI_TOPO_FILE",    "TUTTI_TOPO_DUMP"};

}  // namespace

// Run only by its own name, by a test that looks at what such a program believes.
TEST_CASE("what a program with more rights reads", "[.privileged]") {
  printf("at_secure=%lu rank=%s", getauxval(AT_SECURE), env_string("TUTTI_RANK").c_str());
  for (const std::string_view name : kFiles) printf(" %s=%s", env_entry(name).name, env_string(name).c_str());
  printf("\n");
}

TEST_CASE("a program with more rights than its user opens no file that the environment names") {
  const std::string copy = "/tmp/tutti-test-privileged." + std::to_string(getpid());
  std::filesystem::copy_file("/proc/self/exe", copy, std::filesystem::copy_options::overwrite_existing);
  const bool is_root = chown(copy.c_str(), 65534, 65534) == 0 && chmod(copy.c_str(), 04755) == 0;
  std::string said, variables = "TUTTI_RANK=3 ";
  for (const std::string_view name : kFiles) variables += std::string(name) + "=/tmp/theirs ";
  if (FILE* out = popen((variables + copy + " '[.privileged]'").c_str(), "r")) {
    for (char text[256]; fgets(text, sizeof text, out) != nullptr;) said += text;
    pclose(out);
  }
  std::filesystem::remove(copy);
  INFO(said);
  if (!is_root || said.find("at_secure=1") == std::string::npos) {
    WARN("skipped: no program can be given another user's rights here (not root, or /tmp is nosuid)");
    return;
  }
  CHECK(said.find("rank=3") != std::string::npos);
  CHECK(said.find("theirs") == std::string::npos);
}
