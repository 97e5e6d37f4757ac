// Messages among ranks that are threads of one process and share one GPU. The receiver's stream copies from the
// sender's buffer, and events order the two streams, each event recorded before any stream is told to wait for it. So
// it does not matter whether streams share a hardware queue, where a wait holds up everything behind it. A rank's call
// returns when its peers have called.
#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "cuda/meeting.h"
#include "cuda/ways.h"

namespace tutti::cuda {
namespace {

// One rank's messages of one operation. While some are alone, other ranks write to it, under the post office's mutex.
struct Letters {
  explicit Letters(GpuStreams& streams) : come(std::make_shared<OwnedEvent>(streams)) {}
  struct Copy {
    std::shared_ptr<OwnedEvent> come;  // its sender
    void* to;
    const void* data;
    size_t bytes;
    std::shared_ptr<OwnedEvent> taken;  // recorded once is_taken
    std::atomic<bool> is_taken{false};
  };
  int rank = 0;
  std::atomic<size_t> n_alone{0};    // messages whose other side has not come yet
  std::atomic<bool> has_met{false};  // messages that are to be taken, since the last look
  std::vector<std::shared_ptr<Copy>> to_take, sent;
  const std::shared_ptr<OwnedEvent> come;
};

// Matches two ranks' messages, in the order in which each side has them.
class PostOffice {
 public:
  Result<void> post(const std::shared_ptr<Letters>& letters, const std::vector<Message>& messages) {
    const std::lock_guard lock(mutex_);
    letters->n_alone = messages.size();
    for (const Message& message : messages) {
      const int me = letters->rank;
      auto& waiting = waiting_[message.sends ? std::pair(me, message.peer) : std::pair(message.peer, me)];
      if (waiting.empty() || waiting.front().message.sends == message.sends) {
        waiting.push_back({letters, message});
        continue;
      }
      const Half other = std::move(waiting.front());
      waiting.pop_front();
      TUTTI_TRY(message.sends ? match({letters, message}, other) : match(other, {letters, message}));
    }
    return {};
  }
  // The peer of a message whose other side has not come yet, one that has left if there is one: what that has called
  // has come before. -1: all have come.
  int awaited(const Letters& letters, Host& host, bool* has_left) {
    const std::lock_guard lock(mutex_);
    int awaited = -1;
    for (const auto& [ranks, halves] : waiting_)
      for (const Half& half : halves) {
        if (*has_left || half.letters.get() != &letters) continue;
        awaited = half.message.peer;
        *has_left = host.has_left(awaited) || std::find(left_.begin(), left_.end(), awaited) != left_.end();
      }
    return awaited;
  }
  // Nobody else tells ranks that are no neighbours.
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_.push_back(rank);
  }
  // What has not met yet will not.
  void withdraw(const Letters* letters) {
    const std::lock_guard lock(mutex_);
    for (auto& [ranks, halves] : waiting_)
      std::erase_if(halves, [&](const Half& half) { return half.letters.get() == letters; });
  }
  // What the letters' rank receives of messages that have met since the last call.
  std::vector<std::shared_ptr<Letters::Copy>> take_met(Letters* letters) {
    if (!letters->has_met) return {};
    const std::lock_guard lock(mutex_);
    letters->has_met = false;
    return std::exchange(letters->to_take, {});
  }

 private:
  struct Half {
    std::shared_ptr<Letters> letters;
    Message message;
  };

  static Result<void> match(const Half& from, const Half& to) {
    Letters &sender = *from.letters, &receiver = *to.letters;
    const Message &sent = from.message, &received = to.message;
    if (sent.count != received.count || sent.dtype != received.dtype)
      return Error{Code::kInvalidUsage,
                   format("rank %d sends %llu x %s to rank %d, which receives %llu x %s: count and type must be the "
                          "same on both sides",
                          sender.rank, static_cast<unsigned long long>(sent.count), dtype_name(sent.dtype),
                          receiver.rank, static_cast<unsigned long long>(received.count), dtype_name(received.dtype)),
                   sender.rank};
    const auto copy = std::make_shared<Letters::Copy>();
    copy->come = sender.come, copy->to = received.data, copy->data = sent.data;
    copy->bytes = sent.count * dtype_bytes(sent.dtype);
    receiver.to_take.push_back(copy);
    receiver.has_met = true;
    if (&sender != &receiver) sender.sent.push_back(copy);
    sender.n_alone--;
    receiver.n_alone--;
    return {};
  }

  std::mutex mutex_;
  std::map<std::pair<int, int>, std::deque<Half>> waiting_;  // by sender and receiver; all sends or all receives
  std::vector<int> left_;
};

class Mail final : public Way {
 public:
  Mail(Host& host, GpuStreams& streams, std::shared_ptr<PostOffice> office)
      : host_(host), streams_(streams), office_(std::move(office)) {}
  ~Mail() override {
    (void)contained([this]() -> Result<void> { return office_->leave(host_.rank()), Result<void>(); });
  }

  const char* name() const override { return "by copies from the sender's memory"; }
  bool takes(const Operation& operation) const override { return operation.collective == Collective::kSendRecv; }

  Result<bool> meet(const Operation& operation, const Turn& turn) override {
    if (mine_ == nullptr) TUTTI_TRY(post(*operation.messages, turn.stream));
    const bool have_all_met = mine_->n_alone == 0;
    // What has met is taken at once: its sender may have to go on before the others can send.
    TUTTI_TRY(take(office_->take_met(mine_.get()), turn.stream));
    if (!have_all_met) return check_peer();
    return std::all_of(mine_->sent.begin(), mine_->sent.end(), [](const auto& copy) { return copy->is_taken.load(); });
  }

  bool withdraw(const Error&) override {
    office_->withdraw(mine_.get());
    return true;
  }

  // The buffers that were sent may be written again once the receivers' streams have read them.
  Result<void> submit(const Operation&, const Turn& turn) override {
    for (const auto& copy : mine_->sent) TUTTI_TRY(streams_.wait(turn.stream, copy->taken->get()));
    mine_.reset();
    return {};
  }

 private:
  Result<void> post(const std::vector<Message>& messages, StreamRef stream) {
    mine_ = std::make_shared<Letters>(streams_);
    mine_->rank = host_.rank();
    limit_ = Deadline::after_seconds(host_.operation_limit_seconds());
    TUTTI_TRY(mine_->come->record(stream));
    return office_->post(mine_, messages);
  }

  // Nobody else notices that a message waits for its other side, which may never come.
  Result<bool> check_peer() {
    constexpr uint32_t kTurns = 64;  // between two looks, for which all ranks lock the post office
    if (++turn_ % kTurns != 0) return false;
    bool has_left = false;
    const int peer = office_->awaited(*mine_, host_, &has_left);
    if (peer < 0 || !(has_left || limit_.passed())) return false;
    const std::string what = format(
        "rank %d waits for a message to or from rank %d, which has not made the matching call", host_.rank(), peer);
    if (has_left)
      return Error{Code::kRemoteError,
                   format("rank %d destroyed or finalized its communicator; %s", peer, what.c_str()), peer};
    return Error{
        Code::kTimeout,
        format("no progress on the GPU for %.0f s (TUTTI_OP_TIMEOUT or the configuration's opTimeoutSeconds): %s",
               host_.operation_limit_seconds(), what.c_str()),
        peer};
  }

  Result<void> take(const std::vector<std::shared_ptr<Letters::Copy>>& copies, StreamRef stream) {
    if (copies.empty()) return {};
    for (const auto& copy : copies) {
      if (copy->come != mine_->come) TUTTI_TRY(streams_.wait(stream, copy->come->get()));
      if (copy->bytes > 0) TUTTI_TRY(streams_.copy(copy->to, copy->data, copy->bytes, stream));
    }
    const auto taken = std::make_shared<OwnedEvent>(streams_);
    TUTTI_TRY(taken->record(stream));
    for (const auto& copy : copies) {
      copy->taken = taken;
      copy->is_taken = true;
    }
    return {};
  }

  Host& host_;
  GpuStreams& streams_;
  const std::shared_ptr<PostOffice> office_;
  std::shared_ptr<Letters> mine_;       // of the operation under way
  Deadline limit_ = Deadline::never();  // until its messages have met
  uint32_t turn_ = 0;
};

}  // namespace

std::unique_ptr<Way> make_mail(Host& host, Port& port, const std::string& name) {
  return std::make_unique<Mail>(host, port,
                                find_shared<PostOffice>(name, [] { return std::make_shared<PostOffice>(); }));
}

}  // namespace tutti::cuda
