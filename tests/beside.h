// Finds files that the build puts beside a test program. A path that is compiled in would keep clones of the tree from
// sharing objects through the compiler cache.
#pragma once

#include <filesystem>
#include <string>

namespace tutti_test {

inline std::string beside_program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

}  // namespace tutti_test
