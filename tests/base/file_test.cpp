// Files that are written atomically.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "catch.h"

using namespace tutti;

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "tutti-file-XXXXXX").string();
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  size_t files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), {})); }
};

}  // namespace

TEST_CASE("a file is made and replaced as a whole, with its mode, and nothing is left beside it") {
  const Folder folder;
  const std::string path = folder.path + "/a";
  REQUIRE(write_file(path, std::string(100000, 'x'), 0600));
  CHECK(read(path) == std::string(100000, 'x'));
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  const auto first = info.st_ino;
  REQUIRE(write_file(path, "", 0600));
  CHECK(read(path).empty());
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK(info.st_ino != first);
  CHECK(folder.files() == 1);
}

TEST_CASE("a link is written through") {
  const Folder folder;
  const std::string path = folder.path + "/a", link = folder.path + "/b";
  REQUIRE(write_file(path, "old"));
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  REQUIRE(write_file(link, "new"));
  CHECK(read(path) == "new");
  CHECK(std::filesystem::is_symlink(link));
}

TEST_CASE("what cannot be written is named, and nothing is left") {
  const auto full = write_file("/dev/full", "x");
  REQUIRE_FALSE(full);
  CHECK(full.error().message.find("/dev/full") != std::string::npos);
  CHECK(full.error().sys_errno == ENOSPC);
  const Folder folder;
  CHECK_FALSE(write_file(folder.path + "/none/a", "x"));
  REQUIRE(mkdir((folder.path + "/d").c_str(), 0777) == 0);
  CHECK_FALSE(write_file(folder.path + "/d", "x"));
  rlimit usual{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &usual) == 0);
  const rlimit little{10, usual.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &little) == 0);
  const auto large = write_file(folder.path + "/a", std::string(100, 'x'));
  REQUIRE(setrlimit(RLIMIT_FSIZE, &usual) == 0);
  REQUIRE_FALSE(large);
  CHECK(large.error().sys_errno == EFBIG);
  CHECK(folder.files() == 1);
}

TEST_CASE("a pipe that nobody reads is not waited for, and whoever reads it gets all") {
  const Folder folder;
  const std::string path = folder.path + "/pipe", text(200'000, 'x');
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  const auto unread = write_file(path, text);
  REQUIRE_FALSE(unread);
  CHECK(unread.error().sys_errno == ENXIO);
  const Fd reader(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::atomic<bool> is_over{false};
  size_t got = 0;
  std::thread reads([&] {
    char some[1000];
    for (bool was_over = false; !std::exchange(was_over, is_over.load());)
      for (ssize_t n; (n = ::read(reader.get(), some, sizeof some)) > 0;) got += static_cast<size_t>(n);
  });
  const auto written = write_file(path, text);
  is_over = true;
  reads.join();
  CHECK(written);
  CHECK(got == text.size());
}

TEST_CASE("a thread's signals are as they were once a file is written") {
  const Folder folder;
  REQUIRE(write_file(folder.path + "/a", "x"));
  sigset_t size, before;
  sigemptyset(&size);
  sigaddset(&size, SIGXFSZ);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &size, &before) == 0);
  CHECK(sigismember(&before, SIGXFSZ) == 0);
  raise(SIGXFSZ);  // stays pending
  REQUIRE(write_file(folder.path + "/a", "y"));
  const timespec at_once{};
  CHECK(sigtimedwait(&size, nullptr, &at_once) == SIGXFSZ);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_CASE("a file's first line comes without its end, whatever follows, and is empty where there is none") {
  const Folder folder;
  const std::string path = folder.path + "/a", longer(10'000, 'y');
  CHECK(first_line(path).empty());
  CHECK(first_line(folder.path).empty());
  for (const char* bytes : {"", "\n", "\nx"}) {
    REQUIRE(write_file(path, bytes));
    CHECK(first_line(path).empty());
  }
  for (const std::string& bytes : {longer, longer + "\n", longer + "\nx\n"}) {
    REQUIRE(write_file(path, bytes));
    CHECK(first_line(path) == longer);
  }
}

TEST_CASE("a line that is too long for the log is cut and ends") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const Fd out(ends[0]), in(ends[1]), before(dup(STDERR_FILENO));
  REQUIRE(dup2(in.get(), STDERR_FILENO) == STDERR_FILENO);
  tutti::log(LogLevel::kError, "%s", std::string(5000, 'x').c_str());
  REQUIRE(dup2(before.get(), STDERR_FILENO) == STDERR_FILENO);
  char text[10'000];
  const ssize_t n = ::read(out.get(), text, sizeof text);
  REQUIRE(n > 0);
  CHECK(n <= 2048);
  CHECK(std::count(text, text + n, '\n') == 1);
  CHECK(text[n - 1] == '\n');
}

TEST_CASE("what is written to a pipe that nobody reads is lost, and kills nobody") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  ::close(ends[0]);
  const Fd in(ends[1]), before(dup(STDERR_FILENO));
  const auto usual = signal(SIGPIPE, SIG_DFL);
  REQUIRE(dup2(in.get(), STDERR_FILENO) == STDERR_FILENO);
  tutti::log(LogLevel::kError, "nobody reads this");
  const auto written = write_file("/proc/self/fd/2", "nor this");
  REQUIRE(dup2(before.get(), STDERR_FILENO) == STDERR_FILENO);
  signal(SIGPIPE, usual);
  REQUIRE_FALSE(written);
  CHECK(written.error().sys_errno == EPIPE);
}
