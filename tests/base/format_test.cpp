// Numbers and other values as text.
#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "base/socket.h"
#include "catch.h"

using namespace tutti;

// A program may set its user's locale, and the flight recorder's JSON and the Prometheus metrics use these texts.
TEST_CASE("numbers have a point, whatever locale the program has set") {
  char folder[] = "/tmp/tutti-locale-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string command = std::string("localedef -c -i de_DE -f UTF-8 ") + folder + "/comma >/dev/null 2>&1";
  const bool is_made = std::system(command.c_str()) == 0;
  setenv("LOCPATH", folder, 1);
  const locale_t comma = is_made ? newlocale(LC_NUMERIC_MASK, "comma", nullptr) : nullptr;
  unsetenv("LOCPATH");
  std::filesystem::remove_all(folder);
  if (comma == nullptr) {
    WARN("skipped: no locale with a comma can be made here (Debian: locales)");
    return;
  }
  const locale_t before = uselocale(comma);
  char theirs[8];
  snprintf(theirs, sizeof theirs, "%.1f", 1.5);
  const std::string ours = format("%.1f", 1.5);
  const bool is_kept = uselocale(before) == comma;
  freelocale(comma);
  CHECK(std::string(theirs) == "1,5");
  CHECK(ours == "1.5");
  CHECK(is_kept);
}

TEST_CASE("writes a log", "[.]") {
  log(LogLevel::kWarn, "%d", 5);
  log_set_thread_rank(0);
  log(LogLevel::kInfo, "of rank %d", 0);
  log(LogLevel::kTrace, "too much");
  log(LogLevel::kError, "%s", std::string(5000, 'x').c_str());
  log(LogLevel::kInfo, "the last");
}

// In its own process, because the variables are read once.
TEST_CASE("a line of the log says which process, rank and level, and ends however long it is") {
  char path[] = "/tmp/tutti-log-XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0);
  close(file);
  const pid_t child = fork();
  if (child == 0) {
    setenv("TUTTI_LOG", "info", 1);
    setenv("TUTTI_LOG_FILE", path, 1);
    if (const int nowhere = open("/dev/null", O_WRONLY); nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
    execl("/proc/self/exe", "test_base", "writes a log", static_cast<char*>(nullptr));
    _exit(1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path);
  const std::string whose = "tutti[" + std::to_string(child) + "]";
  std::string overlong = whose + " rank 0 error: ";
  overlong.resize(2046, 'x');
  CHECK(text.str() == whose + " warn: 5\n" + whose + " rank 0 info: of rank 0\n" + overlong + "\n" + whose +
                          " rank 0 info: the last\n");
}

TEST_CASE("what is logged once stderr is closed goes into none of the library's descriptors") {
  constexpr size_t kBytes = 4096;
  const int kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  REQUIRE(kept >= 0);
  close(STDERR_FILENO);
  const auto memory = SharedMemory::allocate(kBytes);
  const auto socket = listen_any(0, nullptr);
  if (memory) memset(memory.value(), 7, kBytes);
  log(LogLevel::kError, "lost");
  dup2(kept, STDERR_FILENO);
  close(kept);
  REQUIRE(memory);
  const char* const bytes = static_cast<const char*>(memory.value());
  CHECK(std::count(bytes, bytes + kBytes, 7) == kBytes);
  CHECK(SharedMemory::free(memory.value()));
  REQUIRE(socket);
  CHECK(socket.value().get() > STDERR_FILENO);
}

// Run only by its own name, by the next test.
TEST_CASE("writes a log without stderr", "[.]") {
  const int users = memfd_create("user", MFD_CLOEXEC);
  REQUIRE(users == STDERR_FILENO);
  log(LogLevel::kError, "lost");
  CHECK(lseek(users, 0, SEEK_END) == 0);
}

TEST_CASE("a program that was started without stderr and opens a file in its place finds no log there") {
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("TUTTI_LOG_FILE");
    close(STDERR_FILENO);
    execl("/proc/self/exe", "test_base", "writes a log without stderr", static_cast<char*>(nullptr));
    _exit(1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
