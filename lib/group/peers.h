// This header: how ranks learn of each other's loss. Every rank keeps an authenticated control connection to its
// neighbours, and one thread of the process sleeps on all of them (watcher.h). A connection that breaks, or a notice of
// an error, reaches this rank at once, even while it computes, and is passed on to the other neighbours, so that one
// loss ends the whole group with the name of the rank that caused it (ending.h).
//
// The same connections, and others that are made on demand, carry the agreements of the ranks that are left
// (council.h).
//
// Threading: public functions from any thread, except creation and destruction, which belong to the owner.
#pragma once

#include <functional>
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
#include "group/ending.h"
#include "group/line.h"
#include "group/watcher.h"

namespace tutti {

class PeerWatch : private Watcher::Client {
 public:
  // How a rank reacts to a question that another rank asks the group: an error answers it and ends the group for all;
  // without one the question is passed on to the neighbours if passes_on is set.
  struct Answer {
    std::optional<Error> error;
    bool passes_on = false;
    std::string says = {};  // an additional message to the neighbours
  };
  // Called on the watching thread. Nothing if the bytes are not a question.
  using Listener = std::function<std::optional<Answer>(std::string_view question)>;

  struct Member {
    std::string name;  // "rank 3 (host node1, pid 77)"
    Contact contact;   // of its control listener
    std::string host_name;
  };
  struct Config {
    int rank;
    int n_ranks, n_here;  // in the group, and on this host
    Key key;
    uint64_t group = 0;                           // its number, unique in this process
    std::vector<int> of_process = {};             // the ranks in this process, ascending
    std::function<Member(int rank)> member = {};  // from any thread
    std::vector<int> neighbours = {};
    Listener listener = {};  // without one questions are ignored
    // Called on the same thread, every tenth of a second once a line leads to another host.
    std::function<void(PeerWatch&)> tick = {};
  };

  // Connects to all neighbours (the higher rank of a pair calls the lower) and starts the thread. Blocks at most until
  // the deadline; kTimeout and kRemoteError name the ranks that could not be reached and why.
  // `gives_up` is polled meanwhile; true ends the wait, because a rank will not come.
  static Result<std::unique_ptr<PeerWatch>> create(Config config, std::vector<Fd> listening, Deadline deadline,
                                                   const std::function<bool()>& gives_up = {});
  ~PeerWatch() override;

  Ending& ending() { return ending_; }
  Agreement& agreement() { return agreement_; }
  const Lines& lines() const { return lines_; }

  // Ranks whose connections broke without a goodbye, here or as other ranks report, in the order in which this rank
  // learned of them: who left because of a death comes after it. If the group has failed because a rank died, that rank
  // is among them.
  std::vector<int> lost() const;
  // How many operations a neighbour had done when it said goodbye.
  std::optional<uint64_t> departed(int rank) const;
  // File descriptors that it holds.
  size_t descriptors() const { return 1 + acceptor_.descriptors() + lines_.sockets(); }  // 1: the eventfd

  const Key& key() const { return config_.key; }
  int rank() const { return config_.rank; }
  std::string rank_name(int rank) const { return config_.member(rank).name; }

 private:
  PeerWatch(Config config, std::vector<Fd> listening, Fd wake);
  Result<void> connect(Deadline deadline, const std::function<bool()>& gives_up);

  // On the watching thread, or in create() before that serves this rank.
  void serve() override;
  int waits_for(std::vector<pollfd>* fds) override;
  void accept_lines();
  void dial_wanted();
  void add_line(int peer, Fd fd, std::unique_ptr<SecureChannel> channel);
  bool read_line(Line& line);
  void end_line(const Line& line);
  bool take_frame(const Line& line, FrameKind kind, std::string_view bytes);
  bool take_loss(int rank);
  bool hear(std::string_view question);
  void lose(int rank);
  void lose_host(int rank, double silent_seconds);

  const Config config_;
  std::shared_ptr<Watcher> watcher_;  // outlives the lines, which wake it
  Lines lines_;
  Ending ending_;
  Agreement agreement_;
  Acceptor acceptor_;
  std::map<int, Dialer> dialers_;  // never cancelled: the other side would take that for a death
  // What failed when they were last advanced.
  std::map<int, std::string> unreachable_;  // and why
  std::optional<Error> lack_;               // there was no socket to be had
  mutable std::mutex mutex_;                // guards the members below, which only the watching thread changes
  std::map<int, uint64_t> departed_;
  std::vector<int> lost_;
};

}  // namespace tutti
