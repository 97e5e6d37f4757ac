// The rendezvous' root, which knows every rank, connected directly or through a relay.
//
//   member --Blob--> waits for the round --All--> member ... --Leave--> left
//                       any failure: Report to all, then their connections are only drained
//
// After a failure the root stays until the deadline it was made with (or until every rank has been told), so that late
// ranks read the reason instead of "connection refused".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "group/bootstrap_server.h"

namespace tutti {

class RootServer final : public FrameServer {
 public:
  // `has_agreed_port`: the ranks know it, and so may those of another job. `seconds_once_used`: if not 0, the deadline
  // from the first rank or host on.
  RootServer(std::vector<Fd> listening, const Key& key, Deadline deadline, bool has_agreed_port = false,
             double seconds_once_used = 0)
      : FrameServer(std::move(listening), key, deadline),
        has_agreed_port_(has_agreed_port),
        seconds_once_used_(seconds_once_used),
        own_deadline_(deadline) {}
  bool finished() override;

 private:
  struct Member {
    Client* client = nullptr;  // the connection that leads to it; nullptr: not yet joined, or gone
    std::string who;           // "host h pid 12"; empty: never joined
    std::optional<std::string> blob;
    bool has_left = false;  // in good order
  };

  bool take(Client& client, FrameKind kind, int rank, std::string body) override;
  void let_in(Client& client) override;
  void lose(Client& client) override;
  void look_at_clock() override;

  bool on_join(Client& client, const std::string& body);
  bool check_join(Client& client, const JoinMessage& join);
  bool on_relay(Client& client, const std::string& body, bool only_asks);
  bool on_blob(Member& member, int rank, std::string blob);
  void on_report(int rank, const std::string& body);
  void on_gone(int rank);
  void blame(int rank, const std::string& who);
  void finish_round();
  void tell_of_absent();
  void report_time_out();
  std::string describe_misfits() const;

  const bool has_agreed_port_;
  double seconds_once_used_;
  Deadline own_deadline_;  // of the id's creator; the ranks' deadline_ may be later
  bool timed_out_ = false;
  int n_ranks_ = 0;  // 0 until the first rank has joined
  int first_rank_ = -1;
  int n_joined_ = 0, n_present_ = 0, n_blobs_ = 0;
  std::vector<Member> members_;
  std::vector<JoinMessage> relays_;  // those that others can be sent to, in order of arrival
};

}  // namespace tutti
