// One reliable connection, and what is under way on it.
#pragma once

#include "transports/verbs/port.h"

namespace tutti::verbs {

// What the other end has to know of a connection.
struct QueueAddress {
  uint32_t number = 0;    // of the queue pair
  uint32_t sequence = 0;  // of its first packet
  uint32_t key = 0;       // to the memory that may be written
  uint32_t port = 0;      // which of its address's ports; said by who connects: the port to use at the other end
  uint32_t gid = 0;       // likewise
};

// Which ports a connection joins, by which of their GIDs.
struct Route {
  Port* port;
  size_t port_index, my_gid, peer_port, peer_gid;
  PortAddress peer;
};

class Queue {
 public:
  // Receives `receives` messages ahead of release.
  static Result<Queue> create(const Route& route, ibv_cq* completions, uint32_t sends, uint32_t receives);
  QueueAddress address(const Pinned& memory) const;  // `memory`: may be written
  Result<void> connect(const QueueAddress& peer);

  const Route& route() const { return route_; }
  Port& port() const { return *route_.port; }
  size_t port_index() const { return route_.port_index; }
  uint32_t number() const { return number_; }
  bool is_open() const { return pair_ != nullptr; }
  // Nothing is sent and nothing comes any more; what was under way is flushed. False: the device does not listen.
  bool stop();
  // Nothing of it is read or written any more.
  void close() { pair_.reset(); }
  uint32_t peer_key() const { return peer_key_; }
  uint64_t under_way() const { return posted_ - completed_; }
  bool has_room(uint32_t writes) const { return under_way() + writes <= sends_; }  // and one more

  // Writes that a completion is wanted of carry how many were posted by then; completed() takes that.
  struct Write {
    ibv_sge from[2];
    int n_from;
    uint64_t to;
    uint32_t key;
    bool announced;  // to the receiver, with `immediate`
    uint32_t immediate;
    bool signalled;
    bool exposes;
    uint32_t slot;
    bool is_device = false;  // the CPU may not be able to read it
  };
  bool write(const Write& write);
  // Nothing, so that its completion tells that all before it has arrived.
  bool write_nothing(uint64_t to) { return write({.n_from = 0, .to = to, .key = peer_key_, .signalled = true}); }
  // One of its receives was used up. False: no more can be posted.
  bool received();
  // Of a completion: what it was of.
  static bool is_receive(const ibv_wc& completion) { return completion.wr_id == 0; }
  static bool exposes(const ibv_wc& completion) { return (completion.wr_id & 1) != 0; }
  static uint32_t slot(const ibv_wc& completion) { return completion.wr_id >> 1 & 63; }
  void completed(const ibv_wc& completion) { completed_ = completion.wr_id >> 7; }
  uint64_t unsignalled() const { return posted_ - signalled_; }

 private:
  explicit Queue(const Route& route) : route_(route) {}
  bool receive(uint32_t n);

  std::unique_ptr<ibv_qp, Destroy> pair_;
  uint32_t number_ = 0, sequence_ = 0;
  uint32_t sends_ = 0, receives_ = 0, inline_bytes_ = 0;
  uint32_t owed_ = 0;  // receives
  uint32_t peer_key_ = 0;
  uint64_t posted_ = 0, completed_ = 0, signalled_ = 0;
  Route route_;  // last: what each message needs lies together
};

}  // namespace tutti::verbs
