#include "group/bootstrap_wire.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/socket.h"

namespace tutti {

std::string make_frame(FrameKind kind, const std::string& body) {
  const FrameHeader header{kind, 0, body.size()};
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  return frame += body;
}

uint64_t root_door(const Key& key) {
  const Key door = derive_key(key.data(), key.size());
  uint64_t number;
  memcpy(&number, door.data(), sizeof number);
  return number;
}

std::string make_join_frame(int rank, int n_ranks, int left_ms) {
  JoinMessage join{kBootstrapVersion, rank, n_ranks, getpid(), left_ms, {}};
  const std::string host = host_name();
  memcpy(join.host, host.data(), std::min(host.size(), sizeof join.host - 1));
  return make_frame(FrameKind::kJoin, {reinterpret_cast<const char*>(&join), sizeof join});
}

std::string pack_report(const Error& error) {
  const int32_t front[2] = {static_cast<int32_t>(error.code), error.culprit_rank};
  return std::string(reinterpret_cast<const char*>(front), sizeof front) + error.message;
}

Error unpack_report(const std::string& body) {
  int32_t front[2];
  if (body.size() < sizeof front) return Error{Code::kInternalError, "the group's root sent a damaged report"};
  memcpy(front, body.data(), sizeof front);
  const bool known = front[0] > static_cast<int>(Code::kSuccess) && front[0] <= static_cast<int>(Code::kTimeout);
  return Error{known ? static_cast<Code>(front[0]) : Code::kInternalError, body.substr(sizeof front), front[1]};
}

void append_blob(std::string* body, const std::string& blob) {
  const auto bytes = static_cast<uint32_t>(blob.size());
  body->append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  *body += blob;
}

Result<std::vector<std::string>> split_blobs(const std::string& body, int n_ranks) {
  std::vector<std::string> blobs;
  size_t at = 0;
  for (int i = 0; i < n_ranks; i++) {
    uint32_t bytes = 0;
    if (body.size() - at >= sizeof bytes) memcpy(&bytes, body.data() + at, sizeof bytes);
    if (body.size() - at < sizeof bytes || body.size() - at - sizeof bytes < bytes)
      return Error{Code::kInternalError, "the group's root sent a damaged list of blobs"};
    blobs.push_back(body.substr(at + sizeof bytes, bytes));
    at += sizeof bytes + bytes;
  }
  return blobs;
}

std::string rank_list(const std::vector<int>& ranks) {
  constexpr int kMaxRanges = 32;
  std::string text;
  int ranges = 0;
  for (size_t i = 0; i < ranks.size();) {
    if (++ranges > kMaxRanges) return text + format(" and %zu more", ranks.size() - i);
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) last++;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

FrameReader::Status FrameReader::read(int fd, SecureChannel* channel) {
  Status status = Status::kPending;
  if (got_ < sizeof header_) {
    if (!fill(fd, channel, reinterpret_cast<char*>(&header_) + got_, sizeof header_ - got_, &status)) return status;
    if (header_.zero != 0 || header_.bytes > kMaxBlobBytes) return Status::kClosed;
    body_.resize(header_.bytes);
  }
  const size_t done = got_ - sizeof header_;
  if (!fill(fd, channel, body_.data() + done, body_.size() - done, &status)) return status;
  return Status::kFrame;
}

std::string FrameReader::take_body() {
  got_ = 0;
  return std::exchange(body_, {});
}

bool FrameReader::fill(int fd, SecureChannel* channel, char* data, size_t bytes, Status* status) {
  while (bytes > 0) {
    const ssize_t n = recv_some(fd, channel, data, bytes);
    if (n > 0) {
      data += n;
      bytes -= static_cast<size_t>(n);
      got_ += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      *status = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Status::kPending : Status::kClosed;
      return false;
    }
  }
  return true;
}

}  // namespace tutti
