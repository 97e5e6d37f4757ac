// The system resources that a process holds, counted while it has no communicator, so that leaks are noticed.
#pragma once

#include <string>

namespace tutti::soak {

struct Census {
  int descriptors = 0, threads = 0, shared_mappings = 0, mappings = 0, children = 0;

  static Census take();
  // What has increased since `before`; "" if nothing. A process may keep some mappings for the heap.
  std::string more_than(const Census& before) const;
};

}  // namespace tutti::soak
