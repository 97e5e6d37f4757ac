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
    post(lanes_[id].waits_since_ns, Event::kBegin, static_cast<int>(id));
  }
  while (!events_.empty()) {
    now_ns_ = events_.top().at_ns;
    // All that happens at one moment, then the speeds that follow from it.
    while (!events_.empty() && events_.top().at_ns == now_ns_) {
      const Event event = events_.top();
      events_.pop();
      handle(event);
    }
    settle();
  }
  TUTTI_TRY(end_ranks());
  outcome_.wire_bytes = flows_.bytes_of_wires();
  stand_for_all();
  return std::move(outcome_);
}

void Engine::post(double at_ns, Event::Kind kind, int id, uint32_t version) {
  events_.push({at_ns, outcome_.events++, kind, id, version});
}

void Engine::handle(const Event& event) {
  switch (event.kind) {
    case Event::kBegin: to_look_at_.push_back(event.id); break;
    case Event::kFlowEnds:
      if (event.version == link(event.id).version) flow_ended(event.id);
      break;
    case Event::kArrives:
      link(event.id).arrived++;
      to_look_at_.push_back(link(event.id).receiver);
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
  bool waits = step.send >= 0 && link(step.send).sent - link(step.send).taken == sizes_.slots;
  for_each_recv(lane, step, [&](int index) { waits |= link(index).arrived == link(index).taken; });
  return waits;
}

// Its step may be able to run now.
void Engine::look_at(int index) {
  LaneRun& looked = lane(index);
  const RankRun& on = rank(looked.rank);
  if (looked.is_at_work || looked.is_done(rounds_) || now_ns_ < on.starts_ns || now_ns_ >= on.stops_ns ||
      is_blocked(looked))
    return;
  looked.is_at_work = true;
  const Ends& step = looked.now();
  note({Span::kWaits, looked.rank, looked.index, step.recv >= 0 ? link(step.recv).from : -1, 0, looked.waits_since_ns,
        now_ns_});
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
  const auto bytes = static_cast<double>(bytes_of(lane));
  double ns = bytes * step.summed_byte_ns + ranks_[static_cast<size_t>(lane.rank)].operation_ns;
  const auto add = [&](int index) { ns += link(index).route.message_ns + bytes * link(index).route.byte_ns; };
  for_each_recv(lane, step, add);
  if (step.send >= 0) add(step.send);
  return ns * network_.slowdown(lane.rank);
}

// A rank keeps its CPU until it has nothing to do, as one that polls does.
void Engine::start_work(int index) {
  RankRun& starting = rank(index);
  while (!starting.is_busy && !starting.lanes.empty() && now_ns_ < starting.stops_ns) {
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
    lane(next).works_since_ns = now_ns_;
    if (ns > 0) return post(now_ns_ + ns, Event::kCpuDone, next);
    finish_work(next);
  }
}

// The step has been done: its messages' slots are free, its own message leaves.
void Engine::finish_work(int index) {
  LaneRun& done = lane(index);
  const Ends step = done.now();
  note({Span::kWorks, done.rank, done.index, -1, bytes_of(done), done.works_since_ns, now_ns_});
  for_each_recv(done, step, [&](int received) {
    link(received).taken++;
    to_look_at_.push_back(link(received).sender);
  });
  if (step.send >= 0) send(step.send, bytes_of(done));
  if (++done.next == done.steps.end()) {
    done.next = done.steps.begin();
    if (++done.round == rounds_ && --rank(done.rank).lanes_left == 0) {
      outcome_.ends_ns[static_cast<size_t>(done.rank)] = now_ns_;
      outcome_.ns = std::max(outcome_.ns, now_ns_);
    }
  }
  done.is_at_work = false;
  done.waits_since_ns = now_ns_;
  rank(done.rank).is_busy = false;
  to_look_at_.push_back(index);
}

// If it has nothing to do; whoever has waited longest is next.
void Engine::release_cpu(int index) {
  start_work(index);
  if (rank(index).is_busy) return;
  cpus_.give_up(index);
  for (int next = cpus_.next(index); next >= 0; next = cpus_.next(index)) {
    start_work(next);
    if (now_ns_ < rank(next).stops_ns) return;
  }
}

void Engine::send(int index, uint64_t bytes) {
  message_bytes(index, link(index).sent++) = bytes;
  outcome_.messages++;
  outcome_.bytes += bytes;
  if (link(index).begun == link(index).ended) begin_flows(index);
}

// A link sends one message at a time. Those without bytes are there after the latency.
void Engine::begin_flows(int index) {
  Link& begun = link(index);
  while (begun.begun < begun.sent) {
    const uint64_t bytes = message_bytes(index, begun.begun++);
    begun.begun_ns = now_ns_;
    if (bytes > 0) return flows_.begin(index, begun.route, bytes, now_ns_);
    begun.ended++;
    post(now_ns_ + begun.route.latency_ns, Event::kArrives, index);
  }
}

void Engine::flow_ended(int index) {
  Link& ended = link(index);
  flows_.end(index);
  ended.version++;
  const int sender_lane = lane(ended.sender).index;
  note({Span::kMessage, ended.from, sender_lane, ended.to, message_bytes(index, ended.ended), ended.begun_ns, now_ns_});
  ended.ended++;
  post(now_ns_ + ended.route.latency_ns, Event::kArrives, index);
  begin_flows(index);
}

void Engine::settle() {
  for (const Flows::Change& change : flows_.settle(now_ns_))
    post(change.ends_ns, Event::kFlowEnds, change.id, ++link(change.id).version);
}

void Engine::note(Span span) {
  if (job_.traces && span.end_ns > span.begin_ns) outcome_.spans.push_back(span);
}

// What the first ranks did, the others did too.
void Engine::stand_for_all() {
  const auto times = static_cast<uint64_t>(network_.n_ranks() / n_first_);
  outcome_.messages *= times;
  outcome_.bytes *= times;
  for (size_t r = static_cast<size_t>(n_first_); r < ranks_.size(); r++)
    outcome_.ends_ns[r] = outcome_.ends_ns[r - static_cast<size_t>(n_first_)];
  for (size_t wire = 0; wire < outcome_.wire_bytes.size(); wire++)
    outcome_.wire_bytes[wire] =
        outcome_.wire_bytes[static_cast<size_t>(network_.first_wire(static_cast<int>(wire), n_first_))];
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
