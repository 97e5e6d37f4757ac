// Agreement among ranks some of which die, without sockets: messages arrive in any order that connections allow, ranks
// die between any two messages, and no rank may get a different result.
#include "group/council.h"

#include <deque>
#include <memory>
#include <random>
#include <sstream>

#include "base/bytes.h"
#include "catch.h"

using namespace tutti;

namespace {

// Ranks, and a connection between every two of them that is made on demand. A dead rank sends nothing more; what it
// sent before still arrives, followed by the news of its death, at a different time for each of the others.
class World {
 public:
  World(int n, unsigned seed) : random_(seed), n_(n), ranks_(static_cast<size_t>(n)) {
    for (int r = 0; r < n; r++)
      ranks_[index(r)].council = std::make_unique<Council>(r, n, [this, r](int to, const std::string& message) {
        if (!is_connected(r, to)) return false;
        Rank& rank = ranks_[index(r)];
        if (rank.sends_left == 0) rank.dead = true;
        if (rank.sends_left > 0) rank.sends_left--;
        if (!rank.dead) queue(r, to).push_back(message);
        return true;
      });
  }

  // Each rank calls for `epochs` results, one after the other. Some start later than others.
  void run(int epochs, int deaths) {
    for (int turn = 0; turn < 200'000; turn++) {
      if (deaths > 0 && pick(60) == 0) deaths -= kill(pick(n_));
      const int r = pick(n_);
      if (!ranks_[index(r)].dead) step(r, epochs);
      if (is_over(epochs) && deaths == 0) return;
    }
    for (int r = 0; r < n_; r++) {
      const Rank& rank = ranks_[index(r)];
      std::ostringstream text;
      text << "rank " << r
           << (rank.dead    ? " is dead"
               : rank.calls ? " calls"
                            : " does not call")
           << " with " << rank.results.size() << " results, waits for";
      for (const int peer : rank.council->wanted()) text << ' ' << peer;
      text << ", knows to be dead";
      for (const int peer : rank.knows_dead) text << ' ' << peer;
      UNSCOPED_INFO(text.str());
    }
    FAIL("nobody comes to an end with " << n_ << " ranks, deaths left " << deaths);
  }

  // The survivors have all results, and they are equal.
  void check(int epochs) const {
    std::map<uint64_t, std::string> decided;
    for (const Rank& rank : ranks_) {
      if (rank.dead) continue;  // its results do not matter any more
      if (rank.sends_left < 0) CHECK(rank.results.size() == static_cast<size_t>(epochs));
      for (const Decision& decision : rank.results) {
        const auto [known, is_new] = decided.try_emplace(decision.epoch, decision.to_bytes());
        if (!is_new) CHECK(known->second == decision.to_bytes());
        for (size_t i = 0; i < decision.members.size(); i++)
          CHECK(decision.votes[i] == vote_of(decision.members[i], decision.epoch));
      }
    }
  }

 private:
  struct Rank {
    std::unique_ptr<Council> council;
    std::vector<Decision> results;
    bool calls = false, dead = false;
    int sends_left = -1;  // messages until it dies; -1: it lives
    std::set<int> connected, knows_dead;
  };
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  static std::string vote_of(int rank, uint64_t epoch) { return std::to_string(rank) + " in " + std::to_string(epoch); }
  int pick(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  bool is_connected(int a, int b) const { return ranks_[index(a)].connected.contains(b); }
  std::deque<std::string>& queue(int from, int to) { return queues_[{from, to}]; }

  // At once, or in the middle of a broadcast.
  int kill(int r) {
    Rank& rank = ranks_[index(r)];
    if (rank.dead || rank.sends_left >= 0) return 0;
    rank.sends_left = pick(6);
    rank.dead = pick(2) == 0;
    return 1;
  }

  void step(int r, int epochs) {
    Rank& rank = ranks_[index(r)];
    if (auto result = rank.council->take_result({})) {
      rank.results.push_back(std::move(*result));
      rank.calls = false;
    }
    if (!rank.calls && rank.results.size() < index(epochs) && pick(4) == 0) {
      rank.calls = true;
      rank.council->join({}, vote_of(r, rank.results.size()));
    }
    const int peer = pick(n_);
    if (peer != r) meet(r, peer);
  }

  void meet(int r, int peer) {
    Rank& rank = ranks_[index(r)];
    std::deque<std::string>& waiting = queue(peer, r);
    if (is_connected(r, peer) && !waiting.empty()) {
      CHECK(rank.council->hear(peer, waiting.front()));
      waiting.pop_front();
    } else if (ranks_[index(peer)].dead && (is_connected(r, peer) || rank.council->wanted().contains(peer))) {
      if (rank.knows_dead.insert(peer).second) rank.council->lose(peer);
    } else if (!is_connected(r, peer) && rank.council->wanted().contains(peer)) {
      rank.connected.insert(peer);
      ranks_[index(peer)].connected.insert(r);
      rank.council->connected(peer);
      ranks_[index(peer)].council->connected(r);
    } else if (!rank.knows_dead.empty() && is_connected(r, peer) && pick(3) == 0) {  // as PeerWatch passes it on
      for (const int lost : rank.knows_dead)
        if (ranks_[index(peer)].knows_dead.insert(lost).second) ranks_[index(peer)].council->lose(lost);
    }
  }

  bool is_over(int epochs) const {
    for (const Rank& rank : ranks_)
      if (!rank.dead && rank.sends_left < 0 && rank.results.size() < static_cast<size_t>(epochs)) return false;
    return true;
  }

  std::mt19937 random_;
  const int n_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<std::string>> queues_;
};

}  // namespace

TEST_CASE("whoever dies, those who are left come to the same results") {
  constexpr int kEpochs = 4;
  for (unsigned seed = 1; seed <= 10'000; seed++) {
    INFO("seed " << seed);
    const int n = 1 + static_cast<int>(seed % 8);
    World world(n, seed);
    world.run(kEpochs, static_cast<int>(seed / 8) % n);
    world.check(kEpochs);
  }
}

namespace {

using Mail = std::vector<std::deque<std::pair<int, std::string>>>;  // for each rank: senders and messages

std::vector<std::unique_ptr<Council>> council_of(Mail& mail) {
  std::vector<std::unique_ptr<Council>> ranks;
  const int n = static_cast<int>(mail.size());
  for (int r = 0; r < n; r++)
    ranks.push_back(std::make_unique<Council>(r, n, [&mail, r](int to, const std::string& message) {
      mail[static_cast<size_t>(to)].push_back({r, message});
      return true;
    }));
  return ranks;
}

void deliver_to(size_t to, Mail& mail, const std::vector<std::unique_ptr<Council>>& ranks) {
  for (; !mail[to].empty(); mail[to].pop_front())
    CHECK(ranks[to]->hear(mail[to].front().first, mail[to].front().second));
}

}  // namespace

TEST_CASE("who comes late gets the result that it has missed, from a rank that calls nothing any more") {
  Mail mail(3);
  const auto ranks = council_of(mail);
  const auto deliver = [&](size_t to) { deliver_to(to, mail, ranks); };
  for (size_t r = 0; r < 3; r++) ranks[r]->join({}, "vote");
  deliver(1);  // rank 1 gets the summons
  deliver(2);
  deliver(0);  // rank 0 decides
  deliver(1);
  const auto first = ranks[1]->take_result({});
  REQUIRE(first.has_value());
  mail[2].clear();  // rank 0 died before this rank had its decision
  ranks[2]->lose(0);
  ranks[1]->lose(0);
  for (int i = 0; i < 4; i++) {
    deliver(1);
    deliver(2);
  }
  const auto late = ranks[2]->take_result({});
  REQUIRE(late.has_value());
  CHECK(late->to_bytes() == first->to_bytes());
}

// As PeerWatch says after it has had no memory for a message.
TEST_CASE("what was lost of a message is said again after connected()") {
  Mail mail(3);
  const auto ranks = council_of(mail);
  const auto deliver = [&](size_t to) { deliver_to(to, mail, ranks); };
  for (size_t r = 0; r < 3; r++) ranks[r]->join({}, "vote");
  const bool hears = GENERATE(true, false);  // what is lost: what rank 2 says, or the decision
  if (hears) mail[0].pop_back();
  deliver(0);
  mail[2].clear();
  if (hears) ranks[0]->connected(2);
  if (!hears) ranks[2]->connected(0);
  for (int i = 0; i < 4; i++)
    for (size_t r = 0; r < 3; r++) deliver(r);
  for (const auto& rank : ranks) CHECK(rank->take_result({}).has_value());
}

// A message may be lost the second time, too: the connection over which it is said again may break.
TEST_CASE("a decision that is lost again is said once more") {
  Mail mail(3);
  const auto ranks = council_of(mail);
  const auto deliver = [&](size_t to) { deliver_to(to, mail, ranks); };
  for (size_t r = 0; r < 3; r++) ranks[r]->join({}, "vote");
  deliver(0);
  for (int i = 0; i < 2; i++) {
    mail[2].clear();
    ranks[0]->connected(2);
    ranks[2]->connected(0);
    deliver(0);  // rank 2 says where it is, and is told the decision
  }
  for (size_t r = 0; r < 3; r++) deliver(r);
  for (const auto& rank : ranks) CHECK(rank->take_result({}).has_value());
}

TEST_CASE("whom a coordinator that is lost has missed is not missed by the next one") {
  Mail mail(4);
  const auto ranks = council_of(mail);
  for (const size_t r : {0, 1, 2}) ranks[r]->join({}, "vote");
  const auto deliver = [&](size_t to) { deliver_to(to, mail, ranks); };
  deliver(0);
  ranks[0]->name_missing({});
  deliver(2);
  CHECK(ranks[2]->missing({}) == std::vector<int>{3});
  ranks[2]->lose(0);
  CHECK(ranks[2]->missing({}).empty());
}

TEST_CASE("who has given up does not vote until it comes again") {
  Mail mail(3);
  const auto ranks = council_of(mail);
  const auto deliver = [&] {
    for (size_t to = 0; to < 3; to = mail[to].empty() ? to + 1 : 0) deliver_to(to, mail, ranks);
  };
  const size_t who = GENERATE(size_t{0}, size_t{1});  // the coordinator, or another rank
  for (const size_t r : {0, 1}) ranks[r]->join({}, "early");
  deliver();
  ranks[who]->leave({});
  deliver();
  ranks[2]->join({}, "late");
  deliver();
  for (const auto& rank : ranks) CHECK_FALSE(rank->take_result({}).has_value());
  ranks[who]->join({}, "again");
  deliver();
  for (const auto& rank : ranks) {
    const auto result = rank->take_result({});
    REQUIRE(result.has_value());
    CHECK(result->votes[who] == "again");
    CHECK(result->votes[2] == "late");
  }
}

TEST_CASE("votes for different lists do not mix, and who is missing is known") {
  std::vector<std::string> sent;
  Council council(0, 4, [&](int, const std::string& message) {
    sent.push_back(message);
    return true;
  });
  council.join({3}, "vote");
  CHECK(council.wanted() == std::set<int>{1, 2});
  CHECK(council.missing({3}) == std::vector<int>{1, 2});
  council.lose(1);
  CHECK(council.missing({3}) == std::vector<int>{2});
  council.lose(2);
  const auto alone = council.take_result({3});
  REQUIRE(alone.has_value());
  CHECK(alone->members == std::vector<int>{0});
  CHECK_FALSE(council.take_result({}).has_value());
}

TEST_CASE("messages that make no sense are refused") {
  std::vector<std::string> sent;
  const auto keep = [&](int, const std::string& message) {
    sent.push_back(message);
    return true;
  };
  Council zero(0, 3, keep), one(1, 3, keep);
  one.join({}, "a vote");
  zero.join({}, "another");
  REQUIRE_FALSE(sent.empty());
  std::mt19937 random(7);
  for (const std::string& message : std::vector<std::string>(sent)) {
    for (size_t bytes = 0; bytes < message.size(); bytes++) CHECK_FALSE(one.hear(2, message.substr(0, bytes)));
    for (int i = 0; i < 1000; i++) {
      std::string damaged = message;
      damaged[random() % damaged.size()] ^= static_cast<char>(1u << random() % 8);
      [[maybe_unused]] const bool heard = one.hear(2, damaged);  // must not read out of bounds either
    }
  }
}

TEST_CASE("a rank that invents lists fills no other one's memory") {
  size_t answers = 0;
  Council council(1, 1000, [&](int, const std::string&) { return ++answers > 0; });
  for (int left_out = 2; left_out < 1000;
       left_out++) {  // the leader of a shrink without that rank asks for this rank's state
    const std::string summon =
        ByteWriter().put(uint32_t{2}).put(uint32_t{1}).put(int32_t{left_out}).put(uint64_t{0}).take();
    REQUIRE(council.hear(0, summon));
  }
  CHECK(answers > 100);
  CHECK(answers < 500);
  council.join({}, "vote");  // its own shrink does not count as one of those
  CHECK(council.wanted() == std::set<int>{0});
}
