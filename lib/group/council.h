// How the ranks of a group agree on one result although some may die meanwhile: all ranks that get the result of an
// epoch get the same one, with the votes of all participants.
//
//   ranks that call                 the coordinator: the lowest rank that is not lost, once it calls, too
//   State {epoch, vote}      --->   waits for all ranks that are not lost
//                            <---   Summon {epoch}: to a silent rank, whose watching thread answers at once
//                            <---   Decision {epoch, members, votes}, when all have voted in the same epoch
//
// A coordinator may die after only some ranks have its decision. The next one waits for a State from every rank left,
// so it hears of that decision (Known), adopts it and sends it to the ranks that do not have it. A rank that has sent
// its State to one coordinator accepts no decision from an earlier one: so an epoch never has two decisions. An epoch
// does not count calls: a rank that is behind adopts the epoch of the most advanced. As a decision needs every vote, no
// rank is more than one behind. A rank is lost when its connections break or cannot be made, and stays so: if that was
// a mistake, the rank is shut out.
//
// A Council has no sockets and no threads: its owner serialises the calls, passes on the messages, and makes the wanted
// connections. All ranks except those in `without` take part; each such list is an instance of its own.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "group/line.h"

namespace tutti {

using Nonce = std::array<uint8_t, 16>;

struct Decision {
  uint64_t epoch = 0;
  Nonce nonce{};                   // random, different for every decision
  std::vector<int> members;        // the ranks that voted, ascending
  std::vector<std::string> votes;  // of the members, in their order

  std::string to_bytes() const;
  static std::optional<Decision> from_bytes(std::string_view bytes, int n_ranks);
};

class Council {
 public:
  using Without = std::vector<int>;  // ascending
  // False if there is no connection: the owner then calls connected() as soon as there is one.
  using Send = std::function<bool(int to, const std::string& message)>;

  Council(int rank, int n_ranks, Send send) : rank_(rank), n_ranks_(n_ranks), send_(std::move(send)) {}

  void join(const Without& without, std::string vote);
  void leave(const Without& without);
  // The decision that the last join() waits for, once it is known.
  std::optional<Decision> take_result(const Without& without);
  // The ranks that are waited for: the coordinator knows them, and tells the others in name_missing().
  std::vector<int> missing(const Without& without);
  void name_missing(const Without& without);
  int coordinator(const Without& without) { return coordinator(without, instances_[without]); }

  bool hear(int from, std::string_view message);  // false: the message is invalid
  void lose(int rank);
  void connected(int rank);
  // The ranks that this one needs connections to, because it waits for them.
  std::set<int> wanted() const;

 private:
  struct State {
    uint64_t serial = 0, epoch = 0;
    std::optional<std::string> vote;
  };
  struct Instance {
    uint64_t epoch = 0;  // of the next decision
    std::optional<Decision> last, result;
    std::optional<std::string> vote;           // this rank's, while it waits
    int promised = 0;                          // the lowest coordinator whose decisions are accepted
    int told = -1;                             // the coordinator that has this rank's State
    uint64_t serial = 0;                       // of the last State sent
    std::map<int, State> states;               // the last one from each other rank
    std::map<int, uint64_t> summoned, handed;  // by rank: 1 + the epoch of the last Summon or Decision sent
    std::optional<std::vector<int>> missing;   // as the coordinator says
  };

  bool takes_part(const Without& without, int rank) const;
  int coordinator(const Without& without, const Instance& instance) const;
  void proceed(const Without& without, Instance& instance);
  void tell(const Without& without, Instance& instance, int to);
  void help_late(const Without& without, Instance& instance);
  bool have_all_voted(const Without& without, Instance& instance);
  void decide(const Without& without, Instance& instance);
  void adopt(Instance& instance, Decision decision);

  const int rank_, n_ranks_;
  const Send send_;
  std::set<int> lost_;
  std::map<Without, Instance> instances_;
};

// A Council over the control connections, for threads that block.
class Agreement {
 public:
  Agreement(int rank, int n_ranks, RankName name, Lines& lines);

  // Any thread.
  //
  // Collective over the ranks that are left, except those in `without`: gives everyone's vote to all, as described
  // above. Works even if the group has failed. One call at a time for each list. kTimeout names the ranks that were
  // waited for, kSystemError says why they could not be reached, kRemoteError that the others take this rank for lost.
  Result<Decision> reach(const Council::Without& without, const std::string& vote, const Deadline& deadline);
  // Stops all ranks from waiting in an attempt that cannot succeed: alarmed() becomes true on each.
  void alarm(const Nonce& attempt);
  bool alarmed(const Nonce& attempt) const {
    const std::lock_guard lock(mutex_);
    return alarms_.contains(attempt);
  }

  // On the watching thread.
  //
  // Wakes reach(), which may be waiting for what the council is told here.
  template <class Tell>
  auto inform(Tell&& tell) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    return tell(council_);
  }
  // Why this rank can make no connections, if so.
  void set_shortage(std::optional<Error> shortage) {
    const std::lock_guard lock(mutex_);
    shortage_ = std::move(shortage);
  }
  // The others take this rank for lost.
  void shut_out(const Error& error) {
    const std::lock_guard lock(mutex_);
    shut_out_ = error;
    changed_.notify_all();
  }

 private:
  const int rank_;
  const RankName name_;
  Lines& lines_;
  mutable std::mutex mutex_;  // guards the members below
  Council council_;
  std::condition_variable changed_;
  std::set<Nonce> alarms_;  // of attempts that failed
  std::optional<Error> shut_out_, shortage_;
};

}  // namespace tutti
