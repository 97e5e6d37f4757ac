// How the ranks of a group come to one result though some die meanwhile: everyone who gets the result of an epoch gets
// the same, with the votes of all that took part.
//
//   ranks that call                 the coordinator: the lowest rank that is not lost, once it calls, too
//   State {epoch, vote}      --->   waits for all that are not lost
//                            <---   Summon {epoch}: to who has said nothing; the thread that watches answers at once
//                            <---   Decision {epoch, members, votes}, when all have voted in the same epoch
//
// A coordinator that dies may leave its decision with some. The next one waits for a State of everybody that is left,
// so it hears of that decision (Known), takes it for its own and hands it to those without. Who has told one
// coordinator its State takes no decision of an earlier one any more: so there are never two for one epoch. Epochs are
// not counted by calls, but taken from whoever is furthest; since a decision takes all votes, nobody is more than one
// behind. A rank is lost when its connections break or cannot be made. That is for good: who is lost by mistake is shut
// out.
//
// A Council has no sockets and no threads: its owner serialises the calls, passes on what it sends, and makes the
// connections that it wants. Ranks that take part are all but those in `without`; each such list is a matter by itself.
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
  Nonce nonce{};                   // another one for every decision
  std::vector<int> members;        // who voted, in rising order
  std::vector<std::string> votes;  // theirs

  std::string to_bytes() const;
  static std::optional<Decision> from_bytes(std::string_view bytes, int n_ranks);
};

class Council {
 public:
  using Without = std::vector<int>;  // in rising order
  // False when there is no connection: then connected() is called as soon as there is one.
  using Send = std::function<bool(int to, const std::string& message)>;

  Council(int rank, int n_ranks, Send send) : rank_(rank), n_ranks_(n_ranks), send_(std::move(send)) {}

  void join(const Without& without, std::string vote);
  void leave(const Without& without);
  // Of the last join(), once it is there.
  std::optional<Decision> take_result(const Without& without);
  // Who is waited for: the coordinator knows, and tells the others in name_missing().
  std::vector<int> missing(const Without& without);
  void name_missing(const Without& without);
  int coordinator(const Without& without) { return coordinator(without, matters_[without]); }

  bool hear(int from, std::string_view message);  // false: it makes no sense
  void lose(int rank);
  void connected(int rank);
  // Whom this rank wants to be connected to, because it waits for them.
  std::set<int> wanted() const;

 private:
  struct State {
    uint64_t serial = 0, epoch = 0;
    std::optional<std::string> vote;
  };
  struct Matter {
    uint64_t epoch = 0;  // to be decided next
    std::optional<Decision> last, result;
    std::optional<std::string> vote;           // while this rank waits
    int promised = 0;                          // takes no decision of who stands below
    int told = -1;                             // the coordinator that has this rank's State
    uint64_t serial = 0;                       // of that
    std::map<int, State> states;               // what others have told this rank
    std::map<int, uint64_t> summoned, handed;  // until which epoch
    std::optional<std::vector<int>> missing;   // as the coordinator says
  };

  bool takes_part(const Without& without, int rank) const;
  int coordinator(const Without& without, const Matter& matter) const;
  void proceed(const Without& without, Matter& matter);
  void tell(const Without& without, Matter& matter, int to);
  void help_late(const Without& without, Matter& matter);
  bool have_all_voted(const Without& without, Matter& matter);
  void decide(const Without& without, Matter& matter);
  void adopt(Matter& matter, Decision decision);

  const int rank_, n_ranks_;
  const Send send_;
  std::set<int> lost_;
  std::map<Without, Matter> matters_;
};

// The same over the control connections, for threads that wait.
class Agreement {
 public:
  Agreement(int rank, int n_ranks, RankName name, Lines& lines);

  // Any thread.
  //
  // Collective over the ranks that are left, but for those in `without`: everyone's vote to all, as council.h says.
  // Works also when the group has failed. One call for each list at a time. kTimeout names who was waited for,
  // kRemoteError says that the others take this rank to be lost.
  Result<Decision> reach(const Council::Without& without, const std::string& vote, const Deadline& deadline);
  // Ends what waits for others in an attempt that cannot succeed, on all ranks: alarmed() says so there.
  void alarm(const Nonce& attempt);
  bool alarmed(const Nonce& attempt) const {
    const std::lock_guard lock(mutex_);
    return alarms_.contains(attempt);
  }

  // On the thread that watches the peers.
  //
  // What the council is told there may be what reach() waits for.
  template <class Tell>
  auto inform(Tell&& tell) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    return tell(council_);
  }
  // The others take this rank to be lost.
  void shut_out(const Error& error) {
    const std::lock_guard lock(mutex_);
    shut_out_ = error;
    changed_.notify_all();
  }

 private:
  const int rank_;
  const RankName name_;
  Lines& lines_;
  mutable std::mutex mutex_;  // what follows
  Council council_;
  std::condition_variable changed_;
  std::set<Nonce> alarms_;  // of attempts that failed
  std::optional<Error> shut_out_;
};

}  // namespace tutti
