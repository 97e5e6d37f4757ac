// The host's memory: everything is done when a call returns.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "agree.h"
#include "device.h"
#include "floats.h"
#include "tensor.h"

namespace tutti::ddp {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A float whose exponent bits are all set is Inf or NaN.
template <class Bits>
uint64_t first_with_all(const Span& span, Bits exponent) {
  const auto* bits = static_cast<const Bits*>(span.at);
  for (size_t i = 0; i < span.count; i++)
    if ((bits[i] & exponent) == exponent) return i;
  return kNoIndex;
}

uint64_t first_non_finite(const Span& span) {
  switch (span.type) {
    case tuttiFloat64: return first_with_all<uint64_t>(span, 0x7ff0000000000000);
    case tuttiFloat16: return first_with_all<uint16_t>(span, 0x7c00);
    case tuttiBfloat16: return first_with_all<uint16_t>(span, 0x7f80);
    default: return first_with_all<uint32_t>(span, 0x7f800000);
  }
}

// The conversion functions are template arguments, so that the loops are inlined and vectorised.
template <uint16_t (*to_small)(float), float (*from_small)(uint16_t), class Wide>
void convert_between(Wide* wide, uint16_t* small, size_t count, bool narrows) {
  if (narrows)
    for (size_t i = 0; i < count; i++) small[i] = to_small(static_cast<float>(wide[i]));
  else
    for (size_t i = 0; i < count; i++) wide[i] = from_small(small[i]);
}

class HostDevice final : public Device {
 public:
  explicit HostDevice(tuttiComm_t comm) : Device(TUTTI_DDP_HOST, comm) {}

  tuttiStream_t stream(Queue) const override { return nullptr; }
  Status set_stream(tuttiStream_t) override { return {}; }

  Status allocate(void** at, size_t bytes) override { return library(tuttiMemAlloc(at, bytes)); }
  void free(void* at) override { static_cast<void>(tuttiMemFree(at)); }

  Status copy(void* to, const void* from, size_t bytes, Queue) override {
    memcpy(to, from, bytes);
    return {};
  }
  Status zero(void* at, size_t bytes) override {
    memset(at, 0, bytes);
    return {};
  }
  Status look(Look what, const std::vector<Span>& spans, Queue, uint64_t* found) override {
    for (const Span& span : spans)
      *found++ = what == Look::kNonFinite ? first_non_finite(span)
                                          : hash_bytes(span.at, span.count * element_bytes(span.type));
    return {};
  }
  Status convert(const Span& from, const Span& to) override {
    const bool narrows = element_bytes(to.type) == sizeof(uint16_t);
    const Span &wide = narrows ? from : to, &small = narrows ? to : from;
    const auto with = [&](auto* numbers) {
      auto* const bits = static_cast<uint16_t*>(small.at);
      if (small.type == tuttiFloat16)
        convert_between<to_float16, from_float16>(numbers, bits, from.count, narrows);
      else
        convert_between<to_bfloat16, from_bfloat16>(numbers, bits, from.count, narrows);
    };
    wide.type == tuttiFloat64 ? with(static_cast<double*>(wide.at)) : with(static_cast<float*>(wide.at));
    return {};
  }
  Status factor(FactorStep step, const std::vector<Factors>& matrices) override {
    for (const Factors& matrix : matrices) factor_on_host(step, matrix);
    return {};
  }

  Status begin_step(size_t) override {
    first_mark_ = called_ = 0;
    comm_seconds_ = 0;
    return {};
  }
  Status begin_backward() override {
    first_mark_ = now_seconds();
    return {};
  }
  Status mark_filled(size_t) override { return {}; }
  Status end_backward() override {
    called_ = now_seconds();
    return {};
  }
  Status begin_bucket(size_t) override {
    bucket_began_ = now_seconds();
    return {};
  }
  Status end_bucket(size_t) override {
    comm_seconds_ += now_seconds() - bucket_began_;
    return {};
  }
  Status end_step() override {
    const double backward = first_mark_ > 0 ? called_ - first_mark_ : 0;
    times_.add({backward, comm_seconds_, std::min(now_seconds() - called_, comm_seconds_)});
    return {};
  }

  Status synchronize() override { return {}; }
  Times times() override { return times_; }

 private:
  double first_mark_ = 0, called_ = 0, bucket_began_ = 0, comm_seconds_ = 0;
  Times times_;
};

}  // namespace

std::unique_ptr<Device> make_host_device(tuttiComm_t comm) {
  return std::make_unique<HostDevice>(comm);
}

}  // namespace tutti::ddp
