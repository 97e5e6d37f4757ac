// One control connection: frames of a type and bytes in both directions, without blocking. What the kernel does not
// take at once waits here. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/secure_channel.h"
#include "group/heartbeat.h"
#include "group/local_pipe.h"

namespace tutti {

// What goes over it.
enum PeerFrame : uint32_t { kNotice = 1, kGoodbye = 2, kLoss = 3, kQuestion = 4, kCouncil = 5, kAlarm = 6, kBeat = 7 };

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

}  // namespace tutti
