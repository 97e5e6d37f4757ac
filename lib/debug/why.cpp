#include "debug/why.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "base/places.h"

namespace tutti {
namespace {

// What keeps a rank from going on, the worst last. kWorks and kWaits are not causes.
enum class RankState { kWaits, kWorks, kUnknown, kElsewhere, kFailed, kSilent, kStopped, kGone };

std::string seconds(int64_t ns) {
  return format("%.1f s", static_cast<double>(std::max<int64_t>(ns, 0)) / 1e9);
}

class Diagnosis {
 public:
  explicit Diagnosis(const Witnesses& witnesses) : witnesses_(witnesses) {
    // If all are gone, somebody has ended the whole job, and what counts is the operation that each was in.
    looks_back_ = !witnesses.empty() &&
                  std::all_of(witnesses.begin(), witnesses.end(), [](const auto& w) { return is_gone(w.second); });
  }

  std::string sentence(int asked) const {
    return (looks_back_ ? "all of the group's processes on this host have ended; this is what they left: " : "") +
           explanation(asked);
  }

 private:
  std::string explanation(int asked) const {
    const int start = asked >= 0 ? asked : longest_waiting();
    if (start < 0) return without_waiters();
    const std::vector<int> chain = chain_from(start);
    if (chain.empty()) return circle_from(start);
    const std::string& found = witnesses_.at(start).trace.wait.found;
    if (state_of(chain.back()) == RankState::kUnknown && !found.empty()) return found;
    std::string text;
    for (size_t i = 0; i + 1 < chain.size(); i++)
      text += i == 0 ? format("rank %d waits for rank %d", chain[0], chain[1])
                     : format(", which waits for rank %d", chain[i + 1]);
    if (chain.size() > 1) text += format(" (%s): ", place_in_order(witnesses_.at(start).trace).c_str());
    if (chain.size() > 1 && has_done(chain.back(), chain[chain.size() - 2]))
      return text + format(
                        "rank %d has done its part of that (it is %s), but what it sent has not arrived: look at the "
                        "network between them (tutti-doctor)",
                        chain.back(), place_in_order(witnesses_.at(chain.back()).trace).c_str());
    return text + cause(chain.back());
  }

  // Has this rank ended the collective in which `waiter` waits for it?
  bool has_done(int rank, int waiter) const {
    if (state_of(rank) != RankState::kElsewhere) return false;
    // Messages have numbers of their own.
    const TracedOperation* const its = witnesses_.at(waiter).trace.last();
    if (its == nullptr || its->call.collective == Collective::kSendRecv) return false;
    const auto& done = witnesses_.at(rank).trace.operations;
    return std::any_of(done.begin(), done.end(), [&](const TracedOperation& o) {
      return o.call.collective != Collective::kSendRecv && o.call.sequence >= its->call.sequence;
    });
  }

  static bool is_gone(const Witness& w) { return w.process_state == 'X' || w.process_state == 'Z'; }

  RankState state_of(int rank) const {
    const auto found = witnesses_.find(rank);
    if (found == witnesses_.end()) return RankState::kUnknown;
    if (!found->second.silent.empty()) return RankState::kSilent;
    const Trace& trace = found->second.trace;
    const char state = found->second.process_state;
    if (is_gone(found->second) && !looks_back_) return RankState::kGone;
    if (state == 'T' || state == 't') return RankState::kStopped;
    if (trace.has_failed()) return RankState::kFailed;
    if (!trace.wait.awaited.empty()) return RankState::kWaits;
    return trace.is_in_operation() ? RankState::kWorks : RankState::kElsewhere;
  }

  int longest_waiting() const {
    int found = -1;
    for (const auto& [rank, w] : witnesses_)
      if (state_of(rank) == RankState::kWaits &&
          (found < 0 || w.trace.wait.since_ns < witnesses_.at(found).trace.wait.since_ns))
        found = rank;
    return found;
  }

  // The shortest chain to the worst rank that can be reached; empty if none of them is a cause.
  std::vector<int> chain_from(int start) const {
    std::map<int, int> before{{start, -1}};
    std::deque<int> next{start};
    int worst = -1;
    for (; !next.empty(); next.pop_front()) {
      const int rank = next.front();
      const RankState how = state_of(rank);
      if (how >= RankState::kUnknown && (worst < 0 || how > state_of(worst))) worst = rank;
      if (how != RankState::kWaits) continue;
      for (const int awaited : witnesses_.at(rank).trace.wait.awaited)
        if (before.try_emplace(awaited, rank).second) next.push_back(awaited);
    }
    std::vector<int> chain;
    for (int rank = worst; rank >= 0; rank = before.at(rank)) chain.insert(chain.begin(), rank);
    return chain;
  }

  std::string circle_from(int start) const {
    const Trace& trace = witnesses_.at(start).trace;
    if (trace.wait.awaited.empty())
      return format("rank %d does not wait: it is %s", start, place_in_order(trace).c_str());
    const int other = trace.wait.awaited[0];
    const std::string mine = format("rank %d waits for rank %d (%s); ", start, other, place_in_order(trace).c_str());
    const auto found = witnesses_.find(other);
    return mine + format("rank %d is %s%s", other,
                         found == witnesses_.end() ? "unknown here" : place_in_order(found->second.trace).c_str(),
                         looks_back_ ? "" : ", and no rank that they wait for is stopped or gone");
  }

  std::string without_waiters() const {
    int worst = -1;
    for (const auto& [rank, w] : witnesses_)
      if (state_of(rank) >= RankState::kFailed && (worst < 0 || state_of(rank) > state_of(worst))) worst = rank;
    if (worst >= 0) return cause(worst);
    if (witnesses_.empty()) return "no rank on this host can be seen";
    const auto& [rank, w] = *witnesses_.begin();
    return format("no rank has been waiting for long; rank %d is %s", rank, place_in_order(w.trace).c_str());
  }

  std::string cause(int rank) const {
    const RankState how = state_of(rank);
    if (how == RankState::kUnknown)
      return format(
          "nothing is known here about rank %d: it is on another host, or has finalized or destroyed its "
          "communicator",
          rank);
    const auto& [trace, state, elsewhere, is_remote, silent] = witnesses_.at(rank);
    const std::string where = place_in_order(trace);
    const int pid = trace.process.pid;
    const std::string its = format("its process %d%s", pid, is_remote ? (" on host " + trace.host).c_str() : "");
    switch (how) {
      case RankState::kGone: return format("rank %d is gone: %s has ended (%s)", rank, its.c_str(), where.c_str());
      case RankState::kStopped:
        return format(
            "rank %d is stopped (%s): %s was stopped by a signal or a debugger; kill -CONT %d lets it continue", rank,
            where.c_str(), its.c_str(), pid);
      case RankState::kSilent: return silent + ", though its host is up: its process is stopped, or gets no CPU time";
      case RankState::kFailed: return format("rank %d has given up: %s", rank, trace.error.c_str());
      case RankState::kElsewhere:
        return format(
            "rank %d has not called it yet: it is %s, and %s %s", rank, where.c_str(), its.c_str(),
            elsewhere.empty() ? occupation(state) : ("is in another group's operation: " + elsewhere).c_str());
      case RankState::kWaits:
      case RankState::kWorks:
      case RankState::kUnknown: break;
    }
    return format("rank %d is %s", rank, where.c_str());
  }

  static const char* occupation(char state) {
    switch (state) {
      case 'R': return "is computing outside Tutti";
      case 'S': return "is asleep outside Tutti";
      case 'D': return "is waiting for a disk or a network file system";
      case 'X':
      case 'Z': return "has ended";
      default: return "cannot be seen from here";
    }
  }

  const Witnesses& witnesses_;
  bool looks_back_ = false;
};

// Ranks of different groups also wait for each other, if one process is in both groups.
void look_elsewhere(std::map<uint64_t, Witnesses>& groups) {
  for (auto& [group, ranks] : groups)
    for (auto& [rank, witness] : ranks)
      for (const auto& [other_group, others] : groups)
        for (const auto& [other_rank, other] : others) {
          const Trace& trace = other.trace;
          if (other_group == group || !trace.is_in_operation() || !(trace.process == witness.trace.process)) continue;
          witness.elsewhere = place_in_order(trace);
          if (!trace.wait.awaited.empty())
            witness.elsewhere += format(", where it waits for rank %d of that group", trace.wait.awaited[0]);
        }
}

}  // namespace

std::map<uint64_t, Witnesses> find_witnesses(const std::string& folder, bool with_all_operations) {
  std::map<uint64_t, Witnesses> groups;
  std::optional<TickClock> clock;
  for (const std::string& path : trace_files(folder)) {
    const auto file = TraceFile::open(path);
    if (!file) continue;  // of another version, or removed meanwhile
    if (!clock || !clock->is_for(file.value().header())) clock.emplace(file.value().header());
    Trace trace = with_all_operations ? file.value().read(*clock) : file.value().read_end(*clock);
    const char state = process_state(trace.process);
    const uint64_t group = trace.group;
    const int rank = trace.rank;
    groups[group].insert_or_assign(rank, Witness{std::move(trace), state, {}});
  }
  look_elsewhere(groups);
  return groups;
}

std::string why(const Witnesses& witnesses, int asked) {
  if (asked >= 0 && !witnesses.contains(asked)) return format("nothing is known here about rank %d", asked);
  return Diagnosis(witnesses).sentence(asked);
}

std::string place_in_order(const Trace& trace) {
  const TracedOperation* const last = trace.last();
  if (last == nullptr) return "yet to call its first operation";
  const std::string what = to_text(*last) + in_parentheses(last->place);
  if (trace.is_in_operation())
    return format("in %s, for %s", what.c_str(), seconds(trace.read_ns - last->started_ns).c_str());
  return format("after %s, which ended %s ago", what.c_str(), seconds(trace.read_ns - last->finished_ns).c_str());
}

}  // namespace tutti
