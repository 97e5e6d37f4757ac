// The queue pairs of a link, their completions, and what has become of each.
//
// One that fails is dropped, closed at this end, and settled once it is closed at the other end, too. Then another one
// is made in its place, which is connected and has to be proved (failover.cpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transports/verbs/messages.h"

namespace tutti::verbs {

// One of them, and the one that is made in its place.
struct QueuePair {
  Queue queue;
  int64_t made_ns;
  bool is_proved = true;                  // something has got through
  std::string why{};                      // it is dropped
  bool is_flushed = false;                // then nothing more comes of it
  std::optional<Notice> notice{};         // from the other end, that it is closed there
  int64_t mend_ns = 0, pause_ns = 0;      // when the next one is made, and how long after
  std::unique_ptr<Queue> next = nullptr;  // until the other end's is there

  bool is_usable() const { return queue.is_open() && why.empty(); }
  bool is_time_to_mend();  // once after each pause
  void pause() { mend_ns = now_ns() + pause_ns; }
  void replace(Queue made);
};

class QueuePairs {
 public:
  // For `n` of them, each with so much room.
  Result<void> open(const Ports& ports, uint32_t n, uint32_t sends, uint32_t receives);
  Result<void> watch(int fd, const char* what);
  // Before sleeping on fd(), until the next completion or what is watched: false if completions cannot wake us.
  bool arm() const;
  int fd() const { return epoll_.get(); }
  const std::vector<std::unique_ptr<ibv_cq, Destroy>>& completions() const { return completions_; }

  Result<Queue> make(const Route& route) const;  // not yet one of them
  void add(Queue queue) { pairs_.push_back({std::move(queue), now_ns()}); }
  void clear() { pairs_.clear(); }
  size_t size() const { return pairs_.size(); }
  QueuePair& operator[](size_t q) { return pairs_[q]; }
  auto begin() { return pairs_.begin(); }
  auto end() { return pairs_.end(); }
  // What goes to one that is dropped will be given to others when it is closed. One is always open, or the link has
  // failed.
  QueuePair& least_busy();
  // It is not to be used any more: it is closed when all has been taken that has come of it. With the last one, the
  // link fails.
  void drop(QueuePair& pair, const std::string& why);
  bool take_drops() { return std::exchange(drops_, false); }  // since the last call
  void close(QueuePair& pair);
  bool settle(QueuePair& pair);  // false as long as the other end has not closed it
  uint32_t unsettled() const { return unsettled_; }

 private:
  Fd epoll_;
  std::vector<std::unique_ptr<ibv_cq, Destroy>> completions_;  // by port
  uint32_t sends_ = 0, receives_ = 0;
  std::vector<QueuePair> pairs_;
  bool drops_ = false;
  uint32_t unsettled_ = 0;  // closed here and not yet at the other end
};

}  // namespace tutti::verbs
