#include "group/shrink_rendezvous.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "group/bootstrap_wire.h"

namespace tutti {
namespace {

std::string front_of(const Nonce& nonce, uint32_t phase) {
  return ByteWriter().put(nonce).put(phase).take();
}

bool all_begin_with(const std::vector<std::string>& votes, const std::string& front) {
  return std::all_of(votes.begin(), votes.end(), [&](const std::string& vote) { return vote.starts_with(front); });
}

}  // namespace

Result<ShrinkRendezvous> ShrinkRendezvous::gather(PeerWatch& old, const Council::Without& without, bool asks_majority,
                                                  const Deadline& deadline) {
  ShrinkRendezvous rendezvous(old, without, deadline);
  const std::string front = front_of({}, 0), asking = front + 'm';
  for (;;) {
    TUTTI_TRY_ASSIGN(const Decision decision, old.agreement().reach(without, asks_majority ? asking : front, deadline));
    // Some ranks may still be in an attempt that has failed: they come back here.
    if (!all_begin_with(decision.votes, front)) continue;
    rendezvous.needs_majority_ = std::ranges::count(decision.votes, asking) > 0;
    rendezvous.nonce_ = decision.nonce;
    rendezvous.members_ = decision.members;
    break;
  }
  const auto me = std::find(rendezvous.members_.begin(), rendezvous.members_.end(), old.rank());
  rendezvous.rank_ = static_cast<int>(me - rendezvous.members_.begin());
  rendezvous.n_ranks_ = static_cast<int>(rendezvous.members_.size());
  const std::string known_to_all = ByteWriter().put<std::array<uint8_t, 32>>(old.key()).put(rendezvous.nonce_).take();
  rendezvous.key_ = derive_key(known_to_all.data(), known_to_all.size());
  return rendezvous;
}

// A rank that has failed votes with its error, which then all ranks get. After a failure because of another rank's loss
// all begin again, as the loss is known by then, unless a rank has failed for a reason of its own, which others took
// for its loss.
Result<Blobs> ShrinkRendezvous::next_votes(const Result<std::string>& mine) {
  const std::string front = front_of(nonce_, ++phase_);
  const std::string vote = mine ? 'y' + mine.value() : 'n' + pack_report(mine.error());
  is_over_ = true;
  TUTTI_TRY_ASSIGN(Decision decision, old_->agreement().reach(without_, front + vote, deadline_));
  if (decision.members != members_ || !all_begin_with(decision.votes, front)) {
    must_restart_ = true;
    return Error{Code::kRemoteError, "a rank was lost while the group was being formed"};
  }
  for (std::string& theirs : decision.votes) theirs.erase(0, front.size());
  std::optional<Error> failure;
  for (size_t r = 0; r < decision.votes.size(); r++) {
    if (decision.votes[r].starts_with('y')) continue;
    const Error error = unpack_report(decision.votes[r].substr(1));
    if (failure && (failure->code != Code::kRemoteError || error.code == Code::kRemoteError)) continue;
    failure = {error.code, old_->rank_name(members_[r]) + " could not join: " + error.message, members_[r]};
  }
  if (failure) {
    must_restart_ = failure->code == Code::kRemoteError;
    return !mine && mine.error().code != Code::kRemoteError ? mine.error() : *failure;
  }
  is_over_ = false;
  for (std::string& theirs : decision.votes) theirs.erase(0, 1);
  return Blobs::pack(decision.votes);
}

Result<Blobs> ShrinkRendezvous::all_gather(const std::string& blob) {
  if (blob.size() > kMaxBlobBytes)
    return Error{Code::kInvalidArgument,
                 format("a blob of %zu bytes is too large: at most %zu", blob.size(), kMaxBlobBytes)};
  return next_votes(blob);
}

bool ShrinkRendezvous::is_broken() {
  const auto is_member = [this](int rank) { return std::binary_search(members_.begin(), members_.end(), rank); };
  const std::vector<int> lost = old_->lost();
  return old_->agreement().alarmed(nonce_) || std::any_of(lost.begin(), lost.end(), is_member);
}

Result<void> ShrinkRendezvous::conclude(Result<void> here) {
  if (is_over_) return here;
  if (!here) {
    old_->agreement().alarm(nonce_);
    return next_votes(here.error()).error();  // always an error: this rank has voted for one
  }
  TUTTI_TRY(next_votes(std::string()));
  [[maybe_unused]] const auto farewell = next_votes(std::string());
  must_restart_ = false;
  return {};
}

}  // namespace tutti
