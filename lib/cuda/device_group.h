// This header: ranks of one process that share a GPU. Their streams may also share a hardware queue, where a wait holds
// up everything behind it, so none may wait for what another rank has not enqueued yet. Once all ranks have called an
// operation, the first one enqueues it for all, in its own stream: that stream waits for the others, and they wait for
// it. One thread makes all the CUDA calls, because threads that call CUDA at once contend for its locks: 8 ranks on an
// H100 took 75 us where each told its own stream to wait. A rank's call returns when all is enqueued, so a thread that
// holds several ranks groups its calls.
//
// Threading: a DeviceGroup is shared by its ranks; a DeviceGroupMember belongs to one of them.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/meeting.h"

namespace tutti::cuda {

// Enqueues what all ranks have called in a stream. The calls are in the order of the group's ranks.
using EnqueueAll = std::function<Result<void>(const Arrivals&, StreamRef)>;

class DeviceGroup {
 public:
  DeviceGroup(GpuStreams& streams, const std::vector<int>& ranks);
  const std::vector<int>& ranks() const { return meeting_->ranks(); }

 private:
  friend class DeviceGroupMember;
  struct Entry {
    explicit Entry(GpuStreams& streams) : come(streams) {}
    Turn turn;
    OwnedEvent come;  // recorded in the rank's stream at its call
  };

  // Always the same rank, so that CUDA's state of the streams stays in one CPU's cache.
  static constexpr size_t kLeader = 0;

  bool is_enqueued_for(size_t place, uint64_t round) const {
    return place == kLeader || enqueued_.load(std::memory_order_acquire) >= round;
  }
  Result<void> announce(size_t place, const Turn& turn);
  Result<void> enqueue(size_t place, uint64_t round, const Arrivals& everyone, const EnqueueAll& enqueue_all);
  void tell(uint64_t round, std::optional<Error> failure);
  Result<void> enqueue_once(const Arrivals& everyone, const EnqueueAll& enqueue_all);
  Result<void> check_captured_alike() const;
  std::vector<size_t> other_streams() const;

  GpuStreams& streams_;
  const std::shared_ptr<Meeting> meeting_;
  std::deque<Entry> entries_;  // each belongs to its rank from its announcement until all have come
  // The last round that is enqueued. The leader's release, after it has written the members below, pairs with the other
  // ranks' acquire.
  std::atomic<uint64_t> enqueued_{0};
  Turn leading_;
  std::optional<Error> failure_;
  OwnedEvent end_, captured_end_;  // recorded after the last round: the first if it was not captured, else the second
};

class DeviceGroupMember {
 public:
  DeviceGroupMember(std::shared_ptr<DeviceGroup> device_group, int rank)
      : device_group_(std::move(device_group)),
        place_(device_group_->meeting_->place_of(rank)),
        attendee_(device_group_->meeting_, rank) {}

  // True for the leader when all have come, for the others when the leader has enqueued their operation. If false, call
  // it again with the same operation.
  Result<bool> meet(const Operation& operation, const Turn& turn);
  // See Way::withdraw(). Once all have come, the leader enqueues the operation or tells the others why it cannot.
  bool withdraw(const Error& why);
  // Once meet() is true. The leader enqueues; the others learn whether that succeeded.
  Result<void> enqueue(const EnqueueAll& enqueue_all) {
    is_coming_ = have_all_come_ = false;
    return device_group_->enqueue(place_, attendee_.round(), attendee_.everyone(), enqueue_all);
  }
  Attendee& attendee() { return attendee_; }
  // Recorded after the last operation that was not captured; null before the first.
  EventRef end() const { return device_group_->end_.get(); }

 private:
  const std::shared_ptr<DeviceGroup> device_group_;
  const size_t place_;
  MeetingAttendee attendee_;
  bool is_coming_ = false, have_all_come_ = false;
};

}  // namespace tutti::cuda
