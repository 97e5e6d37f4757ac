#include "transports/verbs/user_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/log.h"

namespace tutti::verbs {
namespace {

// What a shorter struct does not have is NULL.
tuttiEndpointConfig whole(const tuttiEndpointConfig& config) {
  tuttiEndpointConfig all{};
  memcpy(&all, &config, std::min<size_t>(config.struct_bytes, sizeof all));
  return all;
}

}  // namespace

UserMemory::UserMemory(const tuttiEndpointConfig& config, const Ports& ports, uint64_t most_bytes)
    : config_(whole(config)), ports_(ports), most_bytes_(most_bytes) {}

std::shared_ptr<const Pinned> UserMemory::find(const void* data, size_t bytes) {
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
      auto pinned = size > most_bytes_ ? Error{Code::kSystemError, "more than TUTTI_IB_PIN_BYTES"}
                                       : Pinned::around(ports_, reinterpret_cast<void*>(found.begin), size);
      if (pinned) {
        found.pinned = std::make_shared<const Pinned>(std::move(pinned).value());
        bytes_ += size;
      } else {
        log(LogLevel::kWarn, "messages from and to %llu registered bytes will be copied: %s",
            static_cast<unsigned long long>(size), pinned.error().message.c_str());
      }
      known = entries_.emplace(number, std::move(found)).first;
    }
    last_ = &known->second;
  }
  last_->last_use = ++uses_;
  return last_->pinned;
}

void UserMemory::forget_removed() {
  last_ = nullptr;
  std::erase_if(entries_, [&](const auto& entry) {
    const bool gone = config_.memory_is_live(entry.first) == 0;
    if (gone && entry.second.pinned) bytes_ -= entry.second.end - entry.second.begin;
    return gone;
  });
}

// What has not been used for the longest goes first.
void UserMemory::make_room(uint64_t bytes) {
  last_ = nullptr;
  while (bytes_ + bytes > most_bytes_ && bytes <= most_bytes_ && bytes_ > 0) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      const auto age = [](const Entry& e) { return e.pinned ? e.last_use : UINT64_MAX; };
      return age(a.second) < age(b.second);
    });
    bytes_ -= oldest->second.end - oldest->second.begin;
    entries_.erase(oldest);
  }
}

}  // namespace tutti::verbs
