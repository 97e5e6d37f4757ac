// The buckets: which gradient lies where, and the memory they lie in.
#pragma once

#include <vector>

#include "memory.h"
#include "tensor.h"

namespace tutti::ddp {

// A bucket as a plan: it has no memory.
struct Layout {
  tuttiDataType_t type = tuttiFloat32;
  int device = TUTTI_DDP_HOST;
  std::vector<size_t> params;   // in the order in which they lie there
  std::vector<size_t> offsets;  // of each, in elements; a multiple of 64 bytes
  size_t count = 0;             // elements, padding included
};

// Fills buckets with gradients in the given order, each type and device its own; a bucket is closed when it has reached
// its size: `first_bytes` for the first of its kind, `cap_bytes` for the others. They come in the order in which they
// were closed.
std::vector<Layout> plan_buckets(const std::vector<Tensor>& params, const std::vector<size_t>& order,
                                 size_t first_bytes, size_t cap_bytes);

struct Bucket {
  Layout layout;
  Memory memory;
  Memory kept;  // gradients that a step does not use, in their places; empty until there are some
};

class Buckets {
 public:
  // Others with memory for these; gradients that lie in the present ones have their values there, too. May wait for the
  // devices.
  Status rebuilt(const Devices& devices, const std::vector<Tensor>& params, std::vector<Layout> layouts,
                 Buckets* out) const;

  size_t size() const { return buckets_.size(); }
  const Bucket& operator[](size_t i) const { return buckets_[i]; }
  size_t bucket_of(size_t param) const { return places_[param].bucket; }
  // Where the parameter's gradient lies in its bucket.
  char* slot_of(size_t param) const { return places_[param].at; }
  // Puts the gradient in a slot aside, and back.
  Status keep(Device& device, size_t param, size_t bytes);
  Status bring_back(Device& device, size_t param, size_t bytes) const;

  size_t bytes() const;
  size_t largest_bytes(int device) const;

 private:
  struct Place {
    size_t bucket = 0;
    char* at = nullptr;
  };

  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // of each parameter
};

}  // namespace tutti::ddp
