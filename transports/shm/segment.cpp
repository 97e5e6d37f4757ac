#include "transports/shm/segment.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/membarrier.h"
#include "base/shared_memory.h"

namespace tutti::shm {
namespace {

constexpr size_t kPage = 4096;

size_t round_to_page(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

size_t control_bytes(uint32_t slots) {
  return round_to_page(sizeof(SegmentHeader) + size_t{2} * slots * sizeof(SlotLine));
}

size_t segment_bytes(uint32_t slots, uint32_t slot_bytes) {
  return control_bytes(slots) + round_to_page(2 * static_cast<size_t>(slots) * slot_bytes);
}

}  // namespace

void SleepBarrier::sleepy_side() const {
  if (by_kernel_)
    membarrier_everywhere();
  else
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

Result<Segment> Segment::create(uint32_t slots, uint32_t slot_bytes, Fd* memfd) {
  TUTTI_TRY_ASSIGN(Fd fd, sealed_memory("tutti-link", segment_bytes(slots, slot_bytes)));
  auto segment = map(fd, slots, slot_bytes);
  if (segment) *memfd = std::move(fd);
  return segment;
}

Result<Segment> Segment::map(const Fd& memfd, uint32_t slots, uint32_t slot_bytes) {
  const size_t bytes = segment_bytes(slots, slot_bytes);
  struct stat info {};
  if (fstat(memfd.get(), &info) != 0) return system_error("fstat of a shared-memory link", errno);
  const int seals = fcntl(memfd.get(), F_GET_SEALS);
  // A file that is not a memfd gives -1, which has every bit set.
  if (static_cast<size_t>(info.st_size) != bytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Error{Code::kRemoteError, "it offered shared memory of the wrong size or without seals"};
  Segment segment;
  segment.base_ = map_shared(memfd, 0, bytes, true);
  if (!segment) return system_error(format("mapping %zu bytes of shared memory", bytes), errno);
  segment.payload_ = segment.base_.get() + control_bytes(slots);
  segment.slots_ = slots;
  segment.slot_bytes_ = slot_bytes;
  return segment;
}

}  // namespace tutti::shm
