// This header: messages between two ranks each, as they are handed to the executor: a schedule made for the occasion,
// whose blocks are the messages. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/operation.h"
#include "exec/program.h"
#include "schedule/schedule.h"

namespace tutti {

// Sends come first, as input blocks, then receives, as output blocks.
struct MessageBatch {
  Transfers transfers;
  std::vector<uint64_t> bytes, input_at, output_at;
  std::vector<TagWords> tags;

  template <class CallOf>
  MessageBatch(const std::vector<Message>& messages, CallOf&& call_of) {
    for (const bool sends : {true, false})
      for (const Message& m : messages)
        if (m.sends == sends) add(m, call_of(m));
  }
  // On links of their own, from this channel on.
  Schedule schedule(int n_ranks, int rank, uint32_t first_channel) const;

  // What a message says of itself, and what people are told of several.
  static Call call_of(const Message& message, uint64_t sequence);
  static Call to_recorded(const std::vector<Message>& messages);

 private:
  void add(const Message& message, const Call& call);
};

}  // namespace tutti
