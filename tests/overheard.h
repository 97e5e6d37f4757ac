// What this process and its children say on standard error.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/fd.h"

namespace tutti_test {

// Redirects standard error to a file for a scope.
class Overheard {
 public:
  Overheard() : file_(tmpfile()), before_(dup(STDERR_FILENO)) { dup2(fileno(file_), STDERR_FILENO); }
  ~Overheard() {
    dup2(before_.get(), STDERR_FILENO);
    fclose(file_);
  }
  size_t count(const std::string& part) {
    std::string text(65536, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(fileno(file_), text.data(), text.size(), 0))));
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) n++;
    return n;
  }

 private:
  FILE* file_;
  tutti::Fd before_;
};

}  // namespace tutti_test
