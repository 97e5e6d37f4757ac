// This header: a queue of events: the earliest first, and events of one moment in the order they were posted. One
// thread.
#pragma once

#include <cstdint>
#include <queue>

namespace tutti::sim {

struct Event {
  enum Kind : uint8_t { kBegin, kLeaves, kFlowEnds, kArrives, kCpuDone };
  double at_ns;
  uint64_t number;
  Kind kind;
  int id;
  uint32_t version;
  bool operator<(const Event& other) const {  // the earliest is the queue's top
    return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
  }
};

class Events {
 public:
  void post(double at_ns, Event::Kind kind, int id, uint32_t version = 0) {
    queue_.push({at_ns, posted_++, kind, id, version});
  }
  // Takes the next event, and moves now_ns() to its time.
  Event take() {
    const Event event = queue_.top();
    queue_.pop();
    now_ns_ = event.at_ns;
    return event;
  }
  bool is_empty() const { return queue_.empty(); }
  bool has_more_now() const { return !queue_.empty() && queue_.top().at_ns == now_ns_; }
  double now_ns() const { return now_ns_; }
  uint64_t posted() const { return posted_; }

 private:
  std::priority_queue<Event> queue_;
  uint64_t posted_ = 0;
  double now_ns_ = 0;
};

}  // namespace tutti::sim
