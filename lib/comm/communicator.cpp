#include "comm/communicator.h"

#include <poll.h>

#include "base/clock.h"
#include "base/contained.h"
#include "base/env.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "debug/trace_json.h"

namespace tutti {
Result<CommOptions> CommOptions::from_env() {
  TUTTI_TRY(env_check());
  CommOptions options;
  TUTTI_TRY_ASSIGN(const int64_t init_seconds, env_int(Env::kInitTimeout));
  TUTTI_TRY_ASSIGN(const int64_t op_seconds, env_int(Env::kOpTimeout));
  options.init_timeout_seconds = static_cast<double>(init_seconds);
  options.op_timeout_seconds = static_cast<double>(op_seconds);
  options.transports = env_string(Env::kTransports);
  options.algo = env_string(Env::kAlgo);
  options.trace_file = env_string(Env::kTraceFile);
  options.metrics_file = env_string(Env::kMetricsFile);
  options.lends = env_string(Env::kProto) != "copy";
  TUTTI_TRY_ASSIGN(const int64_t deterministic, env_int(Env::kDeterministic));
  TUTTI_TRY_ASSIGN(const int64_t encrypt, env_int(Env::kEncrypt));
  options.deterministic = deterministic != 0;
  options.encrypt = encrypt != 0;
  return options;
}

Communicator::Communicator(int rank, int n_ranks, const CommOptions& options, Algo forced)
    : rank_(rank), n_ranks_(n_ranks), options_(options), forced_(forced) {
  wait_policy_.op_timeout_seconds = options.op_timeout_seconds;
}

Communicator::~Communicator() {
  device_.reset();
  if (!watch_) return;
  if (options_.cuda_device < 0) watch_->tell(comparison_.farewell(standing(Standing::Doing::kLeft)));
  watch_->say_goodbye(sequence_);
}

Result<void> Communicator::run(uint64_t ticket, const Operation& operation) {
  const Turnstile::Turn turn(*turnstile_, ticket);
  return execute(operation);
}

Result<void> Communicator::check_open() {
  if (watch_->failed()) {
    keep_trace(watch_->failure());
    return watch_->failure();
  }
  if (finalized_)
    return Error{Code::kInvalidUsage,
                 "this communicator was finalized: only tuttiCommDestroy and tuttiCommAbort may follow"};
  return {};
}

Result<void> Communicator::execute(const Operation& operation) {
  TUTTI_TRY(check_open());
  if (operation.collective == Collective::kSendRecv) return end_with(drive_exchange(operation));
  if (operation.collective == Collective::kAllReduceQuantized) return end_with(drive_quantised(operation));
  const CallKey key(operation);
  Settled& settled = place_of(key);
  if (operation.unequal == nullptr && settled.is_for(key))
    begin(settled, operation.caller, operation.created);
  else if (auto result = settle(operation); !result)
    return end_with(std::move(result));
  if (!settled.small || !settled.small.advance(sequence_, operation.input, operation.output, turns()))
    return end_with(drive_program(*settled.program, settled.call, operation, settled.small.steps_done()));
  recorder_.end();
  return {};
}

inline Communicator::Settled& Communicator::place_of(const CallKey& key) {
  return settled_[key.hash() % settled_.size()];
}

inline void Communicator::begin(Settled& settled, const void* caller, uint64_t created) {
  recorder_.begin(settled.recorded, ++sequence_, caller, created);
}

Communicator::Repeated Communicator::repeat(const CallKey& key, const void* input, void* output,
                                            const void* caller) noexcept {
  Settled& settled = place_of(key);
  if (!settled.is_for(key) || !settled.small || !settled.buffers.fit(input, output) || watch_->failed())
    return Repeated::kNo;
  begin(settled, caller, 0);
  if (!settled.small.advance(sequence_, input, output, turns())) return finish(settled, input, output);
  recorder_.end();
  return Repeated::kYes;
}

// What its SmallRun has left of it.
Communicator::Repeated Communicator::finish(Settled& settled, const void* input, void* output) noexcept {
  const Call& call = settled.call;
  const Operation operation{call.collective, input, output, call.count, call.dtype, call.op, call.root};
  auto result = contained([&] { return drive_program(*settled.program, call, operation, settled.small.steps_done()); });
  return end_with(std::move(result)) ? Repeated::kYes : Repeated::kFailed;
}

// What an operation is planned for. Unequal blocks count together.
uint64_t Communicator::planned_bytes(const Operation& operation) const {
  const uint64_t ranks = operation.unequal == nullptr ? 1 : static_cast<uint64_t>(n_ranks_);
  return operation.count / ranks * dtype_bytes(operation.dtype);
}

Result<void> Communicator::settle(const Operation& operation) {
  Call call = to_call(operation);
  call.sequence = ++sequence_;
  const Plan plan = planner_->choose(call, planned_bytes(operation));
  call.algo = plan.algo;
  call.lanes = plan.lanes;
  recorder_.begin(to_tag(call), sequence_, operation.caller, operation.created);
  if (operation.unequal != nullptr) comparison_.add(call, operation.unequal);
  TUTTI_TRY_ASSIGN(Program * program, find_program(call));
  const CallKey key(operation);
  Settled& settled = place_of(key);
  settled.repeats = operation.unequal == nullptr && device_ == nullptr;
  settled.program = program;
  settled.key = key;
  settled.call = call;
  settled.recorded = to_tag(call);
  settled.small.clear();
  if (operation.unequal != nullptr) return {};
  settled.buffers = *buffers_of(call.collective, call.count, call.dtype, call.root, rank_, n_ranks_);
  settled.small.prepare(*program, call, n_ranks_);
  return {};
}

// An operation that failed ends the group.
Result<void> Communicator::end_with(Result<void> result) {
  recorder_.end(static_cast<bool>(result));
  if (result) return result;
  watch_->fail(root_cause(std::move(result).error()));
  Error reason = watch_->failure();  // a peer's notice may have come first: then that is the reason, now and later
  keep_trace(reason);
  return reason.code == Code::kRemoteError ? with_places(std::move(reason)) : reason;
}

// Of a group that has ended, once.
void Communicator::keep_trace(const Error& reason) {
  if (!recorder_.fail(reason.message)) return;
  write_trace_file(recorder_, options_.trace_file);
  if (metrics_) metrics_->write();
}

Result<void> Communicator::drive_program(Program& program, const Call& call, const Operation& operation,
                                         size_t steps_done) {
  doing_ = Standing::Doing::kCalls;
  BoundCall what{call, {}, {}, operation.input, operation.output, rank_, n_ranks_, stream_from_bytes_};
  what.call.sequence = sequence_;
  what.blocks.uniform_elems = operation.count;
  if (call.op == RedOp::kPreMulSum && traits(call.collective).reduces)
    what.scalar = operation.scalar_at != nullptr ? operation.scalar_at : operation.scalar.data();
  static constexpr uint64_t kAtStart[1] = {0};
  if (operation.unequal != nullptr) {
    const bool gathers = operation.collective == Collective::kAllGather;
    what.blocks.elems = operation.unequal->elems;
    what.blocks.input_at = gathers ? std::span<const uint64_t>(kAtStart) : operation.unequal->at;
    what.blocks.output_at = gathers ? operation.unequal->at : std::span<const uint64_t>(kAtStart);
  }
  what.lends = options_.lends;
  const bool sums_in_parts = call.collective == Collective::kReduce && call.algo == Algo::kDirect && call.lanes > 1;
  what.one_way = traits(call.collective).has_root && !sums_in_parts &&
                 what.blocks.largest() * dtype_bytes(call.dtype) >= kOneWayFromBytes;
  Run run(program, what, recorder_);
  if (steps_done > 0) run.skip(steps_done);
  driven_ = &run;
  return has_driven(run, drive(run, *this, wait_policy_));
}

// Who finds that another rank has called something else asks for what messages do not tell before the group ends.
Result<void> Communicator::has_driven(const Run& run, Result<void> result) {
  constexpr int kAnswerMs = 1000;
  driven_ = nullptr;
  if (result || run.differs_in() == 0 || watch_->failed()) return result;
  watch_->ask(comparison_.question(run.differs_in()), result.error(), kAnswerMs);
  return watch_->failure();
}

// An operation's first use of an algorithm and root may need links that are not there. Before waiting for a peer to
// make them, all ranks agree over the links that exist that they are in the same call: a mismatch is found here too.
Result<Program*> Communicator::find_program(const Call& call) {
  const ProgramKey key{call.collective, call.algo, call.lanes, call.root};
  if (!programs_.contains(key)) {
    TUTTI_TRY(drive_program(programs_.at(key_of(kTreePlan)), call, Operation{}));
    TUTTI_TRY(add_program(key, Deadline::after_seconds(options_.op_timeout_seconds)));
  }
  return &programs_.at(key);  // elements of a map stay where they are
}

Result<void> Communicator::add_program(const ProgramKey& key, Deadline deadline,
                                       const std::function<bool()>& gives_up) {
  const auto& [collective, algo, lanes, root] = key;
  const Schedule schedule = planner_->schedule(collective, {algo, lanes}, root);
  const auto has_ended = [&] { return watch_->failed() || (gives_up && gives_up()); };
  TUTTI_TRY(links_->connect(schedule, deadline, has_ended));
  if (watch_->failed()) return watch_->failure();
  if (has_ended()) return Error{Code::kRemoteError, "a rank was lost while links were being made"};
  keep_program(key, bind_program(schedule, sizes_, std::bind_front(&LinkPool::find, links_.get())));
  return {};
}

void Communicator::keep_program(const ProgramKey& key, Program program) {
  scratch_bytes_ += program.scratch.size();
  programs_[key] = std::move(program);
}

Result<void> Communicator::failure_soon() const {
  constexpr int kGraceMs = 300;
  pollfd p{watch_->wake_fd(), POLLIN, 0};
  if (!watch_->failed()) ::poll(&p, 1, kGraceMs);
  return async_error();
}

Error Communicator::root_cause(Error error) {
  const auto cause = error.code == Code::kRemoteError ? failure_soon() : async_error();
  if (!cause) return cause.error();
  if (const auto operations = watch_->departed(error.culprit_rank))
    error.message =
        format("%s destroyed its communicator after %llu operations; %s", watch_->rank_name(error.culprit_rank).c_str(),
               static_cast<unsigned long long>(*operations), error.message.c_str());
  return error;
}

Result<void> Communicator::finalize(uint64_t ticket) {
  const Turnstile::Turn turn(*turnstile_, ticket);
  if (finalized_) return {};
  Operation operation;
  operation.collective = Collective::kFinalize;
  operation.caller = caller_or_place(nullptr);
  auto result = execute(operation);
  finalized_ = true;
  links_->count_resent();
  if (result && metrics_) metrics_->write();
  for (Settled& settled : settled_) settled.repeats = false;
  return result;
}

void Communicator::abort(const char* function) {
  const Error mine{Code::kInvalidUsage, std::string(function) + " was called on this rank", rank_};
  const std::string place = in_parentheses(place_name(place_of_thread()));
  watch_->fail(mine, {Code::kRemoteError, watch_->rank_name(rank_) + " called " + function + place, rank_});
  keep_trace(mine);
}

Result<void> Communicator::async_error() const {
  if (watch_->failed()) return watch_->failure();
  return {};
}

Communicator::Holdings Communicator::holdings() const {
  return {links_->links(), links_->link_bytes(), scratch_bytes_, links_->descriptors() + watch_->descriptors()};
}

}  // namespace tutti
