// A temporary folder for a test, and an environment variable that names it or a file in it, while the object lives.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "catch.h"

namespace tutti_test {

class Folder {
 public:
  explicit Folder(const char* variable, const char* name = "") : variable_(variable) {
    char made[] = "/tmp/tutti-traces-XXXXXX";
    REQUIRE(mkdtemp(made) != nullptr);
    path = made;
    setenv(variable, (path + name).c_str(), 1);
  }
  ~Folder() {
    unsetenv(variable_);
    std::filesystem::remove_all(path);
  }
  std::string path;

 private:
  const char* variable_;
};

}  // namespace tutti_test
