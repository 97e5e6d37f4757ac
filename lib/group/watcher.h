// This header: the thread that watches the control connections of all communicators of this process. It sleeps in
// epoll(7), and serves one client at a time: so a client's functions must not wait for another client.
//
// Any thread. Releasing the last shared_ptr joins the thread, so no client's function may do that.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

// The descriptors that a thread waits for. Where the kernel has no memory to watch another one, or the user has reached
// fs.epoll.max_user_watches, `lacks_room` is set, and the thread tries again a little later.
struct WatchedSet {
  Fd epoll;
  bool lacks_room = false;
  // Adds a descriptor, or changes the events of one that is there already. False: it is not watched.
  bool watch(int fd, uint32_t events, void* address);
};

class Watcher {
 public:
  // Both functions are called only on the thread.
  class Client {
   public:
    virtual ~Client() = default;
    // Something may have come, or the time is up.
    virtual void serve() = 0;
    // What to wait for next, and for how many milliseconds at most (-1: no limit). Every descriptor of the last time
    // must be listed again, with no events if it is not waited for now, unless serve() has closed it.
    virtual int waits_for(std::vector<pollfd>* fds) = 0;
  };

  // The process's watcher, created if there is none. A forked child creates its own.
  static Result<std::shared_ptr<Watcher>> of_process();
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Serves the client from now on, for the first time at once.
  void add(Client& client);
  // Returns when the client is no longer served. Not from within serve().
  void remove(Client& client);
  // Serves the client soon. Allocates nothing: destructors call it.
  void nudge(Client& client);

 private:
  struct Waiting {
    std::vector<pollfd> fds;
    int64_t due_ns = 0;  // 0: no time limit
    bool is_nudged = false;
  };
  Watcher() = default;
  Result<void> start();
  void run();
  std::set<Client*> wait();
  void serve(Client* client);
  void set_due(Client* client, Waiting& waiting, int64_t due_ns);

  std::mutex mutex_;  // guards clients_ to serving_; not held in a client's functions
  std::map<Client*, Waiting> clients_;
  std::set<std::pair<int64_t, Client*>> due_;
  bool any_nudged_ = false;
  Client* serving_ = nullptr;
  std::condition_variable served_;
  std::atomic<bool> stops_ = false;
  bool lacked_memory_ = false;  // used by the thread alone
  WatchedSet watched_;
  Fd nudge_fd_;
  std::thread thread_;
};

}  // namespace tutti
