#include "comm/messages.h"

#include <functional>

#include "comm/stall_watch.h"

namespace tutti {
namespace {

// The first channel of each kind. Several quantised all-reduces may pass between two ranks while a message waits for
// its receive.
constexpr uint32_t kPointToPointChannel = 1000, kNotesChannel = 2000, kGpuChannel = 3000, kQuantisedChannel = 4000;

// The call that a message's tag names.
Call call_of(const Message& message, uint64_t sequence) {
  return {.sequence = sequence, .count = message.count, .collective = Collective::kSendRecv, .dtype = message.dtype};
}

// What people are shown for a batch of messages.
Call to_recorded(const std::vector<Message>& messages) {
  Call call = call_of(messages.size() == 1 ? messages[0] : Message{}, 0);
  call.blocks = messages.size();
  if (messages.size() == 1) {
    call.root = messages[0].peer;
    call.op = static_cast<RedOp>(messages[0].sends ? Direction::kSend : Direction::kReceive);
    return call;
  }
  for (const Message& m : messages) call.count += m.count * dtype_bytes(m.dtype);
  return call;
}

}  // namespace

// Messages in the executor's form: a schedule made for the occasion, whose blocks are the messages. Sends come first,
// as input blocks, then receives, as output blocks.
struct MessageBatch {
  Transfers transfers;
  std::vector<uint64_t> bytes, input_at, output_at;
  std::vector<TagWords> tags;

  template <class CallOf>
  MessageBatch(const std::vector<Message>& messages, CallOf&& call_for) {
    for (const bool sends : {true, false})
      for (const Message& m : messages)
        if (m.sends == sends) add(m, call_for(m));
  }
  void add(const Message& m, const Call& call) {
    auto& list = m.sends ? transfers.sends : transfers.receives;
    auto& at = m.sends ? input_at : output_at;
    list.push_back(m.peer);
    at.push_back(reinterpret_cast<uintptr_t>(m.data));
    bytes.push_back(m.count * dtype_bytes(m.dtype));
    tags.push_back(to_tag(call));
  }
  // Uses separate links, from this channel on.
  Schedule schedule(int n_ranks, int rank, uint32_t first_channel) const {
    Schedule schedule = send_recv(n_ranks, rank, transfers);
    for (Lane& lane : schedule.lanes) lane.channel += first_channel;
    return schedule;
  }
};

Call Messages::next_call(const Message& m) {
  if (m.peer == me_.rank) return call_of(m, 0);
  Standing::Count& with = monitor_.begun().messages[m.peer];
  return call_of(m, ++(m.sends ? with.sent : with.received));
}

Result<void> Messages::run(const Operation& operation) {
  const std::vector<Message>& messages = *operation.messages;
  if (messages.empty()) return {};  // it only has its turn
  Begun& begun = monitor_.begun();
  monitor_.recorder().begin(to_tag(to_recorded(messages)), begun.exchanges + 1, operation.caller, operation.created);
  const MessageBatch batch(messages, [&](const Message& m) {
    Call call = next_call(m);
    if (m.in_order) call.blocks = begun.sequence + 1;
    return call;
  });
  begun.exchanges++;
  return pass(batch, {kPointToPointChannel, Standing::Doing::kPasses, me_.options.op_timeout_seconds});
}

Result<void> Messages::pass_quantised(const Call& call, const std::vector<Message>& messages, Meanwhile& meanwhile) {
  const MessageBatch batch(messages, [&](const Message&) { return call; });
  return pass(batch, {kQuantisedChannel, Standing::Doing::kCalls, me_.options.op_timeout_seconds, nullptr, &meanwhile});
}

Result<void> Messages::pass_notes(const std::vector<Message>& notes, double timeout_seconds,
                                  const std::string& purpose) {
  const MessageBatch batch(notes, [](const Message& m) { return call_of(m, 0); });
  auto result = pass(batch, {kNotesChannel, Standing::Doing::kOther, timeout_seconds});
  if (result || result.error().code != Code::kTimeout) return result;
  std::string peers;
  for (const Message& m : notes) peers += format("%s%d", peers.empty() ? "" : " or ", m.peer);
  result.error().message =
      format("%s: rank %d has waited %.0f s (TUTTI_INIT_TIMEOUT or the configuration's initTimeoutSeconds) for rank %s",
             purpose.c_str(), me_.rank, timeout_seconds, peers.c_str());
  return result;
}

Result<void> Messages::connect_gpus() {
  std::vector<Message> messages;
  for (int peer = 0; peer < me_.n_ranks; peer++)
    if (peer != me_.rank) messages.insert(messages.end(), {{true, peer}, {false, peer}});
  const MessageBatch batch(messages, [](const Message& m) { return call_of(m, 0); });
  const Schedule schedule = batch.schedule(me_.n_ranks, me_.rank, kGpuChannel);
  const Deadline deadline = Deadline::after_seconds(me_.options.init_timeout_seconds);
  return links_.connect(
      schedule, deadline, [this] { return monitor_.failed(); }, true);
}

Result<void> Messages::pass_between_gpus(const Operation& operation, const std::vector<Message>& messages) {
  Call call = to_call(operation);
  const bool is_exchange = is_point_to_point(call);
  if (!is_exchange) call = monitor_.begin(operation, Algo::kDirect);
  const MessageBatch batch(messages, [&](const Message& m) { return is_exchange ? next_call(m) : call; });
  return pass(batch, {kGpuChannel, Standing::Doing::kOther, me_.options.op_timeout_seconds, &call});
}

// A batch begins over the links that exist: a peer that issues its messages one by one may offer its link only after it
// has received what this rank sends.
Result<void> Messages::pass(const MessageBatch& batch, const Passing& how) {
  const bool on_device = how.on_device != nullptr;
  const Schedule schedule = batch.schedule(me_.n_ranks, me_.rank, how.first_channel);
  links_.request(schedule, how.doing != Standing::Doing::kCalls, on_device);
  const MessageSizes sizes = on_device ? MessageSizes{TUTTI_DELIVERY_MAX_BYTES} : me_.sizes;
  Program program = bind_program(schedule, sizes, std::bind_front(&LinkPool::find, &links_));
  program.step_by_step = true;
  program.on_device = on_device;

  // Everything is bytes here: messages of one batch may differ in type.
  const Call call = on_device ? *how.on_device : Call{.collective = Collective::kSendRecv};
  BoundCall what{call, {}, batch.tags, nullptr, nullptr, me_.rank, me_.n_ranks, me_.stream_from_bytes};
  what.blocks = {0, batch.bytes, batch.input_at, batch.output_at};
  what.exposes.any = me_.options.exposes;
  what.one_way = (batch.transfers.sends.empty() || batch.transfers.receives.empty()) &&
                 what.blocks.largest() >= me_.one_way_from_bytes;
  if (program.lanes.empty()) return {};
  Run run(program, what, monitor_.recorder());
  const auto doing = me_.is_on_gpu() ? Standing::Doing::kOther : how.doing;
  StallWatch watch(monitor_, links_, run, doing, doing == Standing::Doing::kPasses ? batch.tags.size() : 0);
  return monitor_.has_driven(run, drive(run, watch, {links_.yielding(), how.timeout_seconds}, how.meanwhile));
}

}  // namespace tutti
