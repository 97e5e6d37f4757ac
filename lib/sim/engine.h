// This header: what run() is made of. See README.md for the model.
#pragma once

#include <deque>
#include <queue>
#include <unordered_map>

#include "exec/chunks.h"
#include "sim/cpus.h"
#include "sim/flows.h"
#include "sim/run.h"

namespace tutti::sim {

class Engine {
 public:
  Engine(const Network& network, const Job& job);
  Result<Outcome> run();

 private:
  // What a pattern of steps has to do with.
  struct Ends {
    int recv = -1, send = -1;   // links; recv may be kEveryone: those of the lane
    double summed_byte_ns = 0;  // of all values that are added up
  };
  struct LaneRun {
    int rank = 0, index = 0;
    Steps steps;
    std::vector<Ends> ends;
    std::vector<int> everyone;  // links, if some step receives from all
    uint64_t round = 0;
    Steps::const_iterator next;
    double waits_since_ns = 0, works_since_ns = 0;
    bool is_at_work = false;  // its step runs, or waits for a CPU
    bool is_done(uint64_t rounds) const { return round == rounds; }
    const Ends& now() const { return ends[next.pattern()]; }
  };
  // Messages are numbered; those before `taken` have freed their slots, those before `arrived` can be received.
  struct Link {
    int from = 0, to = 0, sender = -1, receiver = -1;  // ranks; lanes
    uint64_t sent = 0, begun = 0, ended = 0, arrived = 0, taken = 0;
    uint32_t version = 0;
    double begun_ns = 0;
    Route route;
  };
  struct RankRun {
    std::deque<int> lanes;  // that wait for this rank
    bool is_busy = false;
    int lanes_left = 0;
    double operation_ns = 0;                           // of its CPU, before its next step
    double starts_ns = 0, stops_ns = Network::kNever;  // when it dies, or is told that another one has
  };
  struct Event {
    enum Kind : uint8_t { kBegin, kFlowEnds, kArrives, kCpuDone };
    double at_ns;
    uint64_t number;
    Kind kind;
    int id;
    uint32_t version;
    bool operator<(const Event& other) const {  // the earliest is the queue's top
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };

  // engine_setup.cpp
  Result<void> connect();
  Result<void> check_size() const;
  Result<void> connect_rank(const Schedule& schedule);
  Result<int> attach(int lane, int peer, uint32_t channel, bool sends);
  Result<Ends> ends_of(int lane, const Schedule& schedule, const Step& step, uint32_t channel);
  Result<void> attach_everyone(int lane, int n_ranks, uint32_t channel);

  // engine.cpp
  void post(double at_ns, Event::Kind kind, int id, uint32_t version = 0);
  void handle(const Event& event);
  void look_at(int lane);
  void look_at_all();
  bool is_blocked(const LaneRun& lane) const;
  uint64_t bytes_of(const LaneRun& lane) const;
  double cost_of(const LaneRun& lane) const;
  void start_work(int rank);
  void finish_work(int lane);
  void release_cpu(int rank);
  void send(int link, uint64_t bytes);
  void begin_flows(int link);
  void flow_ended(int link);
  void settle();
  void note(Span span);
  void stand_for_all();
  Result<void> end_ranks();
  template <class Visit>
  void for_each_recv(const LaneRun& lane, const Ends& step, Visit&& visit) const {
    if (step.recv >= 0) visit(step.recv);
    if (step.recv == kEveryone)
      for (const int link : lane.everyone) visit(link);
  }
  LaneRun& lane(int index) { return lanes_[static_cast<size_t>(index)]; }
  Link& link(int index) { return links_[static_cast<size_t>(index)]; }
  const Link& link(int index) const { return links_[static_cast<size_t>(index)]; }
  RankRun& rank(int index) { return ranks_[static_cast<size_t>(index)]; }
  uint64_t& message_bytes(int index, uint64_t number) {
    return message_bytes_[static_cast<size_t>(index) * sizes_.slots + number % sizes_.slots];
  }

  const Network& network_;
  const Job& job_;
  const MessageSizes sizes_;
  Flows flows_;
  const int n_first_;  // ranks that are simulated; the others are like them
  uint32_t n_chunks_ = 0;
  uint64_t n_steps_ = 0, n_patterns_ = 0;
  uint64_t rounds_ = 1;
  std::vector<LaneRun> lanes_;
  std::vector<Link> links_;
  std::vector<uint64_t> message_bytes_;  // sizes_.slots of each link
  std::unordered_map<uint64_t, int> found_;
  std::vector<RankRun> ranks_;
  Cpus cpus_;
  std::priority_queue<Event> events_;
  std::vector<int> to_look_at_;
  double now_ns_ = 0;
  Outcome outcome_;
};

}  // namespace tutti::sim
