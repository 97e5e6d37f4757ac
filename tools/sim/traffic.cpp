#include "tools/sim/traffic.h"

#include <algorithm>

namespace tutti::sim {

Traffic::Traffic(const Network& network, int n_first, Events* events)
    : network_(network),
      sizes_(network.sizes()),
      n_first_(n_first),
      events_(*events),
      flows_(network),
      wire_bytes_(network.wires().size(), 0),
      moved_(static_cast<size_t>(network.n_hosts()), 0) {
  for (size_t wire = 0; wire < wire_bytes_.size(); wire++)
    shapers_.emplace_back(network.wires()[wire], network.burst_bytes(static_cast<int>(wire)));
}

void Traffic::add_link(int from, int to, double far_byte_ns) {
  Link added{.from = from, .to = to, .route = network_.route(from, to, n_first_)};
  Route& route = added.route;
  route.byte_ns += far_byte_ns;
  // A kernel keeps all that it sends by one NIC in one queue.
  if (!network_.cluster().links.rdma && !is_local(added)) {
    added.nic = route.wires[0];
    std::shift_left(route.wires.begin(), route.wires.end(), 1);
    route.n_wires--;
  }
  links_.push_back(added);
  messages_.resize(links_.size() * sizes_.slots);
}

double Traffic::send_ns(int index, uint64_t bytes) const {
  const Route& route = link(index).route;
  return route.message_ns + static_cast<double>(bytes) * route.byte_ns;
}

// More if so much else has been moved since that the message is no longer in the caches.
double Traffic::receive_ns(int index, uint64_t bytes) const {
  const Link& from = link(index);
  const ClusterCpus& cpus = network_.cluster().cpus;
  const double since =
      moved_[static_cast<size_t>(network_.host_of(from.to))] - messages_[place_of(index, from.taken)].moved;
  const bool is_evicted = is_local(from) && cpus.cache_bytes > 0 && since > cpus.cache_bytes;
  return send_ns(index, bytes) + (is_evicted ? static_cast<double>(bytes) * cpus.evicted_byte_ns : 0);
}

double Traffic::early_ns(int index, uint64_t bytes) const {
  if (network_.cluster().links.shares_memory || !is_local(link(index)) || bytes <= sizes_.segment_bytes) return 0;
  return static_cast<double>(bytes - sizes_.segment_bytes) * link(index).route.byte_ns;
}

void Traffic::send_early(int index, uint64_t bytes, double early_ns, double leaves_ns) {
  post(index, bytes, leaves_ns);
  events_.post(leaves_ns - early_ns, Event::kLeaves, index);
}

void Traffic::send(int index, uint64_t bytes) {
  post(index, bytes, events_.now_ns());
  link(index).nic < 0 ? leave(index) : leave_in_turn(index);
}

void Traffic::post(int index, uint64_t bytes, double leaves_ns) {
  Link& sending = link(index);
  double& moved = moved_[static_cast<size_t>(network_.host_of(sending.from))];
  moved += static_cast<double>(bytes);
  messages_[place_of(index, sending.sent++)] = {bytes, leaves_ns, moved, 0};
  n_messages_++;
  n_bytes_ += bytes;
}

void Traffic::leave_in_turn(int index) {
  const Link& from = link(index);
  Message& leaving = messages_[place_of(index, from.sent - 1)];
  const double now_ns = events_.now_ns();
  Shaper& nic = shapers_[static_cast<size_t>(from.nic)];
  const double begins_ns = nic.free_ns(now_ns);
  nic.take(leaving.bytes, now_ns);
  leaving.leaves_ns = nic.free_ns(now_ns);
  const int in = from.route.used().back();
  leaving.at_once = shapers_[static_cast<size_t>(in)].take(leaving.bytes, begins_ns);
  wire_bytes_[static_cast<size_t>(from.nic)] += leaving.bytes;
  events_.post(begins_ns, Event::kLeaves, index);
}

void Traffic::leave(int index) {
  Link& leaving = link(index);
  leaving.left++;
  if (leaving.begun == leaving.ended) begin_flows(index);
}

// Messages without bytes arrive after the latency.
void Traffic::begin_flows(int index) {
  Link& begun = link(index);
  begun.begun_ns = events_.now_ns();
  while (begun.begun < begun.left) {
    const Message& next = messages_[place_of(index, begun.begun++)];
    if (next.bytes > 0) return flows_.begin(index, begun.route, next.bytes, next.at_once, begun.begun_ns);
    begun.ended++;
    events_.post(begun.begun_ns + begun.route.latency_ns, Event::kArrives, index);
  }
}

Span Traffic::flow_ended(int index) {
  Link& ended = link(index);
  flows_.end(index);
  const Message& came = messages_[place_of(index, ended.ended++)];
  for (const int wire : ended.route.used()) wire_bytes_[static_cast<size_t>(wire)] += came.bytes;
  const double at_ns = ended.nic < 0 ? events_.now_ns() : std::max(events_.now_ns(), came.leaves_ns);
  const Span span{Span::kMessage, ended.from, ended.sender, ended.to, came.bytes, ended.begun_ns, at_ns};
  events_.post(at_ns + ended.route.latency_ns, Event::kArrives, index);
  begin_flows(index);
  return span;
}

void Traffic::take(int index, uint64_t bytes) {
  link(index).taken++;
  const int receiver = link(index).to % n_first_;  // a link's receiver may be another rank that is like it
  moved_[static_cast<size_t>(network_.host_of(receiver))] += static_cast<double>(bytes);
}

void Traffic::settle() {
  for (const Flows::Change& change : flows_.settle(events_.now_ns()))
    events_.post(change.ends_ns, Event::kFlowEnds, change.id, ++link(change.id).version);
}

}  // namespace tutti::sim
