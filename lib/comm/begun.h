// This header: how many operations and messages a rank has begun. Of the thread of its operations.
#pragma once

#include <cstdint>
#include <map>

#include "comm/standing.h"
#include "debug/recorder.h"

namespace tutti {

struct Begun {
  uint64_t sequence = 0;                           // collectives: the number of the last one
  uint64_t exchanges = 0;                          // operations of point-to-point messages
  std::map<int, uint64_t> sent_to, received_from;  // such messages, by peer

  // As it is told to others.
  Standing standing(int rank, Standing::Doing doing, const Recorder& recorder) const {
    Standing s;
    s.rank = rank;
    s.doing = doing;
    s.call = recorder.find(sequence);
    s.place = doing == Standing::Doing::kPasses ? recorder.last_place_text() : recorder.place_text(sequence);
    s.begun = sequence + exchanges;
    std::map<int, Standing::Count> counts;
    for (const auto& [peer, n] : sent_to) counts[peer].sent = n;
    for (const auto& [peer, n] : received_from) counts[peer].received = n;
    for (auto& [peer, count] : counts) {
      count.peer = peer;
      s.counts.push_back(count);
    }
    return s;
  }
};

}  // namespace tutti
