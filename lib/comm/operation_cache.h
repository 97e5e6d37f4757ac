// This header: what was worked out for operations that may come again, as in loops. Of the thread of the operations.
#pragma once

#include <array>

#include "exec/buffers.h"
#include "exec/operation.h"
#include "exec/run.h"

namespace tutti {

struct alignas(64) CachedOperation {
  CallKey key;
  bool repeats = false;  // one is here, for others like it
  Program* program = nullptr;
  Call call;
  TagWords recorded;  // the call
  Buffers buffers;
  SmallRun small;
  bool is_for(const CallKey& other) const { return repeats && key == other; }
};

// Each operation has one place where it may be.
class OperationCache {
 public:
  CachedOperation& place_of(const CallKey& key) { return places_[key.hash() % places_.size()]; }
  void clear() {
    for (CachedOperation& place : places_) place.repeats = false;
  }

 private:
  std::array<CachedOperation, 64> places_;
};

}  // namespace tutti
