#include "exec/blockers.h"

namespace tutti {

// Calls visit(link, for_slot, step) for each link that blocks a lane. False if some lane is not blocked.
template <class Visit>
bool Blockers::for_each_blocking(Visit&& visit) const {
  bool all_blocked = true;
  for (const BoundLane& lane : program_.lanes) {
    if (lane.done()) continue;
    const BoundStep& step = lane.steps[lane.next];
    bool blocked = false;
    const auto block_on = [&](Link& link, bool for_slot) {
      visit(link, for_slot, &step);
      blocked = true;
    };
    tuttiMessage ignored;
    for (Link* link : step.recvs)
      if (!link->peek(&ignored)) block_on(*link, false);
    if (!blocked && step.send != nullptr && ((lane.expecting && step.recvs.empty()) || step.send->acquire() == nullptr))
      block_on(*step.send, true);
    all_blocked = all_blocked && blocked;
  }
  return all_blocked;
}

// The same for links with unsent messages, with a null step.
template <class Visit>
void Blockers::for_each_unsent(Visit&& visit) const {
  for (Link* link : program_.sends)
    if (link->unsent() > 0) visit(*link, true, nullptr);
}

template <class Visit>
void Blockers::for_each(Visit&& visit) const {
  for_each_blocking(visit);
  for_each_unsent(visit);
}

// Of the last message that this operation sends there.
TagWords Blockers::last_tag(const Link& link) const {
  if (!call_.tags.empty())
    for (const BoundLane& lane : program_.lanes)
      if (!lane.steps.empty() && lane.steps.back().send == &link) return call_.tag_of(lane.steps.back());
  return to_tag(call_.call);
}

Result<void> Blockers::poll() const {
  Result<void> well;
  for_each([&](Link& link, bool, const BoundStep*) {
    auto asked = is_well(link);
    if (!well || asked) return;
    well = std::move(asked);
    if (call_.call.collective != Collective::kSendRecv)  // its batch's messages are calls of their own
      well.error().message += "; this rank is in " + to_text(call_.call);
  });
  return well;
}

bool Blockers::prepare_sleep(std::vector<Sleeper>* sleepers) const {
  bool may_sleep = true;
  const auto sleep_on = [&](Link& link, bool, const BoundStep*) {
    sleepers->push_back({&link, {}});
    if (!link.wait_begin(&sleepers->back().wait)) may_sleep = false;
  };
  // These first, because they are polled, which after wait_begin() might take the news that is to wake this rank.
  for_each_unsent(sleep_on);
  const bool all_blocked = for_each_blocking(sleep_on);
  // Since advance() a message may have arrived, or the last unsent one may have left.
  return may_sleep && all_blocked && !sleepers->empty();
}

bool Blockers::awaits_one_on(int cpu) const {
  bool any = false;
  for_each([&](Link& link, bool, const BoundStep*) {
    tuttiWait wait;
    link.wait_begin(&wait);
    link.wait_end();
    any = any || (wait.peer_cpu_plus_1 != 0 && wait.peer_cpu_plus_1 == static_cast<uint32_t>(cpu + 1));
  });
  return any;
}

std::string Blockers::text() const {
  std::string text;
  for_each([&](Link& link, bool for_slot, const BoundStep*) {
    const std::string one =
        format("rank %d (%s)", link.peer(), for_slot ? "to receive what this rank sends" : "to send");
    if (text.find(one) == std::string::npos) text += (text.empty() ? "" : ", ") + one;
  });
  return text;
}

std::vector<AwaitedMessage> Blockers::awaited() const {
  std::vector<AwaitedMessage> all;
  for_each([&](Link& link, bool sends, const BoundStep* step) {
    const TagWords tag = step != nullptr ? call_.tag_of(*step) : last_tag(link);
    all.push_back({sends, link.peer(), from_tag(tag), link.is_made()});
  });
  return all;
}

}  // namespace tutti
