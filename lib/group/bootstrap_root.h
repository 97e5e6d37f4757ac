// The rendezvous' server: one thread, one poll loop, no client is ever waited for.
//
//   accepted --handshake, Join--> member --Blob--> waits for the round --All--> member ... --Leave--> left
//       \--5 s without a Join--> dropped                   any failure: Report to all, then they are only drained
//
// Everything belongs to the thread that calls run(). After a failure the root stays until the deadline (or until every
// rank has been told), so that late ranks read the reason instead of "connection refused".
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

class RootServer {
 public:
  RootServer(std::vector<Fd> listening, const Key& key, Deadline deadline)
      : listening_(std::move(listening)), key_(key), deadline_(deadline) {}
  void run();

 private:
  using Frame = std::shared_ptr<const std::string>;  // one All frame serves every member

  struct Client {
    explicit Client(Fd connected, const Key& key)
        : fd(std::move(connected)), handshake(Handshake::server(key, HelloKind::kBootstrap, -1)) {}
    Fd fd;
    Handshake handshake;
    std::unique_ptr<SecureChannel> channel;
    int64_t since_ns = now_ns();
    bool authenticated = false;
    bool draining = false;  // has its last frame; what it sends is thrown away until it closes
    bool closed = false;
    bool has_left = false;  // in good order
    int rank = -1;          // -1 until it has joined
    FrameReader in;
    std::deque<Frame> out;
    size_t out_sent = 0;  // of out.front()
  };

  struct Member {
    Client* client = nullptr;  // nullptr: not yet there, or gone
    std::string who;           // "host h pid 12"; empty: never joined
    std::string blob;
    bool has_blob = false;
    bool is_own = false;  // a rank of this process
  };

  bool finished();
  void wait();
  void accept_clients(int door);
  bool make_room();
  void lack_descriptors(int why);
  void drop_closed_and_late();
  void forget(Client& client);

  void serve(Client& client);
  void advance_handshake(Client& client);
  void read_frames(Client& client);
  void drain(Client& client);
  void flush(Client& client);
  void send(Client& client, Frame frame);

  void on_join(Client& client, const std::string& body);
  bool check_join(Client& client, const JoinMessage& join, const std::string& who);
  void on_blob(Client& client, std::string blob);
  void on_report(const Client& client, const std::string& body);
  void finish_round();
  void answer_own_ranks();
  void report_time_out();
  std::string describe_misfits() const;
  void fail(Error error);

  std::vector<Fd> listening_;
  Key key_;
  Deadline deadline_;
  Deadline accept_again_ = Deadline::after_seconds(0);
  Deadline stop_at_ = Deadline::never();
  std::optional<int64_t> short_since_;  // of descriptors
  bool timed_out_ = false;
  std::list<Client> clients_;
  size_t n_pending_ = 0;  // clients that have not joined
  int n_ranks_ = 0;       // 0 until the first rank has joined
  int first_rank_ = -1;
  std::map<std::string, std::string> misfits_;  // address: why it was refused; some
  int n_joined_ = 0, n_present_ = 0, n_blobs_ = 0;
  std::vector<Member> members_;
  Frame own_answer_;  // held back until the other ranks have theirs
  Frame report_;      // set once the group has failed
};

}  // namespace tutti
