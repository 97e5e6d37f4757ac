#include "hook_stream.h"

namespace tutti::ddp {

HookStream::HookStream(const Replica& replica, const Buckets& buckets, Checks& checks, Outcome& outcome)
    : replica_(replica),
      buckets_(buckets),
      checks_(checks),
      outcome_(outcome),
      hook_(make_hook(replica.config, replica.params)) {}

HookStream::~HookStream() {
  if (stream_ != nullptr) static_cast<void>(tuttiStreamDestroy(stream_));
  static_cast<void>(replica_.synchronize());
}

Status HookStream::prepare() {
  for (Device* device : replica_.devices())
    if (Status s = hook_->prepare(*device, buckets_.largest_bytes(device->number())); !s) return s;
  return stream_ == nullptr ? library(tuttiStreamCreate(&stream_)) : Status();
}

void HookStream::launch_full(const Marks& marks) {
  const auto run = [](tuttiStream_t, tuttiResult_t, void* self) { static_cast<HookStream*>(self)->run_next(); };
  for (; launched_ < buckets_.size() && marks.is_full(launched_); launched_++) {
    const Status queued = library(tuttiStreamAddCallback(stream_, run, this));
    if (queued) continue;
    outcome_.note(queued);
    outcome_.note(library(tuttiStreamSynchronize(stream_)));
    run_next();  // here, because the other ranks need this rank's part
  }
}

void HookStream::run_next() {
  const size_t index = running_++;
  const Bucket& bucket = buckets_[index];
  Device& device = replica_.device(bucket.device);
  const tuttiDdpBucket_t view = {.index = index,
                                 .nbuckets = buckets_.size(),
                                 .data = bucket.memory.data(),
                                 .count = bucket.count,
                                 .datatype = bucket.type,
                                 .nparams = bucket.params.size(),
                                 .params = bucket.params.data(),
                                 .offsets = bucket.offsets.data()};
  outcome_.note(device.begin_bucket(index));
  outcome_.note(checks_.look(bucket, device));
  // Even after an error, because the other ranks need this rank's part of the bucket.
  outcome_.note(hook_->run(view, device, &reduced_bytes_));
  outcome_.note(device.end_bucket(index));
}

}  // namespace tutti::ddp
