// How a queue pair that has failed is made again when its port is up.
//
// Both ends have closed the old one and have told each other so; nothing of it is left. The sender makes a new one in
// its place and says so through the connection beside the link; the receiver makes its half and answers, or says that
// it cannot. A write of no bytes then proves that the network lets it through: a message would be stalled until all
// retries are over. The receiver uses its half when the first message has come by it.
#include "base/clock.h"
#include "base/log.h"
#include "transports/verbs/link.h"

namespace tutti::verbs {

bool Half::is_time_to_mend(size_t q) {
  State& state = states_[q];
  if (queues_[q].is_open() || !state.notice || now_ns() < state.mend_ns) return false;
  state.mend_ns = now_ns() + state.pause_ns;
  return queues_[q].port().down_because().empty();
}

void Half::replace(size_t q, Queue made) {
  queues_[q] = std::move(made);
  State fresh;
  fresh.made_ns = now_ns();
  fresh.pause_ns = states_[q].pause_ns;
  states_[q] = fresh;
}

void Half::prove(size_t q) {
  states_[q].is_proved = true;
  log(LogLevel::kInfo, "verbs link with rank %d: %s carries its share again", config_.peer,
      queues_[q].port().name().c_str());
}

void SendLink::mend() {
  for (size_t q = 0; q < queues_.size() && !failure_; q++) {
    if (next_.count(q) != 0 || !is_time_to_mend(q)) continue;
    const Queue& old = queues_[q];
    auto made =
        Queue::create(old.port(), old.port_index(), old.my_gid(), completions_[old.port_index()], writes_, receives_);
    if (!made) {
      log(LogLevel::kInfo, "verbs link with rank %d: %s", config_.peer, made.error().message.c_str());
      continue;
    }
    send_notice(Notice::kMade, q, "", made.value().address(memory_.remote_key(old.port_index())));
    next_.emplace(q, std::move(made).value());
  }
}

void SendLink::on_made(size_t q, const QueueAddress& made) {
  auto next = next_.extract(q);
  if (next.empty()) return fail("it sent a queue pair that it was not asked for");
  QueueAddress peer = made;
  peer.gid = lines_[q].your_gid;
  replace(q, std::move(next.mapped()));
  const auto connected = queues_[q].connect(peer, peer_ports_[lines_[q].your_port]);
  if (!connected) return drop(q, connected.error().message);
  if (!queues_[q].write({.n_from = 0, .to = slots_at_, .key = queues_[q].peer_key(), .signalled = true}))
    drop(q, "a write cannot be posted");
}

void SendLink::on_not_made(size_t q, const char* why) {
  next_.erase(q);
  log(LogLevel::kInfo, "verbs link with rank %d: it cannot be reached again through %s: %s", config_.peer,
      queues_[q].port().name().c_str(), why);
}

void RecvLink::on_made(size_t q, const QueueAddress& made) {
  const Queue& old = queues_[q];
  if (old.is_open() || made.port >= kMaxPorts || made.gid >= kMaxGids) return fail("it sent an invalid queue pair");
  std::string why = old.port().down_because();
  if (why.empty()) {
    auto queue = make_queue(old.port_index(), old.my_gid(), made);
    if (queue) {
      replace(q, std::move(queue).value());
      return send_notice(Notice::kMade, q, "", queues_[q].address(memory_.remote_key(queues_[q].port_index())));
    }
    why = queue.error().message;
  }
  send_notice(Notice::kClosed, q, why);
}

}  // namespace tutti::verbs
