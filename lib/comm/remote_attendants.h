// This header: when the ranks of other hosts came to operations and left them, so that a rank is seen to be late
// whichever host it is on. A rank that wants to know asks over the control connections; the leader of each host answers
// for the ranks there, from their flight recorders, and all ranks hear the answers. An answer is one frame: if it has
// no room for all operations, every second, fourth, eighth ..., the same ones on all hosts. Costs nothing unless asked.
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
  // `hosts`: the ranks of each host, its leader first.
  RemoteAttendants(int rank, const std::vector<std::vector<int>>& hosts, Recorder& recorder);

  bool any() const { return !leaders_.empty(); }
  int64_t every_ns() const { return gossip_.pause_ns(1'000'000'000); }  // how often to ask, at most

  // Asks about what came after this operation, unless a rank has just asked. The answers arrive later.
  void ask(PeerWatch& watch, uint64_t after);
  // What the other hosts have answered to any rank since this rank began to ask: the last 1,024 operations.
  Attendances heard() const;
  // Asks about all operations that recorders hold, and compares them with those of this host. Waits a second at most
  // for the answers: slower hosts are left out.
  StragglerDetector gather(PeerWatch& watch);

  // Called now and then by the watching thread: the same for a tool, which cannot ask by itself.
  void serve_tool(PeerWatch& watch);

  std::optional<PeerWatch::Answer> hear(std::string_view bytes);

 private:
  void tell_question(PeerWatch& watch, uint64_t after);
  std::string answer(uint64_t after);
  bool hear_answer(int leader, ByteReader reader);
  bool all_have_answered(int64_t since_ns) const;

  Recorder& recorder_;
  uint64_t served_ = 0;       // the tool's last request that was answered
  int64_t serving_ns_ = 0;    // since when a request is being served; 0: none is
  bool leads_ = false;        // whether this rank leads its host
  std::set<int> leaders_;     // of the other hosts
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable answered_;
  Gossip gossip_;
  int64_t asked_ns_ = 0, wanted_ns_ = 0;  // last question of any rank; of this rank
  std::map<int, int64_t> answered_ns_;    // last answer, by leader
  Attendances heard_;
};

}  // namespace tutti
