#include <map>

#include "schedule/schedule.h"

namespace tutti {
namespace {

struct Sender {
  uint32_t from = 0;      // the step after its last placeable message
  uint32_t messages = 0;  // its own since then, less the messages from everyone before then
};

}  // namespace

std::vector<Placeable> placeable_messages(std::span<const Step> steps) {
  std::vector<Placeable> found;
  std::map<int32_t, Sender> senders;
  uint32_t from_everyone = 0;
  for (uint32_t s = 0; s < steps.size(); s++) {
    const Step& step = steps[s];
    from_everyone += step.recv == kEveryone;
    if (step.recv < 0) continue;
    Sender& sender = senders[step.recv];
    const bool only_stored = step.before.buffer == Buffer::kNone && step.local.buffer == Buffer::kNone;
    if (only_stored && step.store.buffer == Buffer::kOutput) {
      found.push_back({s, sender.from, sender.messages + from_everyone});
      sender = {s + 1, 0 - from_everyone};
    } else {
      sender.messages++;
    }
  }
  return found;
}

}  // namespace tutti
