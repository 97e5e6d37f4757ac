// What a Bootstrap and its Root say to each other after the handshake: frames of a header and a body, in the byte order
// of the machine (the Hello before them has refused any other). Everything that arrives is bounds-checked here.
//
//   rank                                root
//   Join {rank, n_ranks, who}   --->
//   Blob {bytes}                --->    once per round
//                               <---    All {Blobs}, when every rank's blob is there
//                               <---    or Report {code, culprit, sentence}, at any time; the last frame
//   Leave {}                    --->    when all is well: who closes without it is lost
//   or Report                   --->    it has failed, and so the group has
//
// Between them a relay may pass on what the ranks of its host say, each frame with its rank, and what the root says to
// all of them:
//
//   rank                  relay                                   root
//                                Relay {as Join: its process}    --->
//                                                                <---    Relay: it may stay, or Go {another relay}
//                         Ask {as Relay}, of another id's root  --->
//                                                                <---    Go {another relay, or none: the first root}
//                   <---  Relay {as Join: its process}
//   Join, Blob, ... --->         the same; Like {differences}    --->    is a Blob, as the connection's first but for
//   these (closes)                     Gone                            --->
//                   <---  Mapped, and a descriptor of Blobs      <---    All
//
// A relay that is sent to another one calls that: for it, that one is the root.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/handshake.h"
#include "base/result.h"
#include "base/socket.h"

namespace tutti {

inline constexpr uint32_t kBootstrapVersion = 4;
inline constexpr size_t kMaxBlobBytes = 64 << 10;
inline constexpr int kMaxRanks = 1 << 20;
inline constexpr int kFewRanks = 8;  // so many connections that pass on what all have said are no burden
constexpr uint64_t most_bytes_of_all(int n_ranks) {
  return (static_cast<uint64_t>(n_ranks) + 1) * (kMaxBlobBytes + 16);
}

enum class FrameKind : uint32_t { kJoin = 1, kBlob, kAll, kReport, kLeave, kRelay, kGo, kLike, kGone, kMapped, kAsk };

struct FrameHeader {
  FrameKind kind;
  int32_t rank;    // whose it is, on the way to the root
  uint64_t bytes;  // of the body
};
static_assert(sizeof(FrameHeader) == 16);

struct JoinMessage {
  uint32_t version;
  int32_t rank;
  int32_t n_ranks;
  int32_t pid;
  int32_t left_ms;  // how long this rank is ready to wait: the root reports in time for the most impatient one
  std::string host;
  std::string contact = {};  // of a relay that others may be sent to
};

// Where the root is found if its host has one port for all.
uint64_t root_door(const Key& key);

std::string make_frame(FrameKind kind, const std::string& body, int rank = 0);
// Of this process.
JoinMessage make_join(int rank, int n_ranks, int left_ms);
std::string make_join_frame(const JoinMessage& join, FrameKind kind = FrameKind::kJoin);
// Nothing if there can be no such rank.
std::optional<JoinMessage> read_join(const std::string& body);
std::string who_is(const JoinMessage& join);  // "host h pid 12"

std::string pack_report(const Error& error);
Error unpack_report(const std::string& body);

// "3, 7-9" of ranks in ascending order; very long lists are cut with a count of the rest.
std::string rank_list(const std::vector<int>& ranks);

// Of a rank or a relay, with the root or what leads there.
struct RootConnection {
  Fd fd;
  std::unique_ptr<SecureChannel> channel;
  std::string how;                        // for the log: "10.0.0.1:4000 (1st of 3 addresses)", and why others failed
  std::optional<JoinMessage> relay = {};  // a rank of the process that relays
  uint64_t round_trip_ns = 0;

  Result<void> send(const std::string& frame, Deadline deadline) const {
    return send_all(fd.get(), frame.data(), frame.size(), deadline, channel.get());
  }
  Result<void> receive(void* data, size_t bytes, Deadline deadline) const {
    return recv_all(fd.get(), data, bytes, deadline, channel.get());
  }
};

// Collects one incoming frame at a time from a non-blocking socket.
class FrameReader {
 public:
  enum class Status { kPending, kFrame, kClosed };
  explicit FrameReader(uint64_t most_bytes = kMaxBlobBytes) : most_bytes_(most_bytes) {}
  // kClosed: the connection ended, or sent something that is no frame of at most so many bytes.
  Status read(int fd, SecureChannel* channel = nullptr);
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

}  // namespace tutti
