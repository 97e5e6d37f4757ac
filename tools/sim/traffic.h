// This header: messages, from when a rank's step sends them until another rank's step has received them. A link has
// slots, and sends one message at a time; over TCP between hosts, the messages of one NIC leave in turn, and then share
// the other wires. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

#include "tools/sim/flows.h"
#include "tools/sim/run.h"

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

// The earliest first, and events of one moment in the order they were posted.
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

// A token bucket, as the "virtual scheduling" of ITU-T I.371: bytes pass at a speed, one message after the other, and
// after a pause a burst of them passes at once.
class Shaper {
 public:
  // Starts without a burst, as after many messages.
  Shaper(double bytes_per_ns, double burst_bytes)
      : bytes_per_ns_(bytes_per_ns), burst_ns_(burst_bytes / bytes_per_ns), whole_ns_(burst_ns_) {}

  // When the next byte can pass.
  double free_ns(double now_ns) const { return std::max(now_ns, whole_ns_ - burst_ns_); }
  // How many of these bytes pass at once.
  double take(uint64_t bytes, double now_ns) {
    whole_ns_ = std::max(whole_ns_, now_ns);
    const double at_once =
        std::clamp((burst_ns_ - (whole_ns_ - now_ns)) * bytes_per_ns_, 0.0, static_cast<double>(bytes));
    whole_ns_ += static_cast<double>(bytes) / bytes_per_ns_;
    return at_once;
  }

 private:
  double bytes_per_ns_, burst_ns_;
  double whole_ns_;  // when it has its whole burst again
};

class Traffic {
 public:
  // Messages are numbered; those before `taken` have freed their slots, those before `arrived` can be received.
  struct Link {
    int from = 0, to = 0, sender = -1, receiver = -1;  // ranks; lanes
    uint64_t sent = 0, left = 0, begun = 0, ended = 0, arrived = 0, taken = 0;
    uint32_t version = 0;
    double begun_ns = 0;
    int nic = -1;  // the wire by which its messages leave in turn; -1: they do not
    Route route;   // the wires after `nic`
  };

  // `n_first`: ranks that are simulated. Events of the kinds kLeaves to kArrives are about links.
  Traffic(const Network& network, int n_first, Events* events);

  void add_link(int from, int to, double far_byte_ns);
  Link& link(int index) { return links_[static_cast<size_t>(index)]; }
  const Link& link(int index) const { return links_[static_cast<size_t>(index)]; }
  bool is_full(int index) const { return link(index).sent - link(index).taken == sizes_.slots; }
  bool is_empty(int index) const { return link(index).arrived == link(index).taken; }

  // CPU time for a message, at either end.
  double send_ns(int link, uint64_t bytes) const;
  double receive_ns(int link, uint64_t bytes) const;
  // When the next message to receive has left completely.
  double left_ns(int index) const { return messages_[place_of(index, link(index).taken)].leaves_ns; }

  // Over TCP within a host, the kernel takes a message segment by segment, and the receiver takes what is there. So the
  // receiver can begin this long before the sender is done.
  double early_ns(int link, uint64_t bytes) const;
  void send_early(int link, uint64_t bytes, double early_ns, double leaves_ns);
  void send(int link, uint64_t bytes);
  void leave(int link);
  // Ends the flow and returns its message. Only if the event has the link's version.
  Span flow_ended(int link);
  void arrive(int index) { link(index).arrived++; }
  void take(int link, uint64_t bytes);
  void settle();

  // Totals of what was sent.
  uint64_t messages() const { return n_messages_; }
  uint64_t bytes() const { return n_bytes_; }
  uint64_t bytes_of_wire(int wire) const { return wire_bytes_[static_cast<size_t>(wire)]; }

 private:
  struct Message {
    uint64_t bytes = 0;
    double leaves_ns = 0;  // when its last byte leaves
    double moved = 0;      // bytes moved on its sender's host up to and including it
    double at_once = 0;    // bytes that its receiver's NIC lets pass at once
  };

  void post(int link, uint64_t bytes, double leaves_ns);
  void leave_in_turn(int link);
  void begin_flows(int link);
  size_t place_of(int link, uint64_t number) const {
    return static_cast<size_t>(link) * sizes_.slots + number % sizes_.slots;
  }
  bool is_local(const Link& link) const { return network_.host_of(link.from) == network_.host_of(link.to); }

  const Network& network_;
  const MessageSizes sizes_;
  const int n_first_;
  Events& events_;
  Flows flows_;
  std::vector<Link> links_;
  std::vector<Message> messages_;     // sizes_.slots of each link
  std::vector<Shaper> shapers_;       // by wire
  std::vector<uint64_t> wire_bytes_;  // by wire: bytes of the messages that have passed it completely
  std::vector<double> moved_;         // by host: bytes moved
  uint64_t n_messages_ = 0, n_bytes_ = 0;
};

}  // namespace tutti::sim
