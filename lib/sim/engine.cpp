#include "sim/engine.h"

#include <algorithm>
#include <utility>

namespace tutti::sim {

Result<Outcome> run(const Network& network, const Job& job) {
  return Engine(network, job).run();
}

Result<Outcome> Engine::run() {
  TUTTI_TRY(connect());
  outcome_.ends_ns.assign(ranks_.size(), 0);
  for (size_t id = 0; id < lanes_.size(); id++) {
    lanes_[id].next = lanes_[id].steps.begin();
    lanes_[id].waits_since_ns = rank(lanes_[id].rank).starts_ns;
    events_.post(lanes_[id].waits_since_ns, Event::kBegin, static_cast<int>(id));
  }
  while (!events_.is_empty()) {
    // All that happens at one moment, then the speeds that follow from it.
    do handle(events_.take());
    while (events_.has_more_now());
    traffic_.settle();
  }
  TUTTI_TRY(end_ranks());
  if (job_.row > 1) outcome_.ns = (outcome_.ns - first_ends_ns_) / (job_.row - 1);
  stand_for_all();
  return std::move(outcome_);
}

void Engine::handle(const Event& event) {
  switch (event.kind) {
    case Event::kBegin: to_look_at_.push_back(event.id); break;
    case Event::kLeaves: traffic_.leave(event.id); break;
    case Event::kFlowEnds:
      if (event.version == traffic_.link(event.id).version) note_message(traffic_.flow_ended(event.id));
      break;
    case Event::kArrives:
      traffic_.arrive(event.id);
      to_look_at_.push_back(traffic_.link(event.id).receiver);
      break;
    case Event::kCpuDone:
      if (event.at_ns < rank(lane(event.id).rank).stops_ns)
        finish_work(event.id);
      else
        rank(lane(event.id).rank).is_busy = false;
      break;
  }
  look_at_all();
  if (event.kind != Event::kCpuDone) return;
  release_cpu(lane(event.id).rank);
  look_at_all();
}

void Engine::look_at_all() {
  while (!to_look_at_.empty()) {
    const int index = to_look_at_.back();
    to_look_at_.pop_back();
    look_at(index);
  }
}

bool Engine::is_blocked(const LaneRun& lane) const {
  const Ends& step = lane.now();
  bool waits = step.send >= 0 && traffic_.is_full(step.send);
  for_each_recv(lane, step, [&](int link) { waits |= traffic_.is_empty(link); });
  return waits;
}

// Its step may be able to run now.
void Engine::look_at(int index) {
  LaneRun& looked = lane(index);
  const RankRun& on = rank(looked.rank);
  if (looked.is_at_work || looked.is_done(rounds_) || events_.now_ns() < on.starts_ns ||
      events_.now_ns() >= on.stops_ns || is_blocked(looked))
    return;
  looked.is_at_work = true;
  const Ends& step = looked.now();
  note({Span::kWaits, looked.rank, looked.index, step.recv >= 0 ? traffic_.link(step.recv).from : -1, 0,
        looked.waits_since_ns, events_.now_ns()});
  rank(looked.rank).lanes.push_back(index);
  start_work(looked.rank);
}

uint64_t Engine::bytes_of(const LaneRun& lane) const {
  if (n_chunks_ == 0) return 0;
  const ChunkLayout layout(job_.elem_bytes, n_chunks_, sizes_);
  return layout.part(job_.block_elems, rounds_, lane.round, (*lane.next).chunk % n_chunks_).elems * job_.elem_bytes;
}

// Of the rank's CPU.
double Engine::cost_of(const LaneRun& lane) const {
  const Ends& step = lane.now();
  const uint64_t bytes = bytes_of(lane);
  double ns = static_cast<double>(bytes) * step.summed_byte_ns + ranks_[static_cast<size_t>(lane.rank)].operation_ns;
  for_each_recv(lane, step, [&](int link) { ns += traffic_.receive_ns(link, bytes); });
  if (step.send >= 0) ns += traffic_.send_ns(step.send, bytes);
  return ns * network_.slowdown(lane.rank);
}

// A rank keeps its CPU until it has nothing to do, as one that polls does.
void Engine::start_work(int index) {
  RankRun& starting = rank(index);
  while (!starting.is_busy && !starting.lanes.empty() && events_.now_ns() < starting.stops_ns) {
    const int next = starting.lanes.front();
    double ns = cost_of(lane(next));
    if (ns > 0) {
      const double switch_ns = cpus_.take(index);
      if (switch_ns < 0) return;
      ns += switch_ns;
    }
    starting.lanes.pop_front();
    starting.is_busy = true;
    starting.operation_ns = 0;
    lane(next).works_since_ns = events_.now_ns();
    if (ns > 0) return begin_work(next, ns);
    finish_work(next);
  }
}

// It is not done before all of what it receives has left; its own message may be there for others before that.
void Engine::begin_work(int index, double ns) {
  const LaneRun& begun = lane(index);
  const Ends& step = begun.now();
  double ends_ns = events_.now_ns() + ns;
  for_each_recv(begun, step, [&](int link) { ends_ns = std::max(ends_ns, traffic_.left_ns(link)); });
  events_.post(ends_ns, Event::kCpuDone, index);
  const uint64_t bytes = bytes_of(begun);
  const double early_ns = step.send < 0 ? 0 : traffic_.early_ns(step.send, bytes) * network_.slowdown(begun.rank);
  lane(index).has_sent = early_ns > 0 && ends_ns < rank(begun.rank).stops_ns;
  if (begun.has_sent) traffic_.send_early(step.send, bytes, early_ns, ends_ns);
}

// The step has been done: its messages' slots are free, its own message leaves.
void Engine::finish_work(int index) {
  LaneRun& done = lane(index);
  const Ends step = done.now();
  note({Span::kWorks, done.rank, done.index, -1, bytes_of(done), done.works_since_ns, events_.now_ns()});
  for_each_recv(done, step, [&](int link) {
    traffic_.take(link, bytes_of(done));
    to_look_at_.push_back(traffic_.link(link).sender);
  });
  if (step.send >= 0 && !std::exchange(done.has_sent, false)) traffic_.send(step.send, bytes_of(done));
  if (++done.next == done.steps.end()) {
    done.next = done.steps.begin();
    if (++done.round == rounds_ && --rank(done.rank).lanes_left == 0) finish_operation(done.rank);
  }
  done.is_at_work = false;
  done.waits_since_ns = events_.now_ns();
  rank(done.rank).is_busy = false;
  to_look_at_.push_back(index);
}

void Engine::finish_operation(int index) {
  RankRun& done = rank(index);
  if (++done.operations == 1) first_ends_ns_ = std::max(first_ends_ns_, events_.now_ns());
  outcome_.ends_ns[static_cast<size_t>(index)] = events_.now_ns();
  outcome_.ns = std::max(outcome_.ns, events_.now_ns());
  if (done.operations == job_.row) return;
  done.lanes_left = done.n_lanes;
  done.operation_ns = operation_ns_;
  for (int next = done.first_lane; next < done.first_lane + done.n_lanes; next++) {
    lane(next).round = 0;
    to_look_at_.push_back(next);
  }
}

// If it has nothing to do; whoever has waited longest is next.
void Engine::release_cpu(int index) {
  start_work(index);
  if (rank(index).is_busy) return;
  cpus_.give_up(index);
  for (int next = cpus_.next(index); next >= 0; next = cpus_.next(index)) {
    start_work(next);
    if (events_.now_ns() < rank(next).stops_ns) return;
  }
}

void Engine::note_message(Span span) {
  span.lane = lane(span.lane).index;
  note(span);
}

void Engine::note(Span span) {
  if (job_.traces && span.end_ns > span.begin_ns) outcome_.spans.push_back(span);
}

// What the first ranks did, the others did too.
void Engine::stand_for_all() {
  const auto times = static_cast<uint64_t>(network_.n_ranks() / n_first_), row = static_cast<uint64_t>(job_.row);
  outcome_.messages = traffic_.messages() * times / row;
  outcome_.bytes = traffic_.bytes() * times / row;
  outcome_.events = events_.posted();
  for (size_t r = static_cast<size_t>(n_first_); r < ranks_.size(); r++)
    outcome_.ends_ns[r] = outcome_.ends_ns[r - static_cast<size_t>(n_first_)];
  for (int wire = 0; wire < static_cast<int>(network_.wires().size()); wire++)
    outcome_.wire_bytes.push_back(traffic_.bytes_of_wire(network_.first_wire(wire, n_first_)) / row);
}

// For who is not done, what it waits for does not come any more.
Result<void> Engine::end_ranks() {
  for (const LaneRun& left : lanes_)
    if (!left.is_done(rounds_) && rank(left.rank).stops_ns == Network::kNever)
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

}  // namespace tutti::sim
