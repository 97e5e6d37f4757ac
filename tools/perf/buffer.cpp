#include "buffer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "device.h"

namespace tutti::perf {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr size_t kAlignment = 4096;
constexpr char kPoison = '\x5a';

size_t changed(const char* begin, const char* end) {
  return static_cast<size_t>(std::count_if(begin, end, [](char c) { return c != kPoison; }));
}

}  // namespace

Buffer::~Buffer() {
  device::release(device_);
  if (tutti_memory_) {
    // Nothing can be done about a failure here, and the process's end frees the memory.
    static_cast<void>(tuttiMemFree(base_));
  } else {
    free(base_);
  }
}

size_t Buffer::bytes_needed(size_t bytes) {
  const size_t whole = kGuardBytes + bytes + kGuardBytes;
  return (whole + kAlignment - 1) / kAlignment * kAlignment;
}

Status Buffer::allocate(size_t bytes, Memory kind) {
  const size_t whole = bytes_needed(bytes);
  void* memory = nullptr;
  if (kind == Memory::kDevice) {
    if (Status s = device::allocate(whole, &memory); !s) return s;
    device_ = static_cast<char*>(memory);
    memory = nullptr;
  }
  if (kind == Memory::kTutti) {
    const tuttiResult_t result = tuttiMemAlloc(&memory, whole);
    if (result != tuttiSuccess) return library_error("tuttiMemAlloc", result, nullptr);
  } else {
    memory = std::aligned_alloc(kAlignment, whole);
  }
  if (memory == nullptr) {
    return Error{text("no memory for a buffer of %zu bytes (%s); make the largest size (-e) smaller", whole,
                      human_bytes(static_cast<double>(whole)).c_str())};
  }
  tutti_memory_ = kind == Memory::kTutti;
  base_ = static_cast<char*>(memory);
  bytes_ = whole;
  move(0);
  memset(base_, 0, whole);
  return device_ == nullptr ? Status() : device::clear(device_, whole);
}

Status Buffer::upload(size_t used_bytes) const {
  if (device_ == nullptr) return {};
  return device::copy(operand() - kGuardBytes, data_ - kGuardBytes, kGuardBytes + used_bytes + kGuardBytes);
}

Status Buffer::download(size_t used_bytes) const {
  if (device_ == nullptr) return {};
  return device::copy(data_ - kGuardBytes, operand() - kGuardBytes, kGuardBytes + used_bytes + kGuardBytes);
}

Status Buffer::clear(size_t used_bytes) const {
  if (device_ != nullptr) return device::clear(operand(), used_bytes);
  memset(data_, 0, used_bytes);
  return {};
}

void Buffer::move(size_t shift_bytes) {
  data_ = base_ + kGuardBytes + shift_bytes;
}

void Buffer::poison(size_t used_bytes) {
  memset(data_ - kGuardBytes, kPoison, kGuardBytes + used_bytes + kGuardBytes);
}

size_t Buffer::count_overwritten(size_t used_bytes) const {
  const char* end = data_ + used_bytes;
  return changed(data_ - kGuardBytes, data_) + changed(end, end + kGuardBytes);
}

size_t Buffer::count_changed(size_t begin, size_t end) const {
  return changed(data_ + begin, data_ + end);
}

}  // namespace tutti::perf
