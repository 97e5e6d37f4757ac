// The queue pairs of a link, their completions, and what has become of each.
//
// A pair that fails is dropped, closed at this end, and settled once it is closed at the other end, too. Then a new
// pair is made in its place, which is connected and must be proved (failover.cpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transports/verbs/messages.h"

namespace tutti::verbs {

// A queue pair, and its replacement.
struct QueuePair {
  Queue queue;
  int64_t made_ns;
  bool is_proved = true;                  // something has got through
  std::string why{};                      // why it was dropped; empty: it was not
  bool is_flushed = false;                // after a drop: no more completions will come
  std::optional<Notice> notice{};         // from the other end, that it is closed there
  int64_t mend_ns = 0, pause_ns = 0;      // when the next one is made, and the pause after it
  std::unique_ptr<Queue> next = nullptr;  // until the other end has made its half

  bool is_usable() const { return queue.is_open() && why.empty(); }
  bool is_time_to_mend();  // once after each pause
  void pause() { mend_ns = now_ns() + pause_ns; }
  void replace(Queue made);
};

class QueuePairs {
 public:
  // For `n` queue pairs, each with room for that many sends and receives.
  Result<void> open(const Ports& ports, uint32_t n, uint32_t sends, uint32_t receives);
  // Before sleeping until the next completion. False: completions cannot wake this rank.
  bool arm() const;
  const std::vector<std::unique_ptr<ibv_cq, Destroy>>& completions() const { return completions_; }

  Result<Queue> make(const Route& route) const;  // not added yet
  void add(Queue queue) { pairs_.push_back({std::move(queue), now_ns()}); }
  void clear() { pairs_.clear(); }
  size_t size() const { return pairs_.size(); }
  QueuePair& operator[](size_t q) { return pairs_[q]; }
  auto begin() { return pairs_.begin(); }
  auto end() { return pairs_.end(); }
  // May be one that was dropped: what it is given goes to others when it is closed. One is always open, or the link has
  // failed.
  QueuePair& least_busy();
  // The pair must not be used any more: it is closed once all its completions have been taken. With the last pair, the
  // link fails.
  void drop(QueuePair& pair, const std::string& why);
  bool take_drops() { return std::exchange(drops_, false); }  // whether there were any since the last call
  void close(QueuePair& pair);
  bool settle(QueuePair& pair);  // false until the other end has closed it
  uint32_t unsettled() const { return unsettled_; }

 private:
  std::vector<std::unique_ptr<ibv_cq, Destroy>> completions_;  // by port
  uint32_t sends_ = 0, receives_ = 0;
  std::vector<QueuePair> pairs_;
  bool drops_ = false;
  uint32_t unsettled_ = 0;  // closed here and not yet at the other end
};

}  // namespace tutti::verbs
