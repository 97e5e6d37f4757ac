// What a Bootstrap and its Root say to each other after the handshake: frames of a header and a body, in the byte order
// of the machine (the Hello before them has refused any other). Everything that arrives is bounds-checked here. Control
// connections (line.h) carry frames of the same form.
//
//   rank                                root
//   Join {rank, n_ranks, who}   --->
//   Blob {bytes}                --->    once per round
//                               <---    All {Blobs}, when every rank's blob is there
//                               <---    or Report {code, culprit, sentence}, at any time; the last frame
//   Leave {}                    --->    when all is well: a rank that closes without it is lost
//   or Report                   --->    this rank has failed, and so has the group
//
// A relay between them passes on the frames of its host's ranks, each with its rank, and what the root sends to all:
//
//   rank                  relay                                   root
//                                Relay {as Join: its process}    --->
//                                                                <---    Relay: it may stay, or Go {another relay}
//                         Ask {as Relay}, of another id's root  --->
//                                                                <---    Go {another relay, or none: the first root}
//                   <---  Relay {as Join: its process}
//   Join, Blob, ... --->         the same; Like {differences}    --->    a Blob, as a patch of the connection's first
//   (closes)                     Gone                            --->
//                   <---  Mapped, and a descriptor of Blobs      <---    All
//
// A relay that is sent to another relay connects to that and treats it as the root.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/handshake.h"
#include "base/result.h"
#include "base/socket.h"

namespace tutti {

inline constexpr size_t kMaxBlobBytes = 64 << 10;
inline constexpr int kMaxRanks = 1 << 20;
inline constexpr int kFewRanks = 8;  // that many connections can each carry everyone's blobs without a burden
constexpr uint64_t most_bytes_of_all(int n_ranks) {
  return (static_cast<uint64_t>(n_ranks) + 1) * (kMaxBlobBytes + 16);
}

enum class FrameKind : uint32_t { kJoin = 1, kBlob, kAll, kReport, kLeave, kRelay, kGo, kLike, kGone, kMapped, kAsk };

struct FrameHeader {
  FrameKind kind;
  int32_t rank;    // the sender, on the way to the root
  uint64_t bytes;  // of the body
};
static_assert(sizeof(FrameHeader) == 16);

struct JoinMessage {
  int32_t rank;
  int32_t n_ranks;
  int32_t pid;
  int32_t left_ms;  // how long this rank is ready to wait: the root reports in time for the most impatient one
  std::string host;
  std::string contact = {};  // of a relay, if others may be sent to it
};

// The root's door, if its host has one port for all.
uint64_t root_door(const Key& key);

std::string make_frame(FrameKind kind, std::string_view body, int rank = 0);
// A join message of this process.
JoinMessage make_join(int rank, int n_ranks, int left_ms);
std::string make_join_frame(const JoinMessage& join, FrameKind kind = FrameKind::kJoin);
// Nothing if the body is damaged or there can be no such rank.
std::optional<JoinMessage> read_join(const std::string& body);
std::string who_is(const JoinMessage& join);  // "host h pid 12"

std::string pack_report(const Error& error);
Error unpack_report(const std::string& body);

// "3, 7-9" for ascending ranks; a very long list is cut and ends with a count of the rest.
std::string rank_list(const std::vector<int>& ranks);

// The connection of a rank or a relay to the root, or to the relay that leads there.
struct RootConnection {
  Fd fd;
  std::unique_ptr<SecureChannel> channel;
  std::string how;                        // for the log: "10.0.0.1:4000 (address 2 of 3; ...: refused)"
  std::optional<JoinMessage> relay = {};  // the rank whose process relays; none: the root itself
  uint64_t round_trip_ns = 0;

  Result<void> send(const std::string& frame, Deadline deadline) const {
    return send_all(fd.get(), frame.data(), frame.size(), deadline, channel.get());
  }
  Result<void> receive(void* data, size_t bytes, Deadline deadline) const {
    return recv_all(fd.get(), data, bytes, deadline, channel.get());
  }
};

// Collects one incoming frame at a time from a non-blocking connection.
class FrameReader {
 public:
  enum class Status { kPending, kFrame, kClosed, kNonsense };
  explicit FrameReader(uint64_t most_bytes = kMaxBlobBytes) : most_bytes_(most_bytes) {}
  // By some(to, room), which is like recv(2). kClosed: see errno, 0 if the other side closed the connection; kNonsense:
  // this is no frame with a body of at most most_bytes.
  template <class Some>
  Status read(Some some);
  FrameKind kind() const { return header_.kind; }
  int rank() const { return header_.rank; }
  // The finished frame's body; the next read starts a new frame.
  std::string take_body();

 private:
  uint64_t most_bytes_;
  FrameHeader header_{};
  std::string body_;
  size_t header_got_ = 0, body_got_ = 0;
};

template <class Some>
FrameReader::Status FrameReader::read(Some some) {
  const auto rest = [&some](void* to, size_t bytes, size_t* got) {
    return move_rest(bytes, got, [&](size_t at, size_t left) { return some(static_cast<char*>(to) + at, left); });
  };
  Moved moved = rest(&header_, sizeof header_, &header_got_);
  if (moved == Moved::kAll) {
    if (header_.bytes > most_bytes_) return Status::kNonsense;
    body_.resize(header_.bytes);
    moved = rest(body_.data(), body_.size(), &body_got_);
  }
  return moved == Moved::kAll ? Status::kFrame : moved == Moved::kSome ? Status::kPending : Status::kClosed;
}

}  // namespace tutti
