// This header: how ranks learn of each other's loss. Every rank keeps an authenticated control connection to its
// neighbours and one thread that sleeps on them. A connection that breaks, or a notice of an error, reaches this rank
// at once, also while it computes, and is passed on to the other neighbours, so that one loss ends the whole group with
// the name of the rank that caused it.
//
// Threading: failed() is one load; fail(), failure(), lost(), departed(), descriptors() from any thread; the rest from
// the owner's thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/dial.h"
#include "base/result.h"
#include "group/bootstrap.h"

namespace tutti {

class PeerWatch {
 public:
  // What a rank makes of a question that another one asks the group: its answer ends the group for all; without one the
  // question is passed on to the neighbours, if they ought to hear it.
  struct Answer {
    std::optional<Error> error;
    bool passes_on = false;
  };
  // Called on the thread that watches. Nothing where the bytes are no question.
  using Listener = std::function<std::optional<Answer>(std::string_view question)>;

  struct Config {
    int rank;
    Key key;
    std::vector<std::string> rank_names;  // "rank 3 (host node1, pid 77)"
    std::vector<Contact> contacts;        // of every rank's control listener
    std::vector<int> neighbours;
    Listener listener = {};  // without one questions are passed over
  };

  // Connects to all neighbours (the higher rank of a pair calls the lower) and starts the thread. Blocks at most until
  // the deadline; kTimeout and kRemoteError name the ranks that could not be reached and why.
  static Result<std::unique_ptr<PeerWatch>> create(Config config, Fd listen_fd, Deadline deadline);
  ~PeerWatch();

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

  // Tells the neighbours' listeners something.
  void tell(std::string_view what);
  // Asks all other ranks what one of them will answer by ending the group, and waits for that. If nobody does so soon,
  // or a rank turns out to be lost meanwhile, the group ends with `otherwise`. An empty question has been asked by
  // somebody else. kMostQuestionBytes at most.
  void ask(std::string_view question, const Error& otherwise, int limit_ms);
  static constexpr size_t kMostQuestionBytes = 8192;

  // The id for a new group of `members`, some ranks in rising order with this one: the first of them serves the meeting
  // where its control connections came in, so that no word has to be exchanged for it, and none of the lines need be
  // left. All ranks come to the same id; `nth` tells the meetings of the same members apart.
  Result<UniqueId> reunion(const std::vector<int>& members, uint64_t nth, Deadline deadline) const;

  // Tells the neighbours that this rank leaves in good order after `operations` operations.
  void say_goodbye(uint64_t operations);
  // How many operations a neighbour had done when it said goodbye.
  std::optional<uint64_t> departed(int rank) const;

  // How many it holds.
  size_t descriptors() const;

  const std::string& rank_name(int rank) const { return config_.rank_names[static_cast<size_t>(rank)]; }

 private:
  struct Line {
    Fd fd;
    std::string received;
    std::optional<uint64_t> goodbye;
  };

  explicit PeerWatch(Config config) : config_(std::move(config)) {}
  Result<void> connect(Fd listen_fd, Deadline deadline);
  Result<void> start();
  void serve();
  void lose(int rank);
  void read_line(int peer, Line& line);
  bool take_frame(int peer, Line& line);
  bool take_payload(Line& line, uint32_t type, std::string_view bytes);
  bool hear(std::string_view question);
  void send_to_all(uint32_t type, const std::string& payload);  // with mutex_ held

  Config config_;
  Fd listen_fd_;  // kept for reunion()
  std::map<int, Line> lines_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // failure_, lost_, goodbyes, sending
  Error failure_;
  std::optional<Error> otherwise_;  // while this rank waits for an answer
  std::set<int> lost_;
  bool leaving_ = false;
  Fd wake_fd_, stop_fd_;
  std::thread thread_;
};

}  // namespace tutti
