#include "buckets.h"

#include <algorithm>
#include <map>

namespace tutti::ddp {
namespace {

constexpr size_t kAlignmentBytes = 64;

void append(Layout* layout, size_t param, const Tensor& tensor) {
  const size_t aligned_elems = kAlignmentBytes / element_bytes(tensor.grad_type);
  layout->params.push_back(param);
  layout->offsets.push_back(layout->count);
  layout->count += (tensor.count + aligned_elems - 1) / aligned_elems * aligned_elems;
}

size_t bytes_of(const Layout& layout) {
  return layout.count * element_bytes(layout.type);
}

}  // namespace

std::vector<Layout> plan_buckets(const std::vector<Tensor>& params, const std::vector<size_t>& order,
                                 size_t first_bytes, size_t cap_bytes) {
  struct Open {
    Layout layout;
    size_t limit_bytes;
  };
  // One for each kind, in an order that is the same on all ranks, whose devices have numbers of their own.
  std::map<std::pair<tuttiDataType_t, bool>, Open> open;
  std::vector<Layout> closed;
  for (const size_t param : order) {
    const Tensor& tensor = params[param];
    const Layout empty = {.type = tensor.grad_type, .device = tensor.device, .params = {}, .offsets = {}};
    Open& bucket = open.try_emplace({tensor.grad_type, tensor.device >= 0}, Open{empty, first_bytes}).first->second;
    append(&bucket.layout, param, tensor);
    if (bytes_of(bucket.layout) < bucket.limit_bytes) continue;
    closed.push_back(std::move(bucket.layout));
    bucket = {empty, cap_bytes};
  }
  for (auto& [kind, bucket] : open)
    if (!bucket.layout.params.empty()) closed.push_back(std::move(bucket.layout));
  return closed;
}

Status Buckets::rebuilt(const Devices& devices, const std::vector<Tensor>& params, std::vector<Layout> layouts,
                        Buckets* out) const {
  std::vector<Bucket> fresh(layouts.size());
  std::vector<Place> places(params.size());
  for (size_t b = 0; b < fresh.size(); b++) {
    fresh[b].layout = std::move(layouts[b]);
    const Layout& layout = fresh[b].layout;
    Device& device = devices.of(layout.device);
    if (Status s = fresh[b].memory.allocate(device, bytes_of(layout)); !s) return s;
    for (size_t i = 0; i < layout.params.size(); i++) {
      const size_t param = layout.params[i];
      places[param] = {b, fresh[b].memory.data() + layout.offsets[i] * element_bytes(layout.type)};
      const size_t bytes = params[param].grad_bytes();
      if (places_.empty() || bytes == 0) continue;
      if (Status s = device.copy(places[param].at, slot_of(param), bytes, Queue::kCaller); !s) return s;
    }
  }
  for (Device* device : devices.all())
    if (Status s = device->synchronize(); !s) return s;
  out->buckets_ = std::move(fresh);
  out->places_ = std::move(places);
  return {};
}

Status Buckets::keep(Device& device, size_t param, size_t bytes) {
  Bucket& bucket = buckets_[bucket_of(param)];
  if (Status s = bucket.kept.reserve(device, bucket.memory.bytes()); !s) return s;
  const char* slot = slot_of(param);
  return device.copy(bucket.kept.data() + (slot - bucket.memory.data()), slot, bytes, Queue::kCaller);
}

Status Buckets::bring_back(Device& device, size_t param, size_t bytes) const {
  const Bucket& bucket = buckets_[bucket_of(param)];
  char* slot = slot_of(param);
  return device.copy(slot, bucket.kept.data() + (slot - bucket.memory.data()), bytes, Queue::kCaller);
}

size_t Buckets::largest_bytes(int device) const {
  size_t most = 0;
  for (const Bucket& bucket : buckets_)
    if (bucket.layout.device == device) most = std::max(most, bucket.memory.bytes());
  return most;
}

size_t Buckets::bytes() const {
  size_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.memory.bytes();
  return sum;
}

}  // namespace tutti::ddp
