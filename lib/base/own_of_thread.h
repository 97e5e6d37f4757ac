// Things that each thread has for itself, and that need a destructor. Those of the main thread are destroyed before
// static objects are, and the destructors of these may still call the library, to leave their groups, say.
#pragma once

namespace tutti {

// This thread's T. It is destroyed with the thread; who asks afterwards gets one that stays.
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
