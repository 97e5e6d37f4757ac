#include "buckets.h"

#include <cstring>
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
  std::map<tuttiDataType_t, Open> open;  // one for each type
  std::vector<Layout> closed;
  for (const size_t param : order) {
    const tuttiDataType_t type = params[param].grad_type;
    Open& bucket = open.try_emplace(type, Open{{.type = type, .params = {}, .offsets = {}}, first_bytes}).first->second;
    append(&bucket.layout, param, params[param]);
    if (bytes_of(bucket.layout) < bucket.limit_bytes) continue;
    closed.push_back(std::move(bucket.layout));
    bucket = {{.type = type, .params = {}, .offsets = {}}, cap_bytes};
  }
  for (auto& [type, bucket] : open)
    if (!bucket.layout.params.empty()) closed.push_back(std::move(bucket.layout));
  return closed;
}

Status Buckets::build(const std::vector<Tensor>& params, std::vector<Layout> layouts) {
  std::vector<Bucket> fresh(layouts.size());
  std::vector<Place> places(params.size());
  for (size_t b = 0; b < fresh.size(); b++) {
    fresh[b].layout = std::move(layouts[b]);
    const Layout& layout = fresh[b].layout;
    if (Status s = fresh[b].memory.allocate(bytes_of(layout)); !s) return s;
    for (size_t i = 0; i < layout.params.size(); i++) {
      const size_t param = layout.params[i];
      places[param] = {b, fresh[b].memory.data() + layout.offsets[i] * element_bytes(layout.type)};
      const size_t bytes = params[param].grad_bytes();
      if (!places_.empty() && bytes > 0) memcpy(places[param].at, slot_of(param), bytes);
    }
  }
  buckets_ = std::move(fresh);
  places_ = std::move(places);
  return {};
}

size_t Buckets::bytes() const {
  size_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.memory.bytes();
  return sum;
}

}  // namespace tutti::ddp
