#include "transports/verbs/user_memory.h"

#include <algorithm>
#include <cstddef>

#include "base/fd.h"
#include "base/log.h"

namespace tutti::verbs {

std::shared_ptr<const Pinned> UserMemory::find(const void* data, size_t bytes) {
  const Entry* entry = look_up(data, bytes);
  return entry == nullptr ? nullptr : entry->pinned;
}

Result<void> UserMemory::check(const void* data, size_t bytes) {
  const Entry* entry = look_up(data, bytes);
  if (entry != nullptr && entry->pinned) return {};
  return Error{Code::kSystemError, entry == nullptr ? "this memory is not registered" : entry->why_not};
}

UserMemory::Entry* UserMemory::look_up(const void* data, size_t bytes) {
  if (config_.memory_find == nullptr) return nullptr;
  if (const uint64_t removals = config_.memory_removals(); removals != removals_seen_) {
    removals_seen_ = removals;
    forget_removed();
  }
  const auto at = reinterpret_cast<uintptr_t>(data);
  if (last_ == nullptr || at < last_->begin || at + bytes > last_->end) {
    Entry found;
    const uint64_t number = config_.memory_find(data, bytes, &found.begin, &found.end);
    if (number == 0) return nullptr;
    auto known = entries_.find(number);
    if (known == entries_.end()) {
      const uint64_t size = found.end - found.begin;
      make_room(size);
      auto pinned = pin(number, found);
      if (pinned) {
        found.pinned = std::make_shared<const Pinned>(std::move(pinned).value());
        bytes_ += size;
      } else {
        found.why_not = pinned.error().message;
        log(LogLevel::kWarn, "messages are not read from or written to %lu registered bytes directly: %s", size,
            pinned.error().message.c_str());
      }
      known = entries_.emplace(number, std::move(found)).first;
    }
    last_ = &known->second;
  }
  last_->last_use = ++uses_;
  return last_;
}

Result<Pinned> UserMemory::pin(uint64_t number, const Entry& entry) const {
  const uint64_t size = entry.end - entry.begin;
  if (size > most_bytes_) return Error{Code::kSystemError, format("%lu bytes exceed TUTTI_IB_PIN_BYTES", size)};
  auto* const memory = reinterpret_cast<void*>(entry.begin);
  uint64_t offset = 0;
  const Fd dmabuf(config_.memory_dmabuf == nullptr ? -1 : config_.memory_dmabuf(number, &offset));
  return dmabuf ? Pinned::of_device(ports_, memory, size, dmabuf.get(), offset) : Pinned::around(ports_, memory, size);
}

void UserMemory::forget_removed() {
  last_ = nullptr;
  std::erase_if(entries_, [&](const auto& entry) {
    const bool gone = config_.memory_is_live(entry.first) == 0;
    if (gone && entry.second.pinned) bytes_ -= entry.second.end - entry.second.begin;
    return gone;
  });
}

// Evicts the least recently used first.
void UserMemory::make_room(uint64_t bytes) {
  last_ = nullptr;
  while (bytes_ + bytes > most_bytes_ && bytes <= most_bytes_ && bytes_ > 0) {
    const auto oldest = std::ranges::min_element(
        entries_, {}, [](const auto& entry) { return entry.second.pinned ? entry.second.last_use : UINT64_MAX; });
    bytes_ -= oldest->second.end - oldest->second.begin;
    entries_.erase(oldest);
  }
}

}  // namespace tutti::verbs
