// The checker's links: each has one sending and one receiving lane, and slots that hold its messages. One thread.
#pragma once

#include "schedule/check_memory.h"
#include "schedule/clock.h"

namespace tutti::checker {

struct Message {
  Value value;
  uint32_t round = 0, step = 0;  // where it was sent
  Cell* exposed = nullptr;       // where its value still is, if the receiver may read it there
  Clock clock = {};              // the sender's when it sent this
};

struct Link {
  int from = 0, to = 0;
  uint32_t channel = 0;
  int sender = -1, receiver = -1;  // indices of lanes
  uint32_t head = 0, count = 0;    // of the messages in its slots
};

class Links {
 public:
  Links(size_t n_ranks, uint32_t n_slots) : n_slots_(n_slots), from_(n_ranks) {}

  // All calls must come before the first push. `owner`: the lane that owns this end of the link: `lane`, unless another
  // lane already did.
  struct Attached {
    int link, owner;
  };
  Attached attach(int from, int to, uint32_t channel, int Link::*end, int lane);

  const std::vector<Link>& all() const { return links_; }
  const Link& operator[](int index) const { return links_[static_cast<size_t>(index)]; }
  bool is_empty(int index) const { return (*this)[index].count == 0; }
  bool is_full(int index) const { return (*this)[index].count == n_slots_; }
  const Message& front(int index) const { return slots_[slot(index, 0)]; }
  Message pop(int index);
  void push(int index, Message message);

 private:
  // The index in slots_ of the link's `nth` slot from its head.
  size_t slot(int index, uint32_t nth) const {
    const uint32_t at = (*this)[index].head + nth;
    return static_cast<size_t>(index) * n_slots_ + (at < n_slots_ ? at : at - n_slots_);
  }

  uint32_t n_slots_;
  std::vector<Link> links_;
  std::vector<std::vector<int>> from_;  // links by the rank that sends
  std::vector<Message> slots_;
};

}  // namespace tutti::checker
