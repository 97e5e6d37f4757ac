// A Run on a device: bytes go from one registration to another, and nothing is computed.
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
  if (step.send->try_acquire() == nullptr) return false;
  if (lowered.bytes == 0) {
    send(step, 0, nullptr, nullptr);
    return true;
  }
  const char* const data = program_.address(lowered.sources[0]);
  const int delivered = step.send->deliver(data, lowered.bytes, pack(tag_of(step)));
  lane.expecting = delivered == 0;
  if (delivered < 0) error_ = not_registered(data, step.send->peer());
  return delivered > 0;
}

bool Run::take_delivery(BoundLane& lane, const BoundStep& step, const LoweredStep& lowered) {
  Link& link = *step.recvs[0];
  char* const to = program_.address(lowered.store);
  if (!messages_are_there(step)) {
    if (!lane.expecting && lowered.bytes > 0 && !link.demand(to, lowered.bytes))
      error_ = not_registered(to, link.peer());
    lane.expecting = true;
    return false;
  }
  if (!accept_messages(step, lowered.bytes)) return false;
  if (lowered.bytes > 0 && program_.messages[0].data != to) {
    error_ = {Code::kInternalError,
              format("the message from rank %d is not at the address that was asked for", link.peer()), link.peer()};
    return false;
  }
  link.release();
  return true;
}

}  // namespace tutti
