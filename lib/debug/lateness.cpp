#include "debug/lateness.h"

#include <algorithm>

namespace tutti {
namespace {

// At most this many operations wait for a rank's entries; beyond that they are compared without that rank.
constexpr size_t kMostOperations = 4 * TraceMemory::kOperations;
constexpr size_t kStragglers = 100;
constexpr size_t kMostInPairs = 256;  // ranks; a group of thousands would have millions of pairs

// Of an even number, the lower middle one: half of the others may be late, too.
int64_t median(std::vector<int64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Whether nobody leaves it before all have come: true where every rank receives something from all.
bool joins(Collective collective) {
  return !traits(collective).has_root() && collective != Collective::kSendRecv && collective != Collective::kNone;
}

using Times = std::map<int, int64_t>;  // by rank

// By how much each rank's time exceeds the others' median; 0 or less, if it does not. There are two ranks or more,
// perhaps thousands.
Times excess(const Times& times) {
  std::vector<std::pair<int64_t, int>> sorted;
  for (const auto& [rank, ns] : times) sorted.emplace_back(ns, rank);
  std::ranges::sort(sorted);
  const int64_t median_ns = sorted[(sorted.size() - 2) / 2].first;  // of the others of those that exceed it
  Times found;
  for (const auto& [ns, rank] : sorted) found[rank] = ns - median_ns;
  return found;
}

// When each rank came, by one clock; with several hosts, relative to when its host left.
Times arrivals(const std::map<int, Attendance>& ranks) {
  std::map<int, std::vector<int64_t>> left;  // by host
  for (const auto& [rank, at] : ranks) left[at.host].push_back(at.left_ns);
  Times came;
  for (const auto& [rank, at] : ranks) came[rank] = at.came_ns - (left.size() > 1 ? median(left[at.host]) : 0);
  if (left.size() > 1 && !ranks.begin()->second.joins) came.clear();
  return came;
}

}  // namespace

std::vector<Attendance> AttendanceReader::follow(const Trace& trace) {
  std::vector<Attendance> ended;
  for (const TracedOperation& operation : trace.operations) {
    if (operation.finished_ns == 0) break;
    if (operation.nth != read_ + 1) left_ns_ = outside_ns_ = 0;
    if (left_ns_ != 0) outside_ns_ += std::max<int64_t>(operation.started_ns - left_ns_, 0);
    read_ = operation.nth;
    left_ns_ = operation.finished_ns;
    const Call& call = operation.call;
    if (is_point_to_point(call)) continue;
    ended.push_back({call.sequence, joins(call.collective), 0, operation.started_ns, left_ns_, outside_ns_});
    outside_ns_ = 0;
  }
  return ended;
}

Straggler find_straggler(const std::map<int, Attendance>& ranks) {
  const Times came = arrivals(ranks);
  Times outside;
  for (const auto& [rank, at] : ranks) outside[rank] = at.outside_ns;
  Straggler found;
  if (came.size() < 2) return found;
  const Times late = excess(came), busy = excess(outside);
  for (const auto& [rank, ns] : late) {
    const int64_t late_ns = std::min(ns, busy.at(rank));
    if (late_ns >= Straggler::kLateNs && late_ns > found.late_ns) found = {rank, late_ns, {}};
  }
  for (const auto& [rank, ns] : came)
    if (found.rank >= 0 && ns < came.at(found.rank)) found.waited_ns[rank] = came.at(found.rank) - ns;
  return found;
}

void StragglerDetector::enter(int rank, const std::vector<Attendance>& ended) {
  uint64_t& last = last_[rank];
  for (const Attendance& at : ended) {
    if (at.sequence > compared_) operations_[at.sequence].emplace(rank, at);
    last = std::max(last, at.sequence);
  }
}

void StragglerDetector::enter(const Attendances& ended) {
  for (const auto& [rank, all] : ended) enter(rank, all);
}

void StragglerDetector::compare() {
  uint64_t last = UINT64_MAX;
  for (const auto& [rank, sequence] : last_) last = std::min(last, sequence);
  while (!operations_.empty() && (operations_.begin()->first <= last || operations_.size() > kMostOperations))
    compare_first();
}

void StragglerDetector::compare_all() {
  while (!operations_.empty()) compare_first();
}

void StragglerDetector::compare_first() {
  const auto first = operations_.begin();
  compare(first->second);
  compared_ = first->first;
  operations_.erase(first);
}

void StragglerDetector::compare(const std::map<int, Attendance>& ranks) {
  if (ranks.size() < 2) return;
  for (const auto& [rank, at] : ranks) ranks_[rank].operations++;
  const Straggler found = find_straggler(ranks);
  if (found.rank < 0) return;
  Rank& late = ranks_[found.rank];
  late.late++;
  late.late_ns += found.late_ns;
  late.worst_ns = std::max(late.worst_ns, found.late_ns);
  for (const auto& [rank, ns] : found.waited_ns) {
    late.waited_ns += ns;
    if (ranks.size() <= kMostInPairs) waited_ns_[{rank, found.rank}] += ns;
  }
  stragglers_.emplace_back(found.rank, found.late_ns);
  if (stragglers_.size() > kStragglers) stragglers_.pop_front();
}

uint64_t StragglerDetector::stragglers() const {
  uint64_t all = 0;
  for (const auto& [rank, r] : ranks_) all += r.late;
  return all;
}

std::optional<std::string> StragglerDetector::sentence(bool by_most) const {
  std::map<int, std::vector<int64_t>> late;
  for (const auto& [rank, ns] : stragglers_) late[rank].push_back(ns);
  const auto most = std::max_element(late.begin(), late.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == late.end() || (by_most && 2 * most->second.size() <= stragglers_.size())) return {};
  return format(
      "rank %d came last to %zu of the last %zu operations that had to wait for somebody, %.1f ms after the others in "
      "the median",
      most->first, most->second.size(), stragglers_.size(), static_cast<double>(median(most->second)) / 1e6);
}

void Attendants::find() {
  const std::string folder = mine_.path().substr(0, mine_.path().rfind('/'));
  for (const std::string& path : trace_files(folder)) {
    auto file = TraceFile::open(path);
    if (!file || file.value().header().group != mine_.header().group) continue;
    const int rank = file.value().header().rank;
    all_.try_emplace(rank, Attendant{std::move(file).value(), {}});
  }
}

Attendants::Seen Attendants::look() {
  constexpr int kLooksPerFind = 10;
  Seen seen;
  if (mine_.path().empty()) return seen;
  const auto n_ranks = static_cast<size_t>(mine_.header().n_ranks);
  if (all_.size() < n_ranks && looks_++ % kLooksPerFind == 0) find();
  const TickClock clock(mine_.header());
  std::map<int, uint64_t> from;  // found for all at the same time, so that samples are of the same operations
  for (const auto& [rank, attendant] : all_)
    if (clock.is_for(attendant.file.header())) from[rank] = read_from(attendant.file.header(), attendant.reader.read());
  for (const auto& [rank, nth] : from) {
    Attendant& attendant = all_.at(rank);
    Trace trace = attendant.file.read(clock, nth);
    seen.ended[rank] = attendant.reader.follow(trace);
    if (rank == mine_.header().rank) seen.own = std::move(trace);
  }
  return seen;
}

}  // namespace tutti
