#include "exec/program.h"

namespace tutti {

Program bind_program(Schedule schedule, MessageSizes sizes, FindLink find_link) {
  Program program;
  program.sizes = sizes;
  program.scratch_bytes = static_cast<size_t>(schedule.n_scratch) * sizes.slot_bytes;
  program.scratch = std::make_unique_for_overwrite<char[]>(program.scratch_bytes);
  std::erase_if(schedule.lanes, [](const Lane& lane) { return lane.steps.empty(); });
  program.schedule = std::move(schedule);
  program.find_link = std::move(find_link);
  program.lanes.resize(program.schedule.lanes.size());
  for (BoundLane& lane : program.lanes) program.turn_page(lane, 0);
  return program;
}

void Program::turn_page(BoundLane& bound, uint32_t first) {
  const Lane& lane = schedule.lanes[static_cast<size_t>(&bound - lanes.data())];
  const auto n_steps = static_cast<uint32_t>(lane.steps.size());
  std::vector<Step> page;
  for (auto at = lane.steps.at(first); page.size() < std::min(kPageSteps, n_steps - first); ++at) page.push_back(*at);
  bound.before = first;
  bound.after = n_steps - first - static_cast<uint32_t>(page.size());
  bound.next = 0;
  bound.steps.clear();
  for (const Step& step : page) bound.steps.push_back(bind(step, lane.channel));
  // Only sums are written to posted places; a value that exists already is read by its receiver where it is.
  const auto patterns = lane.steps.patterns();
  const bool sums = std::any_of(patterns.begin(), patterns.end(), [](const Step& step) { return step.completes; });
  if (sums && schedule.may_expose)
    for (const Placeable& placeable : placeable_messages(page))
      if (placeable.ahead > 0) bound.steps[placeable.from].expects.push_back(placeable);
}

BoundStep Program::bind(const Step& step, uint32_t channel) {
  BoundStep b;
  b.size = take_apart({Buffer::kNone, step.chunk}, schedule.n_chunks);
  b.before = take_apart(step.before, schedule.n_chunks);
  b.local = take_apart(step.local, schedule.n_chunks);
  b.store = take_apart(step.store, schedule.n_chunks);
  b.completes = step.completes;
  for_each_sender(schedule, step, [&](int peer) { b.recvs.push_back(find_link(peer, channel, false)); });
  b.local_place = static_cast<uint32_t>(step.recv == kEveryone ? schedule.rank : std::ssize(b.recvs));
  workspace.make_room(b.recvs.size());
  if (step.send >= 0) b.send = find_link(step.send, channel, true);
  if (b.send != nullptr && std::find(sends.begin(), sends.end(), b.send) == sends.end()) sends.push_back(b.send);
  return b;
}

void Workspace::make_room(size_t n_recvs) {
  messages.resize(std::max(messages.size(), n_recvs));
  bases.resize(kMessages + messages.size());
  src.resize(messages.size() + 2);
  places.resize(src.size());
}

bool Program::all_sent() const {
  return std::all_of(sends.begin(), sends.end(), [](Link* link) { return link->unsent() == 0; });
}

LoweredStep Lowering::step(const BoundStep& step, uint64_t rounds, uint64_t round, Place* sources) const {
  const auto part = layout.part(call.blocks.size(step.size.block), rounds, round, step.size.chunk);
  const auto place = [&](const PlacedSlice& slice) -> Place {
    const auto base = static_cast<uint32_t>(slice.buffer);
    if (slice.buffer == Buffer::kScratch) return {base, uint64_t{slice.chunk} * program.sizes.slot_bytes};
    if (slice.buffer == Buffer::kNone) return {};
    return {base, (call.blocks.begin(slice.buffer, slice.block) + part.begin) * elem_bytes};
  };
  const auto bytes = static_cast<uint32_t>(part.elems * elem_bytes);
  LoweredStep lowered{step.recvs, step.send, bytes, sources, place(step.store), {}};
  ReduceArgs& reduce = lowered.reduce;
  const auto add_source = [&](const Place& source) {
    if (source.base != kNowhere) sources[reduce.n_src++] = source;
  };
  add_source(place(step.before));
  for (uint32_t i = 0; i <= step.recvs.size(); i++) {
    if (i == step.local_place) add_source(place(step.local));
    if (i < step.recvs.size()) add_source({kMessages + i, 0});
  }
  reduce.src = program.workspace.src.data();
  reduce.elems = part.elems;
  reduce.divisor = step.completes && call.call.op == RedOp::kAvg ? static_cast<uint32_t>(call.n_ranks) : 0;
  lowered.pushes = step.recvs.empty() && step.send != nullptr && reduce.n_src == 1 && reduce.divisor == 0;
  lowered.exposable = exposable_place(lowered);
  return lowered;
}

Place Lowering::exposable_place(const LoweredStep& step) const {
  if (!call.exposes.any || !program.schedule.may_expose || step.send == nullptr || step.bytes < kExposeFromBytes)
    return {};
  const Place& value = step.sources[0];
  const bool is_input = step.pushes && value.base == kInput && !call.is_scaled(value);
  if (is_input && (call.exposes.copied_input || step.store.base != kOutput)) return value;
  if (!exposes_outputs) return {};
  if (step.store.base == kOutput) return step.store;
  return step.pushes && value.base == kOutput ? value : Place{};
}

ReduceKernel Lowering::reduce_kernel() const {
  const RedOp op = call.call.op == RedOp::kPreMulSum ? RedOp::kSum : call.call.op;
  return kernels().reduce[static_cast<int>(op)][static_cast<int>(call.dtype())];
}

}  // namespace tutti
