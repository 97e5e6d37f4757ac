#include "group/bootstrap.h"

#include <poll.h>

#include <cerrno>

#include "base/log.h"
#include "group/bootstrap_relay.h"

namespace tutti {
namespace {

// The root reports absent ranks when the deadline passes; the report needs a moment to arrive.
constexpr double kReportSeconds = 1.5;

}  // namespace

Result<Bootstrap> Bootstrap::join(const UniqueId& id, int rank, int n_ranks, Deadline deadline, bool encrypts,
                                  const UniqueId* other) {
  if (n_ranks < 1 || n_ranks > kMaxRanks || rank < 0 || rank >= n_ranks)
    return Error{
        Code::kInvalidArgument,
        format("rank %d of %d is not valid: give 1 to %d ranks, and a rank from 0 to one less than their number", rank,
               n_ranks, kMaxRanks)};
  Roots roots;
  TUTTI_TRY_ASSIGN(roots.root, unpack_unique_id(id));
  if (other != nullptr) {
    TUTTI_TRY_ASSIGN(roots.other, unpack_unique_id(*other));
  }
  Bootstrap b;
  b.rank_ = rank;
  b.n_ranks_ = n_ranks;
  b.deadline_ = deadline;
  roots.key = derive_key(roots.root.secret, sizeof roots.root.secret);
  roots.key.encrypts = encrypts;
  b.key_ = roots.key;
  TUTTI_TRY_ASSIGN(b.root_, reach_root(roots, rank, n_ranks, deadline));
  b.round_trip_ns_ = b.root_.round_trip_ns;
  const std::string join = make_join_frame(make_join(rank, n_ranks, deadline.left_ms(INT32_MAX)));
  if (auto sent = b.root_.send(join, deadline); !sent) return b.root_lost(sent.error());
  log(LogLevel::kInfo, "rank %d of %d joined the root at %s", rank, n_ranks, b.root_.how.c_str());
  return b;
}

// Ignores a failed send: the root may have said why before it closed the connection, which the next receive shows.
void Bootstrap::send(FrameKind kind, const std::string& body) {
  [[maybe_unused]] const auto sent = root_.send(make_frame(kind, body, rank_), deadline_);
}

Error Bootstrap::root_lost(const Error& error) const {
  if (error.code == Code::kTimeout)
    return {error.code, format("rank %d: the group's root did not answer in time", rank_)};
  if (root_.relay)
    return {
        error.code,
        format("rank %d lost its connection to rank %d (%s), through which the ranks of this host reach the group's "
               "root: see its output for the reason",
               rank_, root_.relay->rank, who_is(*root_.relay).c_str()),
        root_.relay->rank};
  return {error.code,
          format("rank %d lost its connection to the group's root (%s): the process that made the unique id "
                 "must live until all ranks have joined",
                 rank_, error.message.c_str())};
}

// A relay's header may carry a file descriptor, which the kernel discards unless the receive asks for it.
Result<void> Bootstrap::receive_header(FrameHeader* header, Fd* descriptor, Deadline deadline) {
  if (!root_.relay) return root_.receive(header, sizeof *header, deadline);
  for (;;) {
    const ssize_t n = receive_with_descriptor(root_.fd.get(), header, sizeof *header, descriptor);
    if (n > 0)
      return root_.receive(reinterpret_cast<char*>(header) + n, sizeof *header - static_cast<size_t>(n), deadline);
    if (n == 0) return Error{Code::kRemoteError, "the other side closed the connection"};
    if (errno != EAGAIN && errno != EINTR) return Error{Code::kRemoteError, system_error("receive", errno).message};
    if (deadline.passed()) return Error{Code::kTimeout, "nothing arrived in time"};
    (void)has_news(deadline.left_ms(100));
  }
}

// A Report becomes the error that it carries.
Result<Blobs> Bootstrap::receive_frame(Deadline deadline) {
  FrameHeader header;
  Fd file;
  if (auto got = receive_header(&header, &file, deadline); !got) return root_lost(got.error());
  // The kernel discards a descriptor that this process has no room for.
  if (root_.relay && header.kind == FrameKind::kMapped && !file)
    return system_error("receiving the data of the group's ranks", EMFILE);
  const bool known = header.kind == FrameKind::kAll || header.kind == FrameKind::kReport ||
                     (header.kind == FrameKind::kMapped && file && header.bytes == 0);
  if (!known || header.bytes > most_bytes_of_all(n_ranks_))
    return Error{Code::kInternalError, "the group's root sent an invalid frame"};
  if (header.kind == FrameKind::kMapped) return Blobs::map(file, n_ranks_);
  std::string body(header.bytes, '\0');
  if (auto got = root_.receive(body.data(), body.size(), deadline); !got) return root_lost(got.error());
  if (header.kind == FrameKind::kReport) return unpack_report(body);
  return Blobs::open(std::move(body), n_ranks_);
}

Result<Blobs> Bootstrap::receive_all() {
  is_over_ = true;
  TUTTI_TRY_ASSIGN(Blobs all, receive_frame(deadline_.plus_seconds(kReportSeconds)));
  is_over_ = false;
  return all;
}

Result<Blobs> Bootstrap::all_gather(const std::string& blob) {
  if (blob.size() > kMaxBlobBytes)
    return Error{Code::kInvalidArgument,
                 format("a blob of %zu bytes is too large: at most %zu", blob.size(), kMaxBlobBytes)};
  send(FrameKind::kBlob, blob);
  return receive_all();
}

bool Bootstrap::has_news(int limit_ms) const {
  pollfd p{root_.fd.get(), POLLIN, 0};
  return (root_.channel && root_.channel->has_rest()) || ::poll(&p, 1, limit_ms) > 0;
}

bool Bootstrap::is_broken() {
  return has_news(0);  // no answer is due now: whatever has come is bad news
}

// The root knows best why a rank was lost and gets a moment to say so: a rank that fails reports to the root before it
// closes any connection. A rank that reports waits until the root has told the others, because the root may be a thread
// of this process, which may end after this.
Result<void> Bootstrap::conclude(Result<void> here) {
  constexpr int kGraceMs = 1000;
  if (is_over_) return here;
  if (here) {
    TUTTI_TRY(all_gather(""));
    send(FrameKind::kLeave, "");
    return {};
  }
  if (here.error().code == Code::kRemoteError && has_news(kGraceMs))
    if (auto word = receive_all(); !word) return std::move(word).error();
  send(FrameKind::kReport, pack_report(here.error()));
  (void)receive_frame(Deadline::after_seconds(kReportSeconds));
  return here;
}

}  // namespace tutti
