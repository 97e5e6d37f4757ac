// This header: when the ranks of other hosts came to operations and left them, so that a rank is seen to be late
// whichever host it is on. Who wants to know asks over the control connections; the leader of each host answers for the
// ranks there, from their flight recorders, and everybody hears the answers. An answer is one frame: of more operations
// than fit it has every second, fourth, eighth ..., the same ones on all hosts. Who does not ask pays nothing.
//
// Threading: any thread.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "comm/gossip.h"
#include "debug/lateness.h"
#include "debug/recorder.h"
#include "group/peers.h"

namespace tutti {

class RemoteAttendants {
 public:
  // `hosts`: the ranks of each, its leader first.
  RemoteAttendants(int rank, const std::vector<std::vector<int>>& hosts, Recorder& recorder);

  bool any() const { return !leaders_.empty(); }
  int64_t every_ns() const { return gossip_.pause_ns(1'000'000'000); }  // how often to ask, at most

  // For what came after this operation; nothing where somebody has just asked. Answers come in their own time.
  void ask(PeerWatch& watch, uint64_t after);
  // What the other hosts have answered since this rank began to ask, to anybody: the last 1,024 operations.
  Attendances heard() const;
  // Both, for all operations that recorders hold, compared with those of this host. Waits for the answers for a second
  // at most: who is slower is left out.
  RollCall gather(PeerWatch& watch);

  // Now and then, on the thread that watches the peers: the same for a tool, which can ask nobody itself.
  void serve_tool(PeerWatch& watch);

  std::optional<PeerWatch::Answer> hear(std::string_view bytes);

 private:
  void tell_question(PeerWatch& watch, uint64_t after);
  std::string answer(uint64_t after);
  bool hear_answer(int leader, ByteReader reader);
  bool all_have_answered(int64_t since_ns) const;

  Recorder& recorder_;
  uint64_t served_ = 0;       // what a tool has asked with
  int64_t serving_ns_ = 0;    // since when; 0: nobody
  bool leads_ = false;        // its host
  std::set<int> leaders_;     // of the other hosts
  mutable std::mutex mutex_;  // what follows
  std::condition_variable answered_;
  Gossip gossip_;
  int64_t asked_ns_ = 0, wanted_ns_ = 0;  // by anybody; by this rank
  std::map<int, int64_t> answered_ns_;    // by leader
  Attendances heard_;
};

}  // namespace tutti
