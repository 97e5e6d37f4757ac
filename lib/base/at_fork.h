// What happens when the user's program forks, as data loaders do. A child has no threads of the library's, so it may
// use nothing that its parent has made; and it must not hold the parent's sockets, because peers learn from these that
// a process has ended, which its child may outlive. So a child finds /dev/null in their places.
//
// No kind of descriptor closes itself in a fork. So sockets are entered in a table by number, and a handler of
// pthread_atfork replaces them in the child; their numbers stay taken, because objects that the child has inherited
// hold them. It also marks the parent's handles, so that calls on these say so; no call pays for that. Static variables
// that a child may use are locked across the fork.
//
// Any thread. What is given here stays for good.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace tutti {

// Held while anything opens or closes a socket, so that no fork comes between that and its entry.
std::mutex& sockets_mutex();
// With that mutex held. Sockets beyond the largest number that can be entered stay open in children.
void enter_socket(int fd);
// Closes a descriptor, which may be a socket that was entered.
void close_descriptor(int fd);

// Locked while the process forks, so that the child finds what it guards whole, and not locked.
void hold_while_forking(std::mutex& mutex);
void hold_while_forking(std::shared_mutex& mutex);
// Runs in a child before fork returns there. It may neither wait nor fail.
void do_in_children(void (*action)());

}  // namespace tutti
