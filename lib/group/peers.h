// This header: how ranks learn of each other's loss. Every rank keeps an authenticated control connection to its
// neighbours, and one thread of the process sleeps on all of them (watcher.h). A connection that breaks, or a notice of
// an error, reaches this rank at once, also while it computes, and is passed on to the other neighbours, so that one
// loss ends the whole group with the name of the rank that caused it (ending.h).
//
// The same connections, and those that are made when they are needed, carry what the ranks that are left agree upon
// (council.h).
//
// Threading: what is public from any thread, but for the creation and the end, which are of the owner's.
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

  // Of the group, for this rank.
  Ending& ending() { return ending_; }
  Agreement& agreement() { return agreement_; }
  const Lines& lines() const { return lines_; }

  // Ranks whose connections broke without a goodbye, here or as other ranks tell, in rising order. When the group has
  // failed because one of them died, it is there.
  std::vector<int> lost() const;
  // How many operations a neighbour had done when it said goodbye.
  std::optional<uint64_t> departed(int rank) const;
  // How many it holds.
  size_t descriptors() const { return 1 + connector_.descriptors() + lines_.sockets(); }  // one to wake others

  const Key& key() const { return config_.key; }
  int rank() const { return config_.rank; }
  std::string rank_name(int rank) const { return config_.member(rank).name; }

 private:
  PeerWatch(Config config, std::vector<Fd> listening, Fd wake);
  Result<void> connect(Deadline deadline, const std::function<bool()>& gives_up);

  // The thread.
  void serve() override;
  int waits_for(std::vector<pollfd>* fds) override;
  void accept_lines();
  void dial_wanted();
  void add_line(Connector::Made made);
  bool read_line(Line& line);
  void end_line(const Line& line);
  bool take_frame(const Line& line, const Line::Frame& frame);
  bool take_loss(int rank);
  bool hear(std::string_view question);
  void lose(int rank);
  void lose_host(int rank, double silent_seconds);

  const Config config_;
  std::shared_ptr<Watcher> watcher_;  // outlives the lines, which wake it
  Lines lines_;
  Ending ending_;
  Agreement agreement_;
  Connector connector_;
  mutable std::mutex mutex_;  // what follows, which the thread alone changes
  std::map<int, uint64_t> departed_;
  std::set<int> lost_;
};

}  // namespace tutti
