// This header: the thread that watches the control connections of all communicators of this process. It sleeps in
// epoll(7), and serves one client at a time: nothing that a client does there may wait for another one.
//
// Any thread. The last shared_ptr ends the thread; a client never has it.
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

class Watcher {
 public:
  // Both are called on the thread alone.
  class Client {
   public:
    virtual ~Client() = default;
    // Something may have come, or the time is over.
    virtual void serve() = 0;
    // What to wait for then, and for how many milliseconds at most (-1: as long as it takes): all that was given the
    // last time again, with no events if there is nothing to wait for, but for what serve() has closed.
    virtual int waits_for(std::vector<pollfd>* fds) = 0;
  };

  // The process' own, made when there is none. A child of fork makes its own.
  static Result<std::shared_ptr<Watcher>> of_process();
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Serves it from now on, at once for the first time.
  void add(Client& client);
  // Returns when it is not served any more. Not from within serve().
  void remove(Client& client);
  // Serves it soon.
  void nudge(Client& client);

 private:
  struct Waiting {
    std::vector<pollfd> fds;
    int64_t due_ns = 0;  // 0: no time
  };
  Watcher() = default;
  Result<void> start();
  void run();
  std::set<Client*> wait();
  void serve(Client* client);
  void register_fds(Client* client, Waiting& waiting, std::vector<pollfd> fds);
  void set_due(Client* client, Waiting& waiting, int64_t due_ns);

  std::mutex mutex_;  // of what follows; a client's functions are called without it
  std::map<Client*, Waiting> clients_;
  std::set<std::pair<int64_t, Client*>> due_;
  std::set<Client*> nudged_;
  Client* serving_ = nullptr;
  std::condition_variable served_;
  std::atomic<bool> stops_ = false;
  bool lacked_memory_ = false;  // of the thread alone
  Fd epoll_, nudge_fd_;
  std::thread thread_;
};

}  // namespace tutti
