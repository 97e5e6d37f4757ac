#include "launch.h"

#include <algorithm>

#include "kernels/quantised.h"

namespace tutti_test::ptx {

using namespace tutti;
using namespace tutti::cuda;

namespace {

std::string number(int n) {
  return std::to_string(n);
}

// The mangled name of ElementOf<type>.
std::string element(DataType type) {
  return "ElementOfILi" + number(static_cast<int>(type)) + "EEE";
}

std::string wire(DataType type) {
  return type == DataType::kInt8 ? "8Int8Wire" : "8E4m3Wire";
}

std::string name_of(const SpanCall& call) {
  const bool is_half = call.small == DataType::kFloat16, is_double = call.wide == DataType::kFloat64;
  const std::string small = element(is_half ? DataType::kFloat16 : DataType::kBfloat16);
  const std::string wide = element(is_double ? DataType::kFloat64 : DataType::kFloat32);
  // The mangling abbreviates a name that occurs again: then S4_ is the namespace of the template.
  const auto again = [](const std::string& name) { return "NS4_" + name.substr(9); };
  switch (call.step) {
    case SpanStep::kNarrow: return "7ConvertINS_9" + wide + again(small);
    case SpanStep::kWiden: return "7ConvertINS_9" + small + again(wide);
    case SpanStep::kNonFinite: return "13FindNonFiniteINS_9" + element(call.wide);
    case SpanStep::kQuantise: return "8QuantiseINS_" + wire(call.small);
    case SpanStep::kDequantise: return "10DequantiseINS_" + wire(call.small);
    default: return "5spansINS0_6Digest";
  }
}

template <class Call>
std::unique_ptr<Grid> make(const Module& module, const std::string& name, const Call& call, uint32_t n_blocks,
                           uint32_t n_threads) {
  static const Kernel kNone;
  const Kernel* const kernel = module.find(name);
  auto grid = std::make_unique<Grid>(kernel == nullptr ? &kNone : kernel, &call, sizeof call, n_blocks, n_threads);
  if (kernel == nullptr) grid->fault = "there is no kernel " + name;
  return grid;
}

void may_read(Grid* grid, const void* at, uint64_t bytes) {
  grid->readable.add(at, bytes);
}
void may_write(Grid* grid, const void* at, uint64_t bytes) {
  grid->readable.add(at, bytes);
  grid->writable.add(at, bytes);
}

// How many blocks of a rank's input and output a program uses, which sets no other bounds.
struct Extent {
  uint64_t input = 0, output = 0;
  void take(const ProgramSlice& slice) {
    if (slice.buffer == 1) input = std::max<uint64_t>(input, slice.block + 1);
    if (slice.buffer == 2) output = std::max<uint64_t>(output, slice.block + 1);
  }
};

void may_use(Grid* grid, const ProgramCall& call, uint32_t rank) {
  const Program& p = call.programs[rank];
  may_read(grid, &p, sizeof p);
  may_read(grid, p.lanes, call.n_lanes * sizeof *p.lanes);
  Extent extent;
  uint32_t n_steps = 0;
  int32_t n_recvs = 0;
  for (uint32_t l = 0; l < call.n_lanes; l++) n_steps = std::max(n_steps, p.lanes[l].first_step + p.lanes[l].n_steps);
  for (uint32_t s = 0; s < n_steps; s++) {
    const ProgramStep& step = p.steps[s];
    n_recvs = std::max(n_recvs, step.first_recv + step.n_recv);
    for (const ProgramSlice* slice : {&step.size, &step.before, &step.local, &step.store}) extent.take(*slice);
  }
  may_read(grid, p.steps, n_steps * sizeof *p.steps);
  may_read(grid, p.recvs, static_cast<uint64_t>(n_recvs) * sizeof *p.recvs);
  const uint64_t n_ends = uint64_t{p.n_ends} * call.n_stripes, block = call.block_elems * dtype_bytes(call.dtype);
  may_read(grid, p.ends, n_ends * sizeof *p.ends);
  for (uint64_t e = 0; e < n_ends; e++) {
    const LinkEnd& end = p.ends[e];
    may_write(grid, end.slots, uint64_t{call.n_slots} * call.slot_bytes);
    for (const uint32_t* word : {end.head, end.tail, end.done}) may_write(grid, word, sizeof *word);
  }
  may_write(grid, p.scratch, uint64_t{call.n_stripes} * p.n_scratch * call.slot_bytes);
  may_read(grid, call.inputs[rank], extent.input * block);
  may_write(grid, call.outputs[rank], extent.output * block);
}

}  // namespace

std::unique_ptr<Grid> grid_of(const Module& module, const JobList& list) {
  const std::string name = "6reduceILi" + number(static_cast<int>(list.dtype)) + "E";
  auto grid = make(module, list.only_bytes ? "4copyE" : name, list, tiles_of(list), kJobThreads);
  for (int j = 0; j < list.n_jobs; j++) {
    const Job& job = list.jobs[j];
    const uint64_t bytes = job.elems * (list.only_bytes ? 1 : dtype_bytes(list.dtype));
    for (int s = 0; s < job.n_src; s++) may_read(grid.get(), list.pointers[job.first_pointer + s], bytes);
    for (int d = 0; d < job.n_dst; d++) may_write(grid.get(), list.pointers[job.first_pointer + job.n_src + d], bytes);
  }
  for (const Scale& scale : list.scales)
    if (list.scaled && scale.at != nullptr) may_read(grid.get(), scale.at, dtype_bytes(list.dtype));
  if (list.stop != nullptr) may_read(grid.get(), list.stop, sizeof *list.stop);
  return grid;
}

std::unique_ptr<Grid> grid_of(const Module& module, const ProgramCall& call) {
  const std::string name = "interpretILi" + number(static_cast<int>(call.dtype)) + "E";
  auto grid = make(module, name, call, blocks_of(call), kProgramThreads);
  for (uint32_t rank = 0; rank < call.n_ranks; rank++) may_use(grid.get(), call, rank);
  if (call.abort != nullptr) may_read(grid.get(), call.abort, sizeof *call.abort);
  return grid;
}

std::unique_ptr<Grid> grid_of(const Module& module, const LineCall& call) {
  const std::string name = call.n_hops == 1 ? "sum_in_one_hopILi" : "sum_in_two_hopsILi";
  auto grid =
      make(module, name + number(static_cast<int>(call.dtype)) + "E", call, line_blocks(call), line_threads(call));
  const auto n_ranks = static_cast<uint32_t>(call.n_ranks);
  const uint64_t room = call.n_hops == 1 ? kOneHopRoomBytes : two_hop_room_bytes(n_ranks);
  for (uint32_t r = 0; r < n_ranks; r++) may_write(grid.get(), call.rooms[r], room);
  may_write(grid.get(), call.epochs, line_blocks(call) * sizeof *call.epochs);
  may_read(grid.get(), call.input, call.elems * dtype_bytes(call.dtype));
  may_write(grid.get(), call.output, call.elems * dtype_bytes(call.dtype));
  may_read(grid.get(), call.abort, sizeof *call.abort);
  return grid;
}

std::unique_ptr<Grid> grid_of(const Module& module, const SpanCall& call, uint32_t n_blocks) {
  auto grid = make(module, name_of(call), call, n_blocks, kGradientThreads);
  const uint64_t small = dtype_bytes(call.small), wide = dtype_bytes(call.wide);
  const bool quantises = call.step == SpanStep::kQuantise;
  for (int i = 0; i < call.n_items; i++) {
    const SpanItem& item = call.items[i];
    if (quantises || call.step == SpanStep::kDequantise) {
      const uint64_t bytes = quantised_bytes(item.elems, call.block_elems), floats = item.elems * sizeof(float);
      may_read(grid.get(), item.from, quantises ? floats : bytes);
      may_write(grid.get(), item.to, quantises ? bytes : floats);
      if (item.errors != nullptr) may_write(grid.get(), item.errors, floats);
      continue;
    }
    const bool narrows = call.step == SpanStep::kNarrow, widens = call.step == SpanStep::kWiden;
    const uint64_t from = call.step == SpanStep::kDigest ? 1 : widens ? small : wide;
    may_read(grid.get(), item.from, item.elems * from);
    may_write(grid.get(), item.to, narrows ? item.elems * small : widens ? item.elems * wide : sizeof(uint64_t));
  }
  return grid;
}

std::unique_ptr<Grid> grid_of(const Module& module, const FactorCall& call, uint32_t n_blocks) {
  auto grid =
      make(module, "FactorPartE" + number(static_cast<int>(call.part)) + "EEE", call, n_blocks, kGradientThreads);
  for (int i = 0; i < call.n_items; i++) {
    const FactorItem& m = call.items[i];
    for (const float* whole : {m.data, m.error}) may_write(grid.get(), whole, m.rows * m.columns * sizeof(float));
    for (const float* half : {m.start, m.q}) may_write(grid.get(), half, m.columns * m.rank * sizeof(float));
    may_write(grid.get(), m.p, m.rows * m.rank * sizeof(float));
  }
  return grid;
}

std::string run(Grid* grid, bool all_at_once) {
  grid->readable.finish();
  grid->writable.finish();
  if (grid->fault.empty()) grid->run(all_at_once);
  return grid->fault;
}

}  // namespace tutti_test::ptx
