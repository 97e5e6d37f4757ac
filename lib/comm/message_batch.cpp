#include "comm/message_batch.h"

#include "debug/recorder.h"

namespace tutti {

void MessageBatch::add(const Message& m, const Call& call) {
  auto& list = m.sends ? transfers.sends : transfers.receives;
  auto& at = m.sends ? input_at : output_at;
  list.push_back({m.peer, static_cast<uint32_t>(list.size())});
  at.push_back(reinterpret_cast<uintptr_t>(m.data));
  bytes.push_back(m.count * dtype_bytes(m.dtype));
  tags.push_back(to_tag(call));
}

Schedule MessageBatch::schedule(int n_ranks, int rank, uint32_t first_channel) const {
  Schedule schedule = send_recv(n_ranks, rank, transfers, 1);
  for (Lane& lane : schedule.lanes) lane.channel += first_channel;
  return schedule;
}

Call MessageBatch::call_of(const Message& message, uint64_t sequence) {
  Call call;
  call.collective = Collective::kSendRecv;
  call.sequence = sequence;
  call.count = message.count;
  call.dtype = message.dtype;
  return call;
}

Call MessageBatch::to_recorded(const std::vector<Message>& messages) {
  Call call;
  call.collective = Collective::kSendRecv;
  call.blocks = static_cast<uint32_t>(messages.size());
  if (messages.size() == 1) {
    const Message& m = messages[0];
    call.root = m.peer;
    call.count = m.count;
    call.dtype = m.dtype;
    call.op = static_cast<RedOp>(m.sends ? Direction::kSend : Direction::kReceive);
    return call;
  }
  for (const Message& m : messages) call.count += m.count * dtype_bytes(m.dtype);
  return call;
}

}  // namespace tutti
