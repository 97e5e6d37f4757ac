#include <algorithm>
#include <deque>
#include <queue>
#include <utility>
#include <vector>

#include "tools/sim/lanes.h"

namespace tutti::sim {
namespace {

// When each rank dies, or is told that one has. A dead rank's connections break, which its neighbours see and pass on.
std::vector<double> stop_times(const Network& network, const std::function<std::vector<int>(int)>& neighbours) {
  std::vector<double> stops(static_cast<size_t>(network.n_ranks()), Network::kNever);
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>> told;
  const auto stop = [&](int rank, double at_ns) {
    double& known = stops[static_cast<size_t>(rank)];
    if (at_ns < known) told.emplace(known = at_ns, rank);
  };
  for (int rank = 0; rank < network.n_ranks(); rank++) stop(rank, network.dies_ns(rank));
  while (neighbours && !told.empty()) {
    const auto [at_ns, rank] = told.top();
    told.pop();
    if (at_ns > stops[static_cast<size_t>(rank)]) continue;
    for (const int peer : neighbours(rank)) {
      const Route way = network.route(rank, peer);
      stop(peer, at_ns + way.latency_ns + way.message_ns);
    }
  }
  return stops;
}

// Which rank has which CPU, and which ranks wait for one. A rank keeps its CPU until it gives it up, and takes the same
// one again if that is free.
class Cpus {
 public:
  explicit Cpus(const Network& network) : network_(network), ranks_(static_cast<size_t>(network.n_ranks())) {
    const Cluster& cluster = network.cluster();
    const int here = cluster.cpus.are_shared ? network.n_ranks() : cluster.ranks_per_host;
    const int n = cluster.cpus.per_host > 0 ? cluster.cpus.per_host : here;
    hosts_.resize(static_cast<size_t>(network.n_hosts()), {std::vector<Cpu>(static_cast<size_t>(n)), {}});
    for (size_t r = 0; r < ranks_.size(); r++) ranks_[r].cpu = static_cast<size_t>(static_cast<int>(r) % here % n);
  }

  // Takes a CPU: nanoseconds until the rank has it. Below 0: none is free, and the rank waits until next() names it.
  double take(int index) {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    if (rank.has_cpu) return 0;
    Host& host = host_of(index);
    if (!host.cpus[rank.cpu].is_free) {
      const auto found = std::find_if(host.cpus.begin(), host.cpus.end(), [](const Cpu& cpu) { return cpu.is_free; });
      if (found == host.cpus.end()) {
        if (!std::exchange(rank.waits, true)) host.waiting.push_back(index);
        return -1;
      }
      rank.cpu = static_cast<size_t>(found - host.cpus.begin());
    }
    Cpu& taken = host.cpus[rank.cpu];
    taken.is_free = false;
    rank.has_cpu = true;
    const int last = std::exchange(taken.last_rank, index);
    return last == index || last < 0 ? 0 : network_.cluster().cpus.switch_ns;
  }

  void give_up(int index) {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    if (std::exchange(rank.has_cpu, false)) host_of(index).cpus[rank.cpu].is_free = true;
  }

  // The rank that has waited longest for a CPU of this rank's host; -1: none.
  int next(int index) {
    std::deque<int>& waiting = host_of(index).waiting;
    if (waiting.empty()) return -1;
    const int first = waiting.front();
    waiting.pop_front();
    ranks_[static_cast<size_t>(first)].waits = false;
    return first;
  }

 private:
  struct Cpu {
    int last_rank = -1;
    bool is_free = true;
  };
  struct Host {
    std::vector<Cpu> cpus;
    std::deque<int> waiting;
  };
  struct Rank {
    size_t cpu = 0;  // the one of its host that it has or had last
    bool has_cpu = false, waits = false;
  };
  Host& host_of(int rank) {
    return hosts_[network_.cluster().cpus.are_shared ? 0 : static_cast<size_t>(network_.host_of(rank))];
  }

  const Network& network_;
  std::vector<Host> hosts_;
  std::vector<Rank> ranks_;
};

// See README.md for the model.
class Engine {
 public:
  Engine(const Network& network, const Job& job)
      : network_(network),
        job_(job),
        n_first_(job.alike ? job.alike->period() : network.n_ranks()),
        traffic_(network, n_first_, &events_),
        lanes_(network, job, &traffic_),
        ranks_(static_cast<size_t>(network.n_ranks())),
        cpus_(network) {}

  Result<Outcome> run() {
    TUTTI_TRY(lanes_.connect(n_first_));
    begin();
    while (!events_.is_empty()) {
      // All events of one moment, then the speeds that follow from them.
      do handle(events_.take());
      while (events_.has_more_now());
      traffic_.settle();
    }
    TUTTI_TRY(end_ranks());
    if (job_.row > 1) outcome_.ns = (outcome_.ns - first_ends_ns_) / (job_.row - 1);
    extend_to_all_ranks();
    return std::move(outcome_);
  }

 private:
  struct RankRun {
    std::deque<int> lanes;  // those that wait for the rank to do their step
    bool is_busy = false;
    int lanes_left = 0;
    int operations = 0;                 // number that it has done
    double operation_ns = 0;            // CPU time before its next step
    double stops_ns = Network::kNever;  // when it dies, or is told that another one has
  };

  void begin() {
    const std::vector<double> stops = stop_times(network_, job_.neighbours);
    // The library has prepared small operations beforehand (SmallRun in exec/run.h).
    operation_ns_ = lanes_.are_small() ? 0 : network_.cluster().cpus.operation_ns;
    for (size_t r = 0; r < ranks_.size(); r++) ranks_[r].stops_ns = stops[r], ranks_[r].operation_ns = operation_ns_;
    outcome_.ends_ns.assign(ranks_.size(), 0);
    for (int r = 0; r < n_first_; r++) {
      rank(r).lanes_left = lanes_.count(r);
      for (int lane = lanes_.first(r); lane < lanes_.end(r); lane++) {
        lanes_[lane].waits_since_ns = network_.starts_ns(r);
        events_.post(network_.starts_ns(r), Event::kBegin, lane);
      }
    }
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case Event::kBegin: to_look_at_.push_back(event.id); break;
      case Event::kLeaves: traffic_.leave(event.id); break;
      case Event::kFlowEnds:
        if (event.version == traffic_.link(event.id).version) {
          Span message = traffic_.flow_ended(event.id);  // its lane counts through all ranks
          message.lane = lanes_[message.lane].index;
          note(message);
        }
        break;
      case Event::kArrives:
        traffic_.arrive(event.id);
        to_look_at_.push_back(traffic_.link(event.id).receiver);
        break;
      case Event::kCpuDone:
        if (event.at_ns < rank(lanes_[event.id].rank).stops_ns)
          finish_work(event.id);
        else
          rank(lanes_[event.id].rank).is_busy = false;
        break;
    }
    look_at_all();
    if (event.kind != Event::kCpuDone) return;
    release_cpu(lanes_[event.id].rank);
    look_at_all();
  }

  void look_at_all() {
    while (!to_look_at_.empty()) {
      const int index = to_look_at_.back();
      to_look_at_.pop_back();
      look_at(index);
    }
  }

  bool is_blocked(const LaneRun& lane) const {
    const std::span<const int> recvs = lane.recvs();
    return (lane.now().send >= 0 && traffic_.is_full(lane.now().send)) ||
           std::any_of(recvs.begin(), recvs.end(), [&](int link) { return traffic_.is_empty(link); });
  }

  // Starts the lane's next step if it can run now.
  void look_at(int index) {
    LaneRun& looked = lanes_[index];
    const double now_ns = events_.now_ns();
    if (looked.is_at_work || lanes_.is_done(looked) || now_ns < network_.starts_ns(looked.rank) ||
        now_ns >= rank(looked.rank).stops_ns || is_blocked(looked))
      return;
    looked.is_at_work = true;
    const int recv = looked.now().recv;
    note({Span::kWaits, looked.rank, looked.index, recv >= 0 ? traffic_.link(recv).from : -1, 0, looked.waits_since_ns,
          now_ns});
    rank(looked.rank).lanes.push_back(index);
    start_work(looked.rank);
  }

  // CPU time of the lane's next step.
  double cost_of(const LaneRun& lane) {
    const Ends& step = lane.now();
    const uint64_t bytes = lanes_.bytes_of(lane);
    double ns = static_cast<double>(bytes) * step.summed_byte_ns + rank(lane.rank).operation_ns;
    for (const int link : lane.recvs()) ns += traffic_.receive_ns(link, bytes);
    if (step.send >= 0) ns += traffic_.send_ns(step.send, bytes);
    return ns * network_.slowdown(lane.rank);
  }

  // A rank keeps its CPU until it has nothing to do, as a rank that polls does.
  void start_work(int index) {
    RankRun& starting = rank(index);
    while (!starting.is_busy && !starting.lanes.empty() && events_.now_ns() < starting.stops_ns) {
      const int next = starting.lanes.front();
      double ns = cost_of(lanes_[next]);
      if (ns > 0) {
        const double switch_ns = cpus_.take(index);
        if (switch_ns < 0) return;
        ns += switch_ns;
      }
      starting.lanes.pop_front();
      starting.is_busy = true;
      starting.operation_ns = 0;
      lanes_[next].works_since_ns = events_.now_ns();
      if (ns > 0) return begin_work(next, ns);
      finish_work(next);
    }
  }

  // The step is not done before all that it receives has left its sender; its own message may arrive before that.
  void begin_work(int index, double ns) {
    LaneRun& begun = lanes_[index];
    double ends_ns = events_.now_ns() + ns;
    for (const int link : begun.recvs()) ends_ns = std::max(ends_ns, traffic_.left_ns(link));
    events_.post(ends_ns, Event::kCpuDone, index);
    const uint64_t bytes = lanes_.bytes_of(begun);
    const int send = begun.now().send;
    const double early_ns = send < 0 ? 0 : traffic_.early_ns(send, bytes) * network_.slowdown(begun.rank);
    begun.has_sent = early_ns > 0 && ends_ns < rank(begun.rank).stops_ns;
    if (begun.has_sent) traffic_.send_early(send, bytes, early_ns, ends_ns);
  }

  // The step is done: its messages' slots are free, its own message leaves.
  void finish_work(int index) {
    LaneRun& done = lanes_[index];
    const uint64_t bytes = lanes_.bytes_of(done);
    const int send = done.now().send;
    note({Span::kWorks, done.rank, done.index, -1, bytes, done.works_since_ns, events_.now_ns()});
    for (const int link : done.recvs()) {
      traffic_.take(link, bytes);
      to_look_at_.push_back(traffic_.link(link).sender);
    }
    if (send >= 0 && !std::exchange(done.has_sent, false)) traffic_.send(send, bytes);
    done.go_on();
    if (lanes_.is_done(done) && --rank(done.rank).lanes_left == 0) finish_operation(done.rank);
    done.is_at_work = false;
    done.waits_since_ns = events_.now_ns();
    rank(done.rank).is_busy = false;
    to_look_at_.push_back(index);
  }

  void finish_operation(int index) {
    RankRun& done = rank(index);
    if (++done.operations == 1) first_ends_ns_ = std::max(first_ends_ns_, events_.now_ns());
    outcome_.ends_ns[static_cast<size_t>(index)] = events_.now_ns();
    outcome_.ns = std::max(outcome_.ns, events_.now_ns());
    if (done.operations == job_.row) return;
    done.lanes_left = lanes_.count(index);
    done.operation_ns = operation_ns_;
    for (int next = lanes_.first(index); next < lanes_.end(index); next++) {
      lanes_[next].round = 0;
      to_look_at_.push_back(next);
    }
  }

  // Gives up the CPU of a rank that has nothing to do; the rank that has waited longest is next.
  void release_cpu(int index) {
    start_work(index);
    if (rank(index).is_busy) return;
    cpus_.give_up(index);
    for (int next = cpus_.next(index); next >= 0; next = cpus_.next(index)) {
      start_work(next);
      if (events_.now_ns() < rank(next).stops_ns) return;
    }
  }

  void note(Span span) {
    if (job_.traces && span.end_ns > span.begin_ns) outcome_.spans.push_back(span);
  }

  // What the first ranks did, the others like them did too.
  void extend_to_all_ranks() {
    const auto times = static_cast<uint64_t>(network_.n_ranks() / n_first_), row = static_cast<uint64_t>(job_.row);
    outcome_.messages = traffic_.messages() * times / row;
    outcome_.bytes = traffic_.bytes() * times / row;
    outcome_.events = events_.posted();
    for (size_t r = static_cast<size_t>(n_first_); r < ranks_.size(); r++)
      outcome_.ends_ns[r] = outcome_.ends_ns[r - static_cast<size_t>(n_first_)];
    for (int wire = 0; wire < static_cast<int>(network_.wires().size()); wire++)
      outcome_.wire_bytes.push_back(traffic_.bytes_of_wire(network_.first_wire(wire, n_first_)) / row);
  }

  // What the ranks that are not done wait for does not come any more.
  Result<void> end_ranks() {
    for (int lane = 0; lane < lanes_.end(n_first_ - 1); lane++)
      if (const LaneRun& left = lanes_[lane]; !lanes_.is_done(left) && rank(left.rank).stops_ns == Network::kNever)
        return Error{Code::kInternalError,
                     format("rank %d waits forever in lane %d, round %llu, step %u", left.rank, left.index,
                            static_cast<unsigned long long>(left.round), left.next.index())};
    for (int r = 0; r < network_.n_ranks(); r++) {
      if (rank(r).lanes_left == 0) continue;
      outcome_.ends_ns[static_cast<size_t>(r)] = rank(r).stops_ns;
      if (network_.dies_ns(r) <= rank(r).stops_ns) continue;
      outcome_.ns = std::max(outcome_.ns, rank(r).stops_ns);
      outcome_.failed++;
    }
    return {};
  }

  RankRun& rank(int index) { return ranks_[static_cast<size_t>(index)]; }

  const Network& network_;
  const Job& job_;
  const int n_first_;  // ranks that are simulated; the others are like them
  Events events_;
  Traffic traffic_;
  Lanes lanes_;
  std::vector<RankRun> ranks_;
  Cpus cpus_;
  double operation_ns_ = 0;  // CPU time before each operation
  std::vector<int> to_look_at_;
  double first_ends_ns_ = 0;  // when all have done the first operation
  Outcome outcome_;
};

}  // namespace

Result<Outcome> run(const Network& network, const Job& job) {
  return Engine(network, job).run();
}

}  // namespace tutti::sim
