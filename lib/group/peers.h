// This header: how ranks learn of each other's loss. Every rank keeps an authenticated control connection to its
// neighbours, and one thread of the process sleeps on all of them (watcher.h). A connection that breaks, or a notice of
// an error, reaches this rank at once, also while it computes, and is passed on to the other neighbours, so that one
// loss ends the whole group with the name of the rank that caused it.
//
// The same connections, and those that are made when they are needed, carry what the ranks that are left agree upon
// (council.h).
//
// Threading: failed() is one load; fail(), failure(), lost(), departed(), retransmits(), descriptors(), agree(), tell()
// from any thread; the rest from the owner's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/dial.h"
#include "base/result.h"
#include "group/council.h"
#include "group/line.h"
#include "group/watcher.h"

namespace tutti {

class PeerWatch : private Watcher::Client {
 public:
  // What a rank makes of a question that another one asks the group: its answer ends the group for all; without one the
  // question is passed on to the neighbours, if they ought to hear it.
  struct Answer {
    std::optional<Error> error;
    bool passes_on = false;
    std::string says = {};  // to the neighbours, besides
  };
  // Called on the thread that watches. Nothing where the bytes are no question.
  using Listener = std::function<std::optional<Answer>(std::string_view question)>;

  struct Member {
    std::string name;  // "rank 3 (host node1, pid 77)"
    Contact contact;   // of its control listener
    std::string host_name;
  };
  struct Config {
    int rank;
    int n_ranks, n_here;  // in the group, and of them on this host
    Key key;
    uint64_t group = 0;                           // no other of this process has this number
    std::vector<int> of_process = {};             // the ranks in this process, in rising order
    std::function<Member(int rank)> member = {};  // from any thread
    std::vector<int> neighbours = {};
    Listener listener = {};  // without one questions are passed over
    // On the same thread, every tenth of a second where ranks are on other hosts.
    std::function<void(PeerWatch&)> tick = {};
  };

  // Connects to all neighbours (the higher rank of a pair calls the lower) and starts the thread. Blocks at most until
  // the deadline; kTimeout and kRemoteError name the ranks that could not be reached and why.
  // `gives_up` is asked now and then whether there is still somebody to wait for.
  static Result<std::unique_ptr<PeerWatch>> create(Config config, std::vector<Fd> listening, Deadline deadline,
                                                   const std::function<bool()>& gives_up = {});
  ~PeerWatch() override;

  // Has anything ended this group? Acquire: failure() is there afterwards.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Error failure() const;
  // Ranks whose connections broke without a goodbye, here or as other ranks tell, in rising order. When failure() is
  // that one of them died, it is there.
  std::vector<int> lost() const;
  // Readable once failed: for a sleeper's poll(2).
  int wake_fd() const { return wake_fd_.get(); }

  // Ends the group with `mine` here and `theirs` at the others. The first failure wins; notices are handed to the
  // kernel before this returns, so that a process may exit right after.
  void fail(const Error& mine, const Error& theirs);
  void fail(const Error& error) { fail(error, error); }
  // The same where this rank may have said goodbye: then it ends for this rank alone.
  void fail_also_after_goodbye(const Error& error);

  // Tells the neighbours' listeners something, unless this rank has said goodbye.
  void tell(std::string_view what);
  // Asks all other ranks what one of them will answer by ending the group, and waits for that. If nobody does so soon,
  // or a rank turns out to be lost meanwhile, the group ends with `otherwise`. An empty question has been asked by
  // somebody else. kMostQuestionBytes at most.
  void ask(std::string_view question, const Error& otherwise, int limit_ms);
  static constexpr size_t kMostQuestionBytes = 8192;

  // Collective over the ranks that are left, but for those in `without`: everyone's vote to all, as council.h says.
  // Works also when the group has failed. One call for each list at a time. kTimeout names who was waited for,
  // kRemoteError says that the others take this rank to be lost.
  Result<Decision> agree(const Council::Without& without, const std::string& vote, const Deadline& deadline);
  // Ends what waits for others in an attempt that cannot succeed, on all ranks: alarmed() says so there.
  void alarm(const Nonce& attempt);
  bool alarmed(const Nonce& attempt) const;
  bool has_lost_any_of(const std::vector<int>& ranks) const;
  const Key& key() const { return config_.key; }
  int rank() const { return config_.rank; }

  // Tells the neighbours that this rank leaves in good order after `operations` operations.
  void say_goodbye(uint64_t operations);
  // How many operations a neighbour had done when it said goodbye.
  std::optional<uint64_t> departed(int rank) const;

  // How often the kernel has sent something again, by peer, where connections are TCP's.
  std::map<int, uint64_t> retransmits() const;
  // How many it holds.
  size_t descriptors() const;

  std::string rank_name(int rank) const { return config_.member(rank).name; }

 private:
  explicit PeerWatch(Config config);
  Result<void> connect(std::vector<Fd> listening, Deadline deadline, const std::function<bool()>& gives_up);
  static constexpr int kDialMs = 20;  // addresses that do not answer are given up by the clock
  void add_dialled(std::vector<pollfd>* fds) const;
  Error no_agreement(const Council::Without& without);

  // The thread.
  void serve() override;
  int waits_for(std::vector<pollfd>* fds) override;
  void accept_lines();
  void dial_wanted();
  void add_line(int peer, Fd fd, std::unique_ptr<SecureChannel> channel);
  bool read_line(Line& line);
  void end_line(const Line& line);
  bool take_frame(const Line& line, const Line::Frame& frame);
  bool take_notice(std::string_view bytes);
  bool take_loss(std::string_view bytes);
  bool hear(std::string_view question);
  void lose(int rank);
  void send_the_rest();
  void start_heartbeat(Line& line);
  void beat();
  void lose_host(int rank, double silent_seconds);

  void fail_from(int origin, const Error& mine, const Error& theirs, bool also_after_goodbye = false);
  bool is_rank(int rank, int least = 0) const { return rank >= least && rank < config_.n_ranks; }
  // With mutex_ held.
  Line* find_line(int peer);
  void send(Line& line, uint32_t type, const std::string& payload);
  void send_to_all(uint32_t type, const std::string& payload);
  void wake();

  Config config_;
  std::shared_ptr<Watcher> watcher_;  // outlives the lines, which wake it
  std::optional<Acceptor> acceptor_;  // for lines that are made later
  std::map<int, Dialer> dialers_;
  int64_t beat_ns_ = 0;                     // when beat() was called last; 0 while there is no other host
  std::string lack_;                        // why there was no socket to be had: it dials again
  std::map<int, std::string> unreachable_;  // since they were dialled last, and why
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // what follows; the thread alone adds lines, removes them and reads from them
  std::list<Line> lines_;     // neighbours', and those made later: perhaps several with one peer
  std::map<int, uint64_t> departed_;
  Error failure_;
  std::optional<Error> otherwise_;  // while this rank waits for an answer
  std::set<int> lost_;
  Council council_;
  std::condition_variable council_changed_;
  std::set<Nonce> alarms_;         // of attempts that failed
  std::optional<Error> shut_out_;  // the others take this rank to be lost
  bool leaving_ = false;
  Fd wake_fd_;
};

// A notice's bytes; `origin` is the rank whose words these are.
std::string notice_payload(int origin, const Error& error);

// At most so long, whatever signals come meanwhile.
void wait_until_failed(const PeerWatch& watch, int limit_ms);

}  // namespace tutti
