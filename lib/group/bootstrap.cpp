#include "group/bootstrap.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "group/bootstrap_connect.h"
#include "group/bootstrap_wire.h"

namespace tutti {
namespace {

// The root reports absent ranks when the deadline passes; the report needs a moment to arrive.
constexpr double kReportSeconds = 1.5;

Error root_lost(Error error, int rank) {
  if (error.code == Code::kTimeout)
    error.message = format("rank %d: the group's root did not answer in time", rank);
  else
    error.message = format(
        "rank %d lost its connection to the group's root (%s): the process that made the unique id "
        "must live until all ranks have joined",
        rank, error.message.c_str());
  return error;
}

// A frame from the root; a Report becomes the error that it carries.
Result<std::string> receive_all_frame(int fd, SecureChannel* channel, int rank, int n_ranks, Deadline deadline) {
  FrameHeader header;
  if (auto got = recv_all(fd, &header, sizeof header, deadline, channel); !got) return root_lost(got.error(), rank);
  const uint64_t limit = (static_cast<uint64_t>(n_ranks) + 1) * (kMaxBlobBytes + sizeof(uint32_t));
  const bool known = header.kind == FrameKind::kAll || header.kind == FrameKind::kReport;
  if (!known || header.zero != 0 || header.bytes > limit)
    return Error{Code::kInternalError, "the group's root sent something that is no frame"};
  std::string body(header.bytes, '\0');
  if (auto got = recv_all(fd, body.data(), body.size(), deadline, channel); !got) return root_lost(got.error(), rank);
  if (header.kind == FrameKind::kReport) return unpack_report(body);
  return body;
}

}  // namespace

Result<Bootstrap> Bootstrap::join(const UniqueId& id, int rank, int n_ranks, Deadline deadline, bool encrypts) {
  if (n_ranks < 1 || n_ranks > kMaxRanks || rank < 0 || rank >= n_ranks)
    return Error{Code::kInvalidArgument, format("rank %d of %d ranks: give 1 to %d ranks and a rank from 0 below that",
                                                rank, n_ranks, kMaxRanks)};
  TUTTI_TRY_ASSIGN(const UniqueIdParts parts, unpack_unique_id(id));
  Bootstrap b;
  b.rank_ = rank;
  b.n_ranks_ = n_ranks;
  b.deadline_ = deadline;
  b.key_ = derive_key(parts.secret, sizeof parts.secret);
  b.key_.encrypts = encrypts;
  TUTTI_TRY_ASSIGN(RootConnection root, connect_to_root(parts, b.key_, rank, deadline));
  b.fd_ = std::move(root.fd);
  b.channel_ = std::move(root.channel);
  const std::string join = make_join_frame(rank, n_ranks, deadline.left_ms(INT32_MAX));
  if (auto sent = send_all(b.fd_.get(), join.data(), join.size(), deadline, b.channel_.get()); !sent)
    return root_lost(sent.error(), rank);
  log(LogLevel::kInfo, "rank %d of %d joined the root at %s", rank, n_ranks, root.how.c_str());
  return b;
}

// A send that fails is not yet the answer: the root may have said why before it closed.
void Bootstrap::send(FrameKind kind, const std::string& body) {
  const std::string frame = make_frame(kind, body);
  [[maybe_unused]] const auto sent = send_all(fd_.get(), frame.data(), frame.size(), deadline_, channel_.get());
}

Result<std::vector<std::string>> Bootstrap::receive_all() {
  is_over_ = true;
  TUTTI_TRY_ASSIGN(const std::string body, receive_all_frame(fd_.get(), channel_.get(), rank_, n_ranks_,
                                                             deadline_.plus_seconds(kReportSeconds)));
  is_over_ = false;
  return split_blobs(body, n_ranks_);
}

Result<std::vector<std::string>> Bootstrap::all_gather(const std::string& blob) {
  if (blob.size() > kMaxBlobBytes)
    return Error{Code::kInvalidArgument, format("a blob of %zu bytes: at most %zu", blob.size(), kMaxBlobBytes)};
  send(FrameKind::kBlob, blob);
  return receive_all();
}

bool Bootstrap::has_news(int limit_ms) const {
  pollfd p{fd_.get(), POLLIN, 0};
  return (channel_ && channel_->has_rest()) || ::poll(&p, 1, limit_ms) > 0;
}

bool Bootstrap::is_broken() {
  return has_news(0);  // nobody expects an answer now
}

// The loss of a rank is better known to the root, which gets a moment to tell of it.
Result<void> Bootstrap::conclude(Result<void> here) {
  constexpr int kGraceMs = 50;
  if (is_over_) return here;
  if (here) {
    TUTTI_TRY(all_gather(""));
    send(FrameKind::kLeave, "");
    return {};
  }
  if (here.error().code == Code::kRemoteError && has_news(kGraceMs))
    if (auto word = receive_all(); !word) return std::move(word).error();
  send(FrameKind::kReport, pack_report(here.error()));
  return here;
}

}  // namespace tutti
