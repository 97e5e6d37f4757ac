// The connections of a rendezvous' server: one thread, one epoll set, no client is ever waited for.
//
//   accepted --Join, Relay or Ask--> known: its frames go to take() ... --> closed
//                                           after its last frame it is only drained
//
// Who has authenticated may take its time to say who it is: the job may have been stopped meanwhile.
// Everything belongs to the thread that calls run().
#pragma once

#include <array>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dial.h"
#include "base/fd.h"
#include "base/handshake.h"
#include "group/bootstrap_wire.h"
#include "group/watcher.h"

namespace tutti {

// Sends and receives frames. Its address is its epoll data, so it never moves.
class FrameConnection {
 public:
  enum class Stage { kOpen, kDraining, kClosed };
  // All clients share the bytes of one frame. Over a UNIX socket a file descriptor may go with them.
  struct Frame {
    std::shared_ptr<const std::string> bytes;
    std::shared_ptr<const Fd> descriptor = nullptr;
  };

  FrameConnection(Fd fd, std::unique_ptr<SecureChannel> channel, uint64_t most_bytes, WatchedSet& watched);

  Stage stage() const { return stage_; }
  int fd() const { return fd_.get(); }

  FrameReader::Status read() {
    return in_.read([this](void* to, size_t room) { return recv_some(fd_.get(), channel_.get(), to, room); });
  }
  FrameReader& in() { return in_; }
  void send(Frame frame);
  void send_last(Frame frame);  // then discards what comes in until the other side closes
  bool has_unsent() const { return !out_.empty(); }
  void flush();
  bool drain();  // false: the other side has closed
  void watch();  // registers with epoll what it waits for now
  void close();

 private:
  Fd fd_;
  WatchedSet& watched_;
  std::unique_ptr<SecureChannel> channel_;
  Stage stage_ = Stage::kOpen;
  FrameReader in_;
  std::deque<Frame> out_;
  size_t out_sent_ = 0;  // bytes of out_.front()
  uint32_t events_ = 0;  // registered with epoll
};

// A connection and the client at its other end.
struct BootstrapClient : FrameConnection {
  using FrameConnection::FrameConnection;
  bool known = false;
  int rank = -1;        // of a relay: a rank of its process
  std::string who;      // "host h pid 12"
  bool is_own = false;  // in this process
  bool is_relay = false;
  std::string first_blob;  // of a relay: the base of its Like frames
};

class FrameServer {
 public:
  virtual ~FrameServer() = default;
  void run();
  // One turn of run(), for a thread that runs many servers: waits at most most_ms for work. Call until finished().
  void turn(int most_ms);
  virtual bool finished() = 0;
  int fd() const { return watched_.epoll.get(); }  // readable when there is something to do

 protected:
  using Client = BootstrapClient;
  using Frame = FrameConnection::Frame;

  FrameServer(std::vector<Fd> listening, const Key& key, Deadline deadline);

  // Handles a frame. False: this client may not send it.
  virtual bool take(Client& client, FrameKind kind, int rank, std::string body) = 0;
  virtual void let_in(Client& /*client*/) {}  // has authenticated
  virtual void lose(Client& client) = 0;      // a known client has closed
  virtual void look_at_clock() {}

  Client& add(Fd fd, std::unique_ptr<SecureChannel> channel, uint64_t most_bytes);  // dialled by this side
  void greet(Client& client, const JoinMessage& join);                              // makes it known
  bool is_anyone_here() const;                                                      // clients whose rank is known
  bool is_anyone_coming() const;                                                    // who has not said who it is
  // Tells all ranks. A process may end as soon as its own ranks have their answer, and the server's thread ends with
  // it: so those ranks are answered last.
  void answer(const Frame& to_ranks, const Frame& to_relays);
  // Only the first report counts; clients that come later get it, too.
  void report(const Error& error);

 private:
  void wait(int most_ms);
  void take_in();
  void watch_strangers();
  void serve(Client& client);
  void read_frames(Client& client);
  void forget(Client& client);
  void answer_own_ranks();  // once the others have theirs

  WatchedSet watched_;

 protected:
  Deadline deadline_, look_at_ = Deadline::never();
  Acceptor acceptor_;
  std::list<Client> clients_;
  std::optional<Frame> report_;  // set once the group has failed

 private:
  using Answer = std::array<Frame, 2>;  // to ranks, and to relays
  std::optional<Answer> own_answer_;    // held back until the other ranks have theirs
  bool any_closed_ = false;
};

// This process, in what other processes are told.
std::string serving_process();

// Runs it in a detached thread.
Result<void> spawn(std::unique_ptr<FrameServer> server);

}  // namespace tutti
