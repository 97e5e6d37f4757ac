// Network namespaces as hosts, each with one cable to a switch, which can be unplugged. Needs root and `ip`. The
// namespaces are removed with the object; one thread.
#pragma once

#include <string>

namespace tutti::soak {

class Hosts {
 public:
  Hosts() = default;
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // "", or why the hosts cannot be made.
  std::string make(int n);
  int size() const { return n_; }
  // Moves the calling process to a host; false if that fails.
  bool enter(int host) const;
  bool plug(int host, bool in) const;

 private:
  std::string name(int host) const;
  static bool ip(const std::string& arguments);

  int n_ = 0, made_ = 0, owner_ = 0;
};

}  // namespace tutti::soak
