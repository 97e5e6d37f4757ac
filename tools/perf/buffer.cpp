#include "buffer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

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
  if (tutti_memory_) {
    // Nothing is left to do about a failure here, and the memory goes with the process.
    static_cast<void>(tuttiMemFree(base_));
  } else {
    free(base_);
  }
}

size_t Buffer::bytes_needed(size_t bytes) {
  const size_t whole = kGuardBytes + bytes + kGuardBytes;
  return (whole + kAlignment - 1) / kAlignment * kAlignment;
}

Status Buffer::allocate(size_t bytes, bool tutti_memory) {
  const size_t whole = bytes_needed(bytes);
  void* memory = nullptr;
  if (tutti_memory) {
    const tuttiResult_t result = tuttiMemAlloc(&memory, whole);
    if (result != tuttiSuccess) return library_error("tuttiMemAlloc", result, nullptr);
  } else {
    memory = std::aligned_alloc(kAlignment, whole);
  }
  if (memory == nullptr) {
    return Error{text("no memory for a buffer of %zu bytes (%s); make the largest size (-e) smaller", whole,
                      human_bytes(static_cast<double>(whole)).c_str())};
  }
  tutti_memory_ = tutti_memory;
  base_ = static_cast<char*>(memory);
  bytes_ = whole;
  move(0);
  memset(base_, 0, whole);
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
