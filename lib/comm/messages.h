// This header: messages between pairs of ranks: the user's, and those of a quantised all-reduce, a meeting or a GPU.
// Each kind has its own links, so that a message may wait for its receive while collectives run, and notes may overtake
// messages. Belongs to the thread whose turn it is.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "comm/link_pool.h"
#include "comm/membership.h"
#include "comm/monitor.h"
#include "exec/operation.h"
#include "exec/wait.h"

namespace tutti {

class Collectives;
struct MessageBatch;

class Messages {
 public:
  Messages(const Membership& me, Monitor& monitor, LinkPool& links) : me_(me), monitor_(monitor), links_(links) {}

  // Runs a kSendRecv.
  Result<void> run(const Operation& operation);
  // Runs a kAllReduceQuantized: rank r of n sums blocks [r * B / n, (r + 1) * B / n) of all B, and hands the sums to
  // everybody.
  Result<void> sum_quantised(const Operation& operation, Collectives& collectives);
  size_t scratch_bytes() const { return scratch_bytes_; }  // any thread
  Result<void> pass_notes(const std::vector<Message>& notes, double timeout_seconds, const std::string& purpose);
  // From GPU to GPU: makes the links between all ranks; passes the messages of one operation.
  Result<void> connect_gpus();
  Result<void> pass_between_gpus(const Operation& operation, const std::vector<Message>& messages);

 private:
  // How the messages of an exchange pass.
  struct Passing {
    uint32_t first_channel;
    Standing::Doing doing;
    double timeout_seconds;
    const Call* on_device = nullptr;  // from GPU to GPU, for this call; else null
    Meanwhile* meanwhile = nullptr;
  };
  Call next_call(const Message& message);
  // Does some of the operation's other work meanwhile.
  Result<void> pass_quantised(const Call& call, const std::vector<Message>& messages, Meanwhile& meanwhile);
  Result<void> pass(const MessageBatch& batch, const Passing& how);

  const Membership& me_;
  Monitor& monitor_;
  LinkPool& links_;
  bool quantises_ = false;                // all ranks have agreed that they do
  std::vector<char> quantised_, others_;  // kept for the next quantised sum
  std::atomic<size_t> scratch_bytes_{0};  // of both
};

}  // namespace tutti
