// Point-to-point messages: a schedule made for the occasion, whose blocks are the messages.
#include "comm/communicator.h"

namespace tutti {
namespace {

// Their links are apart from those of the collectives, so that a message may wait for its receive while collectives
// run.
constexpr uint32_t kPointToPointChannel = 1000;

// What an exchange hands to the executor. Sends come first, as input blocks, then receives, as output blocks.
struct Exchange {
  Transfers transfers;
  std::vector<uint64_t> bytes, input_at, output_at;
  std::vector<TagWords> tags;

  void add(const Message& m, uint64_t sequence) {
    auto& list = m.sends ? transfers.sends : transfers.receives;
    auto& at = m.sends ? input_at : output_at;
    list.push_back({m.peer, static_cast<uint32_t>(list.size())});
    at.push_back(reinterpret_cast<uintptr_t>(m.data));
    bytes.push_back(m.count * dtype_bytes(m.dtype));
    Call call;
    call.collective = Collective::kSendRecv;
    call.sequence = sequence;
    call.count = m.count;
    call.dtype = m.dtype;
    tags.push_back(to_tag(call));
  }
};

}  // namespace

Result<void> Communicator::drive_exchange(const std::vector<Message>& messages) {
  Exchange exchange;
  for (const bool sends : {true, false})
    for (const Message& m : messages)
      if (m.sends == sends) exchange.add(m, m.peer == rank_ ? 0 : ++(sends ? sent_to_ : received_from_)[m.peer]);
  Schedule schedule = send_recv(n_ranks_, rank_, exchange.transfers, 1);
  for (Lane& lane : schedule.lanes) lane.channel += kPointToPointChannel;
  const Deadline deadline = Deadline::after_seconds(options_.op_timeout_seconds);
  TUTTI_TRY(links_->connect(schedule, deadline, [this] { return watch_->failed(); }));
  if (watch_->failed()) return watch_->failure();
  Program program = bind(schedule, slot_bytes_, [this](int peer, uint32_t channel, bool sending) {
    return links_->find(peer, channel, sending);
  });
  program.step_by_step = true;

  // Everything is bytes here: messages of one exchange may differ in type.
  Call call;
  call.collective = Collective::kSendRecv;
  Run::Operation what{call, {}, {}, nullptr, nullptr, rank_, n_ranks_, stream_from_bytes_};
  what.blocks.elems = exchange.bytes;
  what.blocks.input_at = exchange.input_at;
  what.blocks.output_at = exchange.output_at;
  what.tags = exchange.tags;
  if (program.lanes.empty()) return {};
  Run run(program, what, history_);
  return drive(run, *this, wait_policy_);
}

}  // namespace tutti
