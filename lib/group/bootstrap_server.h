// The connections of a rendezvous' server: one thread, one epoll, no client is ever waited for.
//
//   accepted --handshake, Join or Relay--> known: its frames go to who serves them ... --> closed
//       \--5 s without either--> dropped                after its last frame it is only drained
//
// Everything belongs to the thread that calls run().
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/handshake.h"
#include "base/socket.h"
#include "group/bootstrap_wire.h"

namespace tutti {

class FrameServer {
 public:
  virtual ~FrameServer() = default;
  void run();
  // The same by turns, where one thread runs many: what is there to do, or what comes in so long; until it is finished.
  void turn(int most_ms);
  virtual bool finished() = 0;
  int fd() const { return epoll_.get(); }  // readable when there is something to do

 protected:
  // One serves every client. Through a UNIX socket a descriptor goes with it.
  struct Frame {
    std::shared_ptr<const std::string> bytes;
    std::shared_ptr<const Fd> descriptor = nullptr;
  };
  struct Client {
    explicit Client(Fd connected, const Key& key)
        : fd(std::move(connected)), handshake(Handshake::server(key, HelloKind::kBootstrap, -1)) {}
    Fd fd;
    Handshake handshake;
    std::unique_ptr<SecureChannel> channel;
    int64_t since_ns = now_ns();
    bool authenticated = false;
    bool known = false;     // who it is
    bool draining = false;  // has its last frame; what it sends is thrown away until it closes
    bool closed = false;
    int rank = -1;        // a rank, or one of the process that is a relay
    std::string who;      // "host h pid 12"
    bool is_own = false;  // a rank of this process
    bool is_relay = false;
    std::string first_blob = {};  // of a relay
    FrameReader in = FrameReader();
    std::deque<Frame> out = {};
    size_t out_sent = 0;  // of out.front()
    uint32_t events = 0;  // that epoll looks for
  };

  FrameServer(std::vector<Fd> listening, const Key& key, Deadline deadline);

  // What the frames mean. False: nothing that this client may say.
  virtual bool take(Client& client, FrameKind kind, int rank, std::string body) = 0;
  virtual void let_in(Client& /*client*/) {}  // it has proved that it belongs to the group
  virtual void lose(Client& client) = 0;      // a known client has closed
  virtual void look_at_clock() {}

  Client& add(Fd fd, std::unique_ptr<SecureChannel> channel);  // one that this side has called
  void greet(Client& client, const JoinMessage& join);         // it is known now
  void send(Client& client, Frame frame);
  void send_last(Client& client, Frame frame);
  // A process may end as soon as its own ranks have their answer, and this thread with it: so they get theirs last.
  void send_to_all(const Frame& frame, const Frame& to_relays);
  // The first one counts: also for who comes later.
  void report_to_all(const Error& error);
  bool has_failed() const { return report_.has_value(); }
  void forget(Client& client);
  void stop_listening();
  bool is_anyone_here() const;  // but for those that may yet turn out to be strangers
  bool is_anyone_coming() const { return n_pending_ > 0; }
  const std::map<std::string, std::string>& misfits() const { return misfits_; }

  Key key_;
  Deadline deadline_;
  Deadline stop_at_ = Deadline::never(), tell_at_ = Deadline::never();
  std::list<Client> clients_;

 private:
  void wait(int most_ms);
  void accept_clients(int door);
  bool make_room();
  void lack_descriptors(int why);
  void drop_late();
  void serve(Client& client);
  void advance_handshake(Client& client);
  void read_frames(Client& client);
  void drain(Client& client);
  void flush(Client& client);
  void answer_own_ranks();
  void watch(Client& client);
  void watch_doors(bool wanted);
  static bool is_pending(const Client& client) { return !client.known && !client.draining; }

  Fd epoll_;
  std::vector<Fd> listening_;
  bool watches_doors_ = false;
  Deadline accept_again_ = Deadline::after_seconds(0);
  std::optional<int64_t> short_since_;  // of descriptors
  int64_t dropped_late_ns_ = 0;
  size_t n_pending_ = 0;  // clients that are not known
  bool any_closed_ = false;
  std::map<std::string, std::string> misfits_;  // address: why it was refused; some
  struct Answer {
    Frame to_ranks, to_relays;
    const Frame& to(const Client& client) const { return client.is_relay ? to_relays : to_ranks; }
  };
  std::optional<Answer> own_answer_;  // held back until the other ranks have theirs
  std::optional<Frame> report_;       // set once the group has failed
};

// Runs it in a detached thread.
Result<void> spawn(std::unique_ptr<FrameServer> server);

}  // namespace tutti
