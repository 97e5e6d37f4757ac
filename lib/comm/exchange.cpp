// Point-to-point messages: a schedule made for the occasion, whose blocks are the messages.
#include <algorithm>

#include "base/clock.h"
#include "comm/communicator.h"

namespace tutti {
namespace {

// Their links are apart from those of the collectives, so that a message may wait for its receive while collectives
// run; and notes have theirs, so that they may overtake messages.
constexpr uint32_t kPointToPointChannel = 1000, kNotesChannel = 2000;
// What goes from GPU to GPU needs links of its own kind.
constexpr uint32_t kDirectChannel = 3000;
// Several quantised all-reduces may pass between two ranks while one's messages wait for their receive.
constexpr uint32_t kQuantisedChannel = 4000;

}  // namespace

// What an exchange hands to the executor. Sends come first, as input blocks, then receives, as output blocks.
struct Communicator::Exchange {
  Transfers transfers;
  std::vector<uint64_t> bytes, input_at, output_at;
  std::vector<TagWords> tags;

  template <class CallOf>
  Exchange(const std::vector<Message>& messages, CallOf&& call_of) {
    for (const bool sends : {true, false})
      for (const Message& m : messages)
        if (m.sends == sends) add(m, call_of(m));
  }

  void add(const Message& m, const Call& call) {
    auto& list = m.sends ? transfers.sends : transfers.receives;
    auto& at = m.sends ? input_at : output_at;
    list.push_back({m.peer, static_cast<uint32_t>(list.size())});
    at.push_back(reinterpret_cast<uintptr_t>(m.data));
    bytes.push_back(m.count * dtype_bytes(m.dtype));
    tags.push_back(to_tag(call));
  }

  static Call numbered(const Message& m, uint64_t sequence) {
    Call call;
    call.collective = Collective::kSendRecv;
    call.sequence = sequence;
    call.count = m.count;
    call.dtype = m.dtype;
    return call;
  }
};

Call Communicator::next_call(const Message& m) {
  return Exchange::numbered(m, m.peer == rank_ ? 0 : ++(m.sends ? sent_to_ : received_from_)[m.peer]);
}

// As it is told to people.
Call Communicator::to_recorded(const std::vector<Message>& messages) {
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

Result<void> Communicator::drive_exchange(const Operation& operation) {
  const std::vector<Message>& messages = *operation.messages;
  recorder_.begin(to_tag(to_recorded(messages)), exchanges_ + 1, operation.caller, operation.created);
  const Exchange exchange(messages, [&](const Message& m) { return next_call(m); });
  exchanges_++;
  doing_ = Standing::Doing::kPasses;
  passing_ = &exchange;
  return drive_transfers(exchange, kPointToPointChannel, options_.op_timeout_seconds, nullptr);
}

Result<void> Communicator::pass_quantised(const Call& call, const std::vector<Message>& messages) {
  const Exchange exchange(messages, [&](const Message&) { return call; });
  doing_ = Standing::Doing::kCalls;
  return drive_transfers(exchange, kQuantisedChannel, options_.op_timeout_seconds, nullptr);
}

Result<void> Communicator::check_direct(const void* memory, size_t bytes) {
  const Turnstile::Turn turn(*turnstile_, turnstile_->take_ticket());
  return links_->check_delivery(memory, bytes);
}

void Communicator::forget_direct() {
  const Turnstile::Turn turn(*turnstile_, turnstile_->take_ticket());
  links_->forget_delivery();
}

Result<void> Communicator::connect_direct() {
  const Turnstile::Turn turn(*turnstile_, turnstile_->take_ticket());
  std::vector<Message> messages;
  for (int peer = 0; peer < n_ranks_; peer++)
    if (peer != rank_) messages.insert(messages.end(), {{true, peer}, {false, peer}});
  const Exchange exchange(messages, [](const Message& m) { return Exchange::numbered(m, 0); });
  Schedule schedule = send_recv(n_ranks_, rank_, exchange.transfers, 1);
  for (Lane& lane : schedule.lanes) lane.channel += kDirectChannel;
  const Deadline deadline = Deadline::after_seconds(options_.init_timeout_seconds);
  return end_with(links_->connect(
      schedule, deadline, [this] { return watch_->failed(); }, true));
}

Result<void> Communicator::move_directly(const Operation& operation, const std::vector<Message>& messages) {
  const Turnstile::Turn turn(*turnstile_, turnstile_->take_ticket());
  TUTTI_TRY(check_open());
  Call call = to_call(operation);
  const bool is_exchange = is_point_to_point(call);
  if (!is_exchange) {
    call.sequence = ++sequence_;
    call.algo = Algo::kDirect;
    recorder_.begin(to_tag(call), sequence_, operation.caller, operation.created);
    if (operation.unequal != nullptr) comparison_.add(call, operation.unequal);
  }
  const Exchange exchange(messages, [&](const Message& m) { return is_exchange ? next_call(m) : call; });
  return end_with(drive_transfers(exchange, kDirectChannel, options_.op_timeout_seconds, &call));
}

Result<void> Communicator::pass_notes(uint64_t ticket, const std::vector<Message>& notes, double timeout_seconds,
                                      const std::string& purpose) {
  const Turnstile::Turn turn(*turnstile_, ticket);
  TUTTI_TRY(check_open());
  const Exchange exchange(notes, [](const Message& m) { return Exchange::numbered(m, 0); });
  doing_ = Standing::Doing::kOther;
  auto result = drive_transfers(exchange, kNotesChannel, timeout_seconds, nullptr);
  if (result || result.error().code != Code::kTimeout) return end_with(std::move(result));
  std::string peers;
  for (const Message& m : notes) peers += format("%s%d", peers.empty() ? "" : " or ", m.peer);
  result.error().message = format("%s: rank %d has waited %.0f s (TUTTI_INIT_TIMEOUT) for rank %s", purpose.c_str(),
                                  rank_, timeout_seconds, peers.c_str());
  return end_with(std::move(result));
}

Result<void> Communicator::drive_transfers(const Exchange& exchange, uint32_t first_channel, double timeout_seconds,
                                           const Call* on_device) {
  Schedule schedule = send_recv(n_ranks_, rank_, exchange.transfers, 1);
  for (Lane& lane : schedule.lanes) lane.channel += first_channel;
  links_->request(schedule, on_device != nullptr);
  const MessageSizes sizes = on_device != nullptr ? MessageSizes{TUTTI_DELIVERY_MAX_BYTES} : sizes_;
  Program program = bind_program(schedule, sizes, std::bind_front(&LinkPool::find, links_.get()));
  program.step_by_step = true;
  program.on_device = on_device != nullptr;

  // Everything is bytes here: messages of one exchange may differ in type.
  Call call;
  call.collective = Collective::kSendRecv;
  if (on_device != nullptr) call = *on_device;
  BoundCall what{call, {}, {}, nullptr, nullptr, rank_, n_ranks_, stream_from_bytes_};
  what.blocks.elems = exchange.bytes;
  what.blocks.input_at = exchange.input_at;
  what.blocks.output_at = exchange.output_at;
  what.tags = exchange.tags;
  what.lends = options_.lends;
  what.one_way = (exchange.transfers.sends.empty() || exchange.transfers.receives.empty()) &&
                 what.blocks.largest() >= kOneWayFromBytes;
  if (program.lanes.empty()) return {};
  Run run(program, what, recorder_);
  driven_ = &run;
  auto made = make_links(run, schedule, Deadline::after_seconds(timeout_seconds), on_device != nullptr);
  if (!made) {
    driven_ = nullptr;
    run.recall();
    return made;
  }
  WaitPolicy policy = wait_policy_;
  policy.op_timeout_seconds = timeout_seconds;
  return has_driven(run, drive(run, *this, policy));
}

// Meanwhile the exchange goes on over those that are there: a peer that calls its messages one by one may offer its
// link only after it has what this rank sends.
Result<void> Communicator::make_links(Run& run, const Schedule& schedule, Deadline deadline, bool on_device) {
  Result<void> well;
  int64_t idle_since_ns = now_ns();
  const auto is_interrupted = [&] {
    if (watch_->failed()) return true;
    const Run::Poll state = on_device ? Run::Poll::kIdle : run.advance();
    if (state == Run::Poll::kProgress) idle_since_ns = now_ns();
    well = state == Run::Poll::kFailed ? Result<void>(run.error()) : run.blockers().poll();
    if (well) well = check_stalled(now_ns() - idle_since_ns);
    return !well;
  };
  TUTTI_TRY(links_->connect(schedule, deadline, is_interrupted, on_device));
  if (watch_->failed()) return watch_->failure();
  return well;
}

Standing Communicator::standing(Standing::Doing doing) const {
  Standing s;
  s.rank = rank_;
  s.doing = doing;
  s.call = recorder_.find(sequence_);
  s.place = doing == Standing::Doing::kPasses ? recorder_.last_place_text() : recorder_.place_text(sequence_);
  s.begun = sequence_ + exchanges_;
  std::map<int, Standing::Count> counts;
  for (const auto& [peer, n] : sent_to_) counts[peer].sent = n;
  for (const auto& [peer, n] : received_from_) counts[peer].received = n;
  for (auto& [peer, count] : counts) {
    count.peer = peer;
    s.counts.push_back(count);
  }
  return s;
}

Standing Communicator::stalled(int64_t idle_ns) const {
  Standing s = standing(device_ != nullptr ? Standing::Doing::kOther : doing_);
  s.idle_ns = static_cast<uint64_t>(idle_ns);
  if (s.doing == Standing::Doing::kPasses) s.passed_at_once = static_cast<uint32_t>(passing_->tags.size());
  for (const Blockers::Awaited& a : driven_->blockers().awaited()) {
    const Call call = from_tag(a.tag);
    s.awaited.push_back({a.sends, a.peer, call.sequence, call.count, call.dtype});
  }
  return s;
}

// Who waits for long says in what. So ranks that wait for each other because they differ, a broadcast's say, of which
// each takes another one for the root, or in a message and a collective, come to know it: messages cannot tell them,
// because nobody sends any.
Result<void> Communicator::check_stalled(int64_t idle_ns) {
  constexpr int64_t kLongNs = 100'000'000, kPauseNs = 50'000'000;
  TUTTI_TRY(comparison_.check());
  if (idle_ns <= kLongNs) next_look_ns_ = 0;
  if (idle_ns <= kLongNs || idle_ns < next_look_ns_) return {};
  next_look_ns_ = idle_ns + kPauseNs;
  Standing mine = stalled(idle_ns);
  std::vector<Recorder::Awaited> awaited;
  for (const Standing::Awaited& a : mine.awaited) awaited.push_back({a.peer, a.sends});
  recorder_.waits(idle_ns, awaited);
  TUTTI_TRY_ASSIGN(const std::string word, comparison_.look(std::move(mine)));
  if (!word.empty()) watch_->tell(word);
  if (!inquiry_.is_due(idle_ns)) return {};
  if (const std::string question = inquiry_.question(); !question.empty()) watch_->tell(question);
  recorder_.finds(explain_wait());
  return {};
}

}  // namespace tutti
