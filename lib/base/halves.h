// What two threads of this process share when they arrive at different times: the second finds it by a name. Any
// thread. Construct one when the library is loaded: the first use might coincide with another thread's fork.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "base/at_fork.h"

namespace tutti {

template <class Name, class Shared>
class Halves {
 public:
  // Takes what the other thread left under this name; otherwise leaves what make() returns for the other thread, for as
  // long as anybody holds it. A null result is not left.
  template <class Make>
  std::shared_ptr<Shared> meet(const Name& name, Make&& make) {
    const std::lock_guard lock(mutex_);
    if (const auto left = left_.extract(name); !left.empty())
      if (auto theirs = left.mapped().lock()) return theirs;
    std::shared_ptr<Shared> mine = make();
    if (mine) left_[name] = mine;
    return mine;
  }
  // The other thread no longer finds it.
  void withdraw(const Name& name, const std::shared_ptr<Shared>& shared) {
    const std::lock_guard lock(mutex_);
    const auto left = left_.find(name);
    if (left != left_.end() && left->second.lock() == shared) left_.erase(left);
  }

 private:
  MutexAcrossForks mutex_;
  std::map<Name, std::weak_ptr<Shared>> left_;
};

}  // namespace tutti
