#include "cuda/device_group.h"

#include <algorithm>
#include <utility>

namespace tutti::cuda {

DeviceGroup::DeviceGroup(GpuStreams& streams, const std::vector<int>& ranks)
    : streams_(streams), meeting_(std::make_shared<Meeting>(ranks)), end_(streams), captured_end_(streams) {
  for (size_t place = 0; place < ranks.size(); place++) entries_.emplace_back(streams);
}

// The handle of a per-thread stream means another stream in every thread, so only the rank itself can record its event.
Result<void> DeviceGroup::announce(size_t place, const Turn& turn) {
  Entry& entry = entries_[place];
  entry.turn = turn;
  return streams_.is_per_thread(turn.stream) ? entry.come.record(turn.stream) : Result<void>();
}

Result<void> DeviceGroup::enqueue(size_t place, uint64_t round, const Arrivals& everyone,
                                  const EnqueueAll& enqueue_all) {
  if (place == kLeader) {
    auto enqueued = contained([&] { return enqueue_once(everyone, enqueue_all); });
    tell(round, enqueued ? std::nullopt : std::optional(std::move(enqueued).error()));
  }
  if (failure_) return *failure_;
  const Turn& turn = entries_[place].turn;
  if (!streams_.is_per_thread(turn.stream) || turn.stream_id == leading_.stream_id) return {};
  return streams_.wait(turn.stream, (turn.is_captured ? captured_end_ : end_).get());
}

void DeviceGroup::tell(uint64_t round, std::optional<Error> failure) {
  failure_ = std::move(failure);
  enqueued_.store(round, std::memory_order_release);
}

Result<void> DeviceGroup::enqueue_once(const Arrivals& everyone, const EnqueueAll& enqueue_all) {
  leading_ = entries_[kLeader].turn;
  TUTTI_TRY(check_captured_alike());
  const std::vector<size_t> others = other_streams();
  for (const size_t place : others) {
    Entry& entry = entries_[place];
    if (!streams_.is_per_thread(entry.turn.stream)) TUTTI_TRY(entry.come.record(entry.turn.stream));
    TUTTI_TRY(streams_.wait(leading_.stream, entry.come.get()));
  }
  TUTTI_TRY(enqueue_all(everyone, leading_.stream));
  OwnedEvent& end = leading_.is_captured ? captured_end_ : end_;
  TUTTI_TRY(end.record(leading_.stream));
  for (const size_t place : others)
    if (const StreamRef stream = entries_[place].turn.stream; !streams_.is_per_thread(stream))
      TUTTI_TRY(streams_.wait(stream, end.get()));
  return {};
}

Result<void> DeviceGroup::check_captured_alike() const {
  for (size_t place = 0; place < entries_.size(); place++)
    if (const bool is_captured = entries_[place].turn.is_captured; is_captured != leading_.is_captured)
      return Error{Code::kInvalidUsage,
                   format("rank %d's stream is captured and rank %d's is not: ranks of a process that share a GPU must "
                          "be captured together",
                          ranks()[is_captured ? place : kLeader], ranks()[is_captured ? kLeader : place])};
  return {};
}

// One place for each distinct stream other than the leader's.
std::vector<size_t> DeviceGroup::other_streams() const {
  std::vector<size_t> places;
  std::vector<uint64_t> seen = {leading_.stream_id};
  for (size_t place = 0; place < entries_.size(); place++) {
    const uint64_t id = entries_[place].turn.stream_id;
    if (std::find(seen.begin(), seen.end(), id) != seen.end()) continue;
    seen.push_back(id);
    places.push_back(place);
  }
  return places;
}

Result<bool> DeviceGroupMember::meet(const Operation& operation, const Turn& turn) {
  if (!std::exchange(is_coming_, true)) TUTTI_TRY(device_group_->announce(place_, turn));
  if (!have_all_come_) {
    TUTTI_TRY_ASSIGN(have_all_come_, attendee_.come(operation, true));
  }
  return have_all_come_ && device_group_->is_enqueued_for(place_, attendee_.round());
}

bool DeviceGroupMember::withdraw(const Error& why) {
  if (!is_coming_ || (!have_all_come_ && attendee_.withdraw(why))) return true;
  if (place_ != DeviceGroup::kLeader) return false;
  device_group_->tell(attendee_.round(), why);
  return true;
}

}  // namespace tutti::cuda
