#include "tools/sim/lanes.h"

#include <algorithm>

namespace tutti::sim {
namespace {

Error misfit(const std::string& what) {
  return {Code::kInternalError, "the schedules do not fit together: " + what};
}

uint64_t key_of(int from, int to, uint32_t channel) {
  return static_cast<uint64_t>(channel) << 56 | static_cast<uint64_t>(from) << 28 | static_cast<uint64_t>(to);
}

// The extra cost of a byte if the inputs and outputs of all ranks of a host do not fit in its caches.
double far_byte_ns(const Network& network, const Job& job) {
  const Cluster& cluster = network.cluster();
  const int here = std::min(cluster.ranks_per_host, network.n_ranks());
  const double bytes = 1.0 * job.rank_blocks * here * static_cast<double>(job.block_elems * job.elem_bytes);
  return cluster.cpus.cache_bytes == 0 || bytes <= cluster.cpus.cache_bytes ? 0 : cluster.cpus.far_byte_ns;
}

}  // namespace

Lanes::Lanes(const Network& network, const Job& job, Traffic* traffic)
    : network_(network), job_(job), traffic_(*traffic), sizes_(network.sizes()) {}

Result<void> Lanes::connect(int n_first) {
  constexpr uint64_t kMostPatterns = 50'000'000;  // 100 bytes each, with their links
  uint64_t n_steps = 0, n_patterns = 0;
  for (int r = 0; r < n_first; r++) {
    const Schedule schedule = job_.schedule(r);
    if (schedule.n_ranks != network_.n_ranks())
      return misfit(format("rank %d's is for %d ranks, not %d", r, schedule.n_ranks, network_.n_ranks()));
    n_chunks_ = schedule.n_chunks;
    if (n_chunks_ > 0) rounds_ = ChunkLayout(job_.elem_bytes, n_chunks_, sizes_).rounds(job_.block_elems);
    TUTTI_TRY(connect_rank(schedule));
    for (const Lane& lane : schedule.lanes) n_steps += lane.steps.size(), n_patterns += lane.steps.patterns().size();
    if (n_steps * rounds_ * static_cast<uint64_t>(job_.row) > job_.most_steps || n_patterns > kMostPatterns)
      return Error{Code::kInvalidUsage,
                   format("%d ranks take more than %llu steps", network_.n_ranks(),
                          static_cast<unsigned long long>(std::min(job_.most_steps, kMostPatterns)))};
  }
  for (const auto& [key, index] : found_)
    if (const Traffic::Link& made = traffic_.link(index); made.sender < 0 || made.receiver < 0)
      return misfit(format("only rank %d knows of the link from rank %d to rank %d",
                           made.sender < 0 ? made.to : made.from, made.from, made.to));
  found_.clear();
  for (LaneRun& lane : lanes_) lane.next = lane.steps.begin();
  return {};
}

Result<void> Lanes::connect_rank(const Schedule& schedule) {
  for (const Lane& given : schedule.lanes) {
    if (given.steps.empty()) continue;
    const int index = static_cast<int>(lanes_.size()) - firsts_.back();
    LaneRun& lane = lanes_.emplace_back(LaneRun{.rank = schedule.rank, .index = index, .steps = given.steps});
    for (const Step& pattern : given.steps.patterns()) {
      TUTTI_TRY_ASSIGN(const Ends made, ends_of(lane, schedule, pattern, given.channel));
      lane.ends.push_back(made);
    }
  }
  firsts_.push_back(static_cast<int>(lanes_.size()));
  return {};
}

Result<Ends> Lanes::ends_of(LaneRun& lane, const Schedule& schedule, const Step& step, uint32_t channel) {
  Ends made;
  uint32_t n_sources = (step.before.buffer != Buffer::kNone) + (step.local.buffer != Buffer::kNone);
  for_each_sender(schedule, step, [&](int) { n_sources++; });
  if (n_sources > 1)
    made.summed_byte_ns = n_sources * (network_.cluster().cpus.summed_byte_ns + far_byte_ns(network_, job_));
  TUTTI_TRY_ASSIGN(made.recv, attach(lane, step.recv, channel, false));
  TUTTI_TRY_ASSIGN(made.send, attach(lane, step.send, channel, true));
  if (step.recv != kEveryone) return made;
  made.recv = kEveryone;
  for (int peer = 0; lane.everyone.size() + 1 < static_cast<size_t>(schedule.n_ranks); peer++) {
    if (peer == lane.rank) continue;
    TUTTI_TRY_ASSIGN(const int link, attach(lane, peer, channel, false));
    lane.everyone.push_back(link);
  }
  return made;
}

Result<int> Lanes::attach(const LaneRun& lane, int peer, uint32_t channel, bool sends) {
  if (peer < 0) return -1;
  const int mine = lane.rank, index = static_cast<int>(&lane - lanes_.data());
  int from = sends ? mine : peer, to = sends ? peer : mine;
  if (peer >= network_.n_ranks() || peer == mine) return misfit(format("rank %d names rank %d", mine, peer));
  if (!sends && job_.alike) {  // the link of a simulated rank that is like this one
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

uint64_t Lanes::bytes_of(const LaneRun& lane) const {
  if (n_chunks_ == 0) return 0;
  const ChunkLayout layout(job_.elem_bytes, n_chunks_, sizes_);
  return layout.part(job_.block_elems, rounds_, lane.round, (*lane.next).chunk % n_chunks_).elems * job_.elem_bytes;
}

bool Lanes::are_small() const {
  return count(0) <= 1 && rounds_ == 1 &&
         job_.block_elems * job_.elem_bytes < kExposeFromBytes * std::max<uint64_t>(1, n_chunks_);
}

}  // namespace tutti::sim
