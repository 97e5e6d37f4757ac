// This header: a control connection (Line), and all those of a rank (Lines).
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
#include "base/fd.h"
#include "base/local_pipe.h"
#include "base/secure_channel.h"
#include "group/bootstrap_wire.h"
#include "group/heartbeat.h"

namespace tutti {

using RankName = std::function<std::string(int rank)>;  // "rank 3 (host node1, pid 77)"; from any thread

// Types of frames on a control connection.
enum PeerFrame : uint32_t { kNotice = 1, kGoodbye = 2, kLoss = 3, kQuestion = 4, kCouncil = 5, kAlarm = 6, kBeat = 7 };

// A control connection: sends and receives frames (bootstrap_wire.h) of a type without blocking. Bytes that the kernel
// does not take at once are queued here. Not thread-safe.
class Line {
 public:
  Line(int with_peer, Fd connected, size_t most_frame_bytes, std::unique_ptr<SecureChannel> secure = nullptr)
      : peer(with_peer), fd(std::move(connected)), channel_(std::move(secure)), in_(most_frame_bytes) {}
  // To a rank of this process.
  Line(int with_peer, std::unique_ptr<LocalPipe> pipe, size_t most_frame_bytes)
      : peer(with_peer), pipe_(std::move(pipe)), in_(most_frame_bytes) {}

  // False: the frame is dropped because the peer has not read for too long. That is logged once.
  bool send(uint32_t type, std::string_view bytes);
  void flush();
  bool has_unsent() const { return !unsent_.empty(); }

  FrameReader::Status read();        // kClosed: see broken_by
  FrameReader& in() { return in_; }  // whose frames' kind is a PeerFrame

  const int peer;
  const Fd fd;                         // none: within this process
  std::optional<Heartbeat> heartbeat;  // only to another host
  int broken_by = 0;                   // errno; 0: the other side has closed it

 private:
  const std::unique_ptr<SecureChannel> channel_;
  const std::unique_ptr<LocalPipe> pipe_;
  FrameReader in_;
  std::string unsent_;
  bool throws_away_ = false;
};

// All lines of a rank. send(), send_to_all(), wake(), retransmits() and sockets() from any thread, the rest on the
// watching thread, or before it serves this rank: that thread alone adds lines, removes them and reads from them.
class Lines {
 public:
  // `wake` tells the watching thread, which outlives the lines, that there is something to send.
  explicit Lines(std::function<void()> wake) : wake_(std::move(wake)) {}
  // Tries for up to 0.1 s to send what the kernel had no room for.
  ~Lines();

  bool send(int peer, uint32_t type, std::string_view bytes);  // false: there is no line with this rank
  void send_to_all(uint32_t type, std::string_view bytes);
  void wake() const { wake_(); }
  // TCP retransmissions, by peer.
  std::map<int, uint64_t> retransmits() const;
  size_t sockets() const;

  // The first to be sent by, if there are several: the latest leads through a network that works.
  template <class... End>
  Line& add(int peer, End&&... end) {
    const std::lock_guard lock(mutex_);
    return lines_.emplace_front(peer, std::forward<End>(end)...);
  }
  template <class Is>
  void remove_if(Is&& is) {
    const std::lock_guard lock(mutex_);
    lines_.remove_if(is);
  }
  auto begin() { return lines_.begin(); }
  auto end() { return lines_.end(); }
  std::ptrdiff_t with(int peer) const;  // how many lines; several if both sides dialled
  void flush(Line& line) {
    const std::lock_guard lock(mutex_);
    line.flush();
  }
  int waits_for(std::vector<pollfd>* fds) const;  // as Watcher::Client

  // From now on the peer's host, where the peer listens at these doors, is asked for signs of life.
  void start_heartbeat(Line& line, std::vector<Address> doors) {
    beat_ns_ = now_ns();
    line.heartbeat.emplace(line.fd.get(), std::move(doors), beat_ns_);
  }
  // Nothing if no tick is due yet; else the peers that have been silent for too long, and for how many seconds.
  std::optional<std::map<int, double>> beat();
  // After a tick: removes each line whose network has failed, if there is another one with its peer. What was said over
  // it lately may be lost. Returns the peers to which one should be made first, and the doors that let it in.
  std::map<int, Address> leave_failed_networks();
  // The way round to a peer has led nowhere: returns its only line, broken, if that means that the peer is gone.
  Line* take_refusal(int peer);

 private:
  void send_over(Line& line, uint32_t type, std::string_view bytes);  // with mutex_ held

  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::list<Line> lines_;
  int64_t beat_ns_ = 0;  // time of the last tick; 0 while no line leads to another host
};

}  // namespace tutti
