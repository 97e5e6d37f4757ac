// What two threads of this process share, each of which comes for it at a time of its own: the second finds it by a
// name. Any thread. Make one when the library is loaded, because a first use may meet another thread's fork.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "base/at_fork.h"

namespace tutti {

template <class Name, class Shared>
class Halves {
 public:
  Halves() { hold_while_forking(mutex_); }

  // What the other thread has left under this name, and nobody else finds any more; else what make() gives, left for
  // the other one as long as anybody has it. That may be null, which is left for nobody.
  template <class Make>
  std::shared_ptr<Shared> meet(const Name& name, Make&& make) {
    const std::lock_guard lock(mutex_);
    if (const auto left = left_.extract(name); !left.empty())
      if (auto theirs = left.mapped().lock()) return theirs;
    std::shared_ptr<Shared> mine = make();
    if (mine) left_[name] = mine;
    return mine;
  }
  // Nobody finds it any more.
  void withdraw(const Name& name, const std::shared_ptr<Shared>& shared) {
    const std::lock_guard lock(mutex_);
    const auto left = left_.find(name);
    if (left != left_.end() && left->second.lock() == shared) left_.erase(left);
  }

 private:
  std::mutex mutex_;
  std::map<Name, std::weak_ptr<Shared>> left_;
};

}  // namespace tutti
