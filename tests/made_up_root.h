// A folder that stands for / where code reads /proc and /sys. It is removed at the end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "catch.h"

namespace tutti_test {

class MadeUpRoot {
 public:
  MadeUpRoot() {
    char folder[] = "/tmp/tutti_root_XXXXXX";
    REQUIRE(mkdtemp(folder) != nullptr);
    path = folder;
  }
  ~MadeUpRoot() { std::filesystem::remove_all(path); }
  MadeUpRoot(const MadeUpRoot&) = delete;
  MadeUpRoot& operator=(const MadeUpRoot&) = delete;

  static void write(const std::string& file, const char* text) {
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file) << text;
  }

  std::string path;
};

}  // namespace tutti_test
