// What the planner needs of the group: the same start on all ranks, measurements, agreement on times.
#include <algorithm>
#include <bit>
#include <set>

#include "base/bytes.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "plan/cache.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

// What measuring the prices may take, and what is measured.
constexpr double kBudgetNs = 200e6;
constexpr uint64_t kProbeBytes[] = {64, 8 << 10, 128 << 10, 1 << 20};
constexpr int kProbeTries = 5;
constexpr size_t kSummedElems = 16 << 10;

std::string transports_of(const Program& program) {
  std::set<std::string> names;
  for (const Link* link : program.sends) names.insert(link->transport());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

// Of a byte of each of two sources, in a core's cache.
double measure_summing() {
  std::vector<float> values(kSummedElems);
  const void* sources[] = {values.data(), values.data() + kSummedElems / 2};
  int64_t best_ns = INT64_MAX;
  for (int i = 0; i <= kProbeTries; i++) {
    const int64_t start_ns = now_ns();
    ReduceArgs args{sources, {values.data()}, 2, 1, kSummedElems / 2};
    kernels().reduce[static_cast<int>(RedOp::kSum)][static_cast<int>(DataType::kFloat32)](args);
    best_ns = std::min(best_ns, now_ns() - start_ns);
  }
  return static_cast<double>(std::max<int64_t>(best_ns, 1)) / (kSummedElems * sizeof(float));
}

}  // namespace

// Rank 0's view, which counts for all: whether to race, and what is known of groups like this one.
std::string Communicator::propose_tuning() {
  const std::string transports = transports_of(programs_.at(key_of(kRingPlan)));
  tuning_name_ = format(
      "Tutti %d, form 5, %d ranks on %zu hosts, at most %d for %d CPUs (%s, last-level cache of %llu bytes, %s) over "
      "%s, "
      "slots of %u bytes",
      TUTTI_VERSION_CODE, n_ranks_, planner_->hosts(), ground_.ranks_here, ground_.cpus_here, cpu_model().c_str(),
      static_cast<unsigned long long>(machine_->last_level_cache_bytes), kernels().isa, transports.c_str(),
      sizes_.slot_bytes);
  // What was forced leaves less to be found out.
  if (forced_ != Algo::kAuto) tuning_name_ += format(", by %s", algo_name(forced_));
  if (options_.ways != Ways::kBoth) tuning_name_ += format(", to %s", ways_name(options_.ways));
  auto tuning = recall_tuning(tuning_name_);
  if (!tuning) tuning = Tuning{default_prices(transports == "shm", ground_), false, {}};
  return ByteWriter().put(options_.tunes).put(options_.ways).put_string(to_text(*tuning)).take();
}

Result<void> Communicator::take_tuning(const std::string& proposal) {
  ByteReader reader(proposal);
  const bool races = reader.get<uint8_t>() != 0;
  const uint8_t ways = std::min<uint8_t>(reader.get<uint8_t>(), static_cast<uint8_t>(Ways::kLend));
  auto tuning = tuning_from_text(reader.get_string());
  if (!tuning)
    return Error{Code::kRemoteError, "rank 0 sent a tuning that makes no sense: " + tuning.error().message, 0};
  planner_->start(ground_, std::move(tuning).value(), races, static_cast<Ways>(ways));
  return {};
}

// All ranks come here with the same operation, so they measure and agree together.
Result<Choice*> Communicator::choose(const Call& call, uint64_t bytes) {
  Choice* choice = &planner_->choice(call, bytes);
  if (planner_->wants_prices(*choice)) {
    TUTTI_TRY(measure_prices(call));
    choice = &planner_->choice(call, bytes);
  }
  if (!choice->race) planner_->count(*choice);
  if (!choice->race || !planner_->tuning().probed) return choice;
  if (choice->race->round_is_over()) {
    Race::News news = choice->race->news();
    TUTTI_TRY(agree(call, news));
    planner_->end_round(*choice, call, bytes, news);
  }
  if (choice->race) planner_->begin_turn(*choice);
  return choice;
}

// Ends early where the network is slow.
Result<void> Communicator::measure_prices(const Call& call) {
  Prices guess = planner_->tuning().prices;
  int64_t summed[] = {std::bit_cast<int64_t>(measure_summing())};  // in the order of the doubles, being positive
  TUTTI_TRY(agree(call, summed));
  guess.summed_byte = std::bit_cast<double>(summed[0]);
  Prices prices = guess;
  std::vector<Sample> samples;
  std::vector<float> data;
  double spent_ns = 0;
  for (const uint64_t bytes : kProbeBytes)
    for (const Plan plan : {kTreePlan, kRingPlan}) {
      const Load load = load_of(Collective::kAllReduce, plan, bytes, ground_);
      if (spent_ns + price_of(load, prices) * (kProbeTries + 1) > kBudgetNs) continue;
      data.resize(bytes / sizeof(float));
      TUTTI_TRY_ASSIGN(const int64_t ns, measure(call, plan, data));
      spent_ns += static_cast<double>(ns) * (kProbeTries + 1);
      samples.push_back({load, static_cast<double>(std::max<int64_t>(ns, 1))});
      prices = fit_prices(samples, guess);
    }
  planner_->take_prices(prices);
  for (Settled& settled : settled_) settled.repeats = false;
  log(LogLevel::kInfo, "measured in %.1f ms: a hop takes %.2f us, a message %.2f us, a copied byte %.3f ns",
      spent_ns * 1e-6, prices.hop * 1e-3, prices.message * 1e-3, prices.copied_byte);
  return {};
}

// The slowest rank's median.
Result<int64_t> Communicator::measure(const Call& call, Plan plan, std::span<float> data) {
  const Call what{0, data.size(), Collective::kAllReduce, DataType::kFloat32, RedOp::kSum, plan.algo, plan.lanes};
  std::vector<int64_t> times;
  for (int i = 0; i <= kProbeTries; i++) {
    const int64_t start_ns = now_ns();
    TUTTI_TRY(all_reduce_inside(call, plan, what, data.data()));
    if (i > 0) times.push_back(now_ns() - start_ns);  // the first one waits for the other ranks
  }
  std::nth_element(times.begin(), times.begin() + kProbeTries / 2, times.end());
  int64_t median_ns[] = {times[kProbeTries / 2]};
  TUTTI_TRY(agree(call, median_ns));
  return median_ns[0];
}

// The greatest of each value over all ranks.
Result<void> Communicator::agree(const Call& call, std::span<int64_t> values) {
  const Call what{0,           values.size(),  Collective::kAllReduce, DataType::kInt64,
                  RedOp::kMax, kTreePlan.algo, kTreePlan.lanes};
  return all_reduce_inside(call, kTreePlan, what, values.data());
}

// Within the operation that goes on, which is one like `call`; with its number, or who still waits in it would take the
// message for a stray one.
Result<void> Communicator::meet(Call call) {
  call.sequence = sequence_;
  int64_t nothing[] = {0};
  return agree(call, nothing);
}

// In place, as a part of the user's call: its messages say they are of that, so a mismatch shows both calls.
Result<void> Communicator::all_reduce_inside(const Call& call, Plan plan, const Call& what, void* data) {
  const TagWords tags[] = {to_tag(call)};
  Run::Operation operation{what, {}, tags, data, data, rank_, n_ranks_, UINT64_MAX};
  operation.blocks.uniform_elems = what.count;
  operation.lends_input = operation.lends_output = false;
  Run run(programs_.at(key_of(plan)), operation, history_);
  return drive_run(run, wait_policy_);
}

double Communicator::estimate_ns(const Operation& operation) {
  const Turnstile::Turn turn(*turnstile_, take_ticket());
  if (operation.collective == Collective::kSendRecv) {
    std::vector<Planner::Transfer> transfers;
    for (const Message& m : *operation.messages) transfers.push_back({m.peer, m.sends, m.count * dtype_bytes(m.dtype)});
    return planner_->estimate_ns(transfers);
  }
  Call call;
  call.collective = operation.collective;
  call.count = operation.count;
  call.dtype = operation.dtype;
  call.op = operation.op;
  return planner_->estimate_ns(call, planned_bytes(operation));
}

std::string Communicator::explain(Collective collective, uint64_t count, DataType dtype, RedOp op) {
  const Turnstile::Turn turn(*turnstile_, take_ticket());
  Call call;
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.op = op;
  const uint64_t bytes = count * dtype_bytes(dtype);
  std::string text = planner_->explain(call, bytes);
  const Plan plan = planner_->choice(call, bytes).plan;
  const auto made = std::find_if(programs_.begin(), programs_.end(), [&](const auto& entry) {
    const auto& [of, algo, lanes, root] = entry.first;
    return of == collective && algo == plan.algo && lanes == plan.lanes;
  });
  text += "links: ";
  text += made == programs_.end() ? "made at first use" : transports_of(made->second);
  text += "\n";
  if (device_ == nullptr) return text;
  Operation operation;
  operation.collective = collective;
  operation.count = count;
  operation.dtype = dtype;
  return device_->explain(operation) + text;
}

}  // namespace tutti
