// The two halves of a link, and how they find each other.
//
//   sender: Offer    --->          its queue pairs, and where the receiver may write its wishes
//                    <---  Answer  the receiver's, and where the slots are
//           kReady   --->          the sender's are connected, too
//
// All three go through the authenticated connection that stays open beside the link and tells of death. Without the
// third there is no link: what the receiver writes to queue pairs that are not connected is lost, and its device writes
// it again only when TUTTI_IB_TIMEOUT is over; and a sender that cannot connect them goes to another transport. From
// then on:
//
//   header and payload, written into a slot, with an Announcement  --->
//                                     <---  a Wish, written: what was released, and where the next message should go
//
// A header that says nothing that the one before it and the announcement do not say as well stays here: a message whose
// payload fills its packets would need one more for it.
//
// And if a queue pair fails while others are left (failover.cpp, mend.cpp):
//
//   Notice   <-->   it is closed at this end; from the receiver also what has arrived
//   Notice   --->   a new queue pair in its place, when its port is up
//            <---  the receiver's
#pragma once

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "base/dial.h"
#include "transports/adapter.h"
#include "transports/verbs/queue.h"
#include "transports/verbs/user_memory.h"

namespace tutti::verbs {

class SendLink;
class RecvLink;

// What an endpoint's links share.
struct Hub {
  Ports ports;
  UserMemory user_memory;
  uint32_t queues_per_port;
  std::map<uint64_t, SendLink*> senders{};                    // by number
  std::map<std::pair<int, uint32_t>, RecvLink*> receivers{};  // by peer and channel
  int64_t next_look_ns = 0;                                   // at all of them
};

struct SlotHeader {
  tuttiTag tag;
  uint64_t number;
  uint32_t bytes;
  uint32_t is_placed;  // set by the receiver: the payload is where it was wished
  // What the link the other way has released: spares it a write of its own.
  uint64_t sender;  // that link's number; 0: none
  uint64_t released;
};
static_assert(sizeof(SlotHeader) == 64);

// The immediate value of a message's last write. What it says besides the number is of use without a header.
struct Announcement {
  uint32_t number : 14;    // of the message, its low bits
  uint32_t is_placed : 1;  // the payload is where it was wished
  uint32_t is_bare : 1;    // the header is the one before, but for the number, the bytes and these:
  uint32_t steps : 8;      // so much more is the tag's first word, which counts operations
  uint32_t releases : 8;   // so much more is released

  static constexpr uint32_t kNumbers = 1 << 14, kMost = 255;
};
static_assert(sizeof(Announcement) == sizeof(uint32_t));
inline uint32_t low_bits(uint64_t number) {
  return static_cast<uint32_t>(number % Announcement::kNumbers);
}

struct Wish {
  uint64_t released;
  uint64_t number;  // of the message that may go to `at`, if it has so many bytes; kNone: none
  uint64_t at;
  uint32_t bytes;
  uint32_t keys[kMaxPorts];  // by the receiver's port
  uint8_t unused[20];

  static constexpr uint64_t kNone = UINT64_MAX;
};
static_assert(sizeof(Wish) == 64);

struct Offer {
  uint32_t n_queues;
  uint32_t unused;
  uint64_t sender;  // the link's number, chosen at random
  uint64_t wishes;  // where the ring of wishes is
  struct Line {
    QueueAddress mine;
    uint32_t your_port, your_gid;
  } lines[kMaxQueues];
  PortAddress ports[kMaxPorts];
};

struct Answer {
  uint32_t n_queues;
  uint32_t unused;
  uint64_t slots;  // where the slots are
  QueueAddress queues[kMaxQueues];
  char refusal[256];  // why there are no queues
};

inline constexpr char kReady = 'R';

// Through the connection beside the link.
struct Notice {
  enum What : uint32_t { kReleased, kClosed, kMade };
  What what;          // kReleased: no more than what was released; the others: with this end of a queue pair
  uint32_t queue;     // kClosed is also the answer of a receiver that cannot make a new one
  uint64_t released;  // by the receiver
  uint64_t arrived;   // at the receiver: of the messages from `released` on, a bit each
  QueueAddress made;
  char why[212];
};
static_assert(sizeof(Notice) == 256);

// A message with its header has all that is its sender's, and a stride of it.
inline size_t stride_of(const tuttiLinkConfig& config) {
  return sizeof(SlotHeader) + config.slot_bytes;
}
// No more wishes are ever unseen: each slot's release, the wishes for the messages in between, and what is told again
// when a queue pair has failed.
inline uint32_t wishes_of(const tuttiLinkConfig& config) {
  return 2 * config.slots + 2 + static_cast<uint32_t>(kMaxQueues);
}

// What both halves have: the connection beside the link, queue pairs, and completions of what goes over them.
class Half : public LinkHalf {
 public:
  ~Half() override;
  void wait_end() override;
  // On behalf of another link of the endpoint, whose peer may wait for something of this one. Why this one is broken,
  // if it is; null also if its peer has closed it.
  const Error* tend();
  bool arm();  // before sleeping; false if the completions cannot wake us

 protected:
  Half(Hub& hub, const tuttiLinkConfig& config) : hub_(hub), config_(config) {}
  Result<void> open_completions(uint32_t most);
  Result<void> watch_socket();
  void take_completions();
  virtual void on_arrival(uint32_t immediate, uint32_t bytes) = 0;  // bytes: of the write that it came with
  virtual void on_read(uint32_t) {}  // the memory that was exposed for a slot's message is the user's again
  virtual void fill(Notice*) {}
  virtual void on_notice(const Notice&) {}
  virtual void on_closed(size_t, const Notice&) {}  // a queue pair, at both ends
  virtual void mend() {}                            // now and then
  virtual void on_made(size_t, const QueueAddress&) {}
  virtual void on_not_made(size_t, const char*) {}
  void set_queues(std::vector<Queue> queues);
  size_t least_busy() const;
  void look();
  void look_at_socket();
  void look_sometimes() {
    if (++polls_ % kPollsPerLook == 0) look();
  }
  // A queue pair is not to be used any more: it is closed when all has been taken that has come of it. With the last
  // one, the link fails.
  void drop(size_t queue, const std::string& why);
  void send_notice(Notice::What what, size_t queue, const std::string& why = "", const QueueAddress& made = {});
  bool is_usable(size_t queue) const { return queues_[queue].is_open() && states_[queue].why.empty(); }
  // Something has got through.
  bool is_proved(size_t queue) const { return states_[queue].is_proved; }
  bool is_time_to_mend(size_t queue);
  void replace(size_t queue, Queue made);
  void fail(const std::string& why);
  Error gone() const;

  static constexpr uint32_t kPollsPerLook = 256;

  Hub& hub_;
  tuttiLinkConfig config_;
  Fd socket_;
  Fd epoll_;                          // to sleep on
  std::vector<ibv_cq*> completions_;  // by port
  bool ready_ = false;   // connected: from here on the connection beside it says nothing but that the peer has gone
  bool closed_ = false;  // by the peer
  std::optional<Error> failure_;
  Pinned memory_;  // slots, and wishes after them
  std::vector<Queue> queues_;
  uint32_t receives_ = 0;   // of each queue
  uint32_t unsettled_ = 0;  // queues that are closed here and not yet at the other end

 private:
  // Of a queue.
  struct State {
    uint32_t owed = 0;  // receives
    std::string why;    // it is dropped
    bool is_flushed = false;
    std::optional<Notice> notice;  // from the other end, that it is closed there
    bool is_proved = false;
    int64_t made_ns = 0, mend_ns = 0, pause_ns = 0;  // when it was made; when the next one is, and how long after
  };

  void poll_completions();
  void take(const ibv_wc& completion, size_t port);
  std::string reason(const ibv_wc& completion, const Queue& queue) const;
  void read_socket();
  void take_notices();
  void take_notice(const Notice& notice);
  void close_dropped();
  void close(size_t queue);
  void settle(size_t queue);
  void prove(size_t queue);

  std::vector<State> states_;  // by queue
  bool drops_ = false;         // some queue is dropped and not yet closed
  std::string inbox_;          // of the connection beside the link
  uint32_t polls_ = 0;
};

class SendLink final : public Half {
 public:
  static Result<std::unique_ptr<LinkHalf>> create(Hub& hub, const Dialer::Call& call, const Contact& contact,
                                                  std::vector<PortAddress> peer_ports, const tuttiLinkConfig& config);
  ~SendLink() override;
  void take_released(uint64_t released);
  int peer() const { return config_.peer; }
  Result<bool> poll() override;
  void fill(tuttiLinkState* state) override { state->unsent = unsent(); }
  tuttiRoom acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) override;
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag) override;
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;

 private:
  // The message that a slot was last used for.
  struct Sent {
    uint64_t number = 0;
    uint32_t bytes = 0;
    uint32_t queue = kNoQueue;              // that it was given to
    const void* payload = nullptr;          // null: it is in the slot
    std::shared_ptr<const Pinned> exposed;  // while the payload may be read where it lies
    bool is_required = false;               // its place: the slot does not do

    static constexpr uint32_t kNoQueue = UINT32_MAX;
  };

  SendLink(Hub& hub, const Dialer::Call& call, const Contact& contact, std::vector<PortAddress> peer_ports,
           const tuttiLinkConfig& config)
      : Half(hub, config), dialer_(call, contact), peer_ports_(std::move(peer_ports)) {}
  Result<void> make_queues();
  Result<bool> advance_connect();
  Result<void> send_offer();
  Result<bool> take_answer();
  void on_arrival(uint32_t immediate, uint32_t bytes) override;
  void on_read(uint32_t slot) override;
  void on_notice(const Notice& notice) override;
  void on_closed(size_t queue, const Notice& notice) override;
  void mend() override;
  void on_made(size_t queue, const QueueAddress& made) override;
  void on_not_made(size_t queue, const char* why) override;
  bool has_slot() const;
  bool is_due() const { return is_required_ ? wish_.number == published_ : has_slot(); }
  uint32_t unsent();
  void send(const void* data, std::shared_ptr<const Pinned> exposed, uint32_t bytes, const tuttiTag& tag,
            bool is_required);
  void give_back(Sent& message);
  Announcement announce(const SlotHeader& header) const;
  void set_place(Sent& message, const Announcement& announcement);
  void put(const Sent& message, size_t begin, size_t end, uint64_t to, uint32_t key, const Announcement* announcement);
  char* slot(uint64_t number) const { return memory_.data() + number % config_.slots * stride_of(config_); }
  SlotHeader& header(uint64_t number) const { return *reinterpret_cast<SlotHeader*>(slot(number)); }
  bool is_under_way() const;
  void drain();

  Dialer dialer_;
  std::vector<PortAddress> peer_ports_;
  std::vector<Offer::Line> lines_;  // by queue
  std::map<size_t, Queue> next_;    // in place of those that have failed, until the receiver's is there
  std::string answer_;              // what has come of it
  bool offered_ = false;
  uint64_t number_ = 0;
  uint64_t slots_at_ = 0;                         // at the receiver's
  uint32_t writes_per_message_ = 0, writes_ = 0;  // writes: for each queue
  uint32_t most_bytes_at_once_ = UINT32_MAX;
  uint64_t published_ = 0, released_ = 0;
  std::vector<Sent> sent_;  // by slot
  uint32_t exposed_ = 0;    // how many of them are read where they lie
  Wish wish_{.released = 0, .number = Wish::kNone};
  bool is_required_ = false;  // the place of the next message, as acquire was told
};

class RecvLink final : public Half {
 public:
  // Makes the queue pairs that the offer asks for, and answers.
  static Result<std::unique_ptr<LinkHalf>> create(Hub& hub, Fd socket, const tuttiLinkConfig& config,
                                                  const Offer& offer);
  ~RecvLink() override;
  // For a message the other way: what has been released, which its receiver is told by that.
  void pass_released(SlotHeader* header);
  Result<bool> poll() override;
  bool peek(tuttiMessage* message) override;
  void release() override;
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required) override;
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;

 private:
  RecvLink(Hub& hub, Fd socket, const tuttiLinkConfig& config) : Half(hub, config) { socket_ = std::move(socket); }
  Result<void> accept(const Offer& offer);
  Result<Queue> make_queue(size_t port, size_t gid, const QueueAddress& peer);
  struct Arrival {
    bool is_there = false;
    Announcement announcement{};
    uint32_t bytes = 0;
  };

  void on_arrival(uint32_t immediate, uint32_t bytes) override;
  void take_header(const Arrival& arrival);
  void fill(Notice* notice) override;
  void on_closed(size_t queue, const Notice& notice) override;
  void on_made(size_t queue, const QueueAddress& made) override;
  bool is_there() const { return taken_ > released_; }
  SlotHeader& header(uint64_t number) const;
  uint64_t enough_to_tell() const { return std::max(1u, config_.slots / 2); }
  void tell(const Wish& wish);
  void tell_releases();

  std::vector<Arrival> arrivals_;  // by slot
  uint64_t taken_ = 0;             // messages whose headers are complete: all before this number
  SlotHeader last_{};              // the last of those
  uint64_t sender_ = 0;            // the number of the link at the other end
  uint64_t wishes_at_ = 0;         // at the sender's
  PortAddress peer_ports_[kMaxPorts];
  size_t wish_queue_ = 0;
  uint64_t told_ = 0;  // wishes so far
  uint64_t released_ = 0, released_told_ = 0;
  uint32_t idle_polls_ = 0;
  Wish wish_{.released = 0, .number = Wish::kNone};  // the last one
  std::shared_ptr<const Pinned> wished_;             // what it may be written to
  bool is_required_ = false;
  uint32_t in_vain_ = 0;  // wishes, one after the other
};

}  // namespace tutti::verbs
