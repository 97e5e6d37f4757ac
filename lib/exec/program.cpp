#include "exec/program.h"

namespace tutti {

Program bind(const Schedule& schedule, MessageSizes sizes, const FindLink& find_link) {
  Program program;
  program.n_chunks = std::max(1u, schedule.n_chunks);  // a barrier has none
  program.sizes = sizes;
  program.scratch.resize(static_cast<size_t>(schedule.n_scratch) * sizes.slot_bytes);
  program.may_lend = schedule.may_lend;
  for (const Lane& lane : schedule.lanes) {
    BoundLane bound;
    for (const Step& step : lane.steps) {
      BoundStep b;
      b.size = take_apart({Buffer::kNone, step.chunk}, schedule.n_chunks);
      b.before = take_apart(step.before, schedule.n_chunks);
      b.local = take_apart(step.local, schedule.n_chunks);
      b.store = take_apart(step.store, schedule.n_chunks);
      b.completes = step.completes;
      for_each_sender(schedule, step, [&](int peer) { b.recvs.push_back(find_link(peer, lane.channel, false)); });
      b.local_place =
          step.recv == kEveryone ? static_cast<uint32_t>(schedule.rank) : static_cast<uint32_t>(b.recvs.size());
      program.src.resize(std::max(program.src.size(), b.recvs.size() + 2));
      program.messages.resize(std::max(program.messages.size(), b.recvs.size()));
      if (step.send >= 0) b.send = find_link(step.send, lane.channel, true);
      if (b.send != nullptr && std::find(program.sends.begin(), program.sends.end(), b.send) == program.sends.end())
        program.sends.push_back(b.send);
      bound.steps.push_back(b);
    }
    // Only sums are written to their places: what is there already is read by its receiver, where it lies.
    const bool sums =
        std::any_of(lane.steps.begin(), lane.steps.end(), [](const Step& step) { return step.completes; });
    if (sums && schedule.may_lend)
      for (const Placeable& placeable : placeable_messages(lane))
        if (placeable.ahead > 0) bound.steps[placeable.from].expects.push_back(placeable);
    if (!bound.steps.empty()) program.lanes.push_back(std::move(bound));
  }
  return program;
}

}  // namespace tutti
