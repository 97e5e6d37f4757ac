#include "comm/collectives.h"

#include <algorithm>
#include <set>

#include "comm/stall_watch.h"

namespace tutti {
namespace {

std::string transports_of(const Program& program) {
  std::set<std::string> names;
  for (const Link* link : program.sends) names.insert(link->transport());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

// Where each rank's block lies in the buffers of an operation, in elements.
Blocks blocks_of(const Operation& operation) {
  static constexpr uint64_t kAtStart[1] = {0};
  if (operation.unequal == nullptr) return {.uniform_elems = operation.count};
  const std::span<const uint64_t> at = operation.unequal->at, start = kAtStart;
  const bool gathers = operation.collective == Collective::kAllGather;
  return {operation.count, operation.unequal->elems, gathers ? start : at, gathers ? at : start};
}

// Which memory of this rank others may read and write. What they have read cannot be written again without waiting for
// each cache line: so a value that this rank copies to its output is exposed where it came from (all-gathers by 2
// ranks, registered, of 64 KiB take 1.1 us instead of 2.9, of 512 KiB 8.1 instead of 12.9), except where ranks share
// CPUs, whose cache has the copy (4 ranks, 512 KiB: 42 us instead of 50). Of sums, take_place() in setup.cpp tells.
void limit_exposure(const Membership& me, BoundCall* what) {
  what->exposes = {me.options.exposes, !me.shares_cpus};
  if (traits(what->call.collective).reduces) what->exposes.outputs_from_bytes = me.expose_sums_from_bytes;
}

}  // namespace

Result<void> Collectives::connect(Deadline deadline, const std::function<bool()>& gives_up) {
  const auto has_ended = [&] { return monitor_.failed() || gives_up(); };
  for (const Algo algo : kFirst) {
    TUTTI_TRY(links_.connect(add_program(key_of(algo)).schedule, deadline, has_ended));
    TUTTI_TRY(monitor_.async_error());
    if (has_ended()) return Error{Code::kRemoteError, "a rank was lost while links were being made"};
  }
  return {};
}

Result<void> Collectives::run(const Operation& operation) {
  const CallKey key(operation);
  CachedOperation& cached = place_of(key);
  if (operation.unequal == nullptr && cached.is_for(key))
    begin(cached, operation.caller, operation.created);
  else if (auto result = work_out(operation); !result)
    return result;
  if (cached.small && cached.small.advance(monitor_.begun().sequence, operation.input, operation.output, turns()))
    return {};
  return drive_program(*cached.program, cached.call, operation, cached.small.steps_done());
}

const Error Collectives::kNotRepeated;

// Completes the steps that the SmallRun has left undone.
Collectives::Repeated Collectives::finish(CachedOperation& cached, const void* input, void* output) noexcept {
  const Call& call = cached.call;
  const Operation operation{call.collective, input, output, call.count, call.dtype, call.op, call.root};
  const auto drive = [&] { return drive_program(*cached.program, call, operation, cached.small.steps_done()); };
  auto done = carry_out(monitor_, drive);
  if (done) return nullptr;
  repeat_failure_ = std::move(done).error();
  return &repeat_failure_;
}

uint64_t Collectives::planned_bytes(const Operation& operation) const {
  const uint64_t ranks = operation.unequal == nullptr ? 1 : static_cast<uint64_t>(me_.n_ranks);
  return operation.count / ranks * dtype_bytes(operation.dtype);
}

Result<void> Collectives::work_out(const Operation& operation) {
  const uint64_t bytes = planned_bytes(operation);
  const Call call = monitor_.begin(operation, me_.planner->choose(to_call(operation), bytes));
  TUTTI_TRY_ASSIGN(Program * program, find_program(call, bytes));
  const CallKey key(operation);
  CachedOperation& cached = place_of(key);
  cached.repeats = operation.unequal == nullptr && !me_.is_on_gpu();
  cached.program = program;
  cached.key = key;
  cached.call = call;
  cached.recorded = to_tag(call);
  cached.small.clear();
  if (operation.unequal != nullptr) return {};
  cached.buffers = *buffers_of(call.collective, call.count, call.dtype, call.root, me_.rank, me_.n_ranks);
  BoundCall what{call, {call.count}};
  what.n_ranks = me_.n_ranks;
  limit_exposure(me_, &what);
  if (!me_.planner->adds_wide(call)) cached.small.prepare(*program, what);
  return {};
}

Result<void> Collectives::drive_program(Program& program, const Call& call, const Operation& operation,
                                        size_t steps_done) {
  BoundCall what{call,        blocks_of(operation), {}, operation.input, operation.output, me_.rank,
                 me_.n_ranks, me_.stream_from_bytes};
  what.call.sequence = monitor_.begun().sequence;
  if (call.op == RedOp::kPreMulSum && traits(call.collective).reduces)
    what.scalar = operation.scalar_at != nullptr ? operation.scalar_at : operation.scalar.data();
  limit_exposure(me_, &what);
  const CollectiveTraits& what_it_does = traits(call.collective);
  what.one_way = what_it_does.has_root() && !what_it_does.reduces &&
                 what.blocks.largest() * dtype_bytes(call.dtype) >= me_.one_way_from_bytes;
  const auto drive_piece = [&](const BoundCall& piece) {
    Run run(program, piece, monitor_.recorder(), steps_done);
    StallWatch watch(monitor_, links_, run, me_.is_on_gpu() ? Standing::Doing::kOther : Standing::Doing::kCalls);
    return monitor_.has_driven(run, drive(run, watch, {links_.yielding(), me_.options.op_timeout_seconds}));
  };
  const bool is_wide = operation.count > 0 && me_.planner->adds_wide(call);  // an agreement is about no elements
  return is_wide ? in_wide_pieces(what, drive_piece) : drive_piece(what);
}

Result<void> Collectives::agree(const Call& call) {
  return drive_program(programs_.at(key_of(kFirst[0])), call, Operation{});
}

// An operation's first use of an algorithm and root may need links that do not exist yet, which are made while it runs.
// Before waiting for a peer to make them, all ranks agree that they are in the same call, so a mismatch is found here
// too.
Result<Program*> Collectives::find_program(const Call& call, uint64_t bytes) {
  const uint32_t lanes = lanes_of(call.collective, call.algo, bytes, me_.planner->facts());
  const bool finalizes = call.collective == Collective::kFinalize;  // makes no links
  const ProgramKey key = finalizes ? key_of(kFirst[0]) : ProgramKey{call.collective, call.algo, lanes, call.root};
  if (const auto found = programs_.find(key); found != programs_.end()) return &found->second;
  TUTTI_TRY(agree(call));
  return &add_program(key);
}

Program& Collectives::add_program(const ProgramKey& key) {
  const auto& [collective, algo, lanes, root] = key;
  Schedule schedule = me_.planner->schedule(collective, algo, root, lanes);
  links_.request(schedule);
  Program& program = programs_[key];  // map elements never move
  MessageSizes sizes = me_.sizes;
  if (traits(collective).has_root() && me_.planner->facts().all_share_memory()) sizes.pieces = kOneWayPieces;
  program = bind_program(std::move(schedule), sizes, std::bind_front(&LinkPool::find, &links_));
  scratch_bytes_ += program.scratch_bytes;
  return program;
}

std::string Collectives::explain(const Call& call) const {
  const uint64_t bytes = call.count * dtype_bytes(call.dtype);
  const Algo chosen = me_.planner->choose(call, bytes);
  const uint32_t n_lanes = lanes_of(call.collective, chosen, bytes, me_.planner->facts());
  const auto made = std::find_if(programs_.begin(), programs_.end(), [&](const auto& entry) {
    const auto& [of, algo, lanes, root] = entry.first;
    return of == call.collective && algo == chosen && lanes == n_lanes;
  });
  return me_.planner->explain(call, bytes) +
         "links: " + (made == programs_.end() ? "made at first use" : transports_of(made->second)) + "\n";
}

}  // namespace tutti
