// The buckets: which gradient lies where, and the memory they lie in.
#pragma once

#include <vector>

#include "device.h"
#include "replica.h"

namespace tutti::ddp {

struct Bucket {
  tuttiDataType_t type = tuttiFloat32;
  int device = TUTTI_DDP_HOST;
  std::vector<size_t> params;   // in the order in which their gradients lie there
  std::vector<size_t> offsets;  // of each gradient, in elements; multiples of 64 bytes
  size_t count = 0;             // elements, padding included
  Memory memory;
  Memory kept;  // saved gradients that a step does not use, at the same offsets; empty until needed

  size_t bytes() const { return count * element_bytes(type); }
  char* slot(size_t i) const { return memory.data() + offsets[i] * element_bytes(type); }
};

class Buckets {
 public:
  // Builds new buckets, *out, with gradients in the given order, each type and device in buckets of its own; a bucket
  // is closed when it has reached its size: config.firstBucketBytes for the first of its kind, bucketCapBytes for the
  // others. They are numbered in the order in which they were closed. Gradients that lie in the present buckets are
  // copied. Waits for the devices.
  Status rebuilt(const Replica& replica, const std::vector<size_t>& order, Buckets* out) const;

  size_t size() const { return buckets_.size(); }
  const Bucket& operator[](size_t i) const { return buckets_[i]; }
  size_t bucket_of(size_t param) const { return places_[param].bucket; }
  // Where the parameter's gradient lies in its bucket.
  char* slot_of(size_t param) const { return places_[param].at; }
  // Before averaging: a gradient outside the bucket is copied into its slot. The slot of one that is not used becomes
  // zero; if the gradient lies in the slot, it is saved first.
  Status fill(const Replica& replica, size_t param, bool is_used);
  // After averaging: copies the average to a gradient outside the bucket or, if no rank used it, restores a saved one.
  Status take_back(const Replica& replica, size_t param, bool is_used) const;

  size_t bytes() const;
  size_t largest_bytes(int device) const;

 private:
  struct Place {
    size_t bucket = 0;
    char* at = nullptr;
  };
  char* kept_of(size_t param) const;

  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter
};

}  // namespace tutti::ddp
