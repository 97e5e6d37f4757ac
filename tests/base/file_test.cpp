// Files that are written whole.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/file.h"
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
  CHECK(folder.files() == 1);
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
