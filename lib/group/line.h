// This header: the control connections of a rank, one and all, and how they are made.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/dial.h"
#include "base/fd.h"
#include "base/secure_channel.h"
#include "group/heartbeat.h"
#include "group/local_pipe.h"

namespace tutti {

using RankName = std::function<std::string(int rank)>;  // "rank 3 (host node1, pid 77)"; from any thread

// What goes over it.
enum PeerFrame : uint32_t { kNotice = 1, kGoodbye = 2, kLoss = 3, kQuestion = 4, kCouncil = 5, kAlarm = 6, kBeat = 7 };

// One: frames of a type and bytes in both directions, without blocking. What the kernel does not take at once waits
// here. Not thread-safe.
class Line {
 public:
  enum class Status { kQuiet, kFrame, kBroken, kNonsense };
  struct Frame {
    uint32_t type = 0;
    std::string bytes;
  };

  Line(int with_peer, Fd connected, size_t most_frame_bytes, std::unique_ptr<SecureChannel> secure = nullptr)
      : peer(with_peer), fd(std::move(connected)), channel_(std::move(secure)), most_bytes_(most_frame_bytes) {}
  // With a rank of this process.
  Line(int with_peer, std::unique_ptr<LocalPipe> pipe, size_t most_frame_bytes)
      : peer(with_peer), pipe_(std::move(pipe)), most_bytes_(most_frame_bytes) {}

  // False: thrown away, because the peer has not read for too long. That is logged once.
  bool send(uint32_t type, std::string_view bytes);
  void flush();
  bool has_unsent() const { return !unsent_.empty(); }

  // Reads what has come; then next() gives the frames. kBroken: see broken_by.
  Status receive();
  Status next(Frame* frame);

  const int peer;
  const Fd fd;                         // none: within this process
  std::optional<Heartbeat> heartbeat;  // to another host
  int broken_by = 0;                   // errno; 0: the other side has closed it

 private:
  const std::unique_ptr<SecureChannel> channel_;
  const std::unique_ptr<LocalPipe> pipe_;
  const size_t most_bytes_;
  std::string received_, unsent_;
  bool throws_away_ = false;
};

// All of a rank. send(), send_to_all(), wake(), retransmits() and sockets() from any thread, the rest on the thread
// that watches the peers, or before it: it alone adds lines, removes them and reads from them.
class Lines {
 public:
  // `wake`: the thread that watches has something to send. It outlives the lines.
  explicit Lines(std::function<void()> wake) : wake_(std::move(wake)) {}
  // Sends what the kernel had no room for.
  ~Lines();

  bool send(int peer, uint32_t type, std::string_view bytes);  // false: there is no line with this rank
  void send_to_all(uint32_t type, std::string_view bytes);
  void wake() const { wake_(); }
  // How often the kernel has sent something again, by peer, where connections are TCP's.
  std::map<int, uint64_t> retransmits() const;
  size_t sockets() const;

  template <class... End>
  Line& add(int peer, End&&... end) {
    const std::lock_guard lock(mutex_);
    return lines_.emplace_back(peer, std::forward<End>(end)...);
  }
  template <class Is>
  void remove_if(Is&& is) {
    const std::lock_guard lock(mutex_);
    lines_.remove_if(is);
  }
  auto begin() { return lines_.begin(); }
  auto end() { return lines_.end(); }
  std::ptrdiff_t with(int peer) const;  // how many: perhaps several, of those that were made later
  void flush(Line& line) {
    const std::lock_guard lock(mutex_);
    line.flush();
  }
  int waits_for(std::vector<pollfd>* fds) const;  // as a Watcher's client does

  // From now on its host, which listens at these doors, is asked for a sign of life.
  void start_heartbeat(Line& line, std::vector<Address> doors) {
    beat_ns_ = now_ns();
    line.heartbeat.emplace(line.fd.get(), std::move(doors), beat_ns_);
  }
  // Nothing where it is not time to ask yet; then who has been silent for too long, and for how many seconds.
  std::optional<std::map<int, double>> beat();

 private:
  void send_over(Line& line, uint32_t type, std::string_view bytes);  // with mutex_ held

  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::list<Line> lines_;
  int64_t beat_ns_ = 0;  // when beat() asked last; 0 while there is no other host
};

// Makes them: dials others, and takes in those that dial this rank. Not thread-safe.
class Connector {
 public:
  struct Made {
    int peer;
    Fd fd;
    std::unique_ptr<SecureChannel> channel;
  };
  static constexpr int kDialMs = 20;  // addresses that do not answer are given up by the clock

  // Nobody comes but peers of this host, or of others.
  Connector(std::vector<Fd> listening, const Key& key, int rank, bool here, bool elsewhere)
      : key_(key), rank_(rank), acceptor_(std::move(listening), key, HelloKind::kControl, rank) {
    acceptor_.narrow(here, elsewhere);
  }

  // What others have made since.
  std::vector<Made> accept();
  // Why nobody was taken in for a while, if this process has no descriptor left.
  std::optional<Error> shortage() const { return acceptor_.shortage(); }

  // Begins a connection, if it has not begun one. It is never given up: the other side would take that for a death.
  void begin(int peer, const Contact& contact) {
    dialers_.try_emplace(peer, Dialer::Call{key_, HelloKind::kControl, rank_, peer}, contact);
  }
  // Goes on with those that were begun: gives those that are made, and says of the others what follows.
  std::vector<Made> dial();
  const std::map<int, std::string>& unreachable() const { return unreachable_; }  // in the last dial(), and why
  const std::string& lack() const { return lack_; }  // why there was no socket to be had, in the last dial()

  int waits_for(std::vector<pollfd>* fds) const;  // as a Watcher's client does
  size_t descriptors() const { return acceptor_.descriptors(); }

 private:
  const Key key_;
  const int rank_;
  Acceptor acceptor_;
  std::map<int, Dialer> dialers_;
  std::map<int, std::string> unreachable_;
  std::string lack_;
};

}  // namespace tutti
