#include "group/council.h"

#include <algorithm>
#include <functional>

#include "base/bytes.h"
#include "base/handshake.h"
#include "group/bootstrap_wire.h"

namespace tutti {
namespace {

enum MessageKind : uint32_t { kState = 1, kSummon = 2, kDecided = 3, kKnown = 4, kMissing = 5 };

constexpr size_t kMostMatters = 256;  // limits what other ranks can make this one store

// Ascending ranks; nothing if they are not.
std::optional<std::vector<int>> read_ranks(ByteReader& r, int n_ranks) {
  std::vector<int> ranks;
  r.all(ranks);
  const bool rises = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  const bool are_ranks = ranks.empty() || (ranks.front() >= 0 && ranks.back() < n_ranks);
  return r.ok() && rises && are_ranks ? std::optional(std::move(ranks)) : std::nullopt;
}

ByteWriter message(MessageKind kind, const Council::Without& without) {
  return ByteWriter().all(kind, without);
}

std::string with_decision(MessageKind kind, const Council::Without& without, const Decision& decision) {
  return message(kind, without).put_string(decision.to_bytes()).take();
}

}  // namespace

std::string Decision::to_bytes() const {
  return ByteWriter().all(epoch, nonce, members, votes).take();
}

std::optional<Decision> Decision::from_bytes(std::string_view bytes, int n_ranks) {
  ByteReader r(bytes);
  Decision decision;
  r.all(decision.epoch, decision.nonce);
  auto members = read_ranks(r, n_ranks);
  if (!members) return std::nullopt;
  decision.members = std::move(*members);
  r.all(decision.votes);
  const bool fits = r.ok() && r.at_end() && decision.votes.size() == decision.members.size();
  return fits ? std::optional(std::move(decision)) : std::nullopt;
}

bool Council::takes_part(const Without& without, int rank) const {
  return !lost_.contains(rank) && !std::binary_search(without.begin(), without.end(), rank);
}

int Council::coordinator(const Without& without, const Matter& matter) const {
  for (int rank = matter.promised; rank < rank_; rank++)
    if (takes_part(without, rank)) return rank;
  return rank_;
}

void Council::join(const Without& without, std::string vote) {
  Matter& matter = matters_[without];
  matter.vote = std::move(vote);
  matter.result.reset();
  matter.missing.reset();
  matter.told = -1;
  proceed(without, matter);
}

void Council::leave(const Without& without) {
  Matter& matter = matters_[without];
  matter.vote.reset();
  if (matter.told >= 0) tell(without, matter, matter.told);
}

void Council::name_missing(const Without& without) {
  const std::vector<int> absent = missing(without);
  if (coordinator(without, matters_[without]) != rank_) return;
  const std::string bytes = message(kMissing, without).all(absent).take();
  for (const auto& [rank, state] : matters_[without].states) send_(rank, bytes);
}

std::optional<Decision> Council::take_result(const Without& without) {
  return std::exchange(matters_[without].result, std::nullopt);
}

std::vector<int> Council::missing(const Without& without) {
  const Matter& matter = matters_[without];
  const int chief = coordinator(without, matter);
  if (chief != rank_) return matter.missing ? *matter.missing : std::vector<int>{};
  std::vector<int> ranks;
  for (int rank = 0; rank < n_ranks_; rank++) {
    const auto state = matter.states.find(rank);
    const bool votes = state != matter.states.end() && state->second.vote;
    if (rank != rank_ && takes_part(without, rank) && !votes) ranks.push_back(rank);
  }
  return ranks;
}

std::set<int> Council::wanted() const {
  std::set<int> ranks;
  for (const auto& [without, matter] : matters_) {
    if (!matter.vote) continue;
    const int chief = coordinator(without, matter);
    if (chief != rank_) ranks.insert(chief);
    for (int rank = 0; chief == rank_ && rank < n_ranks_; rank++)
      if (rank != rank_ && takes_part(without, rank)) ranks.insert(rank);
  }
  return ranks;
}

void Council::lose(int rank) {
  if (!lost_.insert(rank).second) return;
  for (auto& [without, matter] : matters_) {
    matter.states.erase(rank);
    proceed(without, matter);
  }
}

// Sends what could not be sent without a connection.
void Council::connected(int rank) {
  for (auto& [without, matter] : matters_) {
    matter.summoned.erase(rank);
    if (matter.told == rank) matter.told = -1;
    proceed(without, matter);
  }
}

void Council::tell(const Without& without, Matter& matter, int to) {
  matter.promised = std::max(matter.promised, to);
  const auto votes = static_cast<uint32_t>(matter.vote.has_value());
  const std::string state =
      message(kState, without).all(++matter.serial, matter.epoch, votes, matter.vote.value_or("")).take();
  matter.told = send_(to, state) ? to : -1;
}

void Council::proceed(const Without& without, Matter& matter) {
  help_late(without, matter);
  if (!matter.vote) return;
  const int chief = coordinator(without, matter);
  if (chief != rank_) {
    if (matter.told != chief) tell(without, matter, chief);
    return;
  }
  matter.promised = rank_;
  if (have_all_voted(without, matter)) decide(without, matter);
}

// A rank helps even if it no longer waits itself.
void Council::help_late(const Without& without, Matter& matter) {
  if (!matter.last) return;
  for (const auto& [rank, state] : matter.states) {
    if (state.epoch >= matter.epoch || matter.handed[rank] == matter.epoch) continue;
    if (send_(rank, with_decision(kDecided, without, *matter.last))) matter.handed[rank] = matter.epoch;
  }
}

// Summons the ranks that have said nothing, or are ahead.
bool Council::have_all_voted(const Without& without, Matter& matter) {
  bool all = true;
  for (int rank = 0; rank < n_ranks_; rank++) {
    if (rank == rank_ || !takes_part(without, rank)) continue;
    const auto found = matter.states.find(rank);
    const State* const state = found == matter.states.end() ? nullptr : &found->second;
    if (state != nullptr && state->epoch == matter.epoch && state->vote) continue;
    all = false;
    const uint64_t marker = matter.epoch + 1;
    if ((state == nullptr || state->epoch > matter.epoch) && matter.summoned[rank] != marker) {
      if (send_(rank, message(kSummon, without).put(matter.epoch).take())) matter.summoned[rank] = marker;
    }
  }
  return all;
}

void Council::decide(const Without& without, Matter& matter) {
  Decision decision;
  decision.epoch = matter.epoch;
  random_bytes(decision.nonce.data(), decision.nonce.size());
  for (int rank = 0; rank < n_ranks_; rank++) {
    if (!takes_part(without, rank)) continue;
    decision.members.push_back(rank);
    decision.votes.push_back(rank == rank_ ? *matter.vote : *matter.states.at(rank).vote);
  }
  const std::string bytes = with_decision(kDecided, without, decision);
  for (auto& [rank, state] : matter.states) {
    send_(rank, bytes);
    state.epoch = decision.epoch + 1;
    state.vote.reset();
  }
  adopt(matter, std::move(decision));
}

void Council::adopt(Matter& matter, Decision decision) {
  if (decision.epoch < matter.epoch) return;
  matter.epoch = decision.epoch + 1;
  if (matter.vote) matter.result = decision;
  matter.vote.reset();
  matter.last = std::move(decision);
}

bool Council::hear(int from, std::string_view bytes) {
  ByteReader r(bytes);
  const auto kind = r.get<uint32_t>();
  const auto without = read_ranks(r, n_ranks_);
  if (!without || std::binary_search(without->begin(), without->end(), rank_)) return false;
  if (matters_.size() >= kMostMatters && !matters_.contains(*without)) return true;
  Matter& matter = matters_[*without];
  if (!takes_part(*without, from)) return true;
  if (kind == kSummon) {
    const auto epoch = r.get<uint64_t>();
    if (!r.ok() || from > rank_ || from < matter.promised) return r.ok();
    if (epoch < matter.epoch && matter.last) send_(from, with_decision(kKnown, *without, *matter.last));
    tell(*without, matter, from);
    return true;
  }
  if (kind == kState) {
    State state;
    uint32_t votes;
    std::string vote;
    r.all(state.serial, state.epoch, votes, vote);
    if (!r.ok()) return false;
    if (votes != 0) state.vote = std::move(vote);
    if (from < rank_ || state.serial <= matter.states[from].serial) return true;
    matter.states[from] = std::move(state);
    proceed(*without, matter);
    return true;
  }
  if (kind == kMissing) {
    auto missing = read_ranks(r, n_ranks_);
    if (missing && from >= matter.promised) matter.missing = std::move(missing);
    return missing.has_value();
  }
  auto decision = Decision::from_bytes(r.get_string(), n_ranks_);
  if (!decision || (kind != kDecided && kind != kKnown)) return false;
  if (kind == kDecided && from < matter.promised) return true;
  if (kind == kKnown && coordinator(*without, matter) != rank_) return true;
  adopt(matter, std::move(*decision));
  proceed(*without, matter);
  return true;
}

Agreement::Agreement(int rank, int n_ranks, RankName name, Lines& lines)
    : rank_(rank),
      name_(std::move(name)),
      lines_(lines),
      council_(rank, n_ranks,
               [&lines](int to, const std::string& message) { return lines.send(to, kCouncil, message); }) {}

Result<Decision> Agreement::reach(const Council::Without& without, const std::string& vote, const Deadline& deadline) {
  constexpr auto kLook = std::chrono::milliseconds(20);  // how often to check whether the deadline was cancelled
  constexpr double kLastWordSeconds = 0.3;
  std::unique_lock lock(mutex_);
  council_.join(without, vote);
  lines_.wake();  // to dial the ranks that the council wants
  const Deadline end = deadline.plus_seconds(kLastWordSeconds);
  for (;;) {
    if (auto decision = council_.take_result(without)) {
      if (std::binary_search(decision->members.begin(), decision->members.end(), rank_)) return std::move(*decision);
      shut_out_ = Error{Code::kRemoteError, "the other ranks considered this one lost and continued without it"};
    }
    if (shut_out_) {
      council_.leave(without);
      return *shut_out_;
    }
    const bool late = deadline.passed();
    if (late && (council_.coordinator(without) == rank_ || !council_.missing(without).empty() || end.passed())) break;
    changed_.wait_for(lock, kLook);
  }
  std::vector<int> absent = council_.missing(without);
  if (absent.empty()) absent = {council_.coordinator(without)};
  council_.name_missing(without);
  council_.leave(without);
  const std::string names = absent.size() == 1 ? name_(absent[0]) : "ranks " + rank_list(absent);
  return Error{Code::kTimeout,
               names + (absent.size() == 1 ? " is alive but did" : " are alive but did") + " not take part in time",
               absent[0]};
}

void Agreement::alarm(const Nonce& attempt) {
  const std::lock_guard lock(mutex_);
  // Every alarm is remembered and passed on once: if only the last one were, two at a time would circulate for ever.
  if (alarms_.insert(attempt).second) lines_.send_to_all(kAlarm, ByteWriter().put(attempt).take());
}

}  // namespace tutti
