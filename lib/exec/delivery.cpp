// A Run on a device: bytes go from one registration to another, and nothing is computed.
#include <bit>

#include "exec/run.h"

namespace tutti {
namespace {

Error not_registered(const void* data, int peer) {
  return {Code::kSystemError,
          format("the network device can no longer move the bytes at %p in GPU memory from or to rank %d: "
                 "TUTTI_GPU_DIRECT=0 sends them through host memory",
                 data, peer),
          peer};
}

}  // namespace

bool Run::deliver(BoundLane& lane) {
  const BoundStep& step = lane.steps[lane.next];
  const LoweredStep lowered = lower(lane, step);
  if (step.send == nullptr) return take_delivery(lane, step, lowered);
  const char* const data = lowered.bytes > 0 ? program_.workspace.address(lowered.sources[0]) : nullptr;
  void* unused = nullptr;
  lane.expecting = step.send->acquire(data, lowered.bytes, data != nullptr ? TUTTI_REQUIRED : TUTTI_NOT_POSTED,
                                      &unused) == TUTTI_NO_ROOM;
  if (lane.expecting) return false;
  if (step.send->publish(data, lowered.bytes, std::bit_cast<tuttiTag>(tag_of(step))) != 0) return true;
  return fail(not_registered(data, step.send->peer()));
}

bool Run::take_delivery(BoundLane& lane, const BoundStep& step, const LoweredStep& lowered) {
  Link& link = *step.recvs[0];
  char* const to = program_.workspace.address(lowered.store);
  if (!messages_are_there(step)) {
    if (!lane.expecting && lowered.bytes > 0 && !link.post(0, to, lowered.bytes, true))
      error_ = not_registered(to, link.peer());
    lane.expecting = true;
    return false;
  }
  if (!accept_messages(step, lowered.bytes)) return false;
  if (lowered.bytes > 0 && program_.workspace.messages[0].data != to)
    return fail({Code::kInternalError, format("the message from rank %d is not at the requested address", link.peer()),
                 link.peer()});
  link.release();
  return true;
}

}  // namespace tutti
