#include "buckets.h"

#include <algorithm>
#include <map>

namespace tutti::ddp {
namespace {

// Returns the buckets without memory.
std::vector<Bucket> plan_buckets(const Replica& replica, const std::vector<size_t>& order) {
  struct Open {
    Bucket bucket;
    size_t limit_bytes;
  };
  constexpr size_t kAlignmentBytes = 64;
  // One open bucket per kind, in the same order on all ranks: by whether it is on a device, as device numbers differ.
  std::map<std::pair<tuttiDataType_t, bool>, Open> open;
  std::vector<Bucket> closed;
  for (const size_t param : order) {
    const Tensor& tensor = replica.params[param];
    auto& [bucket, limit_bytes] =
        open.try_emplace({tensor.grad_type, tensor.device >= 0}, Open{Bucket(), replica.config.firstBucketBytes})
            .first->second;
    bucket.type = tensor.grad_type;
    bucket.device = tensor.device;
    const size_t aligned_elems = kAlignmentBytes / element_bytes(tensor.grad_type);
    bucket.params.push_back(param);
    bucket.offsets.push_back(bucket.count);
    bucket.count += (tensor.count + aligned_elems - 1) / aligned_elems * aligned_elems;
    if (bucket.bytes() < limit_bytes) continue;
    closed.push_back(std::exchange(bucket, Bucket()));
    limit_bytes = replica.config.bucketCapBytes;
  }
  for (auto& [kind, last] : open)
    if (!last.bucket.params.empty()) closed.push_back(std::move(last.bucket));
  return closed;
}

}  // namespace

Status Buckets::rebuilt(const Replica& replica, const std::vector<size_t>& order, Buckets* out) const {
  std::vector<Bucket> fresh = plan_buckets(replica, order);
  std::vector<Place> places(replica.params.size());
  for (size_t b = 0; b < fresh.size(); b++) {
    Device& device = replica.device(fresh[b].device);
    if (Status s = fresh[b].memory.allocate(device, fresh[b].bytes()); !s) return s;
    for (size_t i = 0; i < fresh[b].params.size(); i++) {
      const size_t param = fresh[b].params[i];
      places[param] = {b, fresh[b].slot(i)};
      const size_t bytes = replica.params[param].grad_bytes();
      if (places_.empty() || bytes == 0) continue;
      if (Status s = device.copy(places[param].at, slot_of(param), bytes, Queue::kCaller); !s) return s;
    }
  }
  if (Status s = replica.synchronize(); !s) return s;
  out->buckets_ = std::move(fresh);
  out->places_ = std::move(places);
  return {};
}

char* Buckets::kept_of(size_t param) const {
  const Bucket& bucket = buckets_[bucket_of(param)];
  return bucket.kept.data() + (slot_of(param) - bucket.memory.data());
}

Status Buckets::fill(const Replica& replica, size_t param, bool is_used) {
  const Tensor& tensor = replica.params[param];
  Device& device = replica.device(tensor.device);
  char* const slot = slot_of(param);
  const size_t bytes = tensor.grad_bytes();
  if (bytes == 0) return {};
  if (is_used) return tensor.grad == nullptr ? Status() : device.copy(slot, tensor.grad, bytes, Queue::kCaller);
  if (tensor.grad == nullptr) {
    Bucket& bucket = buckets_[bucket_of(param)];
    if (Status s = bucket.kept.reserve(device, bucket.memory.bytes()); !s) return s;
    if (Status s = device.copy(kept_of(param), slot, bytes, Queue::kCaller); !s) return s;
  }
  return device.zero(slot, bytes);
}

Status Buckets::take_back(const Replica& replica, size_t param, bool is_used) const {
  const Tensor& tensor = replica.params[param];
  Device& device = replica.device(tensor.device);
  const size_t bytes = tensor.grad_bytes();
  if (bytes == 0 || is_used == (tensor.grad == nullptr)) return {};
  return is_used ? device.copy(tensor.grad, slot_of(param), bytes, Queue::kCaller)
                 : device.copy(slot_of(param), kept_of(param), bytes, Queue::kCaller);
}

size_t Buckets::largest_bytes(int device) const {
  size_t most = 0;
  for (const Bucket& bucket : buckets_)
    if (bucket.device == device) most = std::max(most, bucket.memory.bytes());
  return most;
}

size_t Buckets::bytes() const {
  size_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.memory.bytes();
  return sum;
}

}  // namespace tutti::ddp
