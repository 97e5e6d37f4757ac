// One reliable connection, and what is in flight on it.
#pragma once

#include "transports/verbs/port.h"

namespace tutti::verbs {

// What the other end must know about a connection.
struct QueueAddress {
  uint32_t number = 0;    // of the queue pair
  uint32_t sequence = 0;  // of its first packet
  uint32_t key = 0;       // to the memory that may be written
};

// Which ports a connection joins, by which GID of each.
struct Route {
  Port* port;
  size_t port_index, my_gid, peer_port, peer_gid;
  PortAddress peer;
};

class Queue {
 public:
  // Posts `receives` receives in advance.
  static Result<Queue> create(const Route& route, ibv_cq* completions, uint32_t sends, uint32_t receives);
  QueueAddress address(const Pinned& memory) const;  // `memory`: may be written by the peer
  Result<void> connect(const QueueAddress& peer);

  const Route& route() const { return route_; }
  Port& port() const { return *route_.port; }
  size_t port_index() const { return route_.port_index; }
  uint32_t number() const { return number_; }
  bool is_open() const { return pair_ != nullptr; }
  // Ends sending and receiving; flushes what was in flight. False: the device does not respond.
  bool stop();
  // From then on it reads and writes no memory.
  void close() { pair_.reset(); }
  uint32_t peer_key() const { return peer_key_; }
  uint64_t under_way() const { return posted_ - completed_; }
  bool has_room(uint32_t writes) const { return under_way() + writes <= sends_; }  // one more always fits

  // A signalled write carries how many were posted by then; completed() takes that.
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
    bool is_device = false;  // in device memory, which the CPU may not be able to read
  };
  bool write(const Write& write);
  // An empty write, whose completion tells that everything before it has arrived.
  bool write_nothing(uint64_t to) { return write({.n_from = 0, .to = to, .key = peer_key_, .signalled = true}); }
  // A receive was consumed. False: no more can be posted.
  bool received();
  // What a completion belongs to.
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
  uint32_t owed_ = 0;  // receives to be posted again
  uint32_t peer_key_ = 0;
  uint64_t posted_ = 0, completed_ = 0, signalled_ = 0;
  Route route_;  // last, to keep together what each message needs
};

}  // namespace tutti::verbs
