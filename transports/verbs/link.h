// The two halves of a link.
#pragma once

#include <bit>
#include <map>
#include <optional>

#include "base/dial.h"
#include "transports/verbs/pairs.h"
#include "transports/verbs/user_memory.h"

namespace tutti::verbs {

class Half;
class SendLink;
class RecvLink;

// What an endpoint's links share.
struct Hub {
  Ports ports;
  UserMemory user_memory;
  uint32_t queues_per_port;
  std::map<std::pair<int, uint64_t>, SendLink*> senders{};    // by peer and number
  std::map<std::pair<int, uint32_t>, RecvLink*> receivers{};  // by peer and channel
  int64_t next_look_ns = 0;                                   // at all links

  // On behalf of one link, whose peer may be waiting for another one: looks at all others now and then. Returns why the
  // first broken one is broken, or null.
  const Error* tend_others(const Half* one);
};

// Common to both halves: the connection beside the link, queue pairs, and completions of what goes over them.
class Half : public LinkHalf {
 public:
  void wait_end() override;
  // On behalf of another link of the endpoint. Why this one is broken, or null, also if its peer has closed it.
  const Error* tend();
  bool arm();  // before sleeping; false if completions cannot wake this rank

 protected:
  Half(Hub& hub, SideConnection side, const tuttiLinkConfig& config)
      : hub_(hub), config_(config), side_(std::move(side)) {}
  void sleep_on(tuttiWait* wait) const;  // completions, and what the peer says
  void take_completions();
  virtual void on_arrival(uint32_t immediate, uint32_t bytes) = 0;  // bytes: of the write that it came with
  virtual void on_read(uint32_t) {}  // the memory that was exposed for a slot's message is the user's again
  virtual void on_released(uint64_t) {}
  virtual void fill(Notice*) {}
  virtual void on_closed(const QueuePair& pair, const Notice& notice) = 0;  // at both ends
  virtual void mend() {}                                                    // now and then
  virtual void on_made(QueuePair& pair, const QueueAddress& made) = 0;
  void look();
  void look_sometimes() {
    if (look_out_.is_time()) look();
  }
  void send_notice(Notice::What what, const QueuePair& pair, const std::string& why = "",
                   const QueueAddress& made = {});
  void fail(const std::string& why);
  Error gone() const { return closed_by(config_.peer, "verbs"); }

  Hub& hub_;
  tuttiLinkConfig config_;
  SideConnection side_;
  bool ready_ = false;  // connected: from now on side_ brings Notices, or that the peer has gone
  std::optional<Error> failure_;
  LinkMemory memory_;
  QueuePairs pairs_;  // destroyed before the memory that they use

 private:
  void poll_completions();
  void take(const ibv_wc& completion, size_t port);
  void look_at_own();
  void read_socket();
  void take_notice(const Notice& notice);
  void close_dropped();
  void close(QueuePair& pair);

  LookOut look_out_;
};

class SendLink final : public Half {
 public:
  static Result<std::unique_ptr<LinkHalf>> create(Hub& hub, const Dialer::Call& call, const Contact& contact,
                                                  const std::vector<PortAddress>& peer_ports,
                                                  const tuttiLinkConfig& config);
  ~SendLink() override;
  void on_released(uint64_t released) override;
  Result<bool> poll() override;
  void fill(tuttiLinkState* state) override { state->unsent = unsent(); }
  tuttiRoom acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at);
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag);
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;

 private:
  // The message that a slot was last used for.
  struct Sent {
    uint64_t number = 0;
    uint32_t bytes = 0;
    QueuePair* pair = nullptr;              // the one it was given to
    const void* payload = nullptr;          // null: it is in the slot
    std::shared_ptr<const Pinned> exposed;  // while the payload may be read in place
    bool is_required = false;               // it must go to the required place, not to a slot
  };

  SendLink(Hub& hub, const Dialer::Call& call, const Contact& contact, const tuttiLinkConfig& config)
      : Half(hub, {}, config), dialer_(call, contact), sent_(config.slots) {}
  Result<void> make_queues(const std::vector<PortAddress>& peer_ports);
  Result<bool> advance_connect();
  Result<bool> take_answer();
  void on_arrival(uint32_t immediate, uint32_t bytes) override;
  void on_read(uint32_t slot) override;
  void on_closed(const QueuePair& pair, const Notice& notice) override;
  void mend() override;
  void on_made(QueuePair& pair, const QueueAddress& made) override;
  bool has_slot();
  bool is_due() { return is_required_ ? wish_.number == published_ : has_slot(); }
  uint32_t unsent();
  void set_place(Sent& message, const Announcement& announcement);
  void put(const Sent& message, size_t begin, size_t end, uint64_t to, uint32_t key, const Announcement* announcement);

  Dialer dialer_;
  uint64_t number_ = 0;
  uint64_t slots_at_ = 0;  // address at the receiver
  uint32_t writes_per_message_ = 0;
  uint32_t most_bytes_at_once_ = UINT32_MAX;
  uint64_t published_ = 0, released_ = 0;
  std::vector<Sent> sent_;  // by slot
  uint32_t exposed_ = 0;    // how many of them are exposed
  Wish wish_{.released = 0, .number = Wish::kNone};
  bool is_required_ = false;  // the next message needs a required place, as acquire was told
};

// Puts what has arrived in order: messages of several queues overtake each other, and headers build on those before
// them.
class ReorderBuffer {
 public:
  explicit ReorderBuffer(uint32_t slots) : slots_(slots), arrivals_(slots) {}
  bool add(const Announcement& announcement, uint32_t bytes);  // false: its slot is not free
  // The next message's header, completed; null until the message has arrived.
  const SlotHeader* next(const LinkMemory& memory);
  bool is_there() const { return next_ > released_; }
  void release() { arrivals_[released_++ % slots_].is_there = false; }
  uint64_t released() const { return released_; }
  uint64_t arrived() const;  // one bit per message, from `released` on
  void forget() { next_ = released_; }

 private:
  struct Arrival {
    bool is_there = false;
    Announcement announcement{};
    uint32_t bytes = 0;
  };
  uint32_t slots_;
  std::vector<Arrival> arrivals_;  // by slot
  uint64_t released_ = 0, next_ = 0;
  SlotHeader last_{};  // the header before `next_`
};

class RecvLink final : public Half {
 public:
  // Makes the queue pairs that the offer asks for, and answers.
  static Result<std::unique_ptr<LinkHalf>> create(Hub& hub, SideConnection side, const tuttiLinkConfig& config,
                                                  const Offer& offer);
  ~RecvLink() override;
  // For a message in the other direction: adds what has been released, to tell the peer.
  void pass_released(SlotHeader* header);
  Result<bool> poll() override;
  bool peek(tuttiMessage* message);
  void release();
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required);
  void revoke() override;
  bool wait_begin(tuttiWait* wait) override;

 private:
  RecvLink(Hub& hub, SideConnection side, const tuttiLinkConfig& config)
      : Half(hub, std::move(side), config), messages_(config.slots) {}
  Result<void> accept(const Offer& offer);
  Result<Queue> make_queue(const Route& route, const QueueAddress& peer);
  void on_arrival(uint32_t immediate, uint32_t bytes) override;
  void fill(Notice* notice) override;
  void on_closed(const QueuePair& pair, const Notice& notice) override;
  void on_made(QueuePair& pair, const QueueAddress& made) override;
  uint64_t enough_to_tell() const { return std::max(1u, config_.slots / 2); }
  void tell(const Wish& wish);
  void tell_releases();

  ReorderBuffer messages_;
  uint64_t sender_ = 0;     // the number of the link at the other end
  uint64_t wishes_at_ = 0;  // address of the ring at the sender
  QueuePair* wish_pair_ = nullptr;
  uint64_t told_ = 0;  // number of wishes told
  uint64_t released_told_ = 0;
  uint32_t idle_polls_ = 0;
  Wish wish_{.released = 0, .number = Wish::kNone};  // the last wish
  std::shared_ptr<const Pinned> wished_;             // the memory that the wished message may be written to
  bool is_required_ = false;
  uint32_t in_vain_ = 0;  // number of consecutive wishes in vain
};

}  // namespace tutti::verbs
