// A host that moves: looked up for the first time its name has the first address, then the next one, and finally the
// last. One at a time, for all threads of the test.
#pragma once

#include <string>
#include <vector>

namespace tutti::test {

class MovingHost {
 public:
  static constexpr const char* kName = "moving-host.invalid";
  explicit MovingHost(const std::vector<std::string>& addresses);
  ~MovingHost();
  MovingHost(const MovingHost&) = delete;
  MovingHost& operator=(const MovingHost&) = delete;
};

}  // namespace tutti::test
