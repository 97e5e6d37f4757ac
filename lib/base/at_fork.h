// What happens when the user's program forks, as data loaders do. A child has none of the library's threads, so it must
// use nothing that its parent created; and it must not keep the parent's sockets open, because peers notice by them
// that a process has ended, and a child may outlive its parent. So in a child /dev/null replaces each socket.
//
// No descriptor closes itself on fork. So sockets are entered in a table by number, and a pthread_atfork handler
// replaces them in the child; their numbers stay taken, because objects that the child inherited still hold them. The
// handler also marks the parent's handles, so that calls on them report it; no call pays for that. Static variables
// that a child may use are locked across the fork.
//
// Any thread. Whatever is registered here stays registered.
#pragma once

#include <atomic>
#include <mutex>

namespace tutti {

// Held while a socket is opened or closed, so that no fork comes between that and its entry in the table.
std::mutex& sockets_mutex();
// Call it with that mutex held. Sockets whose numbers are beyond the table's end stay open in children.
void enter_socket(int fd);
// A descriptor that was just opened, with another number if it has one of stdin, stdout or stderr, which were closed.
int above_streams(int fd);
// Closes a descriptor, which may be a socket that was entered.
void close_descriptor(int fd);

// Locked while the process forks, so that the child finds what it guards consistent, and the mutex unlocked. Make it
// when the library is loaded: its first use might coincide with another thread's fork.
struct MutexAcrossForks : std::mutex {
  MutexAcrossForks();
};
// What is made on first use and then stays, also for threads that outlive main. For a static variable of this kind: a
// child that is forked while another thread makes one of a function's would wait for that thread for ever.
template <class Thing>
class MadeOnce {
 public:
  template <class Make>
  const Thing& get(Make&& make) {
    if (const Thing* made = made_) return *made;
    const std::lock_guard lock(mutex_);
    if (made_ == nullptr) made_ = new Thing(make());
    return *made_;
  }

 private:
  std::atomic<const Thing*> made_{nullptr};
  MutexAcrossForks mutex_;
};
// `action` runs in each child before fork returns there. It must neither wait nor fail. Returns true, so that it can
// initialise a variable when the library is loaded.
bool do_in_children(void (*action)());

}  // namespace tutti
