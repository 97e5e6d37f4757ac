#include "comm/remote_attendants.h"

#include <algorithm>
#include <numeric>

namespace tutti {
namespace {

constexpr int64_t kForgetNs = 60'000'000'000;  // answers, once this rank has not asked for this long

// At most 71 minutes; a longer time makes no rank late.
uint32_t to_us(int64_t ns) {
  return static_cast<uint32_t>(std::clamp<int64_t>(ns / 1000, 0, UINT32_MAX));
}

int64_t get_ns(ByteReader& reader) {
  return int64_t{1000} * reader.get<uint32_t>();
}

using Roll = std::map<uint64_t, std::map<int, Attendance>>;  // by operation and rank

// Operations that all of these ranks have left, and that none leaves before all have come.
Roll joint_operations(const Attendances& ended, uint64_t after) {
  Roll roll;
  for (const auto& [rank, all] : ended)
    for (const Attendance& at : all)
      if (at.joins && at.sequence > after) roll[at.sequence].emplace(rank, at);
  std::erase_if(roll, [&](const auto& entry) { return entry.second.size() < ended.size(); });
  return roll;
}

void thin_out(Roll* roll, size_t most) {
  for (uint64_t every = 2; roll->size() > most; every *= 2)  // `most` is 1 or more
    std::erase_if(*roll, [&](const auto& entry) { return entry.first % every != 0; });
}

// Adds those that are not there. Other ranks ask, too, from operations on that are earlier or later.
void keep(const std::vector<Attendance>& told, std::vector<Attendance>* kept) {
  for (const Attendance& at : told) {
    const auto place = std::lower_bound(kept->begin(), kept->end(), at.sequence,
                                        [](const Attendance& a, uint64_t sequence) { return a.sequence < sequence; });
    if (place == kept->end() || place->sequence != at.sequence) kept->insert(place, at);
  }
  if (kept->size() > TraceMemory::kOperations) kept->erase(kept->begin(), kept->end() - TraceMemory::kOperations);
}

// Compares the ranks of the other hosts with those of this one.
StragglerDetector compared(const Attendances& elsewhere, const Recorder& mine) {
  StragglerDetector roll;
  roll.enter(elsewhere);
  roll.enter(Attendants(mine).look().ended);
  roll.compare();
  return roll;
}

}  // namespace

RemoteAttendants::RemoteAttendants(int rank, const std::vector<std::vector<int>>& hosts, Recorder& recorder)
    : recorder_(recorder), gossip_(rank, std::accumulate(hosts.begin(), hosts.end(), 0, [](int n, const auto& ranks) {
                                     return n + static_cast<int>(ranks.size());
                                   })) {
  for (const std::vector<int>& ranks : hosts) {
    leads_ = leads_ || ranks[0] == rank;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) leaders_.insert(ranks[0]);
  }
}

void RemoteAttendants::tell_question(PeerWatch& watch, uint64_t after) {
  wanted_ns_ = asked_ns_ = now_ns();
  watch.ending().tell(gossip_.begin(Gossip::Kind::kRollCall).put(after).take());
  if (leads_) watch.ending().tell(answer(after));  // the question itself does not come back here
}

void RemoteAttendants::ask(PeerWatch& watch, uint64_t after) {
  const std::lock_guard lock(mutex_);
  wanted_ns_ = now_ns();
  if (wanted_ns_ - asked_ns_ >= every_ns() / 2) tell_question(watch, after);
}

Attendances RemoteAttendants::heard() const {
  const std::lock_guard lock(mutex_);
  return heard_;
}

bool RemoteAttendants::all_have_answered(int64_t since_ns) const {
  return std::all_of(leaders_.begin(), leaders_.end(), [&](int leader) {
    const auto answered = answered_ns_.find(leader);
    return answered != answered_ns_.end() && answered->second >= since_ns;
  });
}

StragglerDetector RemoteAttendants::gather(PeerWatch& watch) {
  constexpr std::chrono::milliseconds kPatience{500};
  {
    std::unique_lock lock(mutex_);
    const int64_t since_ns = now_ns();
    for (int i = 0; i < 2 && any(); i++) {
      tell_question(watch, 0);
      if (answered_.wait_for(lock, kPatience, [&] { return all_have_answered(since_ns); })) break;
    }
  }
  return compared(heard(), recorder_);
}

void RemoteAttendants::serve_tool(PeerWatch& watch) {
  constexpr int64_t kPatienceNs = 1'000'000'000;
  const uint64_t asked = recorder_.lateness_asked();
  if (asked == served_) return;
  {
    const std::lock_guard lock(mutex_);
    const int64_t now = now_ns();
    if (serving_ns_ == 0) {
      serving_ns_ = now;
      return tell_question(watch, 0);
    }
    if (!all_have_answered(serving_ns_) && now - serving_ns_ < kPatienceNs) return;
  }
  const StragglerDetector roll = compared(heard(), recorder_);
  recorder_.tell_lateness(asked, roll.sentence().value_or("no rank came late by a millisecond or more"));
  served_ = asked;
  serving_ns_ = 0;
}

// For each operation and rank: how long ago it came and left, and how long it had been outside of operations.
std::string RemoteAttendants::answer(uint64_t after) {
  const Attendances ended = Attendants(recorder_).look().ended;
  const size_t head_bytes = Gossip::kHeadBytes + sizeof(uint64_t) + ended.size() * sizeof(int32_t);
  const size_t bytes = sizeof(uint64_t) + 3 * ended.size() * sizeof(uint32_t);
  if (head_bytes + bytes > Ending::kMostQuestionBytes) return {};
  Roll roll = joint_operations(ended, after);
  thin_out(&roll, (Ending::kMostQuestionBytes - head_bytes) / bytes);
  ByteWriter writer = gossip_.begin(Gossip::Kind::kAttendances);
  writer.put(static_cast<uint64_t>(ended.size()));
  for (const auto& [rank, all] : ended) writer.put(static_cast<int32_t>(rank));
  const int64_t now = now_ns();
  for (const auto& [sequence, ranks] : roll) {
    writer.put(sequence);
    for (const auto& [rank, at] : ranks)
      writer.put(to_us(now - at.came_ns)).put(to_us(now - at.left_ns)).put(to_us(at.outside_ns));
  }
  return writer.take();
}

std::optional<PeerWatch::Answer> RemoteAttendants::hear(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::lock_guard lock(mutex_);
  const auto word = gossip_.hear(&reader, Gossip::Kind::kRollCall, Gossip::Kind::kAttendances);
  if (!word) return {};
  if (word->is_known) return PeerWatch::Answer{};
  PeerWatch::Answer told{{}, true, {}};
  if (word->kind == Gossip::Kind::kAttendances)
    return hear_answer(word->from, reader) ? std::optional(told) : std::nullopt;
  const auto after = reader.get<uint64_t>();
  if (!reader.ok()) return {};
  asked_ns_ = now_ns();
  if (leads_) told.says = answer(after);
  return told;
}

// The times are ages, so they are compared only with others of the same host.
bool RemoteAttendants::hear_answer(int leader, ByteReader reader) {
  const int64_t now = now_ns();
  if (now - wanted_ns_ > kForgetNs) heard_.clear();
  const bool is_wanted = now - wanted_ns_ <= kForgetNs && leaders_.contains(leader);
  const auto n_ranks = reader.get<uint64_t>();
  if (n_ranks > static_cast<uint64_t>(gossip_.n_ranks)) return false;
  std::vector<int> ranks(n_ranks);
  for (int& rank : ranks) rank = reader.get<int32_t>();
  if (!reader.ok() || !std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return gossip_.is_rank(rank); }))
    return false;
  Attendances told;
  while (reader.ok() && !reader.at_end()) {
    const auto sequence = reader.get<uint64_t>();
    for (const int rank : ranks) {
      const int64_t came = now - get_ns(reader), left = now - get_ns(reader);
      told[rank].push_back({sequence, true, 1 + leader, came, left, get_ns(reader)});
    }
  }
  if (!reader.ok()) return false;
  if (!is_wanted) return true;
  for (const auto& [rank, all] : told) keep(all, &heard_[rank]);
  answered_ns_[leader] = now;
  answered_.notify_all();
  return true;
}

}  // namespace tutti
