// Engine: schedules become lanes and links.
#include "sim/engine.h"

namespace tutti::sim {
namespace {

Error misfit(const std::string& what) {
  return {Code::kInternalError, "the schedules do not fit together: " + what};
}

uint64_t key_of(int from, int to, uint32_t channel) {
  return static_cast<uint64_t>(channel) << 56 | static_cast<uint64_t>(from) << 28 | static_cast<uint64_t>(to);
}

// What a byte costs more: of each rank of a host the input and the output have to fit the caches.
double far_byte_ns(const Network& network, const Job& job) {
  const Cluster& cluster = network.cluster();
  const int here = std::min(cluster.ranks_per_host, network.n_ranks());
  const double bytes = 1.0 * job.rank_blocks * here * static_cast<double>(job.block_elems * job.elem_bytes);
  return cluster.cpus.cache_bytes == 0 || bytes <= cluster.cpus.cache_bytes ? 0 : cluster.cpus.far_byte_ns;
}

// When each rank dies, or is told that one has. The connections of who dies break, which its neighbours see and pass
// on.
std::vector<double> stop_times(const Network& network, const std::function<std::vector<int>(int)>& neighbours) {
  std::vector<double> stops(static_cast<size_t>(network.n_ranks()), Network::kNever);
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>> told;
  const auto stop = [&](int rank, double at_ns) {
    double& known = stops[static_cast<size_t>(rank)];
    if (at_ns < known) told.emplace(known = at_ns, rank);
  };
  for (int rank = 0; rank < network.n_ranks(); rank++) stop(rank, network.dies_ns(rank));
  while (neighbours && !told.empty()) {
    const auto [at_ns, rank] = told.top();
    told.pop();
    if (at_ns > stops[static_cast<size_t>(rank)]) continue;
    for (const int peer : neighbours(rank)) {
      const Route way = network.route(rank, peer);
      stop(peer, at_ns + way.latency_ns + way.message_ns);
    }
  }
  return stops;
}

}  // namespace

Engine::Engine(const Network& network, const Job& job)
    : network_(network),
      job_(job),
      sizes_(network.sizes()),
      n_first_(job.alike ? job.alike->period() : network.n_ranks()),
      traffic_(network, n_first_, &events_),
      cpus_(network) {
  ranks_.resize(static_cast<size_t>(network.n_ranks()));
}

Result<void> Engine::connect() {
  for (int r = 0; r < n_first_; r++) {
    const Schedule schedule = job_.schedule(r);
    if (schedule.n_ranks != network_.n_ranks())
      return misfit(format("rank %d's is for %d ranks, not %d", r, schedule.n_ranks, network_.n_ranks()));
    n_chunks_ = schedule.n_chunks;
    if (n_chunks_ > 0) rounds_ = ChunkLayout(job_.elem_bytes, n_chunks_, sizes_).rounds(job_.block_elems);
    TUTTI_TRY(connect_rank(schedule));
    TUTTI_TRY(check_size());
  }
  for (const auto& [key, index] : found_)
    if (const Traffic::Link& made = traffic_.link(index); made.sender < 0 || made.receiver < 0)
      return misfit(format("only rank %d knows of the link from rank %d to rank %d",
                           made.sender < 0 ? made.to : made.from, made.from, made.to));
  found_.clear();
  const std::vector<double> stops = stop_times(network_, job_.neighbours);
  for (size_t r = 0; r < stops.size(); r++) ranks_[r].stops_ns = stops[r];
  // One lane that does all in one round, in messages that are not exposed: the library has worked that out beforehand
  // (SmallRun in exec/run.h).
  const bool is_small = ranks_[0].lanes_left <= 1 && rounds_ == 1 &&
                        job_.block_elems * job_.elem_bytes < kExposeFromBytes * std::max<uint64_t>(1, n_chunks_);
  operation_ns_ = is_small ? 0 : network_.cluster().cpus.operation_ns;
  for (RankRun& run : ranks_) run.operation_ns = operation_ns_;
  return {};
}

Result<void> Engine::check_size() const {
  constexpr uint64_t kMostPatterns = 50'000'000;  // 100 bytes each, with their links
  if (n_steps_ * rounds_ * static_cast<uint64_t>(job_.row) <= job_.most_steps && n_patterns_ <= kMostPatterns)
    return {};
  return Error{Code::kInvalidUsage, format("%d ranks take more than %llu steps", network_.n_ranks(),
                                           static_cast<unsigned long long>(std::min(job_.most_steps, kMostPatterns)))};
}

Result<void> Engine::connect_rank(const Schedule& schedule) {
  RankRun& mine = rank(schedule.rank);
  mine.starts_ns = network_.starts_ns(schedule.rank);
  mine.first_lane = static_cast<int>(lanes_.size());
  for (const Lane& given : schedule.lanes) {
    if (given.steps.empty()) continue;
    const int index = static_cast<int>(lanes_.size());
    lanes_.push_back({.rank = schedule.rank, .index = mine.lanes_left++, .steps = given.steps});
    mine.n_lanes = mine.lanes_left;
    n_steps_ += given.steps.size();
    n_patterns_ += given.steps.patterns().size();
    for (const Steps::Pattern& pattern : given.steps.patterns()) {
      TUTTI_TRY_ASSIGN(const Ends made, ends_of(index, schedule, pattern.step, given.channel));
      lane(index).ends.push_back(made);
    }
  }
  return {};
}

Result<Engine::Ends> Engine::ends_of(int index, const Schedule& schedule, const Step& step, uint32_t channel) {
  Ends made;
  uint32_t n_sources = (step.before.buffer != Buffer::kNone) + (step.local.buffer != Buffer::kNone);
  for_each_sender(schedule, step, [&](int) { n_sources++; });
  if (n_sources > 1)
    made.summed_byte_ns = n_sources * (network_.cluster().cpus.summed_byte_ns + far_byte_ns(network_, job_));
  if (step.recv >= 0) {
    TUTTI_TRY_ASSIGN(made.recv, attach(index, step.recv, channel, false));
  }
  if (step.send >= 0) {
    TUTTI_TRY_ASSIGN(made.send, attach(index, step.send, channel, true));
  }
  if (step.recv != kEveryone) return made;
  made.recv = kEveryone;
  if (lane(index).everyone.empty()) TUTTI_TRY(attach_everyone(index, schedule.n_ranks, channel));
  return made;
}

Result<void> Engine::attach_everyone(int index, int n_ranks, uint32_t channel) {
  for (int peer = 0; peer < n_ranks; peer++) {
    if (peer == lane(index).rank) continue;
    TUTTI_TRY_ASSIGN(const int made, attach(index, peer, channel, false));
    lane(index).everyone.push_back(made);
  }
  return {};
}

Result<int> Engine::attach(int index, int peer, uint32_t channel, bool sends) {
  const int mine = lane(index).rank;
  int from = sends ? mine : peer, to = sends ? peer : mine;
  if (peer >= network_.n_ranks() || peer == mine) return misfit(format("rank %d names rank %d", mine, peer));
  if (!sends && job_.alike) {  // the link like it of a rank that is simulated
    from = job_.alike->first(peer);
    to = job_.alike->move_back(mine, job_.alike->times(peer));
  }
  const auto [at, is_new] = found_.try_emplace(key_of(from, to, channel), static_cast<int>(found_.size()));
  if (is_new) traffic_.add_link(from, to, far_byte_ns(network_, job_));
  Traffic::Link& attached = traffic_.link(at->second);
  int& end = sends ? attached.sender : attached.receiver;
  if (end >= 0 && end != index) return misfit(format("two lanes of rank %d use the link to rank %d", mine, peer));
  end = index;
  return at->second;
}

}  // namespace tutti::sim
