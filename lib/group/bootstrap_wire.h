// What a Bootstrap and its Root say to each other after the handshake: frames of a header and a body, in the byte order
// of the machine (the Hello before them has refused any other). Everything that arrives is bounds-checked here.
//
//   rank                                root
//   Join {rank, n_ranks, who}   --->
//   Blob {bytes}                --->    once per round
//                               <---    All {u32 length, bytes; in rank order}, when every rank's blob is there
//                               <---    or Report {code, culprit, sentence}, at any time; the last frame
//   Leave {}                    --->    when all is well: who closes without it is lost
//   or Report                   --->    it has failed, and so the group has
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/handshake.h"
#include "base/result.h"

namespace tutti {

inline constexpr uint32_t kBootstrapVersion = 2;
inline constexpr size_t kMaxBlobBytes = 64 << 10;
inline constexpr int kMaxRanks = 1 << 20;

enum class FrameKind : uint32_t { kJoin = 1, kBlob = 2, kAll = 3, kReport = 4, kLeave = 5 };

struct FrameHeader {
  FrameKind kind;
  uint32_t zero;
  uint64_t bytes;  // of the body
};
static_assert(sizeof(FrameHeader) == 16);

struct JoinMessage {
  uint32_t version;
  int32_t rank;
  int32_t n_ranks;
  int32_t pid;
  int32_t left_ms;  // how long this rank is ready to wait: the root reports in time for the most impatient one
  char host[64];
};

// Where the root is found if its host has one port for all.
uint64_t root_door(const Key& key);

std::string make_frame(FrameKind kind, const std::string& body);
std::string make_join_frame(int rank, int n_ranks, int left_ms);

std::string pack_report(const Error& error);
Error unpack_report(const std::string& body);

// The body of an All frame.
void append_blob(std::string* body, const std::string& blob);
Result<std::vector<std::string>> split_blobs(const std::string& body, int n_ranks);

// "3, 7-9" of ranks in ascending order; very long lists are cut with a count of the rest.
std::string rank_list(const std::vector<int>& ranks);

// Collects one incoming frame at a time from a non-blocking socket.
class FrameReader {
 public:
  enum class Status { kPending, kFrame, kClosed };
  // kClosed: the connection ended, or sent something that is no frame of at most kMaxBlobBytes.
  Status read(int fd, SecureChannel* channel = nullptr);
  FrameKind kind() const { return header_.kind; }
  // The finished frame's body; the next read starts a new frame.
  std::string take_body();

 private:
  bool fill(int fd, SecureChannel* channel, char* data, size_t bytes, Status* status);
  FrameHeader header_{};
  std::string body_;
  size_t got_ = 0;  // of header and body together
};

}  // namespace tutti
