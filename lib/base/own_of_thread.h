// Thread-local objects that need a destructor. The main thread's are destroyed before static objects, whose destructors
// may still call the library, to leave their groups, say.
#pragma once

namespace tutti {

// This thread's T, destroyed with the thread; a call after that gets one that is never destroyed.
template <class T>
T& own_of_thread() {
  static constinit thread_local bool has_ended = false;
  struct Own : T {
    ~Own() { has_ended = true; }
  };
  static thread_local Own own;
  if (!has_ended) return own;
  static thread_local T* const late = new T;
  return *late;
}

}  // namespace tutti
