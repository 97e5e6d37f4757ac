#include "group/council.h"

#include <algorithm>

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

int Council::coordinator(const Without& without, const Instance& instance) const {
  for (int rank = instance.promised; rank < rank_; rank++)
    if (takes_part(without, rank)) return rank;
  return rank_;
}

void Council::join(const Without& without, std::string vote) {
  Instance& instance = instances_[without];
  instance.vote = std::move(vote);
  instance.result.reset();
  instance.missing.reset();
  instance.told = -1;
  proceed(without, instance);
}

void Council::leave(const Without& without) {
  Instance& instance = instances_[without];
  instance.vote.reset();
  if (instance.told >= 0) tell(without, instance, instance.told);
}

void Council::name_missing(const Without& without) {
  const std::vector<int> absent = missing(without);
  if (coordinator(without, instances_[without]) != rank_) return;
  const std::string bytes = message(kMissing, without).all(absent).take();
  for (const auto& [rank, state] : instances_[without].states) send_(rank, bytes);
}

std::optional<Decision> Council::take_result(const Without& without) {
  return std::exchange(instances_[without].result, std::nullopt);
}

std::vector<int> Council::missing(const Without& without) {
  const Instance& instance = instances_[without];
  const int chief = coordinator(without, instance);
  if (chief != rank_) return instance.missing ? *instance.missing : std::vector<int>{};
  std::vector<int> ranks;
  for (int rank = 0; rank < n_ranks_; rank++) {
    const auto state = instance.states.find(rank);
    const bool votes = state != instance.states.end() && state->second.vote;
    if (rank != rank_ && takes_part(without, rank) && !votes) ranks.push_back(rank);
  }
  return ranks;
}

std::set<int> Council::wanted() const {
  std::set<int> ranks;
  for (const auto& [without, instance] : instances_) {
    if (!instance.vote) continue;
    const int chief = coordinator(without, instance);
    if (chief != rank_) ranks.insert(chief);
    for (int rank = 0; chief == rank_ && rank < n_ranks_; rank++)
      if (rank != rank_ && takes_part(without, rank)) ranks.insert(rank);
  }
  return ranks;
}

void Council::lose(int rank) {
  if (!lost_.insert(rank).second) return;
  for (auto& [without, instance] : instances_) {
    instance.states.erase(rank);
    instance.missing.reset();  // if the coordinator that named them is lost, they may have come to the next one
    proceed(without, instance);
  }
}

// Sends what could not be sent without a connection, or perhaps was not.
void Council::connected(int rank) {
  for (auto& [without, instance] : instances_) {
    instance.summoned.erase(rank);
    instance.handed.erase(rank);
    if (instance.told == rank) instance.told = -1;
    proceed(without, instance);
  }
}

void Council::tell(const Without& without, Instance& instance, int to) {
  instance.promised = std::max(instance.promised, to);
  const auto votes = static_cast<uint32_t>(instance.vote.has_value());
  const std::string state =
      message(kState, without).all(++instance.serial, instance.epoch, votes, instance.vote.value_or("")).take();
  instance.told = send_(to, state) ? to : -1;
}

void Council::proceed(const Without& without, Instance& instance) {
  help_late(without, instance);
  if (!instance.vote) return;
  const int chief = coordinator(without, instance);
  if (chief != rank_) {
    if (instance.told != chief) tell(without, instance, chief);
    return;
  }
  instance.promised = rank_;
  if (have_all_voted(without, instance)) decide(without, instance);
}

// A rank helps even if it no longer waits itself.
void Council::help_late(const Without& without, Instance& instance) {
  if (!instance.last) return;
  for (const auto& [rank, state] : instance.states) {
    if (state.epoch >= instance.epoch || instance.handed[rank] == instance.epoch) continue;
    if (send_(rank, with_decision(kDecided, without, *instance.last))) instance.handed[rank] = instance.epoch;
  }
}

// Summons the ranks that have said nothing, or are ahead.
bool Council::have_all_voted(const Without& without, Instance& instance) {
  bool all = true;
  for (int rank = 0; rank < n_ranks_; rank++) {
    if (rank == rank_ || !takes_part(without, rank)) continue;
    const auto found = instance.states.find(rank);
    const State* const state = found == instance.states.end() ? nullptr : &found->second;
    if (state != nullptr && state->epoch == instance.epoch && state->vote) continue;
    all = false;
    const uint64_t marker = instance.epoch + 1;
    if ((state == nullptr || state->epoch > instance.epoch) && instance.summoned[rank] != marker) {
      if (send_(rank, message(kSummon, without).put(instance.epoch).take())) instance.summoned[rank] = marker;
    }
  }
  return all;
}

void Council::decide(const Without& without, Instance& instance) {
  Decision decision;
  decision.epoch = instance.epoch;
  random_bytes(decision.nonce.data(), decision.nonce.size());
  for (int rank = 0; rank < n_ranks_; rank++) {
    if (!takes_part(without, rank)) continue;
    decision.members.push_back(rank);
    decision.votes.push_back(rank == rank_ ? *instance.vote : *instance.states.at(rank).vote);
  }
  const std::string bytes = with_decision(kDecided, without, decision);
  for (auto& [rank, state] : instance.states) {
    send_(rank, bytes);
    state.epoch = decision.epoch + 1;
    state.vote.reset();
  }
  adopt(instance, std::move(decision));
}

void Council::adopt(Instance& instance, Decision decision) {
  if (decision.epoch < instance.epoch) return;
  instance.epoch = decision.epoch + 1;
  if (instance.vote) instance.result = decision;
  instance.vote.reset();
  instance.last = std::move(decision);
}

bool Council::hear(int from, std::string_view bytes) {
  ByteReader r(bytes);
  const auto kind = r.get<uint32_t>();
  const auto without = read_ranks(r, n_ranks_);
  if (!without || std::binary_search(without->begin(), without->end(), rank_)) return false;
  if (instances_.size() >= kMostMatters && !instances_.contains(*without)) return true;
  Instance& instance = instances_[*without];
  if (!takes_part(*without, from)) return true;
  if (kind == kSummon) {
    const auto epoch = r.get<uint64_t>();
    if (!r.ok() || from > rank_ || from < instance.promised) return r.ok();
    if (epoch < instance.epoch && instance.last) send_(from, with_decision(kKnown, *without, *instance.last));
    tell(*without, instance, from);
    return true;
  }
  if (kind == kState) {
    State state;
    uint32_t votes;
    std::string vote;
    r.all(state.serial, state.epoch, votes, vote);
    if (!r.ok()) return false;
    if (votes != 0) state.vote = std::move(vote);
    if (from < rank_ || state.serial <= instance.states[from].serial) return true;
    instance.states[from] = std::move(state);
    proceed(*without, instance);
    return true;
  }
  if (kind == kMissing) {
    auto missing = read_ranks(r, n_ranks_);
    if (missing && from >= instance.promised) instance.missing = std::move(missing);
    return missing.has_value();
  }
  auto decision = Decision::from_bytes(r.get_string(), n_ranks_);
  if (!decision || (kind != kDecided && kind != kKnown)) return false;
  if (kind == kDecided && from < instance.promised) return true;
  if (kind == kKnown && coordinator(*without, instance) != rank_) return true;
  adopt(instance, std::move(*decision));
  proceed(*without, instance);
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
  if (shortage_) return *shortage_;
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
