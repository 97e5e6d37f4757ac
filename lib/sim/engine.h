// This header: what run() is made of. See README.md for the model.
#pragma once

#include <deque>
#include <unordered_map>

#include "exec/chunks.h"
#include "sim/cpus.h"
#include "sim/run.h"
#include "sim/traffic.h"

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
    bool has_sent = false;    // before its step is done
    bool is_done(uint64_t rounds) const { return round == rounds; }
    const Ends& now() const { return ends[next.pattern()]; }
  };
  struct RankRun {
    std::deque<int> lanes;  // that wait for this rank
    bool is_busy = false;
    int first_lane = 0, n_lanes = 0, lanes_left = 0;
    int operations = 0;                                // that it has done
    double operation_ns = 0;                           // of its CPU, before its next step
    double starts_ns = 0, stops_ns = Network::kNever;  // when it dies, or is told that another one has
  };
  // engine_setup.cpp
  Result<void> connect();
  Result<void> check_size() const;
  Result<void> connect_rank(const Schedule& schedule);
  Result<int> attach(int lane, int peer, uint32_t channel, bool sends);
  Result<Ends> ends_of(int lane, const Schedule& schedule, const Step& step, uint32_t channel);
  Result<void> attach_everyone(int lane, int n_ranks, uint32_t channel);

  // engine.cpp
  void handle(const Event& event);
  void look_at(int lane);
  void look_at_all();
  bool is_blocked(const LaneRun& lane) const;
  uint64_t bytes_of(const LaneRun& lane) const;
  double cost_of(const LaneRun& lane) const;
  void start_work(int rank);
  void begin_work(int lane, double ns);
  void finish_work(int lane);
  void finish_operation(int rank);
  void release_cpu(int rank);
  void note(Span span);
  void note_message(Span span);  // its lane is one of all ranks
  void stand_for_all();
  Result<void> end_ranks();
  template <class Visit>
  void for_each_recv(const LaneRun& lane, const Ends& step, Visit&& visit) const {
    if (step.recv >= 0) visit(step.recv);
    if (step.recv == kEveryone)
      for (const int link : lane.everyone) visit(link);
  }
  LaneRun& lane(int index) { return lanes_[static_cast<size_t>(index)]; }
  RankRun& rank(int index) { return ranks_[static_cast<size_t>(index)]; }

  const Network& network_;
  const Job& job_;
  const MessageSizes sizes_;
  const int n_first_;  // ranks that are simulated; the others are like them
  Events events_;
  Traffic traffic_;
  uint32_t n_chunks_ = 0;
  uint64_t n_steps_ = 0, n_patterns_ = 0;
  uint64_t rounds_ = 1;
  double operation_ns_ = 0;  // of a CPU, before each
  std::vector<LaneRun> lanes_;
  std::unordered_map<uint64_t, int> found_;
  std::vector<RankRun> ranks_;
  Cpus cpus_;
  std::vector<int> to_look_at_;
  double first_ends_ns_ = 0;  // of the operations, the first
  Outcome outcome_;
};

}  // namespace tutti::sim
